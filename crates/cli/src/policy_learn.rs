//! `brodo policy learn`: a policy from flow logs, with a rule for each destination that they have. Some lines
//! that are none of a flow log are skipped, with a warning; a file without any other is refused.

use crate::failure::Failure;
use crate::flow_log::read::{self, Line};
use crate::learnt_policy::Learnt;
use std::path::{Path, PathBuf};

/// The policy that allows what these logs have reached.
///
/// # Errors
/// A log cannot be read, or is none.
pub(crate) fn policy_of(logs: &[PathBuf], wildcards: Option<usize>) -> Result<String, Failure> {
    let mut learnt = Learnt::default();
    for path in logs {
        learn(&mut learnt, path)?;
    }
    Ok(learnt.text("brodo policy learn", wildcards))
}

/// Learns from one log.
fn learn(learnt: &mut Learnt, path: &Path) -> Result<(), Failure> {
    let (mut count, mut audited, mut unknown) = (0, 0, 0);
    let take = |line: &[u8]| {
        count += 1;
        match Line::parse(line) {
            Some(Line::Flow(flow)) => learnt.add(&flow),
            // Both kinds of logs have it.
            Some(Line::Lost { .. }) => {}
            Some(Line::Decision(_) | Line::Change { .. }) => audited += 1,
            None => unknown += 1,
        }
    };
    read::lines(path, take).map_err(Failure::io(format!("read the flow log {}: read", path.display())))?;
    read::judge(path, "flow log", count, audited + unknown, (audited > 0).then_some("an audit log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audit_log_is_no_flow_log() {
        let path = std::env::temp_dir().join(format!("brodo-learn-{}", std::process::id()));
        let change = "{\"seq\":4,\"time\":\"x\",\"gen\":2,\"stage\":\"policy\",\"change\":\"sealed\"}\n";
        let learnt = |text: &str| {
            std::fs::write(&path, text).expect("a file");
            policy_of(std::slice::from_ref(&path), None).map_err(|failure| failure.to_string())
        };
        let refused = learnt(change);
        let lost = learnt("{\"time\":\"x\",\"lost\":3}\n{\"time\":\"20");
        std::fs::remove_file(&path).expect("it is there");
        assert!(refused.is_err_and(|why| why.ends_with(" is no flow log: it is an audit log")));
        assert!(lost.is_ok_and(|text| text.contains("allow = [")));
    }
}
