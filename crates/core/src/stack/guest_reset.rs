//! A reset of the guest's network device, after which its kernel may be another one.

use super::{FlowId, Io, Platform, Stack};
use crate::flow_kind::FlowKind;

impl Stack {
    /// The guest's network device was reset: by another kernel, which knows nothing of open connections, or
    /// by the same one, which goes on with them. Each is probed within seconds, and ends if the guest resets
    /// it. Datagrams are left to their time-outs.
    pub fn guest_reset<P: Platform>(&mut self, io: &mut Io<'_, P>) {
        self.recorder.now = io.now;
        let flows: Vec<FlowId> = self.flows.iter().map(|(id, _)| id).collect();
        for id in flows {
            self.notify_flow(io, id, |flow, cx, _| flow.guest_reset(cx));
        }
    }
}
