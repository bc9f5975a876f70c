//! `--metrics ADDR`: what brodo counts, as text for Prometheus.
//!
//! A thread of its own answers `GET /metrics` ([`http`]). It has no part in the data path: for each answer it leaves visits with every
//! worker ([`Workers::visit`]), which copies its counters between two turns and looks at some flows at a time, adds the copies up and writes them as text
//! ([`exposition`]). Answers that follow one another within [`FRESH`], or [`PAUSE_PER_LOOK`] times what the last look took, are the same, so that
//! nobody who asks without pause slows the workers.
//!
//! The address is bound before anything else is made, and an address that cannot be bound stops the start. What is told are sums: no
//! address and no name of anything the guest talks to is among them.

mod exposition;
mod http;
mod view;

use crate::failure::Failure;
use crate::log;
use brodo_control::instance;
use brodo_net::txqueuelen::TxQueueLenWatch;
use brodo_net::workers::Workers;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use rustix::process::umask;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a text is given to all who ask.
const FRESH: Duration = Duration::from_millis(100);
/// It is given out for longer if the look took long: a tenth of the workers' time at most is spent on being looked at.
const PAUSE_PER_LOOK: u32 = 10;

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// Over TCP.
    Ip(SocketAddr),
    /// On a Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    /// `IP:PORT`, `:PORT` for the loopback, `unix:PATH`.
    fn from_str(word: &str) -> Result<Self, String> {
        let expected = || {
            "expected IP:PORT, :PORT for 127.0.0.1, or unix:PATH, such as 127.0.0.1:9100 or [::1]:9100"
                .to_owned()
        };
        if let Some(path) = word.strip_prefix("unix:") {
            return if path.is_empty() { Err(expected()) } else { Ok(Self::Unix(path.into())) };
        }
        let port = word.strip_prefix(':').map(str::parse);
        match port {
            Some(Ok(port)) => Ok(Self::Ip((Ipv4Addr::LOCALHOST, port).into())),
            Some(Err(_)) => Err(expected()),
            None => word.parse().map(Self::Ip).map_err(|_| expected()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "http://{address}/metrics"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An address that is bound and does not answer yet.
#[derive(Debug)]
pub(crate) struct Metrics {
    listener: OwnedFd,
    address: Address,
}

impl Metrics {
    /// Binds `address`. Of a Unix socket, one that nobody listens on any more is replaced.
    pub(crate) fn bind(address: &Address) -> Result<Self, Failure> {
        let cannot = |call: &str| Failure::io(format!("serve metrics at {address}: {call}"));
        let (listener, address) = match address {
            Address::Ip(wanted) => {
                let listener = TcpListener::bind(wanted).map_err(cannot("bind"))?;
                // With port 0 it is the kernel that has chosen.
                let bound = listener.local_addr().map_err(cannot("getsockname"))?;
                listener.set_nonblocking(true).map_err(cannot("ioctl"))?;
                (listener.into(), Address::Ip(bound))
            }
            Address::Unix(path) => {
                let is_socket = path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
                if is_socket && instance::dial(path).is_err_and(|error| instance::is_dead(&error)) {
                    std::fs::remove_file(path).map_err(cannot("unlink"))?;
                }
                // For this user alone, from the first moment; there is one thread yet.
                let before = umask(Mode::from_raw_mode(0o177));
                let bound = UnixListener::bind(path);
                umask(before);
                let listener = bound.map_err(cannot("bind"))?;
                listener.set_nonblocking(true).map_err(cannot("ioctl"))?;
                (listener.into(), address.clone())
            }
        };
        Ok(Self { listener, address })
    }

    /// Answers from now on, for as long as the process lives, about these workers.
    pub(crate) fn start(self, workers: Arc<Workers>, ring: Arc<TxQueueLenWatch>) -> Result<Serving, Failure> {
        log::info("metrics are served", &[("at", self.address.to_string().into())]);
        let mut cached: Option<(Instant, String)> = None;
        let text = move || {
            let begun = Instant::now();
            if let Some((until, text)) = &cached
                && begun < *until
            {
                return Some(text.clone());
            }
            let views = view::look(&workers, &ring)?;
            let text = exposition::text(&views, &view::Process::look());
            cached = Some((Instant::now() + FRESH.max(begun.elapsed() * PAUSE_PER_LOOK), text.clone()));
            Some(text)
        };
        let Self { listener, address } = self;
        let body = move || {
            if let Err(errno) = http::serve(&listener, http::PATIENCE, text) {
                log::warn(&format!("metrics are served no more: poll: {errno}"), &[]);
            }
        };
        let spawned = thread::Builder::new().name("metrics".into()).spawn(body);
        spawned.map_err(Failure::io("serve metrics: clone"))?;
        Ok(Serving(address))
    }
}

impl AsFd for Metrics {
    /// What listens.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Removes the socket at the end.
#[derive(Debug)]
pub(crate) struct Serving(Address);

impl Drop for Serving {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests;
