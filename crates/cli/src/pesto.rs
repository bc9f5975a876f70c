//! pesto: the protocol by which passt's `pesto` lists and changes the forwards of a running pasta, as a
//! server (`--pesto-socket`, pasta's `--conf-path`) and as a client (`brodo as pesto`).
//!
//! ```text
//! server                                        client
//! magic, version, tables with rules  -->
//!                                    <--        nothing, or whole new tables
//! a sentence, if they are not in force -->      (passt's pesto does not read it)
//! end
//! ```
//!
//! There are two tables: HOST for ports of the host (`-t`, `-u`), SPLICE for ports of the guest's loopback
//! (`-T`, `-U`). Rules ([`wire`]) are simpler than brodo's forwards: one range of ports each. So a forward is
//! shown as several rules, and changes are compared with what is in force, rule by rule ([`rules`]): forwards
//! that a client leaves as they are stay untouched, with their listening sockets.
//!
//! The protocol has no reply: passt's pesto ends with status 0 also if a port could not be bound. The
//! sentence at the end is brodo's own, so that brodo's pesto can end with status 1.

pub(crate) mod client;
pub(crate) mod rules;
pub(crate) mod server;
pub(crate) mod wire;
