//! Observation of flows: snapshots of open flows on request, and a bounded record of opened and ended flows
//! for subscribers.

use super::{Flow, FlowId, Protocol, Stack};
use crate::flow::end::{EndCause, FlowEnd, LostRecords};
use crate::flow::info::{FlowInfo, Opening};
use crate::flow::table::Keyed;
use crate::flow_kind::FlowKind;
use crate::host::SocketId;
use crate::tcp::info::TcpInfo;
use crate::time::Instant;
use std::net::IpAddr;
use std::sync::Arc;

/// Information on an open flow, made on request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowDetail {
    /// Description common to all flows.
    pub info: FlowInfo,
    /// The name by which the guest learnt the remote address.
    pub name: Option<Box<str>>,
    /// Its socket on the host, while it has one.
    pub socket: Option<SocketId>,
    /// State of a TCP connection.
    pub tcp: Option<TcpInfo>,
}

impl Stack {
    /// Information on the open flows from a slot on, in order of slots: a long list is made piece by piece,
    /// so that no frame waits while it is made.
    pub fn flow_details(&self, from: u32, now: Instant) -> impl Iterator<Item = FlowDetail> {
        self.flows.iter_from(from).map(move |(id, flow)| self.detail(id, flow, now))
    }

    /// Information on one flow, if it is still open.
    pub fn flow_detail(&self, id: FlowId, now: Instant) -> Option<FlowDetail> {
        self.flows.get(id).map(|flow| self.detail(id, flow, now))
    }

    /// Flow information at `now`; the idle time comes from the table.
    fn info(&self, id: FlowId, flow: &Flow, now: Instant) -> FlowInfo {
        FlowInfo { idle: self.flows.idle(id, now), ..flow.info(&self.shared, now) }
    }

    fn detail(&self, id: FlowId, flow: &Flow, now: Instant) -> FlowDetail {
        let info = self.info(id, flow, now);
        let tcp = match flow {
            Flow::Tcp(connection) => Some(connection.tcp_info(&self.shared, now)),
            _ => None,
        };
        FlowDetail { info, name: self.name_for(info.key.remote.ip()), socket: flow.socket(), tcp }
    }

    /// Protocol of a flow, if it is still open.
    pub fn protocol(&self, id: FlowId) -> Option<Protocol> {
        Some(self.flows.get(id)?.key().protocol)
    }

    /// Records from now on how flows end, or does so no more. The driver takes them ([`Stack::take_ends`]).
    pub fn record_ends(&mut self, on: bool) {
        self.recorder.record_ends(on);
    }

    /// Records from now on which flows begin, or does so no more ([`Stack::take_openings`]).
    pub fn record_openings(&mut self, on: bool) {
        self.recorder.record_openings(on);
    }

    /// Whether records wait to be taken.
    pub fn has_records(&self) -> bool {
        !self.recorder.is_empty()
    }

    /// Flows that have ended since the last call.
    pub fn take_ends(&mut self) -> Vec<FlowEnd> {
        self.recorder.take_ends()
    }

    /// Flows that have begun since the last call, as they were when they did.
    pub fn take_openings(&mut self) -> Vec<FlowInfo> {
        self.recorder.take_openings()
    }

    /// The time of the last turn, from which ages of openings count.
    pub fn records_at(&self) -> Instant {
        self.recorder.now
    }

    /// Ends and openings that found their queue full since the last call.
    pub fn take_lost_records(&mut self) -> LostRecords {
        self.recorder.take_lost()
    }

    /// The ends of all flows that are open, which brodo's own end is at `now`. They stay where they are.
    pub fn ends_at_shutdown(&self, now: Instant) -> impl Iterator<Item = FlowEnd> {
        self.flows.iter().map(move |(id, flow)| self.end_of(id, flow, EndCause::ShutDown, now))
    }

    /// Records that a flow was not opened: a rule denied it (`rule` is its text), or the host could not.
    pub(crate) fn note_unopened(
        &mut self,
        opening: impl Into<Opening>,
        cause: EndCause,
        rule: Option<Arc<str>>,
    ) {
        if !self.recorder.records_ends() {
            return;
        }
        let Opening { key, initiator, carrier } = opening.into();
        let nowhere = FlowId { index: u32::MAX, generation: 0 };
        let info = FlowInfo { carrier, ..FlowInfo::blank(nowhere, key, initiator) };
        let name = self.name_for(key.remote.ip());
        self.recorder.ended(FlowEnd { at: self.recorder.now, info, opened: false, cause, name, rule });
    }

    /// Records that a flow was opened.
    pub(super) fn note_opened(&mut self, id: FlowId) {
        if self.recorder.records_openings()
            && let Some(flow) = self.flows.get(id)
        {
            let info = self.info(id, flow, self.recorder.now);
            self.recorder.opened(info);
        }
    }

    /// Records that a flow is over and about to be removed.
    pub(super) fn note_end(&mut self, id: FlowId) {
        if self.recorder.records_ends()
            && let Some(flow) = self.flows.get(id)
        {
            let end = self.end_of(id, flow, flow.cause(), self.recorder.now);
            self.recorder.ended(end);
        }
    }

    fn end_of(&self, id: FlowId, flow: &Flow, cause: EndCause, at: Instant) -> FlowEnd {
        let info = self.info(id, flow, at);
        FlowEnd {
            at,
            info,
            opened: true,
            cause,
            name: self.name_for(info.key.remote.ip()),
            rule: flow.refused_by().cloned(),
        }
    }

    /// The name by which the guest learnt an address. The one place in which flows get their names.
    fn name_for(&self, ip: IpAddr) -> Option<Box<str>> {
        self.name_of(ip).map(Into::into)
    }
}
