//! The control socket: state, events and commands of a running instance.
//!
//! A thread of its own serves all clients ([`server`]). The state of flows is the engine's, which is asked
//! for it request by request ([`crate::warden::client`]).
//!
//! Trust: input of a client is hostile. The client must be the same user in the same user namespace, or root
//! ([`brodo_net::control_auth`]). Bounds: number of clients, length of lines, bytes of output, and the time
//! of a pause in the middle of a line or of output ([`session`]). A client that breaks a rule loses its
//! connection, without effect on others.
//!
//! The protocol is documented in `docs/src/control.md`, its types are [`brodo_control`].

mod answers;
mod bulk;
mod capture;
mod policy;
mod server;
mod session;

use crate::event_bus::{EventBus, Events};
use crate::forward_sockets::Guest;
use crate::unix_listener::PrivateListener;
use crate::upgrades::Upgrades;
use crate::warden::client::EngineClient;
use crate::warden::desired::Desired;
use crate::warden::forwarding::Forwarding;
use brodo_control::instance;
use brodo_control::method::GuestNetwork;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Path of the control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SocketPath {
    /// `PID.sock` in the user's own folder.
    Default,
    /// The path of `--control`.
    Given(PathBuf),
    /// There is no control socket.
    None,
}

impl SocketPath {
    /// From the value of `--control`.
    pub(crate) fn of(option: Option<&Path>) -> Self {
        match option {
            None => Self::Default,
            Some(path) if path.as_os_str() == "none" => Self::None,
            Some(path) => Self::Given(path.to_owned()),
        }
    }

    /// Binds the socket and listens.
    ///
    /// # Errors
    /// As [`PrivateListener::bind`]; the user's own folder cannot be made.
    pub(crate) fn listen(&self) -> io::Result<Option<PrivateListener>> {
        match self {
            Self::None => Ok(None),
            Self::Given(path) => PrivateListener::bind(path).map(Some),
            Self::Default => {
                let path = instance::folder()?.join(instance::file_name(std::process::id()));
                PrivateListener::bind(&path).map(Some)
            }
        }
    }
}

/// Properties of an instance that do not change.
#[derive(Debug, Clone)]
pub(crate) struct InstanceInfo {
    /// Command of brodo: "run" or "attach".
    pub(crate) command: &'static str,
    /// Command line of the guest, or the namespace.
    pub(crate) target: String,
    /// The interface in the guest.
    pub(crate) interface: String,
    /// Largest IP packet on the link, in bytes.
    pub(crate) mtu: u16,
    pub(crate) networks: Vec<GuestNetwork>,
    /// Most open flows.
    pub(crate) flows_max: u64,
    /// `full`, or the stages that are not in force.
    pub(crate) confinement: String,
    /// The reason why no flow is promoted, if that was asked for.
    pub(crate) no_promotion: Option<String>,
}

impl InstanceInfo {
    /// The guest, for the protocols of other programs.
    pub(crate) fn guest(&self) -> Guest {
        let v4 = self.networks.iter().find_map(|network| match network.address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        Guest { v4, v6: self.networks.iter().any(|network| network.address.is_ipv6()) }
    }
}

/// State and handles that requests use.
pub(crate) struct Controlled {
    pub(crate) engine: Arc<EngineClient>,
    /// State that an engine starts with, changed by requests.
    pub(crate) desired: Arc<Mutex<Desired>>,
    pub(crate) bus: Arc<EventBus>,
    /// Events for clients.
    pub(crate) mailbox: Arc<Events>,
    pub(crate) upgrades: Arc<Upgrades>,
    pub(crate) info: InstanceInfo,
    pub(crate) started: Instant,
}

impl Controlled {
    fn desired(&self) -> MutexGuard<'_, Desired> {
        self.desired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The forwards.
    fn forwarding(&self) -> Forwarding {
        Forwarding::new(self.engine.clone(), self.desired.clone())
    }
}

/// A control socket that is being served, until this is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    listener: Arc<PrivateListener>,
    mailbox: Arc<Events>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Serves clients from now on.
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn start(listener: PrivateListener, controlled: Controlled) -> io::Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let mailbox = controlled.mailbox.clone();
        let stop = stopping.clone();
        let listener = Arc::new(listener);
        let served = listener.clone();
        let body = move || server::Server::new(served, controlled).run(&stop);
        let thread = thread::Builder::new().name("control".into()).spawn(body)?;
        Ok(Self { listener, mailbox, stopping, thread: Some(thread) })
    }
}

impl Control {
    /// The socket.
    pub(crate) fn listener(&self) -> &PrivateListener {
        &self.listener
    }
}

impl Drop for Control {
    /// Ends the thread, and removes the socket.
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.mailbox.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has been logged by its hook.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
