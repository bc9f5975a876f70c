//! Options for limits of flows and of questions to DNS.

use crate::option_values as value;
use brodo_core::policy::FlowRate;
use clap::Args;

/// Limits of a guest that hold without a policy.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct LimitOptions {
    /// Concurrent flows (connections, UDP, ping), 1 to 1048576 [default: 65536]
    ///
    /// Each takes a descriptor, so the limit on open files (ulimit -Hn) is a further bound.
    #[arg(long = "max-flows", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20), help_heading = "Limits")]
    pub(crate) flows: Option<u32>,

    /// New flows per second, 1 to 1048576, and the burst after a pause [default: no limit]
    ///
    /// Flows beyond are refused at once: TCP by a reset, UDP and ping by an ICMP error. BURST defaults to the
    /// rate.
    #[arg(long = "max-new-flows", value_name = "N/s[:BURST]", value_parser = value::flow_rate, help_heading = "Limits")]
    pub(crate) new_flows: Option<FlowRate>,

    /// Concurrent flows to one address, 1 to 1048576 [default: no limit]
    #[arg(long = "max-flows-per-destination", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20), help_heading = "Limits")]
    pub(crate) flows_per_destination: Option<u32>,

    /// Questions to resolvers per second, and the burst after a pause [default: 1000/s:5000]
    ///
    /// Questions beyond get SERVFAIL. Answers of the cache and of host entries do not count. BURST defaults
    /// to the rate. A policy has a rate of its own instead: `questions` in its `[names]`.
    #[arg(long = "max-questions", value_name = "N/s[:BURST]", value_parser = value::flow_rate, help_heading = "Limits")]
    pub(crate) questions: Option<FlowRate>,
}
