//! Open flows under rules that have changed. One that a gate has let pass, or that began without a gate, is
//! judged as a new one is, by the name that it has said. One that a closed gate holds back has said none yet:
//! it is refused if no name could open it now, and otherwise waits for the gate, which asks the rules then in
//! force.

use super::super::named::Named;
use super::super::reason;
use super::super::ruleset::{Checks, NewFlow, Opening};
use super::{SharedPolicy, State};
use crate::time::Instant;
use std::sync::Arc;

/// An open flow with regard to gates.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reviewed<'a> {
    /// A closed gate with these checks holds it back.
    AtGate(Checks),
    /// None does; the server that it has named at one before, if it has.
    Open(Option<&'a Named>),
}

impl SharedPolicy {
    /// The rule or reason by which a flow that is open would be refused now. Nothing is kept of it.
    pub(crate) fn review(
        &self,
        now: Instant,
        flow: &NewFlow<'_>,
        reviewed: Reviewed<'_>,
    ) -> Option<Arc<str>> {
        let state = self.state();
        if state.lockdown || state.observes {
            return state.lockdown();
        }
        match reviewed {
            Reviewed::AtGate(checks) => state.refusal_at_gate(now, flow, checks),
            Reviewed::Open(named) => state.allowing_open(now, flow, named).err(),
        }
    }
}

impl State {
    /// The rule or reason by which a flow at a closed gate is refused whatever name it says.
    fn refusal_at_gate(&self, now: Instant, flow: &NewFlow<'_>, checks: Checks) -> Option<Arc<str>> {
        match self.rules.opening(flow, &self.pins.names_of(flow.remote.ip(), now)) {
            Opening::Refuse(ground) => Some(self.ground(ground)),
            // The gate takes rules that do not hold at private addresses.
            Opening::Gate(anew) if anew.private && !checks.private => Some(self.reason(reason::NAME)),
            Opening::Gate(_) | Opening::Open(_) => None,
        }
    }
}
