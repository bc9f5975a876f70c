//! The methods: parameters in, a result or an error out. State of workers is read by commands.

use super::ask::{FLOWS_PER_COMMAND, ask, ask_all};
use super::capture::Captures;
use super::{Controlled, forwards, server::Server};
use crate::flow_messages;
use crate::log;
use crate::own_process::Usage;
use brodo_control::flow::{Flow, FlowRef};
use brodo_control::method::{
    AddForward, Counters, FlowDetail, FlowPage, Forwards, GetCounters, GetFlow, GetFlows, GetHello,
    GetStatus, Hello, ListForwards, LogLevel, Memory, Method, NAMES, PAGE_MAX, RemoveForward, SetLogLevel,
    StartCapture, Status, StopCapture, Subscribe, Subscribed,
};
use brodo_control::rpc::{self, Error, PROTOCOL, Request, code};
use brodo_core::counters::Counters as Counted;
use brodo_core::flow::FlowId;
use brodo_net::command::{Command, FlowFilter, FlowReport, WorkerReport};

/// The reply to a request, made by `does` of its parameters; none if the request has no id.
fn with<M: Method>(request: Request, does: impl FnOnce(M) -> Result<M::Result, Error>) -> Option<Vec<u8>> {
    let id = request.id.clone();
    let done = request.params::<M>().and_then(does);
    let id = id?;
    Some(match done {
        Ok(result) => rpc::result(&id, &result),
        Err(error) => rpc::error(Some(&id), &error),
    })
}

impl Server {
    /// Executes the request of a client and returns the line with its reply.
    pub(super) fn answer(&mut self, client: usize, request: Request) -> Option<Vec<u8>> {
        let Self { controlled, captures, .. } = self;
        match request.method.as_str() {
            GetHello::NAME => with(request, |GetHello { protocol }| hello(protocol)),
            GetStatus::NAME => with(request, |GetStatus {}| status(controlled, captures)),
            GetCounters::NAME => with(request, |GetCounters {}| counters(controlled)),
            GetFlows::NAME => with(request, |wanted| flows(controlled, &wanted)),
            GetFlow::NAME => with(request, |GetFlow { id }| flow(controlled, id)),
            ListForwards::NAME => {
                with(request, |ListForwards {}| Ok(Forwards { forwards: forwards::list(controlled)? }))
            }
            AddForward::NAME => with(request, |wanted| forwards::add(controlled, &wanted)),
            RemoveForward::NAME => with(request, |RemoveForward { id }| forwards::remove(controlled, id)),
            StartCapture::NAME => with(request, |wanted| captures.start(controlled, wanted)),
            StopCapture::NAME => with(request, |StopCapture {}| captures.stop(controlled)),
            SetLogLevel::NAME => with(request, |SetLogLevel { level }| {
                level.inspect(|&level| log::set_level(level));
                Ok(LogLevel { level: log::level() })
            }),
            Subscribe::NAME => with(request, |Subscribe { events }| {
                let events = self.subscribe(client, events)?;
                Ok(Subscribed { events })
            }),
            name => {
                let error = Error::new(code::NO_METHOD, format!("there is no method {name:?}"));
                request.id.as_ref().map(|id| rpc::error(Some(id), &error))
            }
        }
    }
}

fn hello(protocol: Option<u32>) -> Result<Hello, Error> {
    if let Some(other) = protocol.filter(|&protocol| protocol != PROTOCOL) {
        let why = format!("protocol {other} is not spoken here, only {PROTOCOL}");
        return Err(Error::new(code::UNSUPPORTED, why));
    }
    Ok(Hello {
        program: "brodo".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL,
        pid: std::process::id(),
        methods: NAMES.iter().map(|&name| name.to_owned()).collect(),
    })
}

