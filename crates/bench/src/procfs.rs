//! Kernel facts about processes and their namespaces, read from `/proc`.
//!
//! A process may end at any moment, so everything here answers `None`, zero or nothing for one that is gone.

use std::fs;
use std::path::{Path, PathBuf};

/// Process time of all threads of a process, user and system, in milliseconds.
///
/// Processor time from the scheduler's own account (`schedstat`, nanoseconds) rather than `stat`, whose ticks
/// of 10 ms are coarse for runs of a second or two.
pub fn cpu_ms(pid: u32) -> f64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    let thread_ns = |path: PathBuf| -> Option<u64> {
        fs::read_to_string(path.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
    };
    threads.flatten().filter_map(|thread| thread_ns(thread.path())).sum::<u64>() as f64 / 1e6
}

/// Time of all processors since the machine's start, in clock ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessorTicks {
    /// Idle or not.
    pub all: u64,
    /// Taken by the host of a virtual machine while something was ready to run here.
    pub stolen: u64,
}

impl ProcessorTicks {
    /// Share of the time since `earlier` that was stolen, 0 to 1.
    pub fn stolen_since(self, earlier: Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all).max(1);
        self.stolen.saturating_sub(earlier.stolen) as f64 / all as f64
    }
}

/// Time of all processors so far (`/proc/stat`).
pub fn processor_ticks() -> ProcessorTicks {
    processor_ticks_of(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Eight kinds of time in the first line, of which the last is steal; those behind are part of the others.
fn processor_ticks_of(stat: &str) -> ProcessorTicks {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|ticks| ticks.parse().ok()).collect();
    ProcessorTicks { all: ticks.iter().sum(), stolen: ticks.get(7).copied().unwrap_or_default() }
}

/// Resident memory of processes that are one program, in KiB: pages in use, shared ones counted in full, but
/// pages of files, which all of them map, only for the process with most.
pub fn rss_kib(pids: &[u32]) -> u64 {
    let field = |pid: &u32, name| field_kib(&format!("/proc/{pid}/status"), name);
    let of_files = pids.iter().map(|pid| field(pid, "RssFile:"));
    let others = pids.iter().map(|pid| field(pid, "VmRSS:").saturating_sub(field(pid, "RssFile:")));
    others.sum::<u64>() + of_files.max().unwrap_or_default()
}

/// Resident memory in KiB, shared pages divided among the processes that share them.
pub fn pss_kib(pid: u32) -> u64 {
    field_kib(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// Resident memory in KiB that no file backs, shared pages divided among the processes that share them.
/// Unlike [`pss_kib`] it is independent of other programs: each start or end of a process with the same
/// executable or libraries changes the share of their pages.
pub fn anonymous_kib(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/smaps_rollup");
    field_kib(&path, "Pss_Anon:") + field_kib(&path, "Pss_Shmem:")
}

fn field_kib(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Open file descriptors.
pub fn fd_count(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Number of threads.
pub fn thread_count(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// Counters of an interface.
#[derive(Debug, Clone, Copy, Default)]
pub struct Interface {
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that were not sent: drops of a full TAP queue are among them.
    pub tx_dropped: u64,
}

/// The counters of an interface in the process's network namespace, from `/proc/PID/net/dev`.
pub fn interface(pid: u32, name: &str) -> Interface {
    let text = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    let numbers: Vec<u64> =
        line.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let column = |i: usize| numbers.get(i).copied().unwrap_or(0);
    // Eight columns received, then bytes, packets, errors and drops sent.
    Interface { rx_bytes: column(0), tx_bytes: column(8), tx_dropped: column(11) }
}

/// Whether the process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

/// Name of a process, or nothing if there is none.
pub fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Children, grandchildren and so on, parents first.
pub fn descendants(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = all_pids().filter_map(|pid| Some((pid, stat(pid)?.1))).collect();
    let mut family = vec![pid];
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        family.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(child, _)| *child));
        next += 1;
    }
    family.remove(0);
    family
}

/// The first process whose arguments are exactly these.
pub fn pid_of(arguments: &[&str]) -> Option<u32> {
    all_pids().find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.strip_suffix(b"\0")
            .is_some_and(|line| line.split(|byte| *byte == 0).eq(arguments.iter().map(|a| a.as_bytes())))
    })
}

/// All processes whose environment has this variable with this value.
pub fn pids_with_variable(name: &str, value: &str) -> Vec<u32> {
    let wanted = format!("{name}={value}");
    all_pids()
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        })
        .collect()
}

/// All processes that run a program in this folder.
pub fn pids_of_programs_in(folder: &Path) -> Vec<u32> {
    all_pids().filter(|pid| program(*pid).is_some_and(|program| program.starts_with(folder))).collect()
}

/// The program a process runs, resolved.
pub fn program(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// A counter of the process's network namespace, from `/proc/PID/net/snmp` or `netstat`: ("Tcp",
/// "RetransSegs").
pub fn net_counter(pid: u32, group: &str, name: &str) -> u64 {
    ["snmp", "netstat"]
        .iter()
        .find_map(|file| {
            let text = fs::read_to_string(format!("/proc/{pid}/net/{file}")).ok()?;
            let mut rows = text.lines().filter(|line| line.split(':').next() == Some(group));
            let column = rows.next()?.split_whitespace().position(|word| word == name)?;
            rows.next()?.split_whitespace().nth(column)?.parse().ok()
        })
        .unwrap_or(0)
}

/// Whether the process's network namespace has a default route over IPv4.
pub fn has_default_route(pid: u32) -> bool {
    let routes = fs::read_to_string(format!("/proc/{pid}/net/route")).unwrap_or_default();
    routes.lines().skip(1).any(|line| line.split_whitespace().nth(1) == Some("00000000"))
}

/// Whether a TCP socket listens on `port` in the namespace that the process has entered.
pub fn is_listening(pid: u32, port: u16) -> bool {
    has_entered(pid) && has_socket(pid, ["tcp", "tcp6"], "0A", port)
}

/// Whether an unconnected UDP socket is bound to `port` in the namespace that the process has entered.
pub fn is_bound(pid: u32, port: u16) -> bool {
    has_entered(pid) && has_socket(pid, ["udp", "udp6"], "07", port)
}

/// Whether the process is in another network namespace than this one: before that, sockets of the machine's
/// own programs would be taken for its sockets.
fn has_entered(pid: u32) -> bool {
    let [own, entered] =
        [std::process::id(), pid].map(|pid| fs::read_link(format!("/proc/{pid}/ns/net")).ok());
    entered.is_some() && entered != own
}

/// Whether a socket in this state, as /proc has it, has this local port.
fn has_socket(pid: u32, files: [&str; 2], state: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    files.iter().any(|file| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace();
            let local = words.nth(1).is_some_and(|address| address.ends_with(&suffix));
            local && words.nth(1) == Some(state)
        })
    })
}

fn all_pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// State and parent of a process.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything.
    let mut words = text[text.rfind(')')? + 1..].split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    //! Times of the processors.

    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all_time() {
        let [before, after] =
            ["cpu  10 0 5 80 0 0 0 5 7 0\ncpu0 1 1", "cpu  40 0 5 90 0 0 0 15 9 0\n"].map(processor_ticks_of);
        assert_eq!(before, ProcessorTicks { all: 100, stolen: 5 });
        assert!((after.stolen_since(before) - 0.2).abs() < 1e-9);
        assert!(before.stolen_since(before).abs() < 1e-9);
        assert_eq!(processor_ticks_of(""), ProcessorTicks::default());
    }
}
