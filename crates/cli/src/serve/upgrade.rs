//! Hand-over of a running service to another program in the same process (execve), and its resumption there.
//!
//! [`Service::begin_upgrade`] and [`Service::finish_upgrade`] are the two ends of what the warden does in
//! between (`warden/upgrade.rs`). Threads end with execve: before it the client that has asked has its reply,
//! the control thread is between two requests, no call to the engine is under way, and the flow log is
//! written.

use super::{
    Files, Guest, Logs, Parts, Purpose, RESOLV_CONF, Readiness, Renounced, Rotated, Service, Surroundings,
    describe,
};
use crate::args::NetworkOptions;
use crate::conversation::message::Recorded;
use crate::engine::launch::GuestSide;
use crate::event_bus::Watches;
use crate::failure::{Failure, plain};
use crate::flow_log::FlowLog;
use crate::forward_sockets::ForwardSockets;
use crate::host;
use crate::learnt_policy::learner::Learner;
use crate::log;
use crate::metrics::Metrics;
use crate::policy_fail::Unlisted;
use crate::resume::state::{
    FORMAT, SavedInterface, SavedListener, SavedLogs, SavedPipes, SavedPromotion, State,
};
use crate::resume::{self, descriptor::Keep, descriptor::taken};
use crate::timestamp::Timestamp;
use crate::unix_listener::PrivateListener;
use crate::upgrades::Wish;
use crate::warden::Warden;
use crate::warden::candidate::Candidate;
use crate::warden::desired::Desired;
use crate::warden::resume::{Facts, SavedHelpers};
use crate::warden::upgrade::{self, Exchanged};
use brodo_control::event::Level;
use brodo_net::clock::Clock;
use brodo_net::sockets::raise_nofile;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

impl Service {
    /// Starts the wanted program beside this one.
    pub(super) fn begin_upgrade<G: Guest>(&mut self, guest: &G, wish: Wish) {
        if let Err(why) = self.try_program(guest, wish) {
            self.upgrade_failed(why);
        }
    }

    fn try_program<G: Guest>(&mut self, guest: &G, wish: Wish) -> Result<(), String> {
        let path = wish.program.map_or_else(upgrade::own_path, Ok);
        let path = path.map_err(|error| format!("the path of this program is unknown: {}", plain(&error)))?;
        let program = upgrade::open(&path)?;
        if !self.warden.may_end_engine() {
            return Err("brodo may not end its engine, which belongs to another user (CAP_KILL)".to_owned());
        }
        let upgrades = self.around.upgrades.clone();
        let gate = self.warden.hold_requests(&upgrades);
        let candidate = self.with_state(guest, gate, |state, kept| {
            let broker = state.broker.as_ref().map(|broker| broker.pid);
            let agent = state.promotion.as_ref().and_then(|promotion| promotion.agent.as_ref());
            let others = [Some(state.engine.pid), broker, agent.map(|agent| agent.pid), guest.child()];
            Candidate::start(program, state, kept, others.into_iter().flatten().collect())
        })?;
        self.warden.consider(candidate?)
    }

    /// Has the service manager keep the state, if it does so. One of an engine that is being started again
    /// follows later.
    pub(super) fn keep_state<G: Guest>(&mut self, guest: &G) {
        let upgrades = self.around.upgrades.clone();
        // The main thread is woken after the request.
        let Some(gate) = upgrades.try_hold_requests() else { return };
        let Some(mut store) = self.store.take() else { return };
        let _ = self.with_state(guest, gate, |state, kept| store.keep(state, kept));
        self.store = Some(store);
    }

    /// Ends an attempt: with a new engine, the program too is replaced.
    pub(super) fn finish_upgrade<G: Guest>(&mut self, guest: &G, outcome: Result<Exchanged, String>) {
        let exchanged = match outcome {
            Ok(exchanged) => exchanged,
            Err(why) => return self.upgrade_failed(why),
        };
        let upgraded = exchanged.upgraded(self.now());
        let lost = match upgraded.flows_lost {
            0 => String::new(),
            lost => format!("; {lost} flows could not go on and were reset"),
        };
        let text = format!(
            "upgraded to version {}, after a pause of {} us{lost}; clients of the control socket have to connect again",
            upgraded.version, upgraded.pause_us
        );
        self.around.bus.notify(Level::Info, &text);
        self.facts.flows_max = exchanged.ready.flows_max;
        // A gap that is an error at the start is none here: the guest's connections depend on this engine.
        self.facts.confinement = describe::confinement_of(self.confine, &exchanged.ready);
        self.around.upgrades.tell(Ok(upgraded), self.now(), self.around.clients.as_deref());
        // The next program keeps it anew, under the names of its own descriptors.
        let store = self.store.take();
        if let Some(mut store) = store {
            store.empty();
            self.store = Some(store);
        }
        let upgrades = self.around.upgrades.clone();
        let gate = self.warden.hold_requests(&upgrades);
        // No request adds to them any more.
        for log in [&self.flow_log, &self.audit].into_iter().flatten() {
            log.flush();
        }
        let executed =
            self.with_state(guest, gate, |state, kept| resume::execute(&exchanged.program, state, kept));
        let why = executed.map_or_else(|why| why, |error| format!("execve: {}", plain(&error)));
        let text = format!("the engine is the new one, but this program goes on: {why}");
        self.around.bus.notify(Level::Warn, &text);
        self.around.upgrades.warden_stays(self.now(), text);
    }

