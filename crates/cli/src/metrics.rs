//! `--metrics ADDR`: counters and gauges as text for Prometheus.
//!
//! A thread of the warden answers `GET /metrics` ([`http`]). It asks the engine for the text of each answer
//! and adds the figures of the processes. The engine's answering thread sends every worker commands
//! (`engine/view.rs`), which copy its counters and examine some flows at a time between two turns,
//! adds the copies up and writes them as text. Answers within [`FRESH`] of one another, or within
//! [`PAUSE_PER_LOOK`] times the duration of the last collection, are the same text, so that scraping without
//! pause does not slow the workers.
//!
//! The address is bound before anything else is made, and an address that cannot be bound stops the start.
//! Privacy: all values are sums, without addresses or names of the guest's peers.

mod http;

use crate::conversation::message::GetMetrics;
use crate::event_bus::EventBus;
use crate::failure::Failure;
use crate::log;
use crate::own_process::{Processes, Properties};
use crate::prometheus::Text;
use crate::resume::descriptor::Keep;
use crate::resume::state::SavedListener;
use crate::unix_listener::PrivateListener;
use crate::upgrades::Upgrades;
use crate::warden::client::EngineClient;
use brodo_core::metric::Kind;
use rustix::fd::{AsFd, BorrowedFd};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Age up to which one text answers all requests.
const FRESH: Duration = Duration::from_millis(100);
/// Factor of a slow collection's age, so that collecting takes a tenth of the workers' time at most.
const PAUSE_PER_LOOK: u32 = 10;

/// The address of the metrics.
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

/// A listening socket.
#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(PrivateListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

/// An address that is bound and does not answer yet.
#[derive(Debug)]
pub(crate) struct Metrics {
    listener: Listener,
    address: Address,
}

impl Metrics {
    /// Binds `address`. At the path of a Unix socket a dead socket is replaced.
    pub(crate) fn bind(address: &Address) -> Result<Self, Failure> {
        let cannot = |call: &str| Failure::io(format!("serve metrics at {address}: {call}"));
        let (listener, address) = match address {
            Address::Ip(wanted) => {
                let listener = TcpListener::bind(wanted).map_err(cannot("bind"))?;
                // Port 0 is replaced by the kernel's choice.
                let bound = listener.local_addr().map_err(cannot("getsockname"))?;
                listener.set_nonblocking(true).map_err(cannot("ioctl"))?;
                (Listener::Tcp(listener), Address::Ip(bound))
            }
            Address::Unix(path) => {
                let listener = PrivateListener::bind(path).map_err(cannot("bind"))?;
                (Listener::Unix(listener), address.clone())
            }
        };
        Ok(Self { listener, address })
    }

    /// An address that another program of this process listens at.
    ///
    /// # Errors
    /// The descriptor is missing.
    pub(crate) fn resume(saved: &SavedListener, address: &Address) -> io::Result<Self> {
        if saved.file.is_some() {
            let listener = Listener::Unix(PrivateListener::resume(saved)?);
            return Ok(Self { listener, address: address.clone() });
        }
        let listener = TcpListener::from(saved.socket.take()?);
        let address = Address::Ip(listener.local_addr()?);
        Ok(Self { listener: Listener::Tcp(listener), address })
    }

    /// Starts to answer, for as long as the process lives, about the workers of the engine.
    pub(crate) fn start(
        self,
        engine: Arc<EngineClient>,
        upgrades: Arc<Upgrades>,
        bus: Arc<EventBus>,
    ) -> Result<Serving, Failure> {
        log::info("metrics are served", &[("at", self.address.to_string().into())]);
        let mut cached: Option<(Instant, String)> = None;
        let text = move || {
            let begun = Instant::now();
            if let Some((until, text)) = &cached
                && begun < *until
            {
                return Some(text.clone());
            }
            let workers = engine.call(&GetMetrics {}).ok()?.text;
            let properties = engine.of_processes(Processes::properties);
            let text =
                checked(workers)? + &process_text(&properties, upgrades.history().count, bus.audit_lost());
            cached = Some((Instant::now() + FRESH.max(begun.elapsed() * PAUSE_PER_LOOK), text.clone()));
            Some(text)
        };
        let listener = Arc::new(self.listener);
        let served = listener.clone();
        let body = move || {
            if let Err(errno) = http::serve(served.as_fd(), http::PATIENCE, text) {
                log::warn(&format!("metrics are no longer served: poll: {errno}"), &[]);
            }
        };
        let spawned = thread::Builder::new().name("metrics".into()).spawn(body);
        spawned.map_err(Failure::io("serve metrics: clone"))?;
        Ok(Serving(listener))
    }
}

impl AsFd for Metrics {
    /// The listening socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Served metrics. Dropped, it removes the path of a Unix socket; the thread ends with the process.
#[derive(Debug)]
pub(crate) struct Serving(Arc<Listener>);

impl Serving {
    /// The socket in a state for another program.
    pub(crate) fn save<'a>(&'a self, kept: &mut Keep<'a>) -> SavedListener {
        match &*self.0 {
            Listener::Tcp(listener) => SavedListener { socket: kept.note(listener.as_fd()), file: None },
            Listener::Unix(listener) => listener.save(kept),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Listener::Unix(listener) = &*self.0 {
            listener.remove();
        }
    }
}

/// A text of the engine's, if it is one line after the other of printable characters. Its content is the
/// engine's claim.
fn checked(text: String) -> Option<String> {
    let is_text = text.chars().all(|c| c == '\n' || !c.is_control());
    (is_text && text.ends_with('\n')).then_some(text)
}

/// Metrics of brodo's processes; their names are those of Prometheus' own libraries.
fn process_text(properties: &Properties, upgrades: u32, audit_lost: Option<u64>) -> String {
    let mut text = Text::default();
    facts(&mut text, properties);
    text.one("brodo_upgrades_total", Kind::Counter, "Upgrades in place", upgrades);
    if let Some(lost) = audit_lost {
        let help = "Decisions of the policy that are missing in the audit log";
        text.one("brodo_audit_lost_total", Kind::Counter, help, lost);
    }
    text.into_string()
}

fn facts(text: &mut Text, process: &Properties) {
    let help = "Processor time of brodo, in user mode and in the kernel, in seconds";
    text.one("process_cpu_seconds_total", Kind::Counter, help, process.usage.cpu_seconds());
    text.one(
        "process_resident_memory_bytes",
        Kind::Gauge,
        "Resident memory of brodo",
        process.usage.resident_bytes,
    );
    text.one(
        "process_virtual_memory_bytes",
        Kind::Gauge,
        "Address space of brodo",
        process.usage.virtual_bytes,
    );
    let help = "When brodo started, in seconds since 1970";
    text.one("process_start_time_seconds", Kind::Gauge, help, process.start_seconds);
    text.one("process_open_fds", Kind::Gauge, "Open descriptors of brodo", process.open_fds);
    text.one("process_max_fds", Kind::Gauge, "Limit on open descriptors", process.max_fds);
    text.one("process_threads", Kind::Gauge, "Threads of brodo", process.threads);
}

#[cfg(test)]
mod tests;
