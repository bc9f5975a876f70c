//! Open flows under a policy that was changed: those that it would refuse now end.

use super::{Flow, FlowId, Io, Platform, Stack};
use crate::destination::{self, Destination};
use crate::flow::end::EndCause;
use crate::flow::info::Initiator;
use crate::flow::table::Keyed;
use crate::flow_kind::FlowKind;
use crate::policy::{Request, Reviewed, reason};
use crate::time::Instant;
use std::sync::Arc;

impl Stack {
    /// Judges at most `most` open flows, from a slot on, and ends those that the policy in force refuses: a
    /// connection with a reset to both sides, datagrams with the guest's next one. The others come under the
    /// limits of the rules in force. The slot to go on from; `None` after the last flow.
    pub fn review<P: Platform>(&mut self, io: &mut Io<'_, P>, from: u32, most: usize) -> Option<u32> {
        self.recorder.now = io.now;
        let (mut last, mut looked) = (None, 0);
        let (mut refused, mut allowed) = (Vec::new(), Vec::new());
        for (id, flow) in self.flows.iter_from(from).take(most) {
            (last, looked) = (Some(id.index), looked + 1);
            if let Some(text) = self.refusal_now(flow, io.now) {
                self.policy.ended_by(io.now, &text, flow.key(), flow.named());
                refused.push(id);
            } else {
                allowed.push(id);
            }
        }
        for id in refused {
            self.revoke(io, id);
        }
        for id in allowed {
            self.limit_anew(io, id);
        }
        last.filter(|_| looked == most).map(|last| last + 1)
    }

    pub(super) fn revoke<P: Platform>(&mut self, io: &mut Io<'_, P>, id: FlowId) {
        self.notify_flow(io, id, |flow, cx, _| flow.revoke(cx, EndCause::PolicyChanged));
    }

    /// The rule or reason by which a flow that is open would be refused. One that a gate holds back has not
    /// said a name yet, by which it will be judged there.
    pub(super) fn refusal_now(&self, flow: &Flow, now: Instant) -> Option<Arc<str>> {
        let key = flow.key();
        if matches!(flow, Flow::Dns(_)) {
            return None;
        }
        let remote = key.remote.into();
        let (to, forwarded) = match (flow.initiator(), flow) {
            (Initiator::Peer, _) => return self.policy.locked(),
            (Initiator::Guest, Flow::Carried(_)) => (remote, true),
            (Initiator::Guest, _) => {
                let resolver = self.shared.resolver(now);
                match destination::resolve(&self.shared.config, resolver, key.protocol, remote) {
                    Ok(Destination::Host(to)) => (to, false),
                    // Each question is judged.
                    Ok(Destination::Resolver(_)) => return self.policy.locked(),
                    Ok(Destination::Refused) | Err(_) => return Some(self.policy.reason(reason::DEFAULT)),
                }
            }
        };
        let dns_tls = !forwarded && destination::is_dns_tls(&self.shared.config, remote);
        let remote = destination::judged_as(&self.shared.config, remote);
        let request =
            Request { protocol: key.protocol, guest: key.guest.into(), remote, to, forwarded, dns_tls };
        let reviewed = flow.checks_at_gate().map_or_else(|| Reviewed::Open(flow.named()), Reviewed::AtGate);
        self.policy.review(now, &request, reviewed)
    }
}
