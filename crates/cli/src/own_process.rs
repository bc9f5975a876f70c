//! Properties of this process as the kernel reports them, for the status and the metrics: processor time,
//! memory, descriptors, threads, start.
//!
//! /proc/self and getrusage's clock are read at each request. A figure that cannot be read is zero: an
//! incomplete /proc is no reason to refuse the rest.

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Fields of /proc/self/stat by their numbers in proc_pid_stat(5). The first behind the name, which stands in
/// parentheses and may hold anything, is the third.
const FIELD_FIRST: usize = 3;
const FIELD_USER_TIME: usize = 14;
const FIELD_SYSTEM_TIME: usize = 15;
const FIELD_START_TIME: usize = 22;

/// Processor time and memory of this process, at the price of two small files: a live view asks every second.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Processor time in user mode and in the kernel, microseconds, precise to a tick of 10 ms.
    pub(crate) cpu_user_us: u64,
    pub(crate) cpu_system_us: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) virtual_bytes: u64,
    /// Start, in microseconds since the boot.
    pub(crate) start_since_boot_us: u64,
}

/// All properties of this process. Descriptors are counted one by one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OwnProcess {
    pub(crate) usage: Usage,
    /// Processor time in user mode and in the kernel, seconds, to the nanosecond.
    pub(crate) cpu_seconds: f64,
    /// Start, in seconds since 1970.
    pub(crate) start_seconds: f64,
    pub(crate) open_fds: u64,
    pub(crate) max_fds: u64,
    pub(crate) threads: u64,
}

impl Usage {
    /// Reads them.
    pub(crate) fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let tick_us = 1_000_000 / rustix::param::clock_ticks_per_second().max(1);
        let pages = |index: usize| number(statm.split_whitespace().nth(index));
        let page_bytes = rustix::param::page_size() as u64;
        Self {
            cpu_user_us: field(&stat, FIELD_USER_TIME) * tick_us,
            cpu_system_us: field(&stat, FIELD_SYSTEM_TIME) * tick_us,
            resident_bytes: pages(1) * page_bytes,
            virtual_bytes: pages(0) * page_bytes,
            start_since_boot_us: field(&stat, FIELD_START_TIME) * tick_us,
        }
    }
}

impl OwnProcess {
    /// Reads them all.
    pub(crate) fn read() -> Self {
        let usage = Usage::read();
        let entries = |path: &str| fs::read_dir(path).map_or(0, |entries| entries.count() as u64);
        Self {
            usage,
            cpu_seconds: seconds(ClockId::ProcessCPUTime),
            start_seconds: start_seconds(usage.start_since_boot_us),
            // Less the descriptor of the directory being read.
            open_fds: entries("/proc/self/fd").saturating_sub(1),
            max_fds: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            threads: entries("/proc/self/task"),
        }
    }
}

fn number(word: Option<&str>) -> u64 {
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// A field of /proc/self/stat by its number in proc_pid_stat(5).
fn field(stat: &str, field: usize) -> u64 {
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    number(behind_name.split_whitespace().nth(field - FIELD_FIRST))
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The start in seconds since 1970, from microseconds since the boot: now, less the age.
fn start_seconds(since_boot_us: u64) -> f64 {
    let age = seconds(ClockId::Boottime) - since_boot_us as f64 / 1e6;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if since_boot_us == 0 { 0.0 } else { now.as_secs_f64() - age }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_skipped() {
        let words: Vec<String> = (FIELD_FIRST..30).map(|field| field.to_string()).collect();
        let stat = format!("12 (a) b (c) {}", words.join(" "));
        assert_eq!(field(&stat, FIELD_USER_TIME), 14);
        assert_eq!(field(&stat, FIELD_START_TIME), 22);
        assert_eq!(field("", FIELD_START_TIME), 0);
    }

    #[test]
    fn this_process_has_properties() {
        let own = OwnProcess::read();
        assert!(own.cpu_seconds > 0.0 && own.start_seconds > 1e9, "{own:?}");
        let Usage { resident_bytes, virtual_bytes, .. } = own.usage;
        assert!(resident_bytes > 1 << 20 && virtual_bytes >= resident_bytes, "{own:?}");
        assert!(own.open_fds >= 3 && own.max_fds >= own.open_fds && own.threads >= 1, "{own:?}");
    }
}
