//! The vector unit of the machine, chosen at run time.

use pulp::{Simd, WithSimd};

/// Runs `op` with the widest vectors that this machine has.
pub(super) fn dispatch<Op: WithSimd>(op: Op) -> Op::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(simd) = pulp::x86::V4::try_new() {
            return Simd::vectorize(simd, op);
        }
        if let Some(simd) = pulp::x86::V3::try_new() {
            return Simd::vectorize(simd, op);
        }
    }
    #[cfg(target_arch = "aarch64")]
    if let Some(simd) = pulp::aarch64::Neon::try_new() {
        return Simd::vectorize(simd, op);
    }
    Simd::vectorize(pulp::Scalar::new(), op)
}
