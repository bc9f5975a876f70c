//! The answering thread of an engine: requests of the warden in, replies and events out.
//!
//! It sleeps until there is a request or something in the outbox. State of workers is read by commands.

use super::ask::{FLOWS_PER_COMMAND, ask, ask_all};
use super::capture::{self, Current};
use super::handover::{self, Freezing};
use super::outbox::Outbox;
use super::review::Review;
use super::{exposition, forwards, policy, view};
use crate::conversation::lines::{self, Lines};
use crate::conversation::message::{
    Bulked, Capturing, Done, Enforced, EngineBulk, EngineStatus, Freeze, GetEngineStatus, GetMetrics,
    GetPolicyUsage, Go, Metrics, Names, PassStreams, Record, Recorded, Retire, Stop, StopCapturing, Thaw,
};
use crate::flow_messages::{self, Bounds};
use crate::report::Report;
use brodo_control::flow::{Flow, FlowRef};
use brodo_control::method::{
    AddForward, BulkCarrier, Counters, FlowDetail, FlowPage, Forwards, GetCounters, GetFlow, GetFlows,
    ListForwards, Memory, Method, PAGE_MAX, RemoveForward, reply,
};
use brodo_control::policy::{AskedPolicy, ExplainPolicy, RefuseAsked};
use brodo_control::rpc::{self, Error, REQUEST_MAX, Request, code};
use brodo_core::config::Bulk;
use brodo_core::flow::FlowId;
use brodo_core::policy::SharedPolicy;
use brodo_net::capture::Capture;
use brodo_net::clock::Clock;
use brodo_net::command::{Command, FlowFilter, FlowReport, PromotionReport, WorkerReport};
use brodo_net::host_network::HostNetwork;
use brodo_net::txqueuelen::TxQueueLenWatch;
use brodo_net::workers::Workers;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// Longest wait for a warden that does not read its replies.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Interval of attempts to judge flows that are left to a review.
const REVIEW_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Time for which equal decisions are one line of the audit log, and the same as a time-out.
const TRAIL_EVERY: Duration = Duration::from_secs(1);
const TRAIL_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// State and handles that requests use.
pub(crate) struct Answers {
    pub(crate) freezing: Arc<Freezing>,
    /// To the first worker, which waits for [`Go`] if it has the state of another engine.
    pub(crate) begin: SyncSender<()>,
    pub(crate) workers: Arc<Workers>,
    /// Frames dropped by the guest's kernel, at a full transmit queue.
    pub(crate) ring: Option<Arc<TxQueueLenWatch>>,
    pub(crate) host: Option<Arc<HostNetwork>>,
    pub(crate) policy: Option<Arc<SharedPolicy>>,
    pub(crate) bounds: Bounds,
    /// Name of the guest's interface.
    pub(crate) interface: String,
    pub(crate) clock: Clock,
    pub(crate) capture: Option<Capture>,
    /// Whether the open flows are to be judged, because no engine before has, and when.
    pub(crate) review: FirstReview,
}

/// The review of flows that come from an engine before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstReview {
    None,
    AtOnce,
    /// Workers execute no command before [`Go`].
    AfterGo,
}

/// Work that goes on between requests.
struct Ongoing {
    capture: Current,
    review: Review,
}