    pub(super) fn upgrade_failed(&self, why: String) {
        self.around
            .bus
            .notify(Level::Warn, &format!("the upgrade failed, and everything goes on as before: {why}"));
        self.around.upgrades.tell(Err(why), self.now(), self.around.clients.as_deref());
    }

    fn now(&self) -> String {
        let clock = self.around.clock;
        Timestamp(clock.date_ns(clock.now())).to_string()
    }

    /// Does `step` with the state of this service, while no request is under way: `_gate` holds them off.
    fn with_state<G: Guest, T>(
        &self,
        guest: &G,
        _gate: MutexGuard<'_, ()>,
        step: impl FnOnce(&State, &Keep<'_>) -> T,
    ) -> Result<T, String> {
        let client = self.warden.engine().clone();
        // In this order, as a change of the policy has it.
        let engine = client.hold();
        let desired = self.warden.desired().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut kept = Keep::default();
        let restarting = || "the engine is being started again: try again".to_owned();
        let saved_engine = self.warden.save(&engine, &self.facts, &mut kept).ok_or_else(restarting)?;
        let state = State {
            format: FORMAT,
            origin: self.origin.clone(),
            clock: self.around.clock.into(),
            guest: guest.save(&mut kept),
            interface: self.save_interface(&mut kept),
            engine: saved_engine,
            desired: desired.save(&mut kept),
            broker: self.warden.save_broker(&mut kept),
            promotion: self.save_promotion(&mut kept),
            metrics: self.serving.as_ref().map(|serving| serving.save(&mut kept)),
            control: self.control.as_ref().map(|control| control.listener().save(&mut kept)),
            forward_sockets: self.forward_sockets.as_ref().map_or_else(Vec::new, |it| it.save(&mut kept)),
            log_level: log::level(),
            log_file: log::file_path(),
            unlisted: self.around.watches.unlisted.as_ref().map(|unlisted| unlisted.save()),
            learner: self.around.watches.learner.as_ref().map(|learner| learner.save()),
            logs: Some(self.save_logs()),
            pipes: self.save_pipes(&mut kept),
            upgrades: self.around.upgrades.history(),
        };
        Ok(step(&state, &kept))
    }

    /// Numbers of records that the logs lack.
    fn save_logs(&self) -> SavedLogs {
        let missing = |log: &Option<FlowLog>| log.as_ref().map(FlowLog::missing).unwrap_or_default();
        SavedLogs {
            flows_missing: missing(&self.flow_log),
            audit_missing: missing(&self.audit),
            audit_lost: self.around.bus.audit_lost().unwrap_or_default(),
        }
    }

    /// Logs that are pipes, with that of the program itself.
    fn save_pipes<'a>(&'a self, kept: &mut Keep<'a>) -> SavedPipes {
        let pipe = |log: &'a Option<FlowLog>| log.as_ref().and_then(FlowLog::pipe);
        let mut note = |pipe: Option<BorrowedFd<'a>>| pipe.map(|pipe| kept.note(pipe));
        SavedPipes {
            log_file: note(log::pipe()),
            flow_log: note(pipe(&self.flow_log)),
            audit: note(pipe(&self.audit)),
        }
    }

