//! The methods: parameters in, a result or an error out. State of flows and workers is the engine's, which is
//! asked for it.

use super::{Controlled, server::Server};
use super::{bulk, capture, policy};
use crate::conversation::message::GetEngineStatus;
use crate::log;
use crate::own_process::Processes;
use crate::upgrades::History;
use crate::warden::forwarding::Forwards as _;
use brodo_control::method::{
    AddForward, FailedUpgrade, Forwards, GetCounters, GetFlow, GetFlows, GetHello, GetStatus, Hello,
    LastUpgrade, ListForwards, LogLevel, Method, NAMES, RemoveForward, SetBulk, SetLogLevel, StartCapture,
    Status, StopCapture, Subscribe, Subscribed, Upgrade, Upgrades, reply,
};
use brodo_control::policy::{
    AddRule, AskedPolicy, ExplainPolicy, LearnedPolicy, Lockdown, RefuseAsked, RemoveRule, SealPolicy,
    SetPolicy, ShowPolicy,
};
use brodo_control::rpc::{self, Error, PROTOCOL, Request, code};

impl Server {
    /// Executes the request of a client and returns the line with its reply.
    pub(super) fn answer(&mut self, client: usize, request: Request) -> Option<Vec<u8>> {
        let controlled = &self.controlled;
        let engine = &controlled.engine;
        let by = self.author(client);
        match request.method.as_str() {
            GetHello::NAME => reply(request, |GetHello { protocol }| hello(protocol)),
            GetStatus::NAME => reply(request, |GetStatus {}| status(controlled)),
            GetCounters::NAME => reply(request, |wanted: GetCounters| engine.call(&wanted)),
            GetFlows::NAME => reply(request, |wanted: GetFlows| engine.call(&wanted)),
            GetFlow::NAME => reply(request, |wanted: GetFlow| engine.call(&wanted)),
            ListForwards::NAME => reply(request, |ListForwards {}| {
                controlled.forwarding().list().map(|forwards| Forwards { forwards })
            }),
            AddForward::NAME => reply(request, |wanted| controlled.forwarding().add(&wanted)),
            RemoveForward::NAME => {
                reply(request, |wanted: RemoveForward| controlled.forwarding().remove(wanted.id))
            }
            StartCapture::NAME => reply(request, |wanted| capture::start(controlled, wanted)),
            StopCapture::NAME => reply(request, |StopCapture {}| capture::stop(controlled)),
            SetBulk::NAME => reply(request, |SetBulk { carrier }| bulk::set(controlled, carrier)),
            ShowPolicy::NAME => reply(request, |ShowPolicy {}| policy::show(controlled)),
            SetPolicy::NAME => reply(request, |wanted: SetPolicy| {
                policy::change(controlled, by, "replaced", |policy, _| policy.set(&wanted))
            }),
            AddRule::NAME => reply(request, |wanted: AddRule| {
                policy::change(controlled, by, "rule added", |policy, now| policy.add(&wanted, now))
            }),
            RemoveRule::NAME => reply(request, |wanted: RemoveRule| {
                policy::change(controlled, by, "rule removed", |policy, _| policy.remove(&wanted))
            }),
            SealPolicy::NAME => reply(request, |SealPolicy {}| {
                policy::change(controlled, by, "sealed", |policy, _| policy.seal())
            }),
            Lockdown::NAME => reply(request, |Lockdown { on }| {
                let what = if on { "lockdown" } else { "lockdown over" };
                policy::change(controlled, by, what, |policy, _| policy.lock(on))
            }),
            ExplainPolicy::NAME => reply(request, |wanted: ExplainPolicy| engine.call(&wanted)),
            AskedPolicy::NAME => reply(request, |wanted: AskedPolicy| engine.call(&wanted)),
            RefuseAsked::NAME => reply(request, |wanted: RefuseAsked| engine.call(&wanted)),
            LearnedPolicy::NAME => {
                reply(request, |wanted: LearnedPolicy| policy::learned(controlled, &wanted))
            }
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
    let usage = controlled.engine.of_processes(Processes::usage);
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
        bulk: bulk::status(controlled, engine.bulk),
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
