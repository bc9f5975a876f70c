//! User-mode networking as a library: one guest's network over ordinary host sockets.
//!
//! A guest (a network namespace, a virtual machine, a stack in this process) speaks layer-2 frames. A
//! [`Network`] takes them by a link, speaks TCP/IP with the guest, and moves the content over ordinary
//! sockets of the host, without root and without touching the host's network.
//!
//! ```no_run
//! use brodo_net::{Config, Network, channel};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (link, guest) = channel::pair(channel::Options::default())?;
//! let running = Network::builder().link(link).config(Config::default()).build()?.spawn()?;
//! // `guest` sends and takes Ethernet frames here.
//! # drop(guest);
//! running.stop()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Extension points
//!
//! **A link** is [`Link`](brodo_core::link::Link) (send one frame, or "no credit") and
//! [`GuestLink`](brodo_link::GuestLink) (descriptors, batches of frames, the wait for credit). There are a
//! TAP ([`brodo_link::tap`]) and a channel in this process ([`channel`]); others are one file:
//!
//! ```
//! use brodo_link::batch::Batch;
//! use brodo_link::poller::Poller;
//! use brodo_link::{CreditWait, EventFlags, FailedCall, GuestLink, Taken};
//! use brodo_core::link::{Link, LinkCaps, NoCredit, RxMeta, TxFrame};
//! use std::io;
//! use std::os::unix::net::UnixDatagram;
//!
//! /// One frame per datagram of a socket, as of QEMU's `-netdev dgram`.
//! struct Dgram(UnixDatagram, Option<CreditWait>);
//!
//! impl Link for Dgram {
//!     fn caps(&self) -> LinkCaps {
//!         LinkCaps::default()
//!     }
//!     fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
//!         let mut bytes = frame.headers.to_vec();
//!         frame.payload.iter().for_each(|part| bytes.extend_from_slice(part));
//!         match self.0.send(&bytes) {
//!             Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
//!                 self.1 = Some(CreditWait::Event);
//!                 Err(NoCredit)
//!             }
//!             // A guest that is gone loses frames as a cable pulled out would.
//!             _ => Ok(()),
//!         }
//!     }
//! }
//!
//! impl GuestLink for Dgram {
//!     fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
//!         Ok(poller.add(&self.0, 0, EventFlags::IN | EventFlags::ET)?)
//!     }
//!     fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
//!         while let Some(room) = batch.room() {
//!             match self.0.recv(room) {
//!                 Ok(len) => batch.push(RxMeta::default(), len),
//!                 Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Taken::All),
//!                 Err(error) => return Err(FailedCall { call: "recv", error }),
//!             }
//!         }
//!         Ok(Taken::Some)
//!     }
//!     fn credit_wait(&self) -> Option<CreditWait> {
//!         self.1
//!     }
//!     fn await_credit(&mut self, poller: Poller<'_>, awaited: bool) -> io::Result<()> {
//!         let room = if awaited { EventFlags::OUT } else { EventFlags::empty() };
//!         Ok(poller.modify(&self.0, 0, EventFlags::IN | EventFlags::ET | room)?)
//!     }
//!     fn forget_refusal(&mut self) {
//!         self.1 = None;
//!     }
//!     fn gone(&self) -> bool {
//!         false
//!     }
//! }
//! ```
//!
//! **Rules** decide about each new flow ([`Builder::policy`]):
//!
//! ```
//! use brodo_net::{Deny, Rules};
//!
//! let private = Deny::new([10, 0, 0, 0].into(), 8, None).expect("8 is a prefix of IPv4");
//! let rules = Rules { deny: vec![private], ..Rules::default() };
//! # let _ = rules;
//! ```
//!
//! **An observer** gets flows as they begin, end and are refused ([`Builder::on_flow_records`]):
//!
//! ```no_run
//! use brodo_net::{Network, Recording, channel};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (link, _guest) = channel::pair(channel::Options::default())?;
//! let recording = Recording { openings: false, ends: true };
//! let network = Network::builder().link(link).on_flow_records(recording, |records| {
//!     for end in records.ends {
//!         println!("{} {} -> {}", end.cause.name(), end.info.key.guest, end.info.key.remote);
//!     }
//! });
//! # let _ = network.build()?;
//! # Ok(())
//! # }
//! ```
//!
//! **A loop of the caller's** drives a network of one link, in place of brodo's own threads:
//!
//! ```no_run
//! use brodo_net::{Network, channel};
//! use rustix::event::{PollFd, PollFlags, poll};
//! use rustix::time::Timespec;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (link, _guest) = channel::pair(channel::Options::default())?;
//! let mut network = Network::builder().link(link).build()?;
//! loop {
//!     let timeout = network.timeout().map(|sleep| Timespec {
//!         tv_sec: sleep.as_secs() as i64,
//!         tv_nsec: sleep.subsec_nanos().into(),
//!     });
//!     poll(&mut [PollFd::new(&network.descriptor(), PollFlags::IN)], timeout.as_ref())?;
//!     if let Some(wake) = network.turn()? {
//!         println!("{wake:?}");
//! #       break;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A [`Handle`] reaches a running network from other threads: its flows, counters and forwarded ports
//! ([`command`]). `examples/` has three complete programs.
//!
//! # Features
//!
//! Both are on by default; an embedder that sets `default-features = false` and names neither pays for
//! neither.
//!
//! * `capture`: [`Builder::capture`], the guest's frames as a pcapng file, with a filter ([`capture`]).
//!   Without it no code for files stands on the path of a frame.
//! * `probes`: static trace probes (USDT) of connections for bpftrace, perf and gdb. Without it there is no
//!   dependency `probe`, no `.note.stapsdt` section, no load and branch per event.
//!
//! The control socket, the metrics, the flow log and the configuration file need no feature: they belong to
//! the program `brodo`, which builds them on [`Handle`] and [`command`]. Forwarded ports are no feature
//! either: a network without them opens no socket for them.
//!
//! # Inside
//!
//! The loop ([`driver`]) of each of the [`workers`], the host's sockets ([`sockets`]), forwarded ports
//! ([`forward`]), and what goes with them: time, packet capture, trace probes, the host's network and
//! resolvers ([`host_network`]). Namespaces and what is set up in them are not this crate's. `unsafe` stands
//! in `sys.rs` and the files below it.

