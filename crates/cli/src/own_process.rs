//! Properties of brodo's processes as the kernel reports them, for the status and the metrics: processor
//! time, memory, descriptors, threads, start.
//!
//! brodo is several processes: the warden, the keeper and its child, the engine. Figures are the sums of all
//! three; processor time includes that of processes which they have waited for, such as engines that have
//! crashed, so that it never falls. An engine that ends together with its keeper is waited for by no process,
//! because the kernel reaps the processes of a PID namespace whose number 1 ends: its time is added to a sum
//! before ([`CpuTime`]). Pages of files, which they share, count once. /proc is read at
//! each request. A figure that cannot be read is zero: an incomplete /proc is no reason to refuse the rest.

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Fields of /proc/self/stat by their numbers in proc_pid_stat(5). The first behind the name, which stands in
/// parentheses and may hold anything, is the third.
const FIELD_FIRST: usize = 3;
const FIELD_USER_TIME: usize = 14;
const FIELD_SYSTEM_TIME: usize = 15;
const FIELD_CHILDREN_USER_TIME: usize = 16;
const FIELD_CHILDREN_SYSTEM_TIME: usize = 17;
const FIELD_START_TIME: usize = 22;

/// Processor time, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CpuTime {
    user_us: u64,
    system_us: u64,
}

impl CpuTime {
    /// That of a keeper and its engine.
    pub(crate) fn of_engine(keeper: i32) -> Self {
        let used = folders(keeper).into_iter().skip(1).map(|folder| Usage::read(&folder));
        used.fold(Self::default(), |sum, Usage { cpu_user_us, cpu_system_us, .. }| {
            sum.and(Self { user_us: cpu_user_us, system_us: cpu_system_us })
        })
    }

    /// That of children which this process has waited for.
    pub(crate) fn of_children() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let time_us = |number| field(&stat, number) * tick_us();
        Self { user_us: time_us(FIELD_CHILDREN_USER_TIME), system_us: time_us(FIELD_CHILDREN_SYSTEM_TIME) }
    }

    pub(crate) fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// The sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        let user_us = self.user_us.saturating_add(other.user_us);
        Self { user_us, system_us: self.system_us.saturating_add(other.system_us) }
    }

    /// The difference, zero at least.
    pub(crate) fn less(self, other: Self) -> Self {
        let user_us = self.user_us.saturating_sub(other.user_us);
        Self { user_us, system_us: self.system_us.saturating_sub(other.system_us) }
    }
}

/// Processor time and memory, at the price of two small files for each process: a live view asks every
/// second.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Processor time in user mode and in the kernel, microseconds, precise to a tick of 10 ms.
    pub(crate) cpu_user_us: u64,
    pub(crate) cpu_system_us: u64,
    pub(crate) resident_bytes: u64,
    /// Resident pages of files, among the above.
    pub(crate) file_bytes: u64,
    pub(crate) virtual_bytes: u64,
    /// Start, in microseconds since the boot; the earliest of several processes.
    pub(crate) start_since_boot_us: u64,
}

/// All properties. Descriptors are counted one by one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Properties {
    pub(crate) usage: Usage,
    /// Start, in seconds since 1970.
    pub(crate) start_seconds: f64,
    pub(crate) open_fds: u64,
    pub(crate) max_fds: u64,
    pub(crate) threads: u64,
}

/// Folders of /proc of this process, a keeper, and the engine that it has now.
fn folders(keeper: i32) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
    let children = children.unwrap_or_default();
    let engine = children.split_whitespace().map(|pid| format!("/proc/{pid}"));
    let first = ["/proc/self".to_owned(), format!("/proc/{keeper}")];
    first.into_iter().chain(engine).collect()
}

/// The processes of this brodo.
#[derive(Debug)]
pub(crate) struct Processes {
    folders: Vec<String>,
    usage: Usage,
}

impl Processes {
    /// This process, the keeper and the engine that runs now, after others that have used `past`, for which
    /// no process has waited.
    pub(crate) fn of(keeper: i32, past: CpuTime) -> Self {
        let folders = folders(keeper);
        let read = folders.iter().map(|folder| Usage::read(folder));
        let mut usage = read.reduce(Usage::and).unwrap_or_default();
        usage.cpu_user_us += past.user_us;
        usage.cpu_system_us += past.system_us;
        Self { folders, usage }
    }

    /// Processor time and memory.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// All properties.
    pub(crate) fn properties(&self) -> Properties {
        let usage = self.usage;
        let entries = |folder: &String, what| count(&format!("{folder}/{what}"));
        let sum = |what| self.folders.iter().map(|folder| entries(folder, what)).sum();
        // Keeper and engine have one table of descriptors, and it is the engine's that may run out.
        let fds = self.folders.iter().take(2).map(|folder| entries(folder, "fd")).sum();
        Properties {
            usage,
            start_seconds: start_seconds(usage.start_since_boot_us),
            open_fds: fds,
            max_fds: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
            threads: sum("task"),
        }
    }
}

