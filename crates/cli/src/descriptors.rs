//! Descriptors: the number of flows for which the limit on open files (RLIMIT_NOFILE) leaves room.
//!
//! Each flow takes a descriptor. brodo raises its soft limit to the hard one, keeps what it needs itself and
//! what forwarded ports may take, and divides the rest. A limit so low that there is nothing to divide stops
//! the start; one that leaves little is worth a warning.

use crate::failure::Failure;
use crate::log;

/// Descriptors that brodo needs for itself, clients of the control socket among them, and those that each
/// worker needs.
const RESERVED: u64 = 80;
const PER_WORKER: u64 = 4;

/// Most connections between loopbacks at a time, and the part of all descriptors that they may have: two
/// each, and pipes.
const SPLICES_MAX: u64 = 16_384;
const SPLICES_SHARE: u64 = 16;
const PER_SPLICE: u64 = 4;

/// Fewer flows than a web page takes.
const FLOWS_FEW: u64 = 256;
/// The limit that messages recommend: the usual soft limit.
const RECOMMENDED: u64 = 1024;

/// The uses of descriptors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) workers: u64,
    /// Clients of the metrics at a time, if they are served.
    pub(crate) metrics_clients: u64,
    /// Ports are forwarded.
    pub(crate) forwards: bool,
}

/// A limit, divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptors {
    pub(crate) limit: u64,
    /// Kept for brodo itself.
    reserved: u64,
    /// Connections between loopbacks at a time.
    pub(crate) splices_max: u64,
    /// Flows at a time.
    pub(crate) flows_max: u64,
}

impl Descriptors {
    /// Divides `limit`, the number of descriptors the process may have.
    pub(crate) fn divide(limit: u64, needs: Needs) -> Self {
        let reserved = RESERVED + PER_WORKER * needs.workers + needs.metrics_clients;
        let splices_max = (limit / SPLICES_SHARE).min(SPLICES_MAX);
        let for_splices = if needs.forwards { splices_max * PER_SPLICE } else { 0 };
        let flows_max = limit.saturating_sub(reserved + for_splices);
        Self { limit, reserved, splices_max, flows_max }
    }

    /// Warns if there is room for few flows, or for fewer than were asked for (`--max-flows`).
    ///
    /// # Errors
    /// A worker would have room for none.
    pub(crate) fn check(&self, workers: u64, asked: Option<u32>) -> Result<(), Failure> {
        let Self { limit, reserved, flows_max, .. } = *self;
        if flows_max < workers {
            return Err(Failure::Limit(format!(
                "the limit on open files is {limit}, and brodo needs {reserved} descriptors for itself and one for each \
                 connection: raise the limit to {RECOMMENDED} or more (ulimit -Hn {RECOMMENDED}, LimitNOFILE=)"
            )));
        }
        if flows_max < asked.map_or(FLOWS_FEW, u64::from) {
            let text = "the limit on open files leaves room for few connections and other flows: raise it (ulimit -Hn, LimitNOFILE=)";
            log::warn(text, &[("limit", limit.into()), ("flows at most", flows_max.into())]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Needs = Needs { workers: 1, metrics_clients: 0, forwards: false };

    #[test]
    fn flows_get_what_brodo_does_not_need_itself() {
        for (limit, needs, flows, splices) in [
            (0, ONE, 0, 0),
            (84, ONE, 0, 5),
            (85, ONE, 1, 5),
            (1024, ONE, 940, 64),
            (1024, Needs { forwards: true, ..ONE }, 684, 64),
            (1024, Needs { workers: 4, metrics_clients: 32, ..ONE }, 896, 64),
            (1 << 20, Needs { forwards: true, ..ONE }, (1 << 20) - 84 - 4 * 16_384, 16_384),
        ] {
            let divided = Descriptors::divide(limit, needs);
            assert_eq!((divided.flows_max, divided.splices_max), (flows, splices), "{limit} {needs:?}");
        }
    }

    #[test]
    fn a_limit_without_room_for_a_flow_is_refused_with_the_remedy() {
        let refusal = Descriptors::divide(84, ONE).check(1, None).expect_err("no flow");
        assert_eq!(refusal.exit_status(), 125);
        let text = refusal.to_string();
        assert!(text.contains("limit on open files is 84") && text.contains("ulimit -Hn 1024"), "{text}");
        assert!(Descriptors::divide(85, ONE).check(1, None).is_ok());
    }
}
