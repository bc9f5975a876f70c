//! Number of processors.

use std::num::NonZero;

/// Processors that this process may use, as far as it may ask: its set of processors, and a quota of processor
/// time (cgroup), which counts as fewer. 1 if neither can be read.
///
/// System calls: `sched_getaffinity`, and reads of `/proc/self/cgroup` and `cpu.max`.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}
