//! The limit on open files (RLIMIT_NOFILE), checked at the start: a limit so low that there is no descriptor
//! left for a flow stops the start; one that leaves few is worth a warning.

use crate::failure::Failure;
use crate::log;
use brodo_net::descriptors::Descriptors;

/// Few flows: fewer than a web page opens.
const FLOWS_FEW: u64 = 256;
/// The limit that messages recommend: the usual soft limit.
const RECOMMENDED: u64 = 1024;

/// Warns if there is room for few flows, or for fewer than requested (`--max-flows`).
///
/// # Errors
/// A worker would have room for none.
pub(crate) fn check(divided: Descriptors, workers: u64, asked: Option<u32>) -> Result<(), Failure> {
    let Descriptors { limit, reserved, flows_max, .. } = divided;
    if flows_max < workers {
        return Err(Failure::Limit(format!(
            "the limit on open files is {limit}, and brodo needs {reserved} descriptors for itself and one \
             for each connection: raise the limit to {RECOMMENDED} or more (ulimit -Hn {RECOMMENDED}, \
             LimitNOFILE=)"
        )));
    }
    if flows_max < asked.map_or(FLOWS_FEW, u64::from) {
        let text = "the limit on open files leaves room for few connections and other flows: raise it \
                    (ulimit -Hn, LimitNOFILE=)";
        log::warn(text, &[("limit", limit.into()), ("flows at most", flows_max.into())]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_net::descriptors::Needs;

    const ONE: Needs = Needs { workers: 1, clients: 0, forwards: false, promotion: false };

    #[test]
    fn a_limit_without_room_for_a_flow_is_refused_with_the_remedy() {
        let refusal = check(Descriptors::divide(84, ONE), 1, None).expect_err("no flow");
        assert_eq!(refusal.exit_status(), 125);
        let text = refusal.to_string();
        assert!(text.contains("limit on open files is 84") && text.contains("ulimit -Hn 1024"), "{text}");
        assert!(check(Descriptors::divide(85, ONE), 1, None).is_ok());
    }
}
