//! The warden's part of a state for the next program ([`crate::resume`]), and a warden made of it.

use super::client::{EngineClient, Held};
use super::desired::Desired;
use super::listening::ListenService;
use super::record_reader::{KeeperWatch, read_during};
use super::{Conversation, Warden, restarts::Restarts, wait_for_all};
use crate::conversation::lines::Lines;
use crate::event_bus::EventBus;
use crate::failure::Failure;
use crate::resume::descriptor::Keep;
use crate::resume::state::{SavedAgent, SavedBroker, SavedEngine, SavedLines};
use crate::upgrades::Upgrades;
use brodo_control::rpc::MESSAGE_MAX;
use brodo_net::promotion::client::PromotionAgent;
use brodo_net::resolv::Watch;
use brodo_net::socket_broker::SocketBroker;
use brodo_sandbox::Confined;
use rustix::event::epoll::{self, CreateFlags};
use rustix::fd::AsFd;
use rustix::process::Pid;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Facts about the engine that serves, for the status.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) flows_max: u64,
    pub(crate) confinement: String,
    /// The reason why no flow is promoted, if that was asked for.
    pub(crate) no_promotion: Option<String>,
}

/// Processes of brodo's in the guest's namespaces, as another program has left them.
pub(crate) struct SavedHelpers<'a> {
    pub(crate) broker: Option<&'a SavedBroker>,
    pub(crate) agent: Option<&'a SavedAgent>,
}

impl Warden {
    /// The engine that serves, with its descriptors noted in `kept`; none while it is started again.
    pub(crate) fn save<'a>(
        &'a self,
        engine: &'a Held<'_>,
        facts: &Facts,
        kept: &mut Keep<'a>,
    ) -> Option<SavedEngine> {
        let (conversation, confined) = (self.conversation.as_ref()?, self.confined.as_ref()?);
        let (last_id, requests) = engine.state()?;
        let mut lines = |lines: &'a Lines| SavedLines {
            socket: kept.note(lines.as_fd()),
            pending: lines.pending().to_owned(),
        };
        let (requests, records) = (lines(requests), lines(&conversation.records));
        Some(SavedEngine {
            keeper: kept.note(self.keeper.as_fd()),
            pid: confined.pid().as_raw_pid(),
            process: self.process.as_ref().map(|process| kept.note(process.as_fd())),
            requests,
            last_id,
            records,
            listen: kept.note(conversation.listen.as_fd()),
            crashes: self.engine.crashes(),
            cpu_past: self.engine.past(),
            names: self.conf.clone().into(),
            flows_max: facts.flows_max,
            confinement: facts.confinement.clone(),
        })
    }

    /// The socket broker, with its channel noted in `kept`.
    pub(crate) fn save_broker<'a>(&'a self, kept: &mut Keep<'a>) -> Option<SavedBroker> {
        let broker = self.broker.as_ref()?;
        Some(SavedBroker { pid: broker.process()?.as_raw_pid(), channel: kept.note(broker.descriptor()) })
    }

    /// The promotion agent, with its channel noted in `kept`.
    pub(crate) fn save_agent<'a>(&'a self, kept: &mut Keep<'a>) -> Option<SavedAgent> {
        let agent = self.agent.as_ref()?;
        Some(SavedAgent { pid: agent.process()?.as_raw_pid(), channel: kept.note(agent.descriptor()) })
    }

    /// A warden that goes on with the engine of another program, which has so many workers.
    ///
    /// # Errors
    /// A descriptor is missing, or the keeper has ended.
    pub(crate) fn resume(
        saved: &SavedEngine,
        SavedHelpers { broker, agent }: SavedHelpers<'_>,
        workers: usize,
        desired: Desired,
        bus: &Arc<EventBus>,
        upgrades: &Arc<Upgrades>,
        resolv_conf: &Path,
    ) -> Result<Self, Failure> {
        let failed = |error| Failure::Io("go on with the engine: fcntl".to_owned(), error);
        let lines = |saved: &SavedLines| -> io::Result<Lines> {
            Ok(Lines::resume(saved.socket.take()?, saved.pending.clone(), MESSAGE_MAX))
        };
        let made = || -> io::Result<Self> {
            let poller = epoll::create(CreateFlags::CLOEXEC)?;
            let keeper = saved.keeper.take()?;
            wait_for_all(&poller, &keeper, upgrades)?;
            let process = saved.process.as_ref().map(|process| process.take()).transpose()?;
            // Of another process if it is no child.
            let (confined, is_cut) = match (Confined::adopt(saved.pid), process) {
                (Ok(confined), _) => (confined, false),
                (Err(_), Some(handle)) => (Confined::of_another(saved.pid, handle)?, true),
                (Err(error), None) => return Err(error),
            };
            let requests = lines(&saved.requests)?;
            let engine =
                EngineClient::resume(saved.pid, saved.crashes, saved.cpu_past, saved.last_id, requests)?;
            let (records, listen) = (lines(&saved.records)?, saved.listen.take()?);
            let mut conversation = Conversation { records, listen, is_cut };
            let (desired, grace_until) = (Arc::new(Mutex::new(desired)), Instant::now());
            let broker = broker.map(resume_broker).transpose()?;
            let service = ListenService::new(desired.clone(), broker, grace_until);
            // Records have filled their socket perhaps, since the last reader was killed.
            let asked = || if is_cut { engine.hold().resynchronize() } else { Ok(()) };
            let of = KeeperWatch { socket: keeper.as_fd(), engine: &engine };
            read_during(Some(&mut conversation), &of, bus, &service, asked)?;
            let warden = Self {
                poller,
                process: super::handle_of(&confined),
                confined: Some(confined),
                keeper,
                conversation: Some(conversation),
                engine: Arc::new(engine),
                desired,
                broker: service.into_broker(),
                agent: agent.map(resume_agent).transpose()?,
                workers,
                bus: bus.clone(),
                names: Watch::new(resolv_conf.to_owned()),
                names_at: None,
                conf: saved.names.clone().into(),
                restarts: Restarts::default(),
                grace_until,
                upgrades: upgrades.clone(),
                candidate: None,
                fault: None,
                stopping: false,
                ended: false,
                report: None,
            };
            warden.conversation.as_ref().map_or(Ok(()), |conversation| warden.attend(conversation))?;
            Ok(warden)
        };
        made().map_err(failed)
    }
}

fn resume_broker(saved: &SavedBroker) -> io::Result<SocketBroker> {
    Ok(SocketBroker::new(child(saved.pid)?, saved.channel.take()?)?)
}

fn resume_agent(saved: &SavedAgent) -> io::Result<PromotionAgent> {
    Ok(PromotionAgent::new(child(saved.pid)?, saved.channel.take()?)?)
}

/// The number of a child process.
fn child(pid: i32) -> io::Result<Pid> {
    Ok(Some(pid).filter(|&pid| pid > 0).and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?)
}
