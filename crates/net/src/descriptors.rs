//! Descriptors: number of flows within the limit on open files (RLIMIT_NOFILE).
//!
//! Each flow takes a descriptor. The loop keeps those it needs itself and those that forwarded ports may
//! take, and flows get the rest.

/// Descriptors for a network itself, clients of a control socket among them, and for each worker.
const RESERVED: u64 = 80;
const PER_WORKER: u64 = 4;

/// Most spliced connections at a time, their share of all descriptors, and descriptors of each: two sockets,
/// and pipes.
const SPLICES_MAX: u64 = 16_384;
const SPLICES_SHARE: u64 = 16;
const PER_SPLICE: u64 = 4;

/// Most promoted flows at a time, their share of all descriptors, and descriptors of each: the kernel socket,
/// two more of both sockets, and pipes.
const PROMOTED_MAX: u64 = crate::promotion::FLOWS_MAX as u64;
const PROMOTED_SHARE: u64 = 64;
const PER_PROMOTED: u64 = 7;
/// Descriptors of the threads beside each worker that move promoted flows: two of each, and one of all.
const OF_SPLICE_THREADS: u64 = 1 + 2 * crate::splice::THREADS_MAX as u64;

/// Uses of descriptors besides flows.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// Number of workers.
    pub workers: u64,
    /// Clients of the caller's own servers at a time.
    pub clients: u64,
    /// Whether ports are forwarded.
    pub forwards: bool,
    /// Whether bulk flows may be promoted.
    pub promotion: bool,
}

/// A limit, divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// The limit.
    pub limit: u64,
    /// Reserved for other uses than flows and splices.
    pub reserved: u64,
    /// Most spliced connections at a time.
    pub splices_max: u64,
    /// Most promoted flows at a time.
    pub promoted_max: u64,
    /// Most flows at a time, of all workers.
    pub flows_max: u64,
}

impl Descriptors {
    /// Divides `limit`, the number of descriptors allowed to the process.
    pub fn divide(limit: u64, needs: Needs) -> Self {
        let per_worker = PER_WORKER + if needs.promotion { OF_SPLICE_THREADS } else { 0 };
        let reserved = RESERVED + per_worker * needs.workers + needs.clients;
        let splices_max = (limit / SPLICES_SHARE).min(SPLICES_MAX);
        let for_splices = if needs.forwards { splices_max * PER_SPLICE } else { 0 };
        let promoted_max = (limit / PROMOTED_SHARE).min(PROMOTED_MAX);
        let for_promoted = if needs.promotion { promoted_max * PER_PROMOTED } else { 0 };
        let flows_max = limit.saturating_sub(reserved + for_splices + for_promoted);
        Self { limit, reserved, splices_max, promoted_max, flows_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Needs = Needs { workers: 1, clients: 0, forwards: false, promotion: false };

    #[test]
    fn flows_get_what_is_not_needed_otherwise() {
        for (limit, needs, flows, splices) in [
            (0, ONE, 0, 0),
            (84, ONE, 0, 5),
            (85, ONE, 1, 5),
            (1024, ONE, 940, 64),
            (1024, Needs { forwards: true, ..ONE }, 684, 64),
            (1024, Needs { workers: 4, clients: 32, ..ONE }, 896, 64),
            (1024, Needs { promotion: true, ..ONE }, 940 - 9 - 7 * 16, 64),
            (1 << 20, Needs { forwards: true, ..ONE }, (1 << 20) - 84 - 4 * 16_384, 16_384),
        ] {
            let divided = Descriptors::divide(limit, needs);
            assert_eq!((divided.flows_max, divided.splices_max), (flows, splices), "{limit} {needs:?}");
        }
    }
}
