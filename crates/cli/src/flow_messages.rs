//! Conversion of the stack's flow records to the messages of the control socket and the flow log.

use crate::timestamp::Timestamp;
use brodo_control::flow::{self, Carrier, FlowDirection, FlowRef, Protocol};
use brodo_core::config::Config;
use brodo_core::flow::end::FlowEnd;
use brodo_core::flow::info::{self as core_info, FlowInfo, Initiator, Traffic};
use brodo_core::flow::{self as core_flow, FlowId};
use brodo_core::stack::FlowDetail;
use brodo_core::tcp::info::{HalfInfo, TcpInfo};
use brodo_core::tcp::limiting_factor::LimitingFactor;
use brodo_core::time::{Duration, Instant};
use brodo_core::trace::{self, Cause, Event};
use brodo_net::clock::Clock;
use brodo_net::tuning_log::TuningDecision;

/// Upper bounds of a connection's limits, in bytes: from the guest, and to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) rx_max: u32,
    pub(crate) tx_max: u32,
}

impl Bounds {
    pub(crate) fn of(config: &Config) -> Self {
        Self { rx_max: config.tcp_rx.max, tx_max: config.tcp_tx.max }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A flow's handle.
pub(crate) fn handle(worker: u32, id: FlowId) -> FlowRef {
    FlowRef { worker, index: id.index, generation: id.generation }
}

/// The protocol of a flow.
pub(crate) fn protocol(protocol: core_flow::Protocol) -> Protocol {
    match protocol {
        core_flow::Protocol::Tcp => Protocol::Tcp,
        core_flow::Protocol::Udp => Protocol::Udp,
        core_flow::Protocol::Echo => Protocol::Echo,
    }
}

/// The reverse of [`protocol`]; `None` for a protocol without flows.
pub(crate) fn core_protocol(wanted: Protocol) -> Option<core_flow::Protocol> {
    use core_flow::Protocol::{Echo, Tcp, Udp};
    [Tcp, Udp, Echo].into_iter().find(|&known| protocol(known) == wanted)
}

pub(crate) fn direction(initiator: Initiator) -> FlowDirection {
    match initiator {
        Initiator::Guest => FlowDirection::Outbound,
        Initiator::Peer => FlowDirection::Inbound,
    }
}

/// The carrier of a flow, in the words of messages.
pub(crate) fn carrier(carrier: core_info::Carrier) -> Carrier {
    match carrier {
        core_info::Carrier::Stack => Carrier::Stack,
        core_info::Carrier::Splice => Carrier::Splice,
        core_info::Carrier::Relay => Carrier::Relay,
        core_info::Carrier::Kernel => Carrier::Kernel,
    }
}

/// The reverse of [`carrier`]; `None` for a carrier without flows.
pub(crate) fn core_carrier(wanted: Carrier) -> Option<core_info::Carrier> {
    core_info::Carrier::ALL.into_iter().find(|&known| carrier(known) == wanted)
}

fn traffic(traffic: Traffic) -> flow::Traffic {
    flow::Traffic { bytes: traffic.bytes, packets: traffic.packets }
}

/// A flow as it begins, without the state of TCP.
pub(crate) fn brief(worker: u32, info: &FlowInfo) -> flow::Flow {
    flow::Flow {
        time: None,
        id: handle(worker, info.flow),
        protocol: protocol(info.key.protocol),
        direction: direction(info.initiator),
        carrier: carrier(info.carrier),
        guest: info.key.guest.into(),
        remote: info.key.remote.into(),
        name: None,
        state: info.state.name().to_owned(),
        age_us: micros(info.age),
        idle_us: micros(info.idle),
        from_guest: traffic(info.from_guest),
        to_guest: traffic(info.to_guest),
        rtt_us: info.rtt.map(micros),
        remote_rtt_us: info.connect.map(micros),
        tcp: None,
    }
}

/// A flow that was opened in the turn of `at`.
pub(crate) fn opened(worker: u32, info: &FlowInfo, at: Instant, clock: Clock) -> flow::Flow {
    let began = Instant::from_ns(at.as_ns().saturating_sub(info.age.as_nanos() as u64));
    flow::Flow { time: Some(Timestamp(clock.date_ns(began)).to_string()), ..brief(worker, info) }
}

/// A flow with the state of TCP; `remote_rtt` is the estimate of the host's kernel.
pub(crate) fn full(
    worker: u32,
    detail: &FlowDetail,
    remote_rtt: Option<Duration>,
    bounds: Bounds,
) -> flow::Flow {
    let brief = brief(worker, &detail.info);
    flow::Flow {
        name: detail.name.as_deref().map(str::to_owned),
        remote_rtt_us: remote_rtt.map(micros).or(brief.remote_rtt_us),
        tcp: detail.tcp.as_ref().map(|info| tcp(info, bounds)),
        ..brief
    }
}

fn tcp(info: &TcpInfo, bounds: Bounds) -> flow::Tcp {
    flow::Tcp {
        mss: info.mss,
        retransmissions: info.retransmissions,
        from_guest: half(&info.rx, 0, bounds.rx_max),
        to_guest: half(&info.tx, info.in_flight, bounds.tx_max),
    }
}

fn half(info: &HalfInfo, in_flight: u32, limit_max: u32) -> flow::Half {
    let held = LimitingFactor::ALL.iter().zip(info.limiting.times).filter(|(_, time)| !time.is_zero());
    flow::Half {
        limit: info.limit,
        limit_max,
        window: info.window,
        in_flight,
        held: info.held,
        limited_by: limit(info.limiting.current),
        limited_us: held.map(|(&by, time)| (limit(by), micros(time))).collect(),
        grows: info.grows,
        shrinks: info.shrinks,
    }
}

/// The limiting factor as one word.
fn limit(by: LimitingFactor) -> String {
    by.name().replace(' ', "-")
}

/// A tuning decision, with its age at `now`; `None` for another event.
pub(crate) fn step(decision: &TuningDecision, now: Instant) -> Option<flow::TuningStep> {
    let TuningDecision { at, event } = *decision;
    let Event::Tuned { direction, from, to, cause, per_rtt, rtt_us, .. } = event else { return None };
    let cause = match cause {
        Cause::Hit => "hit",
        Cause::Probe => "probe",
        Cause::ProbeFailed => "probe failed",
        Cause::Unused => "unused",
        Cause::Blocked => "blocked",
        Cause::Queued => "queued",
        Cause::Idle => "idle",
        Cause::Loss => "loss",
        Cause::Undone => "undone",
    };
    let from_guest = direction == trace::Direction::Receive;
    let cause = cause.to_owned();
    Some(flow::TuningStep { ago_us: micros(now - at), from_guest, from, to, cause, per_rtt, rtt_us })
}

/// An ended flow.
pub(crate) fn end(worker: u32, end: &FlowEnd, clock: Clock) -> flow::FlowEnd {
    let info = &end.info;
    let is_tcp = info.key.protocol == core_flow::Protocol::Tcp;
    flow::FlowEnd {
        time: Timestamp(clock.date_ns(end.at)).to_string(),
        id: end.opened.then(|| handle(worker, info.flow)),
        protocol: protocol(info.key.protocol),
        direction: direction(info.initiator),
        carrier: carrier(info.carrier),
        guest: info.key.guest.into(),
        remote: info.key.remote.into(),
        name: end.name.as_deref().map(str::to_owned),
        duration_us: micros(info.age),
        from_guest: traffic(info.from_guest),
        to_guest: traffic(info.to_guest),
        rtt_us: info.rtt.map(micros),
        remote_rtt_us: info.connect.map(micros),
        retransmissions: (is_tcp && end.opened).then_some(info.retransmissions),
        cause: end.cause.name().to_owned(),
        rule: end.rule.as_deref().map(str::to_owned),
    }
}
