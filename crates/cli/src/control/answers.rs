//! The methods: parameters in, a result or an error out. State of flows and workers is the engine's, which is
//! asked for it.

use super::capture;
use super::{Controlled, server::Server};
use crate::conversation::forwards;
use crate::conversation::message::GetEngineStatus;
use crate::log;
use crate::own_process::Processes;
use crate::upgrades::History;
use brodo_control::method::{
    AddForward, FailedUpgrade, Forward, GetCounters, GetFlow, GetFlows, GetHello, GetStatus, Hello,
    LastUpgrade, ListForwards, LogLevel, Method, NAMES, RemoveForward, SetLogLevel, StartCapture, Status,
    StopCapture, Subscribe, Subscribed, Upgrade, Upgrades, reply,
};
use brodo_control::rpc::{self, Error, PROTOCOL, Request, code};

impl Server {
    /// Executes the request of a client and returns the line with its reply.
    pub(super) fn answer(&mut self, client: usize, request: Request) -> Option<Vec<u8>> {
        let controlled = &self.controlled;
        let engine = &controlled.engine;
        match request.method.as_str() {
            GetHello::NAME => reply(request, |GetHello { protocol }| hello(protocol)),
            GetStatus::NAME => reply(request, |GetStatus {}| status(controlled)),
            GetCounters::NAME => reply(request, |wanted: GetCounters| engine.call(&wanted)),
            GetFlows::NAME => reply(request, |wanted: GetFlows| engine.call(&wanted)),
            GetFlow::NAME => reply(request, |wanted: GetFlow| engine.call(&wanted)),
            ListForwards::NAME => reply(request, |wanted: ListForwards| engine.call(&wanted)),
            AddForward::NAME => reply(request, |wanted| add_forward(controlled, &wanted)),
            RemoveForward::NAME => reply(request, |wanted| remove_forward(controlled, &wanted)),
            StartCapture::NAME => reply(request, |wanted| capture::start(controlled, wanted)),
            StopCapture::NAME => reply(request, |StopCapture {}| capture::stop(controlled)),
            Upgrade::NAME => self.upgrade(client, request),
            SetLogLevel::NAME => reply(request, |SetLogLevel { level }| {
                level.inspect(|&level| log::set_level(level));
                Ok(LogLevel { level: log::level() })
            }),
            Subscribe::NAME => reply(request, |Subscribe { events }| {
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

fn status(controlled: &Controlled) -> Result<Status, Error> {
    let engine = controlled.engine.call(&GetEngineStatus {})?;
    let info = &controlled.info;
    let usage = Processes::of(controlled.engine.keeper()).usage();
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
        resolvers: engine.resolvers,
        workers: engine.workers,
        memory: engine.memory,
        flows: engine.flows,
        flows_max: info.flows_max,
        cpu_user_us: usage.cpu_user_us,
        cpu_system_us: usage.cpu_system_us,
        rss_bytes: usage.resident_bytes,
        capture: capture::status(controlled, engine.capture),
        confinement: info.confinement.clone(),
        crashes: controlled.engine.crashes(),
        upgrades: upgrades(&controlled.upgrades.history()),
        log_level: log::level(),
    })
}

/// Upgrades of the instance, if there were any.
fn upgrades(history: &History) -> Option<Upgrades> {
    (history.count > 0 || history.failure.is_some()).then(|| Upgrades {
        count: history.count,
        last: history.last.as_ref().map(|last| LastUpgrade {
            time: last.time.clone(),
            pause_us: last.pause_us,
            flows_lost: last.flows_lost,
        }),
        failure: history
            .failure
            .as_ref()
            .map(|failed| FailedUpgrade { time: failed.time.clone(), reason: failed.reason.clone() }),
    })
}

/// Puts a forward in force; existing ones stay.
fn add_forward(controlled: &Controlled, wanted: &AddForward) -> Result<Forward, Error> {
    let invalid = |why: String| Error::new(code::INVALID_PARAMS, why);
    let forward = forwards::parse(wanted).map_err(invalid)?;
    // Before the request, because the engine asks for the sockets at once.
    let is_new = controlled.desired().add_forward(&forward);
    let added = controlled.engine.call(wanted);
    if added.is_err() && is_new {
        controlled.desired().remove_forward(&forward);
    }
    added
}

/// Removes a forward and returns its last state.
fn remove_forward(controlled: &Controlled, wanted: &RemoveForward) -> Result<Forward, Error> {
    let removed = controlled.engine.call(wanted)?;
    let Forward { side, protocol, ref spec, .. } = removed;
    if let Ok(forward) = forwards::parse(&AddForward { side, protocol, spec: spec.clone() }) {
        controlled.desired().remove_forward(&forward);
    }
    Ok(removed)
}
