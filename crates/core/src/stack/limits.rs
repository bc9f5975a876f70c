//! Limits of allow rules ([`crate::policy`]): flows are counted as they begin, or as a gate lets them pass,
//! charged for what they have moved after each access, held back while their rule's rate is in debt, and
//! ended with its quota or at their greatest age.

use super::{Flow, FlowId, Io, Platform, Stack};
use crate::destination::{self, Destination};
use crate::flow::end::EndCause;
use crate::flow::info::Initiator;
use crate::flow::table::Keyed;
use crate::flow_kind::FlowKind;
use crate::policy::{Admission, Allowing, Due, Held, Outcome, Request, reason};
use crate::promotion::ReturnReason;
use crate::snapshot::saved::Saved;
use crate::snapshot::v1::FlowIdV1;
use crate::time::Instant;

impl Stack {
    /// Charges a flow for what it has moved since the last time; the first time its limits are looked up.
    #[cold]
    pub(super) fn charge<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        // One that a gate has refused gets its answer, and has no rule.
        let unruled = flow.is_at_gate() || flow.refused_by().is_some() || flow.has_ended();
        let bytes = flow.moved();
        if !self.policy.limited.is_known(io.now, id) {
            if unruled {
                return;
            }
            if let Err(reason) = self.look_up(io.now, id, Admission::New) {
                return self.end_by_limit(io, id, reason);
            }
            if self.policy.limited.is_limited(id) {
                // A kernel socket has no limits.
                self.recall(io, id, ReturnReason::Settings);
            }
        }
        match self.policy.limited.charge(io.now, id, bytes) {
            Outcome::GoesOn(None) => {}
            Outcome::GoesOn(Some(held)) => self.hold(io, id, held),
            Outcome::Exhausted(flows) => {
                for id in flows {
                    self.end_by_limit(io, id, reason::QUOTA);
                }
            }
        }
    }

    /// Looks up the limits of a flow that is open: those of the rule that allows it now.
    ///
    /// # Errors
    /// The reason for which they have no room for one more.
    fn look_up(&mut self, now: Instant, id: FlowId, admission: Admission) -> Result<(), &'static str> {
        let Some(flow) = self.flows.get(id) else { return Ok(()) };
        let (bytes, age) = (flow.moved(), flow.info(&self.shared, now).age);
        // Between the first limits and the review, which charges it from there on.
        if admission == Admission::New && age > now - self.policy.limiting_since() {
            self.policy.limited.note_past(id, bytes);
        }
        let usage = match self.allowing(flow, now) {
            Allowing::Limited(usage) => Some(usage),
            Allowing::Unlimited => None,
            Allowing::Unknown => {
                self.policy.limited.note_unruled(now, id);
                return Ok(());
            }
        };
        let was_open = admission == Admission::Restored || self.policy.limited.is_unruled(id);
        let admission = if was_open { Admission::Restored } else { admission };
        let limits = usage.as_ref().map(|usage| usage.limits);
        let window_max = limits.map(|limits| limits.window_max());
        let left = limits.and_then(|limits| limits.max_age).map(|most| most.saturating_sub(age));
        let noted = self.policy.limited.note(id, usage, left.map(|left| now + left), admission);
        if let (true, Some(most), Some(flow)) = (noted.is_ok(), window_max, self.flows.get_mut(id)) {
            flow.limit(most);
        }
        if was_open {
            self.policy.limited.count_past(id, bytes);
        }
        noted
    }

    /// Looks up a flow again after a change of the policy. One that the limits before held back goes on:
    /// their deadlines are gone, and those of the rule in force come with the charge.
    pub(super) fn limit_anew<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId) {
        let limiting = self.policy.is_limiting();
        let Some(flow) = self.flows.get_mut(id).filter(|flow| !flow.is_at_gate()) else { return };
        if self.policy.limited.reconsider(id, flow.moved(), limiting) {
            flow.unlimit();
            self.hold(io, id, [false; 2]);
        }
        if limiting {
            self.charge(io, id);
        }
    }

    /// Counts the flows of a stack that was restored under the limits of their rules, before a new flow asks
    /// whether there is room for it; `charged_from` are the bytes from which on some are charged.
    pub(super) fn count_restored(&mut self, now: Instant, charged_from: Vec<(FlowIdV1, [u64; 2])>) {
        if !self.policy.is_limiting() {
            return;
        }
        for (id, bytes) in charged_from {
            if let Some((id, flow)) = FlowId::restore(id).ok().and_then(|id| Some((id, self.flows.get(id)?)))
            {
                let moved = flow.moved();
                self.policy.limited.note_past(id, [0, 1].map(|n| bytes[n].min(moved[n])));
            }
        }
        let open = self.flows.iter().filter(|(_, flow)| !flow.is_at_gate());
        for id in open.map(|(id, _)| id).collect::<Vec<FlowId>>() {
            // One that was open is counted in any case.
            let _ = self.look_up(now, id, Admission::Restored);
        }
    }

    /// The rule that allows a flow that is open now.
    fn allowing(&self, flow: &Flow, now: Instant) -> Allowing {
        let request = self.request_of(now, flow);
        request.map_or(Allowing::Unlimited, |request| self.policy.allowing(now, &request, flow.named()))
    }

    /// A flow of the guest's, as the rules have judged it; none of one that no rule had to allow.
    fn request_of(&self, now: Instant, flow: &Flow) -> Option<Request> {
        let key = flow.key();
        let (guest, remote) = (key.guest.into(), key.remote.into());
        if flow.initiator() == Initiator::Peer || matches!(flow, Flow::Dns(_) | Flow::Carried(_)) {
            return None;
        }
        let (config, resolver) = (&self.shared.config, self.shared.resolver(now));
        let Ok(Destination::Host(to)) = destination::resolve(config, resolver, key.protocol, remote) else {
            return None;
        };
        let dns_tls = destination::is_dns_tls(config, remote);
        let remote = destination::judged_as(config, remote);
        Some(Request { protocol: key.protocol, guest, remote, to, forwarded: false, dns_tls })
    }

    /// Counts a flow that is about to be removed, under the rule that allows it.
    pub(super) fn account(&self, now: Instant, flow: &Flow) {
        if self.shared.config.rules.shared.is_some()
            && flow.refused_by().is_none()
            && let Some(request) = self.request_of(now, flow)
        {
            self.policy.account(now, &request, flow.named(), flow.moved());
        }
    }

    /// Acts on limits whose time has come.
    pub(super) fn expire_limits<P: Platform>(&mut self, io: &mut Io<'_, P>) {
        while let Some((id, due)) = self.policy.limited.pop_due(io.now) {
            match due {
                Due::Held(held) => self.hold(io, id, held),
                Due::Over => self.end_by_limit(io, id, reason::QUOTA),
                Due::Unruled => self.end_unruled(io, id),
            }
        }
    }

    /// Ends a flow that limits may concern, unless the rule that allows it is found at last.
    fn end_unruled<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId) {
        let _ = self.look_up(io.now, id, Admission::Restored);
        if !self.policy.limited.is_unruled(id) {
            return;
        }
        self.policy.limited.release(id);
        let Some(flow) = self.flows.get(id) else { return self.policy.limited.close(id) };
        if let Some(text) = self.refusal_now(flow, io.now) {
            self.policy.ended_by(io.now, &text, flow.key(), flow.named());
        }
        self.revoke(io, id);
    }

    fn hold<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId, held: Held) {
        if let Some(flow) = self.flows.get_mut(id) {
            flow.hold_back(&mut io.cx(&mut self.shared), held);
            flow.reschedule(&mut self.shared);
        }
    }

    /// Ends a flow for the limits of its rule, with this reason.
    fn end_by_limit<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId, reason: &str) {
        if let Some(flow) = self.flows.get(id) {
            self.policy.ended_by(io.now, &self.policy.reason(reason), flow.key(), flow.named());
        }
        self.notify_flow(io, id, |flow, cx, _| flow.revoke(cx, EndCause::Quota));
    }
}
