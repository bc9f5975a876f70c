//! brodo-linux: everything that owns a descriptor.
//!
//! Links toward a guest ([`link`]), the host's sockets ([`sockets`]), the loop that drives a stack with both
//! ([`driver`]), and what goes with them: time, packet capture, trace probes, the host's network and resolvers ([`host_network`]). The guest's side is
//! made by [`namespace`] and [`setup`], and the command in it is [`process`]'s. All `unsafe` of the program is in this
//! crate: for the data path in [`sys`], for processes and namespaces in `process/raw.rs`.

pub mod agent;
pub mod capture;
pub mod clock;
pub mod crew;
pub mod diag;
pub mod driver;
pub mod forward;
pub mod history;
pub mod host_network;
pub mod link;
pub mod namespace;
pub mod netlink;
pub mod peer;
mod probes;
pub mod process;
pub mod resolv;
pub mod ring;
pub mod setup;
pub mod sockets;
pub mod splice;
pub mod sys;
#[cfg(test)]
mod testns;