impl Answers {
    /// Serves until the outbox is closed, or the warden has ended.
    pub(crate) fn serve(mut self, requests: OwnedFd, outbox: &Outbox) {
        let review = match self.review {
            FirstReview::AtOnce => Review::of_all(&self.workers),
            FirstReview::None | FirstReview::AfterGo => Review::default(),
        };
        let mut ongoing = Ongoing { capture: Current(self.capture.take()), review };
        // Without a reader of decisions nothing is collected, and the thread sleeps until it is asked.
        let has_trail = self.policy.as_ref().is_some_and(|policy| policy.has_trail());
        let interval = has_trail.then_some(TRAIL_INTERVAL);
        let mut trail_at = Instant::now();
        let mut lines = Lines::new(requests, REQUEST_MAX);
        loop {
            let mut ready = vec![PollFd::from_borrowed_fd(lines.as_fd(), PollFlags::IN)];
            ready.extend(outbox.waker().map(|waker| PollFd::from_borrowed_fd(waker, PollFlags::IN)));
            let reviewing = ongoing.review.is_pending().then_some(&REVIEW_INTERVAL);
            // Interrupted: both are checked.
            let _ = poll(&mut ready, reviewing.or(interval.as_ref()));
            if reviewing.is_some() && self.go_on_with_review(&mut ongoing.review, outbox).is_err() {
                return self.workers.stop();
            }
            let sent = outbox.send_waiting(self.clock);
            let ends = !matches!(sent, Ok(true));
            if has_trail && (ends || trail_at.elapsed() >= TRAIL_EVERY) {
                trail_at = Instant::now();
                if self.send_decisions(outbox).is_err() {
                    return self.workers.stop();
                }
            }
            match sent {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => return self.workers.stop(),
            }
            match lines.receive() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => return self.workers.stop(),
                Ok(()) => {}
            }
            while let Some(line) = lines.next() {
                let request = Request::parse(line);
                let descriptor = lines.take_descriptor();
                let reply = match request {
                    Ok(request) if request.method == Retire::NAME => match self.retire(request, outbox) {
                        Ok(reply) => reply,
                        Err(_) => return self.workers.stop(),
                    },
                    Ok(request) => self.answer(&mut ongoing, request, descriptor),
                    Err(error) => Some(rpc::error(None, &error)),
                };
                let reply = reply.unwrap_or_default();
                if lines::send(lines.as_fd(), &reply, None, PATIENCE).is_err() {
                    return self.workers.stop();
                }
            }
        }
    }

    /// Has flows judged that a review has left, and reports its end. Those of a worker that stands still are
    /// left again.
    fn go_on_with_review(&self, review: &mut Review, outbox: &Outbox) -> io::Result<()> {
        match (review.go_on(&self.workers), &self.policy) {
            (Ok(()), Some(policy)) => outbox.send(&Record::Reviewed { generation: policy.generation() }),
            _ => Ok(()),
        }
    }

    /// Executes a request and returns the line with its reply.
    fn answer(
        &self,
        Ongoing { capture, review }: &mut Ongoing,
        request: Request,
        descriptor: Option<OwnedFd>,
    ) -> Option<Vec<u8>> {
        match request.method.as_str() {
            GetEngineStatus::NAME => reply(request, |GetEngineStatus {}| self.status(capture)),
            GetCounters::NAME => reply(request, |GetCounters {}| self.counters()),
            GetFlows::NAME => reply(request, |wanted| self.flows(&wanted)),
            GetFlow::NAME => reply(request, |GetFlow { id }| self.flow(id)),
            ListForwards::NAME => {
                reply(request, |ListForwards {}| Ok(Forwards { forwards: forwards::list(&self.workers)? }))
            }
            AddForward::NAME => reply(request, |wanted| forwards::add(&self.workers, &wanted)),
            RemoveForward::NAME => reply(request, |RemoveForward { id }| forwards::remove(&self.workers, id)),
            GetMetrics::NAME => reply(request, |GetMetrics {}| self.metrics()),
            Recorded::NAME => reply(request, |Recorded { openings, ends }| {
                ask_all(&self.workers, |reply| Command::Record { openings, ends, reply }).map(|_| Done {})
            }),
            Capturing::NAME => {
                reply(request, |wanted| self.start_capture(capture, &wanted, descriptor.map(File::from)))
            }
            Bulked::NAME => reply(request, |Bulked { carrier }| {
                let bulk = bulk_of(carrier);
                ask_all(&self.workers, |reply| Command::SetBulk { bulk, reply }).map(|_| Done {})
            }),
            Enforced::NAME => reply(request, |wanted| {
                let policy = self.policy.as_deref();
                policy::enforce(&self.workers, policy, review, self.clock.now(), wanted, descriptor)
            }),
            ExplainPolicy::NAME => {
                let (policy, now) = (self.policy.as_deref(), self.clock.now());
                reply(request, |ExplainPolicy { last }| Ok(policy::explain(policy, now, last)))
            }
            AskedPolicy::NAME => {
                reply(request, |AskedPolicy {}| Ok(policy::asked(self.policy.as_deref(), self.clock.now())))
            }
            RefuseAsked::NAME => reply(request, |wanted: RefuseAsked| {
                policy::refuse_asked(self.policy.as_deref(), self.clock.now(), &wanted)
            }),
            GetPolicyUsage::NAME => {
                reply(request, |GetPolicyUsage {}| Ok(policy::usage(self.policy.as_deref())))
            }
            StopCapturing::NAME => reply(request, |StopCapturing {}| capture.stop(&self.workers)),
            Names::NAME => reply(request, |names: Names| {
                if let Some(host) = &self.host {
                    host.set_conf(names.into());
                }
                Ok(Done {})
            }),
            PassStreams::NAME => reply(request, |PassStreams {}| self.pass_streams(descriptor)),
            Freeze::NAME => reply(request, |Freeze {}| self.freeze(descriptor)),
            Thaw::NAME => reply(request, |Thaw {}| {
                self.freezing.thaw();
                Ok(Done {})
            }),
            Go::NAME => reply(request, |Go {}| {
                // Said before: the first worker has begun.
                let _ = self.begin.try_send(());
                if self.review == FirstReview::AfterGo {
                    *review = Review::of_all(&self.workers);
                }
                Ok(Done {})
            }),
            Stop::NAME => reply(request, |Stop {}| {
                self.workers.stop();
                Ok(Done {})
            }),
            name => {
                let error = Error::new(code::NO_METHOD, format!("there is no method {name:?}"));
                request.id.as_ref().map(|id| rpc::error(Some(id), &error))
            }
        }
    }

    fn pass_streams(&self, to: Option<OwnedFd>) -> Result<Done, Error> {
        let to = to.ok_or_else(|| Error::new(code::FAILED, "a hand-over needs a socket"))?;
        let passed = handover::early::pass(&Arc::new(to), &self.workers)?;
        self.freezing.note_passed(passed);
        Ok(Done {})
    }

    fn freeze(&self, to: Option<OwnedFd>) -> Result<Done, Error> {
        let to = to.ok_or_else(|| Error::new(code::FAILED, "a hand-over needs a socket"))?;
        self.freezing.ask(to)?;
        self.workers.freeze();
        Ok(Done {})
    }

    /// Retires, after the last records have left: the engine ends at any time from then on.
    fn retire(&self, request: Request, outbox: &Outbox) -> io::Result<Option<Vec<u8>>> {
        outbox.send_waiting(self.clock)?;
        self.send_decisions(outbox)?;
        Ok(reply(request, |Retire {}| self.freezing.retire().map(|()| Done {})))
    }

    /// Sends the decisions since the last time, if they are kept.
    fn send_decisions(&self, outbox: &Outbox) -> io::Result<()> {
        outbox.send_events(self.policy.iter().flat_map(|policy| policy::decisions(policy, self.clock)))
    }

    fn status(&self, capture: &Current) -> Result<EngineStatus, Error> {
        let seen = ask_all(&self.workers, |reply| Command::Report { reply })?;
        let flows = seen.iter().map(|report| report.flows as u64).sum();
        let bulk =
            seen.iter().filter_map(|report| report.promotion).map(promotion_by).reduce(|one, other| {
                EngineBulk {
                    carrier: one.carrier,
                    promoted: one.promoted + other.promoted,
                    agent_gone: one.agent_gone || other.agent_gone,
                }
            });
        // Shared by all workers: the budget, and the resolvers.
        let WorkerReport { memory, resolvers, .. } = seen.into_iter().next().unwrap_or_default();
        Ok(EngineStatus {
            workers: self.workers.workers(),
            flows,
            memory: Memory {
                used: memory.used as u64,
                reserved: memory.reserved as u64,
                budget: memory.budget as u64,
            },
            resolvers,
            bulk,
            capture: capture.status(),
        })
    }

    fn counters(&self) -> Result<Counters, Error> {
        let reports = ask_all(&self.workers, |reply| Command::Report { reply })?;
        let ring_dropped = self.ring.as_ref().map_or(0, |ring| ring.dropped());
        Ok(Report::of(&reports, ring_dropped).into())
    }

    fn metrics(&self) -> Result<Metrics, Error> {
        let busy = || Error::new(code::BUSY, "brodo is too busy to answer");
        let view = view::look(&self.workers, self.ring.as_ref(), self.policy.as_deref(), self.clock.now());
        let view = view.ok_or_else(busy)?;
        Ok(Metrics { text: exposition::text(&view) })
    }

    fn start_capture(
        &self,
        current: &mut Current,
        wanted: &Capturing,
        file: Option<File>,
    ) -> Result<Done, Error> {
        let file = file.ok_or_else(|| Error::new(code::FAILED, "a capture needs a file"))?;
        let capture = capture::open(file, wanted, &self.interface, self.clock)
            .map_err(|failure| Error::new(code::FAILED, failure.to_string()))?;
        current.start(&self.workers, &capture).map(|()| Done {})
    }

    fn flows(&self, wanted: &GetFlows) -> Result<FlowPage, Error> {
        let limit = match wanted.limit {
            None => PAGE_MAX,
            Some(limit @ 1..=PAGE_MAX) => limit,
            Some(_) => {
                return Err(Error::new(code::INVALID_PARAMS, format!("limit must be 1 to {PAGE_MAX}")));
            }
        };
        let (mut worker, mut from) =
            wanted.after.map_or((0, 0), |after| (after.worker, after.index.saturating_add(1)));
        let mut page = FlowPage::default();
        let Some(filter) = filter(wanted) else { return Ok(page) };
        while worker < self.workers.workers() {
            // No more than the page takes: flows examined beyond the page are examined again for the next.
            let most = FLOWS_PER_COMMAND.min(limit as usize - page.flows.len());
            let command = |reply| Command::Flows { from, most, filter, round_trips: true, reply };
            let found = ask(&self.workers, worker, command)?;
            for report in &found.flows {
                page.flows.push(flow_messages::full(worker, &report.detail, report.round_trip, self.bounds));
                if page.flows.len() == limit as usize {
                    page.next = Some(flow_messages::handle(worker, report.detail.info.flow));
                    return Ok(page);
                }
            }
            (worker, from) = match found.last {
                Some(last) => (worker, last.index.saturating_add(1)),
                None => (worker + 1, 0),
            };
        }
        Ok(page)
    }

    fn flow(&self, flow: FlowRef) -> Result<FlowDetail, Error> {
        let id = FlowId { index: flow.index, generation: flow.generation };
        let gone = || Error::new(code::NOT_FOUND, format!("there is no flow {flow} any more"));
        if flow.worker >= self.workers.workers() {
            return Err(gone());
        }
        let report =
            ask(&self.workers, flow.worker, |reply| Command::Flow { id, reply })?.ok_or_else(gone)?;
        let FlowReport { detail, round_trip, tuning, at } = report;
        let flow: Flow = flow_messages::full(flow.worker, &detail, round_trip, self.bounds);
        let history = tuning.iter().filter_map(|decision| flow_messages::step(decision, at)).collect();
        Ok(FlowDetail { flow, history })
    }
}

/// The carrier as workers know it.
pub(super) fn bulk_of(carrier: BulkCarrier) -> Bulk {
    match carrier {
        BulkCarrier::Kernel => Bulk::Kernel,
        BulkCarrier::Tap => Bulk::Tap,
    }
}

/// Promotion by one worker.
fn promotion_by(PromotionReport { bulk, flows, agent_gone }: PromotionReport) -> EngineBulk {
    let carrier = match bulk {
        Bulk::Kernel => BulkCarrier::Kernel,
        Bulk::Tap => BulkCarrier::Tap,
    };
    EngineBulk { carrier, promoted: flows as u64, agent_gone }
}

/// Filter of the requested flows; `None` if no flow can match.
fn filter(wanted: &GetFlows) -> Option<FlowFilter> {
    let protocol = match wanted.protocol {
        None => None,
        Some(protocol) => Some(flow_messages::core_protocol(protocol)?),
    };
    let carrier = match wanted.carrier {
        None => None,
        Some(carrier) => Some(flow_messages::core_carrier(carrier)?),
    };
    Some(FlowFilter { protocol, carrier, address: wanted.address, port: wanted.port })
}
