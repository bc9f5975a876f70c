//! Conformance of the stack, rule by rule, as scripts in virtual time; and whole worlds with an independent
//! TCP as the guest. Every script runs over IPv4 and IPv6, with and without checksum offload, unless it says
//! otherwise.

mod carried;
mod crash;
mod datagrams;
mod destinations;
mod flows;
mod forced;
mod fragments;
mod groups;
mod handover;
mod hostile;
mod icmp;
mod inbound;
mod names;
mod points;
mod policy;
mod promotion;
mod properties;
mod ring;
mod seeds;
mod states;
mod tcp_answer;
mod tcp_close;
mod tcp_data;
mod tcp_found;
mod tcp_loss;
mod tcp_open;
mod tcp_recovery;
mod tcp_robust;
mod tcp_sack;
mod tcp_window;
mod workers;
mod world;
