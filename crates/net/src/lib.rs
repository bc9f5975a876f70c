//! brodo-net: the loop that drives a stack with a link and the host's sockets, and everything of it that owns
//! a descriptor.
//!
//! The loop ([`driver`]) of each of the [`workers`], the host's sockets ([`sockets`]), forwarded ports
//! ([`forward`]), and what goes with them: time, packet capture, trace probes, the host's network and
//! resolvers ([`host_network`]). Namespaces and what is set up in them are not this crate's; a link comes
//! from `brodo-link`. `unsafe` stands in `sys.rs` and the files below it.

pub mod capture;
mod captured_link;
pub mod clock;
pub mod command;
mod connect;
pub mod control_auth;
pub mod descriptors;
pub mod driver;
pub mod ephemeral_ports;
pub mod forward;
pub mod host_network;
pub mod netlink;
mod network;
pub mod platform;
mod probes;
pub mod resolv;
mod resteer;
pub mod sock_diag;
pub mod socket_broker;
pub mod sockets;
mod source;
pub mod splice;
pub mod sys;
pub mod tuning_log;
pub mod txqueuelen;
pub mod workers;

pub use brodo_core::config::Config;
pub use brodo_core::policy::{Deny, Rules};
pub use brodo_link::channel;
pub use driver::Wake;
pub use network::{Builder, FlowRecords, Handle, Network, NetworkError, Recording, Running};
