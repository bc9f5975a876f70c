//! Sockets on which other programs list and change forwards, in the protocols of the programs that brodo
//! takes the place of: slirp4netns' API (`--slirp-socket`) and that of passt's pesto (`--pesto-socket`).
//!
//! One thread serves them all, one connection after the other: a connection is one request, and requests
//! change the same few forwards. A client that is silent or does not read is closed after [`PATIENCE`], so
//! that it delays others by no more than that. The forwards are those of the control socket and of `brodo
//! forward` ([`Forwarding`]).
//!
//! *Trust.* Clients are checked as those of the control socket are ([`brodo_net::control_auth`]): the guest
//! cannot publish its own ports. Input is bounded by each protocol.

mod connection;
mod slirp4netns;

use crate::args::NetworkOptions;
use crate::dialect::Dialect;
use crate::pesto::server::{self as pesto, Families};
use crate::resume::descriptor::Keep;
use crate::resume::state::SavedForwardSocket;
use crate::unix_listener::PrivateListener;
use crate::upgrades::Upgrades;
use crate::warden::forwarding::Forwarding;
use brodo_net::control_auth;
use connection::{Connection, until_stopped};
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::io::{self, ErrorKind, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Longest duration of a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause of accept after descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The sockets that the options ask for.
pub(crate) fn wanted(options: &NetworkOptions) -> Vec<(Dialect, PathBuf)> {
    let given = [(Dialect::Slirp4netns, &options.slirp_socket), (Dialect::Pesto, &options.pesto_socket)];
    given.into_iter().filter_map(|(dialect, path)| Some((dialect, path.clone()?))).collect()
}

/// The reply to a client that may not use a socket.
fn refusal(dialect: Dialect, why: &str) -> Vec<u8> {
    match dialect {
        Dialect::Slirp4netns => slirp4netns::error(why),
        Dialect::Pesto => why.as_bytes().to_vec(),
    }
}

/// Sockets that are being served, until this is dropped, which removes their paths.
#[derive(Debug)]
pub(crate) struct ForwardSockets {
    listeners: Arc<[(Dialect, PrivateListener)]>,
    /// Readable once the thread is to end.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Properties of the guest that the protocols speak of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guest {
    /// Its first address of IPv4, to which ports lead by default.
    pub(crate) v4: Option<Ipv4Addr>,
    /// Whether it has IPv6.
    pub(crate) v6: bool,
}

/// Everything that the thread uses.
struct Server {
    listeners: Arc<[(Dialect, PrivateListener)]>,
    stop: Arc<OwnedFd>,
    forwarding: Forwarding,
    guest: Guest,
    upgrades: Arc<Upgrades>,
}

impl ForwardSockets {
    /// Serves clients from now on; `None` without sockets.
    ///
    /// # Errors
    /// No thread could be started, or no descriptor is left.
    pub(crate) fn start(
        listeners: Vec<(Dialect, PrivateListener)>,
        forwarding: Forwarding,
        guest: Guest,
        upgrades: Arc<Upgrades>,
    ) -> io::Result<Option<Self>> {
        if listeners.is_empty() {
            return Ok(None);
        }
        let listeners: Arc<[_]> = listeners.into();
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let server = Server { listeners: listeners.clone(), stop: stop.clone(), forwarding, guest, upgrades };
        let thread = thread::Builder::new().name("forwards".into()).spawn(move || server.run())?;
        Ok(Some(Self { listeners, stop, thread: Some(thread) }))
    }

    /// Sockets that another program of this process listens with.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(crate) fn resume(saved: &[SavedForwardSocket]) -> io::Result<Vec<(Dialect, PrivateListener)>> {
        let resume =
            |saved: &SavedForwardSocket| Ok((saved.dialect, PrivateListener::resume(&saved.listener)?));
        saved.iter().map(resume).collect()
    }

    /// The sockets in a state for another program.
    pub(crate) fn save<'a>(&'a self, kept: &mut Keep<'a>) -> Vec<SavedForwardSocket> {
        let save = |(dialect, listener): &'a (Dialect, PrivateListener)| SavedForwardSocket {
            dialect: *dialect,
            listener: listener.save(kept),
        };
        self.listeners.iter().map(save).collect()
    }
}

impl Drop for ForwardSockets {
    fn drop(&mut self) {
        // It could only fail after 2^64 writes.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic there has been logged by its hook.
            let _ = thread.join();
        }
    }
}

impl Server {
    /// Serves one connection after the other, until the end is asked for.
    fn run(self) {
        loop {
            let sockets = self.listeners.iter().map(|(_, listener)| (listener.as_fd(), PollFlags::IN));
            let Some(ready) = until_stopped(self.stop.as_fd(), &sockets.collect::<Vec<_>>(), None) else {
                return;
            };
            for ((dialect, listener), ready) in self.listeners.iter().zip(ready) {
                if !ready {
                    continue;
                }
                match listener.accept() {
                    Ok(stream) => {
                        if let Ok(connection) = Connection::new(stream, self.stop.as_fd(), PATIENCE) {
                            // A client that has gone, or that is too slow: there is no one to tell.
                            let _ = self.serve(*dialect, connection);
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // No descriptors: the listener would report at once again.
                    Err(_) => {
                        if until_stopped(self.stop.as_fd(), &[], Some(ACCEPT_PAUSE)).is_none() {
                            return;
                        }
                    }
                }
            }
        }
    }

    fn serve(&self, dialect: Dialect, mut connection: Connection<'_>) -> io::Result<()> {
        if let Err(unauthorized) = control_auth::check(connection.descriptor()) {
            return connection.write_all(&refusal(dialect, &unauthorized.to_string()));
        }
        match dialect {
            Dialect::Slirp4netns => {
                let request = slirp4netns::read(&mut connection)?;
                let _gate = self.upgrades.gate();
                connection.write_all(&slirp4netns::answer(&self.forwarding, self.guest.v4, &request))
            }
            Dialect::Pesto => {
                let families = Families { v4: self.guest.v4.is_some(), v6: self.guest.v6 };
                pesto::serve(&self.forwarding, families, || self.upgrades.gate(), &mut connection)
            }
        }
    }
}
