//! Hand-over at every event: all conformance scripts and worlds again, with a stack that is saved, dropped
//! and restored from its bytes between any two calls of the driver ([`brodo_sim::handover`] has the
//! rules). Their golden traces must be the same.

#[path = "../conformance/main.rs"]
mod conformance;
