//! A connection on its way to a kernel socket, away, and back: the states of [`crate::promotion`].
//!
//! Of most connections there is nothing but a null pointer. The measurement of a candidate begins on the
//! heap when [`BulkBounds::bytes`](crate::promotion::BulkBounds::bytes) have moved, and stays there.
//!
//! *Quieting* leaves both halves as they are, but for two marks: the sender takes nothing more from the
//! host's socket ([`super::sender::Sender::pause`]), and the receiver moves its edge no further
//! ([`super::receiver::Receiver::freeze`]). Whether the connection is quiet is looked at after every access
//! to it, and when a timer says that the guest was silent for long enough.
//!
//! *The window.* A connection leaves when the guest has used its window up. The kernel socket cannot open it:
//! Linux announces a window when what is read has raised it, and probes with a segment from before the
//! guest's window, which the guest drops. The guest would wait for its persist timer, 200 ms and more. So the
//! seed has a wider window, and when the guest's segments are steered, an acknowledgement announces it: the
//! last segment of the connection until it returns, and sent once.
//!
//! *Away* (seeded to returning) the halves hold no byte, no reserved window and no timer. The readiness of
//! the host's socket is kept up to date, so that nothing that happens to it is missed. Each entry point of
//! the connection asks [`Connection::is_away`] first.

pub(crate) mod recovered;
mod returning;

use super::Connection;
use super::receiver::ReceiverState;
use crate::carried::CarriedProgress;
use crate::context::{Cx, Platform, Shared};
use crate::counters::{Counters, DropReason};
use crate::flow::end::EndCause;
use crate::flow::info::{Carrier, Released, Traffic};
use crate::flow::state::State;
use crate::host::{Close, Host, Readiness, SocketId};
use crate::promotion::candidate::Candidate;
use crate::promotion::{Bulk, PromotionOutcome, Refusal, ReturnReason, SeedFields, TcpSeed, WindowScales};
use crate::time::{Duration, Instant};
use crate::trace::Direction;
use crate::wire::tcp::{TcpFlags, TcpHeader};

/// Promotion of one connection; nothing of one that has not moved much.
#[derive(Debug, Default)]
pub(super) struct Promotion(Option<Box<Bulky>>);

/// Of a connection that has moved much.
#[derive(Debug)]
struct Bulky {
    candidate: Candidate,
    phase: Phase,
}

/// State of the promotion.
#[derive(Debug)]
enum Phase {
    Idle,
    /// To be quiet by `until`; looked at again at `look_at`, if nothing happens before.
    Quieting {
        until: Instant,
        look_at: Instant,
    },
    /// Between the seed and the return.
    Away(Away),
    /// The flow has ended with its kernel socket.
    Over,
}

/// A flow that a kernel socket has, or is to have.
#[derive(Debug)]
struct Away {
    stage: Stage,
    /// The state with which it left.
    seed: TcpSeed,
    /// Bytes written to the host's socket, and taken from it, since; both wrap.
    from_guest: u32,
    to_guest: u32,
    /// Time of its last progress.
    moved_at: Instant,
    /// Streams that have ended: the guest's, and the host's.
    guest_finished: bool,
    host_finished: bool,
    /// Reason of the recall; before the socket is made: to be taken back as soon as it is.
    wanted: Option<ReturnReason>,
    /// Segments that came by the link since a stream has ended, but for those that were sent before the
    /// kernel had the flow for good.
    strays: u8,
}

/// Time after which the link is looked at again, if it was not read empty when the guest's silence was over.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// Segments at the link after which a flow that does not come back, because both streams have ended at the
/// kernel socket, is reset: the kernel would give it up only after a quarter of an hour.
const STRAYS_MAX: u8 = 4;

/// Stage of a flow that is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Seeded,
    Trial { until: Instant },
    Carried { since: Instant },
    Returning,
}

impl Away {
    /// Whether the return speaks against another attempt: the promotion itself has failed.
    fn is_setback(&self) -> bool {
        const ELSEWHERE: [ReturnReason; 4] =
            [ReturnReason::Capture, ReturnReason::HandOver, ReturnReason::Settings, ReturnReason::Idle];
        self.wanted.is_none_or(|reason| !ELSEWHERE.contains(&reason))
    }

