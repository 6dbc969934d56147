//! How much memory attention takes.

use std::time::Instant;

use burn::tensor::Device;

use super::modules::{causal, heads};
use super::task::finish;
use crate::attention::AttentionKernel;

/// Tokens of the sequence.
const LEN: usize = 8192;

/// Shape of the queries, time, and growth of memory beyond the inputs, of one causal attention over a long sequence: of what
/// the device has reserved where it says so, otherwise of what the process holds at its peak.
pub(super) fn of_attention(device: &Device) -> Result<(Vec<usize>, f64, u64), String> {
    // Threads and their stacks are made by a first call, and are not part of what is measured.
    finish(device, causal(&heads(64, device), AttentionKernel::Auto));
    let inputs = heads(LEN, device);
    device.sync().map_err(|error| error.to_string())?;
    // Pages stay reserved when they are free again, so that what is reserved afterwards was the peak.
    let reserved = || device.memory_pool_usage().map(|usage| usage.bytes_reserved);
    let before = match reserved() {
        Some(bytes) => bytes,
        None => {
            // Sets the peak back to what is resident now.
            std::fs::write("/proc/self/clear_refs", "5").map_err(|error| format!("/proc/self/clear_refs: {error}"))?;
            status_kib("VmRSS")? * 1024
        }
    };
    let start = Instant::now();
    finish(device, causal(&inputs, AttentionKernel::Auto));
    let seconds = start.elapsed().as_secs_f64();
    let peak = reserved().map_or_else(|| status_kib("VmHWM").map(|kib| kib * 1024), Ok)?;
    Ok((inputs[0].dims().to_vec(), seconds, peak.saturating_sub(before)))
}

/// A number of `/proc/self/status`, which is there on Linux.
fn status_kib(key: &str) -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/self/status").map_err(|error| format!("/proc/self/status: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| format!("/proc/self/status has no {key}"))
}
