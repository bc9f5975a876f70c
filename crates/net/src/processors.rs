//! Number of processors, on which the number of threads and the default of busy polling depend. It is read
//! from the kernel and from control groups, which a confined engine cannot: its settings have it.

use std::num::NonZero;

/// Processors that this process may use: its set of them, and a quota of processor time (cgroup), which
/// counts as fewer. 1 if neither can be read.
///
/// System calls: `sched_getaffinity`, and reads of `/proc/self/cgroup` and `cpu.max`.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}
