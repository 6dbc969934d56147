//! Turning the kernels off, for comparison.

use std::sync::OnceLock;

/// The environment variable that turns kernels off where it says `composed`. It is read once.
const VARIABLE: &str = "BURNFORMER_KERNEL";

/// Whether kernels of our own are used.
pub(crate) fn is_on() -> bool {
    static IS_ON: OnceLock<bool> = OnceLock::new();
    *IS_ON.get_or_init(|| std::env::var_os(VARIABLE).is_none_or(|value| value != "composed"))
}
