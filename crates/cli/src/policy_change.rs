//! Records of changes of the policy in force: events, which the audit log has as lines.
//!
//! A change is recorded when it is made, before the engine enforces it, so that it stands before every
//! decision of the policy that it led to.

use crate::event_bus::EventBus;
use crate::policy_in_force::PolicyInForce;
use crate::timestamp::Timestamp;
use brodo_control::event::Event;
use brodo_control::policy::{ChangeStage, PolicyChange};

/// Process that has asked for a change by the control socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Author {
    /// `None` outside of brodo's PID namespace.
    pub(crate) pid: Option<i32>,
    pub(crate) uid: u32,
}

/// Record of the changes of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChangeRecord<'a> {
    pub(crate) bus: &'a EventBus,
    /// The kind of change.
    pub(crate) what: &'a str,
    /// None of a change that brodo makes by itself.
    pub(crate) by: Option<Author>,
}

impl ChangeRecord<'_> {
    /// Publishes a change.
    pub(crate) fn publish(&self, before: &PolicyInForce, after: &PolicyInForce) {
        let clock = self.bus.clock();
        let change = PolicyChange {
            time: Timestamp(clock.date_ns(clock.now())).to_string(),
            generation: after.generation(),
            stage: ChangeStage::Policy,
            change: self.what.to_owned(),
            before: before.hash(),
            after: after.hash(),
            pid: self.by.and_then(|by| by.pid),
            uid: self.by.map(|by| by.uid),
        };
        self.bus.publish(Event::PolicyChanged { change });
    }
}
