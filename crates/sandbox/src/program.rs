//! The program's own file in memory: code and constants.
//!
//! Start-up reads options, sets networks up and starts processes, and touches most of the program; the kernel
//! maps 16 pages around each that is touched. A process that serves needs a tenth of it. So each gives up all
//! of these pages when it begins to serve, and has those that it uses mapped again, from the kernel's cache.
//!
//! *Tracers.* A breakpoint that a tracer has set by the program's path (a uprobe, the probes of bpftrace and
//! perf) is in a changed copy of its page, which would be lost. A program that has such copies at the start
//! keeps its pages. A tracer that comes later finds the pages that are mapped, and the kernel sets its
//! breakpoints in the others as they are mapped.

use crate::raw;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// Whether no page is a changed copy. Looked for once, before there is a process that cannot see /proc.
static IS_UNCHANGED: OnceLock<bool> = OnceLock::new();

/// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst): the page is mapped, in
/// swap space, of a file.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// Gives up the pages of the program's code and constants until they are used again, unless a tracer has
/// breakpoints in them.
pub fn release_program_pages() {
    if is_unchanged() {
        raw::release_segments(|_| true);
    }
}

/// Whether no page is a changed copy. A process that cannot tell takes it that one is.
pub(crate) fn is_unchanged() -> bool {
    *IS_UNCHANGED.get_or_init(|| {
        let Ok(pagemap) = File::open("/proc/self/pagemap") else { return false };
        let mut unchanged = true;
        raw::release_segments(|segment| {
            unchanged &= are_of_files(&pagemap, &segment).unwrap_or(false);
            false
        });
        unchanged
    })
}

/// Whether all pages there that are in memory are those of a file.
fn are_of_files(pagemap: &File, addresses: &Range<usize>) -> io::Result<bool> {
    let page = rustix::param::page_size();
    let mut entries = vec![0; (addresses.len() / page) * size_of::<u64>()];
    pagemap.read_exact_at(&mut entries, ((addresses.start / page) * size_of::<u64>()) as u64)?;
    let (entries, _) = entries.as_chunks();
    let is_changed = |entry: u64| entry & SWAPPED != 0 || entry & PRESENT != 0 && entry & OF_FILE == 0;
    Ok(!entries.iter().any(|entry| is_changed(u64::from_ne_bytes(*entry))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_goes_on_without_its_pages() {
        // Pages of files that this process has mapped, in KiB.
        let mapped = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("status");
            let kib = status.lines().find_map(|line| line.strip_prefix("RssFile:")?.strip_suffix("kB"));
            kib.and_then(|kib| kib.trim().parse().ok()).expect("RssFile")
        };
        assert!(is_unchanged());
        let before: u64 = mapped();
        release_program_pages();
        let after = mapped();
        assert!(after < before, "{after} KiB after {before}");
    }

    #[test]
    fn a_page_of_its_own_is_noticed() {
        let pagemap = File::open("/proc/self/pagemap").expect("pagemap");
        let page = rustix::param::page_size();
        let memory = vec![1_u8; 4 * page];
        let start = memory.as_ptr().addr().next_multiple_of(page);
        assert_eq!(are_of_files(&pagemap, &(start..start + 2 * page)).ok(), Some(false));
        let code = release_program_pages as fn() as usize & !(page - 1);
        assert_eq!(are_of_files(&pagemap, &(code..code + page)).ok(), Some(true));
    }
}
