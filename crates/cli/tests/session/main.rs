//! `brodo run` and `brodo attach` on real namespaces, as root and as an ordinary user: the surroundings that
//! the command finds inside, its start, signals and end, and that the host is left as it was. No
//! packet leaves the machine.
//!
//! Traffic is tested end to end elsewhere; the subject here is the set-up around it.

mod attach;
mod attempts;
mod audit;
mod bulk;
mod callers;
mod control;
mod copied;
mod engine;
mod identity;
mod loopbacks;
mod options;
mod outbound;
mod pesto;
mod plugins;
mod podman;
mod policy;
mod recipes;
mod refusals;
mod run;
mod slirp4netns;
mod store;
mod support;
mod terminal;
mod upgrade;
mod vm;