    /// Whether one of the streams has ended.
    fn is_half_closed(&self) -> bool {
        self.guest_finished || self.host_finished
    }
}

impl Promotion {
    fn away(&self) -> Option<&Away> {
        match self.0.as_deref() {
            Some(Bulky { phase: Phase::Away(away), .. }) => Some(away),
            _ => None,
        }
    }

    fn away_mut(&mut self) -> Option<&mut Away> {
        match self.0.as_deref_mut() {
            Some(Bulky { phase: Phase::Away(away), .. }) => Some(away),
            _ => None,
        }
    }

    /// Puts the next attempt off.
    fn set_back(&mut self, shared: &Shared, now: Instant) {
        if let Some(bulky) = self.0.as_deref_mut() {
            bulky.candidate.set_back(&shared.config.bulk_bounds, now);
        }
    }

    /// The promotion has served: setbacks before it say nothing of the next one.
    fn forget_setbacks(&mut self) {
        if let Some(bulky) = self.0.as_deref_mut() {
            bulky.candidate.forget_setbacks();
        }
    }

    /// Ends the state of being away.
    fn come_back(&mut self, shared: &mut Shared) -> Option<Away> {
        let bulky = self.0.as_deref_mut().filter(|bulky| matches!(bulky.phase, Phase::Away(_)))?;
        let Phase::Away(away) = std::mem::replace(&mut bulky.phase, Phase::Idle) else { return None };
        shared.tcp.away -= 1;
        Some(away)
    }

    /// The same for a connection that is not recovered after all.
    pub(super) fn forget(&mut self, shared: &mut Shared) {
        self.come_back(shared);
    }

    /// Time of the next step, if one is due by time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.0.as_deref()?.phase {
            Phase::Quieting { look_at, .. } => Some(look_at),
            Phase::Away(Away { stage: Stage::Trial { until }, .. }) => Some(until),
            Phase::Idle | Phase::Away(_) | Phase::Over => None,
        }
    }

    /// Whether the connection is being made quiet.
    pub(super) fn is_quieting(&self) -> bool {
        matches!(self.0.as_deref(), Some(Bulky { phase: Phase::Quieting { .. }, .. }))
    }

    /// Heap memory, bytes.
    pub(super) fn allocated(&self) -> usize {
        self.0.as_ref().map_or(0, |_| size_of::<Bulky>())
    }
}

impl Connection {
    /// Whether a kernel socket has the flow, or is to have it: nothing is sent to the guest from here.
    pub(crate) fn is_away(&self) -> bool {
        self.promotion.away().is_some()
    }

    /// Bytes from the guest, and to it, since the connection left; both wrap.
    pub(super) fn moved_away(&self) -> [u32; 2] {
        self.promotion.away().map_or([0; 2], |away| [away.from_guest, away.to_guest])
    }