#[cfg_attr(not(feature = "capture"), path = "capture/none.rs")]
pub mod capture;
mod captured_link;
pub mod clock;
pub mod command;
mod connect;
pub mod control_auth;
pub mod descriptors;
pub mod driver;
pub mod ephemeral_ports;
pub mod fd_passing;
pub mod forward;
pub mod handover;
mod helper_end;
pub mod host_network;
mod inherited;
pub mod netlink;
mod network;
pub mod platform;
#[cfg_attr(not(feature = "probes"), path = "probes/none.rs")]
mod probes;
mod processors;
pub mod promotion;
mod promotions;
pub mod recovery;
pub mod resolv;
mod resteer;
pub mod secret;
mod slab;
mod sock_diag;
pub mod socket_broker;
pub mod sockets;
mod source;
mod splice;
mod stream_events;
mod sys;
mod tcp_info;
pub mod tuning_log;
pub mod txqueuelen;
pub mod workers;

pub use brodo_core::config::Config;
pub use brodo_core::policy::{Deny, Rules};
pub use brodo_link::channel;
pub use driver::Wake;
pub use handover::{EarlyHeader, EarlyStreams, Handover, RestoreFailure, Takeover};
pub use network::{
    Builder, FlowRecords, Frozen, Handle, Network, NetworkError, Recording, Running, TakenOver,
};
pub use processors::processors;
pub use splice::SpliceCounters;
pub use workers::NotFrozen;
