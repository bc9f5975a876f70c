//! `brodo report`: flow logs and audit logs as one page of HTML, for a person who asks which destinations a
//! guest has reached, and which not.
//!
//! Lines of the logs are summed up by destination ([`summary`]), and the sums stand in the page as data
//! ([`page`]), which a script of the page's own makes into tables. The page refers to nothing outside of
//! itself. Names in it are text of the guest's or of its servers': the data has no `<`, the script puts texts
//! only, and the page forbids itself every other source.

mod page;
mod summary;

use crate::failure::Failure;
use crate::flow_log::read;
use crate::standard_output::print;
use clap::{Args, ValueHint};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use summary::Summary;

/// Begin of every page, in letters of either case.
const PAGE_BEGIN: &str = "<!doctype html>";

#[derive(Debug, Args)]
pub(crate) struct ReportOptions {
    /// Flow logs (`--flow-log`) and audit logs (`--audit`), in any order, rotated ones among them
    #[arg(required = true, value_name = "LOG", value_hint = ValueHint::FilePath)]
    logs: Vec<PathBuf>,

    /// The page to write, in HTML, or - for standard output; an existing page is replaced, no other file is
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: PathBuf,
}

/// Runs the command.
pub(crate) fn report(options: &ReportOptions) -> Result<u8, Failure> {
    if !is_standard_output(&options.output) {
        check_output(&options.output, &options.logs)?;
    }
    let mut summary = Summary::default();
    for path in &options.logs {
        let cannot = || Failure::io(format!("read the log {}: read", path.display()));
        let (mut count, before) = (0, summary.unreadable);
        let take = |line: &[u8]| {
            count += 1;
            summary.add(line);
        };
        read::lines(path, take).map_err(cannot())?;
        read::judge(path, "flow log or audit log", count, summary.unreadable - before, None)?;
    }
    summary.finish();
    let files: Vec<_> = options.logs.iter().map(|path| path.display().to_string()).collect();
    let text = page::text(&summary, &files);
    if is_standard_output(&options.output) {
        return print(&text).map(|_| 0);
    }
    let cannot = || Failure::io(format!("write the report {}: write", options.output.display()));
    std::fs::write(&options.output, text).map_err(cannot())?;
    Ok(0)
}

fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Checks that the page replaces no file but another page. A log is the record of what has happened, which
/// nothing can make anew.
///
/// # Errors
/// It would, or the file cannot be read.
fn check_output(output: &Path, logs: &[PathBuf]) -> Result<(), Failure> {
    // A new file, or one whose writing will say what is wrong.
    let Ok(there) = output.metadata() else { return Ok(()) };
    let is_same =
        |log: &PathBuf| log.metadata().is_ok_and(|log| (log.dev(), log.ino()) == (there.dev(), there.ino()));
    let shown = output.display();
    if logs.iter().any(is_same) {
        return Err(Failure::Usage(format!("-o {shown} is one of the logs")));
    }
    if !there.is_file() || there.len() == 0 {
        return Ok(());
    }
    let cannot = || Failure::io(format!("look into {shown}: read"));
    let mut begin = [0; PAGE_BEGIN.len()];
    let read = File::open(output).and_then(|mut file| file.read(&mut begin)).map_err(cannot())?;
    if begin[..read].eq_ignore_ascii_case(PAGE_BEGIN.as_bytes()) {
        return Ok(());
    }
    Err(Failure::Usage(format!("-o {shown} is a file and no page of HTML: remove it, or name another")))
}

#[cfg(test)]
mod tests;