    /// Time of the last progress of a flow that is away and can be taken back, or of the last attempt to.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let away = self.promotion.away()?;
        matches!(away.stage, Stage::Carried { .. }).then_some(away.moved_at)
    }

    /// Whether a kernel socket has the flow although it has come under limits.
    pub(crate) fn is_away_under_limits(&self) -> bool {
        self.is_limited && self.is_away()
    }

    /// Host socket and seed of a flow that is away.
    pub(crate) fn promoted_with(&self) -> Option<(SocketId, TcpSeed)> {
        self.socket.zip(self.promotion.away().map(|away| away.seed))
    }

    /// Whether the connection is being made quiet.
    pub(crate) fn is_quieting(&self) -> bool {
        self.promotion.is_quieting()
    }

    /// Carrier of the flow at present.
    pub(super) fn carrier(&self) -> Carrier {
        match self.promotion.0.as_deref().map(|bulky| &bulky.phase) {
            Some(Phase::Away(away)) if away.stage != Stage::Seeded => Carrier::Kernel,
            Some(Phase::Over) => Carrier::Kernel,
            Some(Phase::Idle | Phase::Quieting { .. } | Phase::Away(_)) | None => Carrier::Stack,
        }
    }

    /// State of a flow that is away, as far as the ends of its streams tell it.
    pub(super) fn state_away(&self) -> Option<State> {
        self.promotion.away().map(|away| State::of_ends(away.guest_finished, away.host_finished))
    }

    /// Looks whether the connection is a candidate; called once per turn or batch of frames. All that a
    /// connection that has not moved much pays are these two comparisons.
    pub(super) fn consider_promotion<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let config = &cx.shared.config;
        if config.bulk == Bulk::Kernel
            && !self.is_gated()
            && !self.is_limited
            && self.rx.bytes() + self.tx.bytes() >= config.bulk_bounds.bytes
        {
            self.measure(cx);
        }
    }

    #[cold]
    fn measure<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let (now, moved) = (cx.now, self.rx.bytes() + self.tx.bytes());
        let fresh = || Box::new(Bulky { candidate: Candidate::new(now, moved), phase: Phase::Idle });
        let bulky = self.promotion.0.get_or_insert_with(fresh);
        let bounds = &cx.shared.config.bulk_bounds;
        if !matches!(bulky.phase, Phase::Idle) || !bulky.candidate.is_due(bounds, now, moved) {
            return;
        }
        if !self.is_promotable() {
            return;
        }
        // First: no other flow gives up its place for one that may have none.
        if let Err(refusal) = cx.host.may_promote(self.id, &self.key) {
            return self.note_refusal(cx, refusal);
        }
        if cx.shared.tcp.away >= cx.shared.config.bulk_bounds.flows_max {
            cx.shared.tcp.place_wanted = true;
            return;
        }
        cx.shared.counters.promotions_tried += 1;
        let until = now + cx.shared.config.bulk_bounds.quiet_max;
        self.enter(Phase::Quieting { until, look_at: until });
        self.tx.pause();
        self.rx.freeze();
    }

    fn enter(&mut self, phase: Phase) {
        if let Some(bulky) = self.promotion.0.as_deref_mut() {
            bulky.phase = phase;
        }
    }

    /// Whether nothing stands against a promotion: both streams are open, and nothing is lost, sent again or
    /// ahead of a gap.
    fn is_promotable(&self) -> bool {
        self.state() == State::Established
            && !self.broken
            && !self.ended
            && !self.is_limited
            && self.socket.is_some()
            && self.rx.state() == ReceiverState::Open
            && !self.rx.has_gaps()
            && !self.tx.has_read_all()
            && self.tx.is_undisturbed()
    }

    /// Counts a refusal, and puts the next attempt off.
    fn note_refusal<P: Platform>(&mut self, cx: &mut Cx<'_, P>, refusal: Refusal) {
        *refused(&mut cx.shared.counters, refusal) += 1;
        // The end of a capture is not announced, and to ask again costs nothing.
        if refusal != Refusal::Captured {
            self.promotion.set_back(cx.shared, cx.now);
        }
        if refusal == Refusal::Unsupported
            && let Some(bulky) = self.promotion.0.as_deref_mut()
        {
            bulky.candidate.give_up();
        }
    }

    /// After every access to a connection that is being made quiet: gives its seed to the driver if it is
    /// quiet, and gives up if it cannot be any more.
    pub(crate) fn seed_if_quiet<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let Some(&mut Bulky { phase: Phase::Quieting { until, .. }, .. }) = self.promotion.0.as_deref_mut()
        else {
            return;
        };
        if !self.is_promotable() || cx.now >= until {
            return self.give_up_quieting(cx);
        }
        let silent_at = self.rx.silent_at(&cx.shared.tcp.rtt);
        // The guest's segments may lie on the link.
        let silent = cx.now >= silent_at && cx.shared.standing_queue.was_drained_since(silent_at);
        if (silent || self.rx.window() == 0) && self.tx.is_quiet() && !self.rx.is_blocked() {
            return self.seed(cx);
        }
        let look_at = if silent { until } else { silent_at.max(cx.now + LOOK_AGAIN).min(until) };
        self.enter(Phase::Quieting { until, look_at });
    }

    /// Gives up to make the connection quiet. Nothing if it is not being made so.
    pub(crate) fn give_up_quieting<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if !self.is_quieting() {
            return;
        }
        cx.shared.counters.promotions_given_up += 1;
        self.enter(Phase::Idle);
        self.promotion.set_back(cx.shared, cx.now);
        self.go_on(cx);
    }

    /// The connection goes on by itself: reads, and moves its edge.
    fn go_on<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.tx.go_on();
        self.rx.thaw();
        if !self.ended {
            self.update_window(cx.shared, cx.now);
            self.list_ready(cx.shared);
        }
    }

    /// Gives the seed to the driver; from now on the flow is away.
    fn seed<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let (Some(socket), Ok(seed)) = (self.socket, self.tcp_seed()) else {
            return self.give_up_quieting(cx);
        };
        if let Err(refusal) = cx.host.promote(self.id, socket, &seed) {
            self.note_refusal(cx, refusal);
            self.enter(Phase::Idle);
            return self.go_on(cx);
        }
        cx.shared.tcp.away += 1;
        self.enter(Phase::Away(Away {
            stage: Stage::Seeded,
            seed,
            from_guest: 0,
            to_guest: 0,
            guest_finished: false,
            host_finished: false,
            wanted: None,
            moved_at: cx.now,
            strays: 0,
        }));
        self.tx.leave();
        self.rx.leave(cx.shared);
    }

    /// The seed of this connection, which is quiet.
    fn tcp_seed(&self) -> Result<TcpSeed, crate::promotion::InvalidSeed> {
        let (sent, last) = (self.tx.window_fields(), self.rx.window_to_leave_with());
        let scales = WindowScales { snd: sent.scale, rcv: self.rx.scale() };
        TcpSeed::new(SeedFields {
            guest: self.key.guest.into(),
            remote: self.key.remote.into(),
            snd_una: self.tx.una().0,
            snd_nxt: self.tx.nxt().0,
            snd_wnd: sent.wnd,
            wnd_max: sent.wnd_max,
            snd_wl1: sent.wl1.0,
            rcv_nxt: self.rx.nxt().0,
            rcv_wup: last.ack.0,
            rcv_wnd: (last.edge - last.ack).unsigned_abs(),
            mss: self.tx.mss(),
            scales: self.tx.peer_scales().then_some(scales),
            sack: self.tx.peer_permits_sack(),
        })
    }

    /// The driver's answer to the seed. False if the flow does not wait for it.
    pub(crate) fn promotion_answered<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        outcome: PromotionOutcome,
    ) -> bool {
        let Some(away) = self.promotion.away_mut() else { return false };
        match (away.stage, outcome) {
            (Stage::Seeded, PromotionOutcome::Made) => {
                away.stage = Stage::Trial { until: cx.now + cx.shared.config.bulk_bounds.trial };
                let (wanted, window) = (away.wanted, away.seed.window());
                self.open_window(cx, window);
                if let Some(reason) = wanted {
                    self.recall(cx, reason);
                }
            }
            (Stage::Seeded, PromotionOutcome::Refused(refusal)) => {
                self.promotion.come_back(cx.shared);
                self.note_refusal(cx, refusal);
                self.go_on(cx);
                // A segment that was dropped meanwhile may have asked for it.
                self.list_ack(cx.shared);
            }
            (Stage::Trial { .. }, PromotionOutcome::Confirmed) => {
                away.stage = Stage::Carried { since: cx.now };
                away.moved_at = cx.now;
                cx.shared.counters.promotions_made += 1;
                cx.host.carry(self.id);
            }
            _ => return false,
        }
        true
    }

    /// Announces the window that the kernel socket was made with, if it is wider than the guest knows.
    fn open_window<P: Platform>(&mut self, cx: &mut Cx<'_, P>, window: u32) {
        if window > self.rx.window() {
            // No truncation: a seed's window fits its field.
            let field = (window >> self.rx.scale()) as u16;
            let header = TcpHeader { window: field, ..self.header(TcpFlags::ACK) };
            // Without room at the link the guest's persist timer does it.
            let _ = cx.egress().tcp(self.key.to_guest().addresses(), &header, &[], self.tx.mss());
        }
    }

    /// Asks the driver to bring the flow back, or gives up to make it quiet. Of a flow on its way out the
    /// answer is awaited first.
    pub(crate) fn recall<P: Platform>(&mut self, cx: &mut Cx<'_, P>, reason: ReturnReason) {
        self.give_up_quieting(cx);
        let Some(away) = self.promotion.away_mut() else { return };
        if away.stage == Stage::Seeded {
            away.wanted = Some(reason);
        }
        if matches!(away.stage, Stage::Trial { .. } | Stage::Carried { .. }) {
            away.stage = Stage::Returning;
            away.wanted = Some(reason);
            *recalled(&mut cx.shared.counters, reason) += 1;
            cx.host.recall(self.id);
        }
    }

    /// The driver cannot bring the flow back: the kernel keeps it.
    pub(crate) fn recall_refused<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if let Some(away) = self.promotion.away_mut()
            && away.stage == Stage::Returning
        {
            away.stage = Stage::Carried { since: cx.now };
            // Of those that are idle it is asked for last.
            away.moved_at = cx.now;
            cx.host.carry(self.id);
        }
    }

    /// Segment of a flow that is away, seen at the link. Only a reset at RCV.NXT counts, while that is known:
    /// the guest sends all else again.
    pub(super) fn segment_while_away<P: Platform>(&mut self, cx: &mut Cx<'_, P>, segment: &TcpHeader) {
        let rcv_nxt = self.rx.nxt();
        let Some(away) = self.promotion.away_mut() else { return };
        let unmoved = matches!(away.stage, Stage::Seeded | Stage::Trial { .. });
        if unmoved && segment.flags.contains(TcpFlags::RST) && segment.seq == rcv_nxt {
            return self.end(cx, EndCause::ResetByGuest);
        }
        cx.shared.counters.drop(DropReason::Promoted);
        // Those of a flow that returns come by the link; some are still there when the kernel has it again.
        let is_settled = |since| cx.shared.standing_queue.was_drained_since(since);
        let is_stray = matches!(away.stage, Stage::Carried { since } if is_settled(since));
        away.strays += u8::from(is_stray && away.is_half_closed());
        if away.strays >= STRAYS_MAX {
            cx.shared.counters.promotions_broken += 1;
            self.end(cx, EndCause::NoResources);
        } else if away.stage != Stage::Seeded {
            self.recall(cx, ReturnReason::Stray);
        }
    }

    /// Event of the host's socket of a flow that is away: remembered for its return.
    pub(super) fn socket_event_while_away(&mut self, ready: Readiness) {
        self.tx.socket_event(ready);
        if ready.writable || ready.error {
            self.rx.socket_writable();
        }
    }

    /// Timer of a flow that is away: the end of its trial.
    pub(super) fn away_timer<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.promotion.deadline().is_some_and(|at| at <= cx.now) {
            self.recall(cx, ReturnReason::Silent);
        }
    }

    /// Progress of the carrier.
    pub(crate) fn carried_progress<P: Platform>(&mut self, cx: &mut Cx<'_, P>, progress: &CarriedProgress) {
        let inbound = self.inbound;
        let Some(away) = self.promotion.away_mut() else { return };
        let CarriedProgress { from_initiator, from_responder, retransmissions, until, .. } = progress;
        let ends = [progress.initiator_finished, progress.responder_finished];
        let (up, down, [guest_finished, host_finished], [up_until, down_until]) = if inbound {
            (from_responder, from_initiator, [ends[1], ends[0]], [until[1], until[0]])
        } else {
            (from_initiator, from_responder, ends, *until)
        };
        let segments = |traffic: &Traffic| u32::try_from(traffic.packets).unwrap_or(u32::MAX);
        self.segments_taken = self.segments_taken.saturating_add(segments(up));
        self.segments_sent = self.segments_sent.saturating_add(segments(down));
        self.tx.add_retransmissions(*retransmissions);
        cx.shared.counters.tcp_retransmissions += u64::from(*retransmissions);
        let (up, down) = (up.bytes, down.bytes);
        away.from_guest = away.from_guest.wrapping_add(up as u32);
        away.to_guest = away.to_guest.wrapping_add(down as u32);
        if up + down > 0 {
            away.moved_at = cx.now;
        }
        away.guest_finished |= guest_finished;
        away.host_finished |= host_finished;
        let change = self.rx.note_carried(cx.now, up, up_until);
        self.trace_limiting_factor(cx, Direction::Receive, change);
        let change = self.tx.note_carried(cx.now, down, down_until);
        self.trace_limiting_factor(cx, Direction::Send, change);
        cx.shared.counters.promoted_bytes += up + down;
    }

    /// The driver has closed the kernel socket for good: the flow is over.
    pub(crate) fn carrier_closed<P: Platform>(&mut self, cx: &mut Cx<'_, P>, cause: EndCause) {
        if self.promotion.come_back(cx.shared).is_none() {
            return;
        }
        self.enter(Phase::Over);
        // A driver that could neither go on with it nor give it back.
        cx.shared.counters.promotions_broken += u64::from(cause == EndCause::NoResources);
        // The streams are over, and no record is to speak of a socket that is closed.
        cx.shared.journal.end(self.id);
        let how = if cause == EndCause::Finished { Close::Graceful } else { Close::Reset };
        self.close_socket(cx, how);
        (self.cause, self.ended) = (cause, true);
    }

    /// Ends a flow that is away, with a reset to the guest: by its kernel socket, and until that is made by
    /// the stack, because one that was not started is closed silently.
    pub(super) fn end_away<P: Platform>(&mut self, cx: &mut Cx<'_, P>, cause: EndCause) {
        self.cause = cause;
        if self.promotion.away().is_some_and(|away| away.stage == Stage::Seeded) {
            self.release_carrier(cx.shared);
            self.reset_guest(cx);
        } else {
            self.end(cx, cause);
        }
    }

    /// Before removal: what the driver has of the flow is released to it.
    pub(super) fn release_carrier(&mut self, shared: &mut Shared) {
        if let Some(Away { .. }) = self.promotion.come_back(shared) {
            shared.released.push(Released { flow: self.id, carrier: Carrier::Kernel, number: 0 });
        }
    }

    /// Whether the way is free for an accepted connection between the same ends: the host's socket of the
    /// flow that is away has failed.
    pub(super) fn has_failed_away<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> bool {
        let Some(error) = self.socket.and_then(|socket| cx.host.tcp_error(socket)) else { return false };
        self.end(cx, EndCause::of(error));
        true
    }
}

