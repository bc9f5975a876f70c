//! Files that the options name for writing: no two of them are one.
//!
//! Each is written as if nothing else wrote to it: a capture begins at its start, a PID file replaces the
//! content, and the flow log and the audit log would rename each other's lines away.

use crate::args::NetworkOptions;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Checks that no file is named twice. Devices and pipes take lines of several.
///
/// # Errors
/// One is; the error names both options.
pub(super) fn check_distinct(options: &NetworkOptions) -> Result<(), String> {
    let files = [
        ("--flow-log", &options.flow_log),
        ("--audit", &options.audit),
        ("--pcap", &options.pcap),
        ("--pid-file", &options.pid_file),
        ("--log-file", &options.log_file),
        ("--learn", &options.learn),
    ];
    let given: Vec<_> = files.iter().filter_map(|(option, path)| Some((option, path.as_ref()?))).collect();
    for (index, (option, path)) in given.iter().enumerate() {
        if let Some((other, _)) = given[..index].iter().find(|(_, other)| are_one(path, other)) {
            return Err(format!("{other} and {option} name one file, {}: give each its own", path.display()));
        }
    }
    Ok(())
}

/// Whether two paths lead to one regular file, or would make one.
fn are_one(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (Err(_), Err(_)) => {
            let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            absolute(a) == absolute(b)
        }
        _ => false,
    }
}
