//! Limits of allow rules ([`crate::policy`]): flows are charged for what they have moved after each access,
//! held back while their rule's rate is in debt, and ended with its quota or at their greatest age.

use super::{Flow, FlowId, Io, Platform, Stack};
use crate::destination::{self, Destination};
use crate::flow::end::EndCause;
use crate::flow::info::Initiator;
use crate::flow::table::Keyed;
use crate::flow_kind::FlowKind;
use crate::policy::{Due, Held, Outcome, Request, Usage, reason};
use crate::time::Instant;
use std::sync::Arc;

impl Stack {
    /// Charges a flow for what it has moved since the last time; the first time its limits are looked up.
    #[cold]
    pub(super) fn charge<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        // One that a gate has refused gets its answer, and has no rule.
        let unruled = flow.is_at_gate() || flow.refused_by().is_some() || flow.has_ended();
        let bytes = flow.moved();
        if !self.policy.limited.is_known(id) {
            if unruled {
                return;
            }
            let (usage, age) = (self.usage_of(flow, io), flow.info(&self.shared, io.now).age);
            let limits = usage.as_ref().map(|usage| usage.limits);
            let window_max = limits.map(|limits| limits.window_max());
            let left = limits.and_then(|limits| limits.max_age).map(|most| most.saturating_sub(age));
            let has_room = self.policy.limited.note(id, usage, left.map(|left| io.now + left));
            if !has_room {
                return self.end_by_quota(io, id);
            }
            if let (Some(most), Some(flow)) = (window_max, self.flows.get_mut(id)) {
                flow.limit(most);
            }
        }
        match self.policy.limited.charge(io.now, id, bytes) {
            Outcome::GoesOn(None) => {}
            Outcome::GoesOn(Some(held)) => self.hold(io, id, held),
            Outcome::Exhausted(flows) => flows.into_iter().for_each(|id| self.end_by_quota(io, id)),
        }
    }

    /// The limits of a flow that is open: of the rule that allows it now.
    fn usage_of<P: Platform>(&self, flow: &Flow, io: &Io<'_, P>) -> Option<Arc<Usage>> {
        self.policy.usage_of(io.now, &self.request_of(flow)?, flow.named())
    }

    /// A flow of the guest's, as the rules have judged it; none of one that no rule had to allow.
    fn request_of(&self, flow: &Flow) -> Option<Request> {
        let key = flow.key();
        let (guest, remote) = (key.guest.into(), key.remote.into());
        if flow.initiator() == Initiator::Peer || matches!(flow, Flow::Dns(_) | Flow::Carried(_)) {
            return None;
        }
        let Ok(Destination::Host(to)) = destination::resolve(&self.shared.config, None, key.protocol, remote)
        else {
            return None;
        };
        Some(Request { protocol: key.protocol, guest, remote, to, forwarded: false })
    }

    /// Counts a flow that is about to be removed, under the rule that allows it.
    pub(super) fn account(&self, now: Instant, flow: &Flow) {
        if self.shared.config.rules.shared.is_some()
            && flow.refused_by().is_none()
            && let Some(request) = self.request_of(flow)
        {
            self.policy.account(now, &request, flow.named(), flow.moved());
        }
    }

    /// Acts on limits whose time has come.
    pub(super) fn expire_limits<P: Platform>(&mut self, io: &mut Io<'_, P>) {
        while let Some((id, due)) = self.policy.limited.pop_due(io.now) {
            match due {
                Due::Held(held) => self.hold(io, id, held),
                Due::Over => self.end_by_quota(io, id),
            }
        }
    }

    fn hold<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId, held: Held) {
        if let Some(flow) = self.flows.get_mut(id) {
            flow.hold_back(&mut io.cx(&mut self.shared), held);
            flow.reschedule(&mut self.shared);
        }
    }

    fn end_by_quota<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId) {
        if let Some(flow) = self.flows.get(id) {
            self.policy.ended_by(io.now, &self.policy.reason(reason::QUOTA), flow.key(), flow.named());
        }
        self.notify_flow(io, id, |flow, cx, _| flow.revoke(cx, EndCause::Quota));
    }
}
