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
use clap::{Args, ValueHint};
use std::path::PathBuf;
use summary::Summary;

#[derive(Debug, Args)]
pub(crate) struct ReportOptions {
    /// Flow logs (`--flow-log`) and audit logs (`--audit`), in any order, rotated ones among them
    #[arg(required = true, value_name = "LOG", value_hint = ValueHint::FilePath)]
    logs: Vec<PathBuf>,

    /// The page to write, in HTML; an existing file is replaced
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: PathBuf,
}

/// Runs the command.
pub(crate) fn report(options: &ReportOptions) -> Result<u8, Failure> {
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
    let cannot = || Failure::io(format!("write the report {}: write", options.output.display()));
    std::fs::write(&options.output, text).map_err(cannot())?;
    Ok(0)
}

#[cfg(test)]
mod tests;