fn status(controlled: &Controlled, captures: &Captures) -> Result<Status, Error> {
    let seen = ask_all(&controlled.workers, |reply| Command::Report { reply })?;
    let info = &controlled.info;
    let flows = seen.iter().map(|report| report.flows as u64).sum();
    // Shared by all workers: the budget, and the resolvers.
    let WorkerReport { memory, resolvers, .. } = seen.into_iter().next().unwrap_or_default();
    let own = Usage::read();
    Ok(Status {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL,
        uptime_s: controlled.started.elapsed().as_secs(),
        command: info.command.to_owned(),
        target: info.target.clone(),
        interface: info.interface.clone(),
        mtu: info.mtu,
        networks: info.networks.clone(),
        resolvers,
        workers: controlled.workers.workers(),
        memory: Memory {
            used: memory.used as u64,
            reserved: memory.reserved as u64,
            budget: info.memory as u64,
        },
        flows,
        flows_max: info.flows_max,
        cpu_user_us: own.cpu_user_us,
        cpu_system_us: own.cpu_system_us,
        rss_bytes: own.resident_bytes,
        capture: captures.status(),
        log_level: log::level(),
    })
}

fn counters(controlled: &Controlled) -> Result<Counters, Error> {
    let (mut sum, mut counters) = (Counted::default(), Counters::default());
    for report in ask_all(&controlled.workers, |reply| Command::Report { reply })? {
        sum.add(&report.counters);
        for (name, count) in report.forwards.iter().flat_map(|forwards| forwards.counters.named()) {
            *counters.counters.entry(name.to_owned()).or_default() += count;
        }
        for (rule, count) in report.rules.into_iter().filter(|(_, count)| *count > 0) {
            *counters.rules.entry(rule).or_default() += count;
        }
    }
    counters.counters.extend(sum.named().map(|(name, count)| (name.to_owned(), count)));
    if let Some(ring) = &controlled.ring {
        counters.counters.insert("link_ring_dropped".to_owned(), ring.dropped());
    }
    counters.drops.extend(sum.drops().map(|(reason, count)| (reason.name().to_owned(), count)));
    Ok(counters)
}

/// Filter of the requested flows.
fn filter(wanted: &GetFlows) -> Option<FlowFilter> {
    let protocol = match wanted.protocol {
        None => None,
        Some(protocol) => Some(flow_messages::core_protocol(protocol)?),
    };
    Some(FlowFilter { protocol, address: wanted.address, port: wanted.port })
}

fn flows(controlled: &Controlled, wanted: &GetFlows) -> Result<FlowPage, Error> {
    let limit = match wanted.limit {
        None => PAGE_MAX,
        Some(limit @ 1..=PAGE_MAX) => limit,
        Some(_) => return Err(Error::new(code::INVALID_PARAMS, format!("limit must be 1 to {PAGE_MAX}"))),
    };
    let (mut worker, mut from) =
        wanted.after.map_or((0, 0), |after| (after.worker, after.index.saturating_add(1)));
    let mut page = FlowPage::default();
    let Some(filter) = filter(wanted) else { return Ok(page) };
    while worker < controlled.workers.workers() {
        // No more than the page takes: flows examined beyond the page are examined again for the next.
        let most = FLOWS_PER_COMMAND.min(limit as usize - page.flows.len());
        let command = |reply| Command::Flows { from, most, filter, round_trips: true, reply };
        let found = ask(&controlled.workers, worker, command)?;
        for report in &found.flows {
            page.flows.push(flow_messages::full(
                worker,
                &report.detail,
                report.round_trip,
                controlled.info.bounds,
            ));
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

fn flow(controlled: &Controlled, flow: FlowRef) -> Result<FlowDetail, Error> {
    let id = FlowId { index: flow.index, generation: flow.generation };
    let gone = || Error::new(code::NOT_FOUND, format!("there is no flow {flow} any more"));
    if flow.worker >= controlled.workers.workers() {
        return Err(gone());
    }
    let report =
        ask(&controlled.workers, flow.worker, |reply| Command::Flow { id, reply })?.ok_or_else(gone)?;
    let FlowReport { detail, round_trip, tuning, at } = report;
    let flow: Flow = flow_messages::full(flow.worker, &detail, round_trip, controlled.info.bounds);
    let history = tuning.iter().filter_map(|(then, event)| flow_messages::step(*then, event, at)).collect();
    Ok(FlowDetail { flow, history })
}