/// Counter of refusals for a reason.
fn refused(counters: &mut Counters, refusal: Refusal) -> &mut u64 {
    match refusal {
        Refusal::Unsupported => &mut counters.promotions_refused_unsupported,
        Refusal::Captured => &mut counters.promotions_refused_captured,
        Refusal::Broker => &mut counters.promotions_refused_broker,
        Refusal::Steering => &mut counters.promotions_refused_steering,
        Refusal::Socket => &mut counters.promotions_refused_socket,
        Refusal::Resources => &mut counters.promotions_refused_resources,
    }
}

/// Counter of recalls for a reason.
fn recalled(counters: &mut Counters, reason: ReturnReason) -> &mut u64 {
    match reason {
        ReturnReason::Stray => &mut counters.promotions_recalled_stray,
        ReturnReason::Silent => &mut counters.promotions_recalled_silent,
        ReturnReason::Capture => &mut counters.promotions_recalled_capture,
        ReturnReason::Steering => &mut counters.promotions_recalled_steering,
        ReturnReason::Broker => &mut counters.promotions_recalled_broker,
        ReturnReason::HandOver => &mut counters.promotions_recalled_hand_over,
        ReturnReason::Settings => &mut counters.promotions_recalled_settings,
        ReturnReason::Resources => &mut counters.promotions_recalled_resources,
        ReturnReason::Idle => &mut counters.promotions_recalled_idle,
    }
}
