//! Flow logs and audit logs read again, line by line, for the commands that sum them up: a line that is none
//! of theirs is left to its reader, and the length of lines is bounded.

use crate::failure::Failure;
use crate::log;
use brodo_control::flow::FlowEnd;
use brodo_control::policy::{ChangeStage, Decision};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Longest line that is read, in bytes; a longer one is none of a log.
const LINE_MAX: u64 = 1 << 20;

/// Line of a flow log or of an audit log.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Line {
    /// A flow that has ended.
    Flow(Box<FlowEnd>),
    /// Equal decisions of a policy.
    Decision(Box<Decision>),
    /// A change of a policy.
    Change { stage: ChangeStage },
    /// The number of flows or decisions that are missing.
    Lost { lost: u64 },
}

impl Line {
    /// Reads one line; `None` if it is none of a log.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

/// Calls `take` with each line of a log that is not empty, but for a last one that was cut in its midst: a
/// log that is being written may end so.
///
/// # Errors
/// The file cannot be opened or read.
pub(crate) fn lines(path: &Path, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut from = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if !line.trim_ascii().is_empty() && !is_cut(&line) {
            take(&line);
        }
    }
}

/// Whether a line is the begin of a line of a log.
fn is_cut(line: &[u8]) -> bool {
    let object = || serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line);
    !line.ends_with(b"\n") && object().is_err_and(|error| error.is_eof())
}

/// Judges a file of `count` lines, of which `skipped` are none of `kind`: warns if some are, such as one
/// that was cut by a crash.
///
/// # Errors
/// All are: the file is another one. `instead` says which, if that is known.
pub(crate) fn judge(
    path: &Path,
    kind: &str,
    count: u64,
    skipped: u64,
    instead: Option<&str>,
) -> Result<(), Failure> {
    let path = path.display();
    if skipped > 0 && skipped == count {
        let instead = instead.map_or_else(String::new, |instead| format!(": it is {instead}"));
        return Err(Failure::Usage(format!("{path} is no {kind}{instead}")));
    }
    if skipped > 0 {
        log::warn(
            &format!("{path}: lines that are none of a {kind} are left out"),
            &[("count", skipped.into())],
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_any_line_of_a_log_is_none() {
        let judged = |count, skipped| {
            let judged = judge(Path::new("some"), "flow log", count, skipped, Some("an audit log"));
            judged.map_err(|failure| failure.to_string())
        };
        assert_eq!((judged(0, 0), judged(7, 0), judged(7, 6)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(judged(7, 7), Err("some is no flow log: it is an audit log".to_owned()));
    }

    #[test]
    fn lines_come_one_by_one_and_the_last_needs_no_end() {
        let path = std::env::temp_dir().join(format!("brodo-flow-log-{}", std::process::id()));
        std::fs::write(&path, "{\"time\":\"x\",\"lost\":3}\n\nnone").expect("a file");
        let mut seen = Vec::new();
        lines(&path, |line| seen.push(line.to_vec())).expect("a log");
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(seen.len(), 2);
        std::fs::write(&path, "{\"lost\":3}\n{\"time\":\"20").expect("a file");
        let mut whole = 0;
        lines(&path, |_| whole += 1).expect("a log");
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(whole, 1);
        assert!(matches!(Line::parse(&seen[0]), Some(Line::Lost { lost: 3 })));
        assert!(Line::parse(&seen[1]).is_none());
        let change = b"{\"seq\":4,\"time\":\"x\",\"gen\":2,\"stage\":\"policy\",\"change\":\"sealed\"}";
        assert!(matches!(Line::parse(change), Some(Line::Change { stage: ChangeStage::Policy })));
    }
}
