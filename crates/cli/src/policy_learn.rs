//! `brodo policy learn`: a policy from flow logs, with a rule for each destination that they have. A line
//! that is none of a log is skipped.

use crate::failure::Failure;
use crate::flow_log::read::{self, Line};
use crate::learnt_policy::Learnt;
use std::path::PathBuf;

/// The policy that allows what these logs have reached.
///
/// # Errors
/// A log cannot be read.
pub(crate) fn policy_of(logs: &[PathBuf], wildcards: Option<usize>) -> Result<String, Failure> {
    let mut learnt = Learnt::default();
    for path in logs {
        let cannot = || Failure::io(format!("read the flow log {}: read", path.display()));
        let take = |line: &[u8]| {
            if let Some(Line::Flow(flow)) = Line::parse(line) {
                learnt.add(&flow);
            }
        };
        read::lines(path, take).map_err(cannot())?;
    }
    Ok(learnt.text("brodo policy learn", wildcards))
}
