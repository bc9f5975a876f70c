//! `brodo run` and `brodo attach` on real namespaces, as root and as an ordinary user: what the command finds
//! inside, how it is started, told and waited for, and that the host is left as it was. No packet leaves the
//! machine.
//!
//! What the network carries is tested end to end elsewhere; here it is what is set up around it.

mod attach;
mod control;
mod run;
mod support;
mod terminal;
