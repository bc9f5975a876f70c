//! Invariants after every turn, for every behaviour of guest and host.

use super::{CONNS, Run, is_opening};
use brodo_core::flow::FlowId;
use brodo_core::host::Close;
use brodo_core::tcp::State;
use brodo_core::tcp::info::TcpInfo;

type Infos = [Option<TcpInfo>; CONNS];

impl Run {
    /// Compares the state before a turn with that after it. `flows` says which connection each was before.
    pub(super) fn check(&self, flows: &[(u32, Option<FlowId>)], before: &Infos, after: &Infos) {
        // Invariant 8: payload in memory stays within the budget.
        let (used, budget) = (self.driver.stack.memory_used(), self.config.memory);
        assert!(used <= budget, "{used} bytes of memory in use, the budget is {budget}");
        // Invariant 22: a stack that waits for the link has been refused by a link that is still full.
        let waits = self.driver.stack.is_stalled();
        assert!(!waits || !self.driver.link.has_credit(), "waits for a link that has credit");
        for i in 0..CONNS {
            match (&before[i], &after[i]) {
                (Some(_), None) => self.check_gone(i),
                (Some(before), Some(after)) if before.flow == after.flow => {
                    assert!(flows[i].1 == Some(after.flow) || self.conns[i].flow == Some(after.flow));
                    self.check_one(i, before, after);
                }
                _ => {}
            }
        }
    }

    /// A connection without another reason to end ends when both directions have.
    fn check_gone(&self, i: usize) {
        let conn = &self.conns[i];
        let both = !conn.fins.is_empty() && conn.down_fin;
        assert!(conn.excused || both, "connection {i} has ended without a reason");
    }

    fn check_one(&self, i: usize, before: &TcpInfo, after: &TcpInfo) {
        let conn = &self.conns[i];
        assert!(conn.resets == 0 || conn.excused, "connection {i} was reset without a reason");
        let host = &self.driver.host;
        let delivered = conn.delivered(host);
        // One that was ended for a reason may still wait for credit, to reset the guest.
        let is_over = conn.excused && conn.socket.is_some_and(|it| host.closed(it) == Some(Close::Reset));
        if !conn.broken && !is_over {
            // Invariant 4: accepted bytes, which may be acknowledged, are stored or were forwarded.
            let kept = delivered + u64::from(after.rx.held);
            assert!(after.rx.bytes <= kept, "{} bytes taken, {kept} kept or passed on", after.rx.bytes);
        }
        // Invariant 19: first transmissions lie within the guest's window and the send limit.
        let grew = after.tx.bytes == before.tx.bytes && after.in_flight > before.in_flight;
        if grew && !is_opening(before.state) {
            let window = before.tx.window.max(after.tx.window);
            let limit = before.tx.limit.max(after.tx.limit);
            // FIN needs no window.
            let most = window.min(limit) + 1;
            assert!(after.in_flight <= most, "{} in flight, at most {most} allowed", after.in_flight);
        }
        self.check_window(i, after);
    }

    /// Invariant 13: a window does not stay closed with an empty queue. The window update has been sent by
    /// the end of the turn.
    fn check_window(&self, i: usize, after: &TcpInfo) {
        let open = matches!(after.state, State::Established | State::FinWait1 | State::FinWait2);
        let plenty = self.config.memory >= 256 << 20;
        if !open || !plenty || !self.credit || after.rx.held > 0 || self.conns[i].broken {
            return;
        }
        let least = u32::from(after.mss).min(after.rx.limit / 2).max(1);
        assert!(after.rx.window >= least, "a window of {} with nothing queued", after.rx.window);
        let edge = self.driver.observer.offered_edge(self.conns[i].guest, self.conns[i].remote);
        let expected = self.expected(i, after);
        let known = edge.map(|edge| edge.wrapping_sub(expected));
        assert_eq!(known, Some(after.rx.window), "the guest knows of another window");
    }
}