/// Entries of a folder. The descriptors of another process can be counted by their folder's size alone, since
/// Linux 6.2: it may not be listed.
fn count(folder: &str) -> u64 {
    match fs::read_dir(folder) {
        Ok(entries) => entries.count() as u64,
        Err(_) => fs::metadata(folder).map_or(0, |folder| folder.len()),
    }
}

impl Usage {
    /// Reads those of one process.
    fn read(folder: &str) -> Self {
        let stat = fs::read_to_string(format!("{folder}/stat")).unwrap_or_default();
        let statm = fs::read_to_string(format!("{folder}/statm")).unwrap_or_default();
        let tick_us = tick_us();
        let pages = |index: usize| number(statm.split_whitespace().nth(index));
        let page_bytes = rustix::param::page_size() as u64;
        Self {
            cpu_user_us: times(&stat, [FIELD_USER_TIME, FIELD_CHILDREN_USER_TIME]) * tick_us,
            cpu_system_us: times(&stat, [FIELD_SYSTEM_TIME, FIELD_CHILDREN_SYSTEM_TIME]) * tick_us,
            resident_bytes: pages(1) * page_bytes,
            file_bytes: pages(2) * page_bytes,
            virtual_bytes: pages(0) * page_bytes,
            start_since_boot_us: field(&stat, FIELD_START_TIME) * tick_us,
        }
    }

    /// These and those of a later process.
    fn and(self, other: Self) -> Self {
        let first = self.start_since_boot_us;
        Self {
            cpu_user_us: self.cpu_user_us + other.cpu_user_us,
            cpu_system_us: self.cpu_system_us + other.cpu_system_us,
            resident_bytes: self.resident_bytes + other.resident_bytes.saturating_sub(other.file_bytes),
            file_bytes: self.file_bytes.max(other.file_bytes),
            virtual_bytes: self.virtual_bytes + other.virtual_bytes,
            start_since_boot_us: if first == 0 { other.start_since_boot_us } else { first },
        }
    }

    /// Processor time in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        (self.cpu_user_us + self.cpu_system_us) as f64 / 1e6
    }
}

/// Length of a tick, the unit of times in /proc.
fn tick_us() -> u64 {
    1_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

fn number(word: Option<&str>) -> u64 {
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// A field of /proc/self/stat by its number in proc_pid_stat(5).
fn field(stat: &str, field: usize) -> u64 {
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    number(behind_name.split_whitespace().nth(field - FIELD_FIRST))
}

/// Sum of two fields.
fn times(stat: &str, fields: [usize; 2]) -> u64 {
    fields.into_iter().map(|number| field(stat, number)).fold(0, u64::saturating_add)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Start in seconds since 1970, from microseconds since the boot: now, less the age.
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
    fn processor_time_of_a_child_that_has_ended_stays() {
        let before = Usage::read("/proc/self");
        let work = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", work]).status().expect("sh").success());
        let stat = fs::read_to_string("/proc/self/stat").expect("of this process");
        let own = field(&stat, FIELD_USER_TIME);
        let children = times(&stat, [FIELD_USER_TIME, FIELD_CHILDREN_USER_TIME]) - own;
        let after = Usage::read("/proc/self");
        let tick_us = 1_000_000 / rustix::param::clock_ticks_per_second();
        assert!(children > 0 && after.cpu_user_us >= (own + children) * tick_us, "{before:?} {after:?}");
    }

    #[test]
    fn processes_have_properties_and_their_sums() {
        let own = i32::try_from(std::process::id()).expect("a process id");
        let properties = Processes::of(own, CpuTime::default()).properties();
        assert!(properties.start_seconds > 1e9, "{properties:?}");
        let Usage { resident_bytes, virtual_bytes, .. } = properties.usage;
        assert!(resident_bytes > 2 << 20 && virtual_bytes >= resident_bytes, "{properties:?}");
        assert!(properties.open_fds >= 6 && properties.threads >= 2, "{properties:?}");
        let once = Usage::read("/proc/self");
        assert!(properties.usage.virtual_bytes >= 2 * (once.virtual_bytes - (1 << 26)), "twice this process");
        assert_eq!(Usage::read("/proc/0").resident_bytes, 0);
        let past = CpuTime { user_us: 1 << 40, system_us: 1 << 41 };
        let usage = Processes::of(own, past).usage();
        assert!(usage.cpu_user_us >= 1 << 40 && usage.cpu_system_us >= 1 << 41, "{usage:?}");
    }
}
