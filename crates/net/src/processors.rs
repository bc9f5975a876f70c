//! Number of processors, of which the number of threads and the default of busy polling depend. It is read
//! from the kernel and the control groups, so a confined engine cannot ask: its warden says.

use std::num::NonZero;

/// Processors that this process may use: its set of them, and a quota of processor time (cgroup), which
/// counts as fewer. 1 if neither can be read.
///
/// System calls: `sched_getaffinity`, and reads of `/proc/self/cgroup` and `cpu.max`.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}
