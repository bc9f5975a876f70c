//! Promotion: the guest's end of a bulk flow becomes a socket of the kernel, beside the guest's interface.
//!
//! A byte that crosses a TAP is copied four times. A connection that moves many of them is cheaper if the
//! kernel speaks TCP with the guest and splice(2) joins its socket with the host's. Such a socket is made in
//! the middle of the connection by TCP_REPAIR, the interface for checkpoints of processes: sequence numbers
//! and windows are set, and connect(2) sends nothing. It stands in a *middle* network namespace, which a veth
//! pair connects with the guest's:
//!
//! ```text
//!  guest's namespace                                  middle namespace
//!  +-------------------------------------------+      +------------------------------------------+
//!  | eth0 (TAP) --- egress hook: 4-tuple in set? --> eth0-bulk === eth0-bulk (router's MAC)      |
//!  |   |  ^                                    |      |   all that comes in is local: a socket   |
//!  |   |  +--- redirected ingress ---------------- eth0-bulk   for each promoted flow            |
//!  +---|---------------------------------------+      +------------------------------------------+
//!      v
//!  brodo: everything else
//! ```
//!
//! The guest keeps its interface, addresses and routes: what it sends to a promoted peer leaves `eth0` by the
//! side, after its own firewall and address translation, and the answers arrive on `eth0`.
//!
//! *The agent.* Repair mode and steering take CAP_NET_ADMIN over the two namespaces, which an engine must not
//! have. A process of its own has it ([`agent`]), and nothing else: it lives in the middle namespace, and
//! answers requests of fixed size ([`message`]):
//!
//! | request | effect |
//! |---|---|
//! | make | a socket from a [`TcpSeed`], which sends and receives nothing; its descriptor is the answer |
//! | start | its 4-tuple is steered, and it goes on |
//! | freeze | not steered, receives nothing, in repair mode: read out, and closed without a segment |
//! | thaw | a frozen one goes on |
//! | release | steered until its last segment is acknowledged, then closed |
//! | adopt | goes on for another client than before, which has ended |
//! | divert, rejoin | datagrams go to [a queue of their own](datagram_queue), or to the interface again |
//!
//! Between *make* and *start* the client writes down which socket the flow has: one that is lost before
//! leaves no trace, one that is lost after is found again ([`brodo_core::journal::promoted`]).
//!
//! *Trust.* The agent makes sockets toward the guest's addresses alone, a bounded number of them, and works
//! only on sockets that it has made itself, known by their cookie. The client checks each answer's descriptor
//! ([`client`]).

pub mod agent;
pub mod client;
pub mod datagram_queue;
mod message;
pub mod read_out;
pub mod repaired;
pub(crate) mod requests;
mod seed;
pub mod steering;

pub use brodo_core::promotion::{Fins, OurFin, SeedFields, TcpSeed, WindowScales};
pub use message::{Refused, Stage};
pub use seed::Ends;

/// Most promoted flows of an instance, those that are about to end included.
pub const FLOWS_MAX: usize = 64;