    /// The way to the guest.
    fn save_interface<'a>(&'a self, kept: &mut Keep<'a>) -> SavedInterface {
        let own_sockets = self.attached.own_sockets.clone();
        match &self.attached.side {
            GuestSide::Interface { taps, watch } => SavedInterface {
                taps: taps.iter().map(|tap| kept.note(tap.as_fd())).collect(),
                watch: watch.as_ref().map(|watch| kept.note(watch.as_fd())),
                channel: None,
                own_sockets,
            },
            GuestSide::Monitor { channel, .. } => {
                let channel = Some(kept.note(channel.as_fd()));
                SavedInterface { taps: Vec::new(), watch: None, channel, own_sockets }
            }
        }
    }

    /// Promotion, if it was asked for.
    fn save_promotion<'a>(&'a self, kept: &mut Keep<'a>) -> Option<SavedPromotion> {
        let (agent, unavailable) = (self.warden.save_agent(kept), self.facts.no_promotion.clone());
        (agent.is_some() || unavailable.is_some()).then_some(SavedPromotion { agent, unavailable })
    }

    /// A service that goes on with that of another program. A process that is not that program's gives up the
    /// rights of `renounced` first.
    ///
    /// # Errors
    /// A descriptor is missing, or the keeper has ended.
    pub(crate) fn resume(
        state: &State,
        options: &NetworkOptions,
        purpose: Purpose,
        renounced: Renounced,
    ) -> Result<Self, Failure> {
        log::set_level(state.log_level);
        let failed = || Failure::io("go on with the work of another brodo: fcntl");
        let settings = host::settings(&state.origin, options)?;
        let clock = Clock::from(state.clock);
        let listener =
            |saved: &Option<SavedListener>| saved.as_ref().map(PrivateListener::resume).transpose();
        let listener = listener(&state.control).map_err(failed())?;
        let forward_sockets = ForwardSockets::resume(&state.forward_sockets).map_err(failed())?;
        let history = state.upgrades.clone();
        let around = Surroundings::new(clock, resumed_logs(state, options), listener.is_some(), history)?;
        let mut desired = Desired::resume(&state.desired).map_err(failed())?;
        desired.opening = host::opening_of(&settings, options.confine);
        // No client is connected yet.
        desired.record = Recorded { openings: false, ends: around.bus.needs_ends() };
        let record = desired.record;
        let attached = host::attached(state).map_err(failed())?;
        let warden = Warden::resume(
            &state.engine,
            SavedHelpers {
                broker: state.broker.as_ref(),
                agent: state.promotion.as_ref().and_then(|it| it.agent.as_ref()),
            },
            attached.side.workers(),
            desired,
            &around.bus,
            &around.upgrades,
            Path::new(RESOLV_CONF),
        )?;
        raise_nofile();
        // Without waiting for the reply: the engine's first turn may want listening sockets, which this
        // thread opens once it serves. An engine that has crashed is started again with it.
        let _ = warden.engine().notify(&record);
        let facts = Facts {
            flows_max: state.engine.flows_max,
            confinement: state.engine.confinement.clone(),
            no_promotion: state.promotion.as_ref().and_then(|it| it.unavailable.clone()),
        };
        let interface = host::interface_name(&settings, &attached.side);
        let info = describe::instance_info(purpose, interface, &settings.stack, facts.clone());
        let metrics = state.metrics.as_ref().zip(options.metrics.as_ref());
        let metrics = metrics.map(|(saved, address)| Metrics::resume(saved, address)).transpose();
        let log = |path: &Option<PathBuf>, pipe| {
            let directory = state.origin.directory.as_deref().unwrap_or(Path::new(""));
            path.as_deref().and_then(|path| reopened(&directory.join(path), options, taken(pipe)))
        };
        let flow_log = log(&options.flow_log, state.pipes.flow_log);
        let audit = log(&options.audit, state.pipes.audit);
        let metrics = metrics.map_err(failed())?;
        renounced.apply(listener.as_ref(), &forward_sockets, &[])?;
        let stats = options.stats;
        let files = Files { flow_log, audit, listener, forward_sockets, metrics, stats };
        let (origin, confine) = (state.origin.clone(), options.confine);
        let parts = Parts { warden, attached, origin, confine, facts, info };
        // Of the same clock, which began with the service.
        let started = Instant::now().checked_sub(Duration::from_nanos(clock.now().as_ns()));
        Service::of(parts, around, files, Readiness::default(), started.unwrap_or_else(Instant::now))
    }
}

/// Readers of events, which go on with what those of the program before have kept.
fn resumed_logs(state: &State, options: &NetworkOptions) -> Logs {
    let unlisted = options
        .policy_fail
        .map(|status| Unlisted::resume(status, state.unlisted.clone().unwrap_or_default()));
    let learner = state.learner.clone().map(Learner::resume);
    let watches = Watches { unlisted: unlisted.map(Arc::new), learner: learner.map(Arc::new) };
    let (flows, audit) = (options.flow_log.is_some(), options.audit.is_some());
    let before = Some(state.logs.unwrap_or_default());
    Logs { flows, audit, is_audit_required: options.audit_required, watches, before }
}

/// A log that the program before has written to its end. Without it the network goes on.
fn reopened(path: &Path, options: &NetworkOptions, pipe: Option<OwnedFd>) -> Option<Rotated> {
    let opened = Rotated::reopen(path, options.flow_log_size(), options.flow_log_keep(), pipe);
    let failed = |error: &std::io::Error| {
        log::warn(&format!("log {} ended early: open: {}", path.display(), plain(error)), &[]);
    };
    opened.inspect_err(failed).ok()
}
