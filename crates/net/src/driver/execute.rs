//! Execution of commands by their worker, between two turns of its loop.

use crate::capture::Capture;
use crate::command::{
    Activity, Command, EdgeCounters, FlowFilter, FlowPage, FlowReport, ForwardRefusal, ForwardReport,
    ForwardsReport, MemoryReport, RuleReport, WorkerReport,
};
use crate::forward::{Forwards, Listed};
use crate::promotions::{KernelsView, Promotions, Segments};
use crate::resteer::ResteerCounters;
use crate::sockets::Sockets;
use crate::tuning_log::TuningLog;
use crate::txqueuelen::TxQueueLenFollower;
use brodo_core::flow::info::{Carrier, FlowInfo};
use brodo_core::stack::{FlowDetail, Stack};
use brodo_core::time::{Duration, Instant};
use brodo_link::LinkLosses;

/// View of a worker for a command.
pub(super) struct WorkerView<'a> {
    pub(super) now: Instant,
    pub(super) stack: &'a mut Stack,
    pub(super) sockets: &'a Sockets,
    /// Last changes of limits.
    pub(super) tuning_log: &'a TuningLog,
    pub(super) capture: &'a mut Option<Capture>,
    pub(super) forwards: Option<&'a mut Forwards>,
    pub(super) promotions: Option<&'a mut Promotions>,
    pub(super) txqueuelen: Option<&'a TxQueueLenFollower>,
    pub(super) activity: Activity,
    pub(super) losses: LinkLosses,
    /// Of the first worker, those of all.
    pub(super) resteered: ResteerCounters,
}

impl WorkerView<'_> {
    /// Executes a command and sends its reply.
    pub(super) fn execute(mut self, command: Command) {
        match command {
            Command::Report { reply } => reply.send(self.report()),
            Command::Review { .. } | Command::PassStreams { .. } => {
                debug_assert!(false, "executed by the driver, with the link or the sockets");
            }
            Command::Flows { from, most, filter, round_trips, reply } => {
                reply.send(self.flows(from, most, filter, round_trips));
            }
            Command::Flow { id, reply } => {
                let mut report = self.stack.flow_detail(id, self.now).map(|detail| self.flow(detail, true));
                if let Some(report) = &mut report {
                    report.tuning = self.tuning_log.of(id).copied().collect();
                }
                reply.send(report);
            }
            Command::Record { openings, ends, reply } => {
                self.stack.record_openings(openings);
                self.stack.record_ends(ends);
                reply.send(());
            }
            Command::StartCapture { capture, reply } => {
                *self.capture = Some(capture);
                reply.send(());
            }
            Command::StopCapture { reply } => {
                *self.capture = None;
                reply.send(());
            }
            Command::SetBulk { bulk, reply } => {
                if let Some(promotions) = &mut self.promotions {
                    promotions.set_bulk(bulk);
                }
                reply.send(self.promotions.is_some());
            }
            Command::ReadTxQueue { reply } => {
                if let Some(follower) = self.txqueuelen {
                    follower.look();
                }
                reply.send(());
            }
            Command::ListForwards { sockets_max, reply } => {
                let list = self.forwards().map(|forwards| {
                    forwards.list().into_iter().map(|listed| report(forwards, listed, sockets_max)).collect()
                });
                reply.send(list);
            }
            Command::AddForward { forward, sockets_max, reply } => {
                let added = self.forwards().and_then(|forwards| {
                    let id = forwards.add(forward).map_err(ForwardRefusal::Failed)?;
                    find(forwards, id, sockets_max)
                });
                reply.send(added);
            }
            Command::RemoveForward { id, sockets_max, reply } => {
                let removed = self.forwards().and_then(|forwards| {
                    let was = find(forwards, id, sockets_max)?;
                    forwards.remove(id);
                    Ok(was)
                });
                reply.send(removed);
            }
        }
    }

    pub(super) fn report(&self) -> WorkerReport {
        let stack = &*self.stack;
        let forwards = self.forwards.as_deref().map(|forwards| {
            let list = forwards.list();
            ForwardsReport {
                entries: list.len(),
                listeners: list.iter().map(|forward| forward.listeners).sum(),
            }
        });
        let edges = EdgeCounters {
            link: self.losses,
            resteered: self.resteered,
            forwards: self.forwards.as_deref().map(Forwards::counters).unwrap_or_default(),
        };
        let rules = stack.rules().map(|(rule, refused)| RuleReport { rule: rule.to_owned(), refused });
        WorkerReport {
            counters: stack.counters().clone(),
            edges,
            activity: self.activity,
            flows: stack.flows(),
            memory: MemoryReport {
                used: stack.memory_used(),
                reserved: stack.memory_reserved(),
                budget: stack.memory_budget(),
            },
            resolvers: stack.resolvers().to_vec(),
            rules: rules.collect(),
            gates: stack.gates(),
            forwards,
            promotion: self.promotions.as_deref().map(|promotions| promotions.report(stack)),
        }
    }

    fn flows(&self, from: u32, most: usize, filter: FlowFilter, round_trips: bool) -> FlowPage {
        let (mut page, mut looked) = (FlowPage::default(), 0);
        for detail in self.stack.flow_details(from, self.now).take(most) {
            looked += 1;
            page.last = Some(detail.info.flow);
            if filter.lets_through(&detail) {
                page.flows.push(self.flow(detail, round_trips));
            }
        }
        page.last = page.last.filter(|_| looked == most);
        page
    }

    fn flow(&self, mut detail: FlowDetail, round_trip: bool) -> FlowReport {
        self.add_kernels_view(&mut detail);
        let socket = detail.socket.filter(|_| round_trip && detail.tcp.is_some());
        let round_trip = socket.and_then(|socket| self.sockets.round_trip(socket));
        FlowReport { detail, round_trip, tuning: Vec::new(), at: self.now }
    }

    /// Of a promoted flow: what the kernel socket has counted, beside what the stack had before.
    fn add_kernels_view(&self, detail: &mut FlowDetail) {
        let FlowInfo { flow, carrier, .. } = detail.info;
        if carrier != Carrier::Kernel {
            return;
        }
        let view = self.promotions.as_deref().and_then(|promotions| promotions.kernels_view(flow));
        let Some(KernelsView { segments, rtt_us }) = view else { return };
        let Segments { from_guest, to_guest, retransmissions } = segments;
        detail.info.retransmissions = detail.info.retransmissions.saturating_add(retransmissions);
        detail.info.from_guest.packets += u64::from(from_guest);
        detail.info.to_guest.packets += u64::from(to_guest);
        if rtt_us > 0 {
            detail.info.rtt = Some(Duration::from_micros(rtt_us.into()));
        }
        if let Some(tcp) = &mut detail.tcp {
            tcp.retransmissions = detail.info.retransmissions;
        }
    }

    fn forwards(&mut self) -> Result<&mut Forwards, ForwardRefusal> {
        self.forwards.as_deref_mut().ok_or(ForwardRefusal::NoForwards)
    }
}

fn find(forwards: &Forwards, id: u32, sockets_max: usize) -> Result<ForwardReport, ForwardRefusal> {
    let found = forwards.list().into_iter().find(|listed| listed.id == id);
    found.map(|listed| report(forwards, listed, sockets_max)).ok_or(ForwardRefusal::NotFound(id))
}

fn report(forwards: &Forwards, listed: Listed, sockets_max: usize) -> ForwardReport {
    let listening = forwards.listening(listed.id, sockets_max);
    ForwardReport { listed, listening }
}
