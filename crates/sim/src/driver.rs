//! Simulated driver: one stack with its simulated link and host, and the loop turn of a real driver.
//!
//! Time advances only between turns; the caller gives the time of each turn, and it never goes back. Every
//! frame sent by the stack passes the link's checks and the observer's rules before it is returned.

use crate::crashes::{self, Crashes, Outside};
use crate::events::EventLog;
use crate::golden::Trace;
use crate::handover::Handovers;
use crate::host::SimHost;
use crate::link::{GUEST_MAC, SentFrame, SimLink};
use crate::observer::Observer;
use crate::packet::{self, Macs, ParsedFrame, TcpSegment};
use crate::promotions::Promotions;
use crate::rng::Rng;
use crate::unread::UnreadEnds;
use brodo_core::config::Config;
use brodo_core::link::{Gso, LinkCaps, RxFrame, RxMeta};
use brodo_core::stack::{Io, Keys, Platform, Stack};
use brodo_core::time::Instant;

/// Service rounds of one turn, at most; more count as an endless loop.
const ROUNDS_MAX: usize = 100_000;

/// The platform of a simulated driver.
#[derive(Debug)]
pub enum Simulated {}

impl Platform for Simulated {
    type Link = SimLink;
    type Host = SimHost;
    type Observer = EventLog;
}

/// One stack, its link and its host, driven in virtual time.
pub struct SimDriver {
    /// The stack under test.
    pub stack: Stack,
    /// The guest's end of the link.
    pub link: SimLink,
    /// The host's sockets.
    pub host: SimHost,
    /// The rules checked on every segment.
    pub observer: Observer,
    /// Trace events, while the host records its calls.
    pub events: EventLog,
    /// Hand-overs to a stack that is restored, in programs that have them.
    pub handovers: Handovers,
    /// Crashes of the stack, where a test has them.
    pub crashes: Option<Crashes>,
    /// Kernel sockets of promoted flows, where a test has them.
    pub promotions: Promotions,
    /// A queue stands on the link: more frames wait than are handed in.
    pub link_stands: bool,
    /// Bytes of a segment that are not left unread.
    begin: usize,
    caps: LinkCaps,
    now: Instant,
    trace: Trace,
    /// Host calls already in the trace.
    calls_traced: usize,
}

/// Random keys for a stack.
pub(crate) fn keys(rng: &mut Rng) -> Keys {
    let mut key = || {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&rng.next().to_le_bytes());
        key[8..].copy_from_slice(&rng.next().to_le_bytes());
        key
    };
    let (table, isn) = (key(), key());
    // A constant instead of a draw, so that later draws of a seed stay the same.
    Keys { table, isn, dns: isn.map(|byte| !byte) }
}

impl SimDriver {
    /// A driver at time zero; `seed` gives the stack's keys.
    pub fn new(config: Config, caps: LinkCaps, seed: u64) -> Self {
        let keys = keys(&mut Rng::new(seed));
        Self {
            link: SimLink::new(caps, config.mtu, config.mac.0),
            stack: Stack::new(config, keys, caps),
            host: SimHost::default(),
            observer: Observer::default(),
            events: EventLog::default(),
            handovers: Handovers::default(),
            crashes: None,
            promotions: Promotions::default(),
            begin: usize::MAX,
            link_stands: false,
            caps,
            now: Instant::ZERO,
            trace: Trace::new(),
            calls_traced: 0,
        }
    }

    /// Has the link leave all of the guest's segments unread but for their first `begin` bytes, which are
    /// those of their headers at least, with their checksums verified. With `sends` the host sends the rest
    /// from where it is. The ends, with an account.
    pub fn leave_unread(&mut self, begin: usize, sends: bool) -> UnreadEnds {
        self.begin = begin;
        self.host.unread = sends.then(|| self.link.unread.clone());
        self.link.unread.clone()
    }

    /// The time of the last turn.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Deadline of the next turn without input; `None` without timers.
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.stack.next_deadline(), self.promotions.deadline()].into_iter().flatten().min()
    }

    /// One loop turn at `now`: all pending frames of the guest, timers, socket events, service until idle or
    /// until the link should be read again. Returns the frames sent to the guest.
    pub fn turn(&mut self, now: Instant, frames: &[(RxMeta, Vec<u8>)]) -> Vec<SentFrame> {
        assert!(now >= self.now, "time goes back");
        self.now = now;
        let mut sent = Vec::new();
        self.observer.begin_batch();
        for (_, frame) in frames {
            self.trace.add(frame);
            if let Ok(ParsedFrame::Tcp(segment)) = packet::parse(frame) {
                self.observer.from_guest(&segment);
            }
        }
        let (ends, begin) = (self.link.unread.clone(), self.begin);
        ends.clear();
        let frames: Vec<RxFrame<'_>> = frames
            .iter()
            .filter(|(_, bytes)| !self.is_steered(bytes))
            .map(|(meta, bytes)| ends.frame(*meta, bytes, begin))
            .collect();
        if !self.link_stands {
            self.stack.link_drained(now);
        }
        self.call(&mut sent, |stack, io| stack.frames(io, &frames));
        self.call(&mut sent, Stack::expire);
        for _ in 0..ROUNDS_MAX {
            if self.link.take_writable() {
                self.stack.link_writable();
            }
            for (flow, ready) in self.host.take_events() {
                self.call(&mut sent, |stack, io| stack.socket_event(io, flow, ready));
            }
            let mut more = false;
            self.call(&mut sent, |stack, io| more = stack.serve(io));
            self.call(&mut sent, Stack::flush);
            let moved = self.promotions.is_on() && self.promote(&mut sent);
            let done = !moved && (!more || self.stack.awaits_drain());
            if done && !self.host.has_events() {
                assert_eq!(
                    self.stack.counters().lost_wakeups,
                    0,
                    "at {now:?} a parked flow lost its wake-up"
                );
                self.trace_turn();
                return sent;
            }
        }
        panic!("a turn at {now:?} did not end in {ROUNDS_MAX} rounds");
    }

    /// A turn preceded by `body`: calls of a driver that accepts inbound flows for the guest.
    pub fn turn_with(
        &mut self,
        now: Instant,
        body: impl FnOnce(&mut Stack, &mut Io<'_, Simulated>),
    ) -> Vec<SentFrame> {
        assert!(now >= self.now, "time goes back");
        self.now = now;
        let mut sent = Vec::new();
        self.call(&mut sent, body);
        sent.extend(self.turn(now, &[]));
        sent
    }

    /// A call to the stack at the time of the last turn.
    pub fn io(&mut self, f: impl FnOnce(&mut Stack, &mut Io<'_, Simulated>)) {
        let Self { now, link, host, events, .. } = self;
        (events.now, events.off) = (*now, !host.records());
        f(&mut self.stack, &mut Io { now: *now, link, host, observer: events });
    }

    fn call(&mut self, sent: &mut Vec<SentFrame>, f: impl FnOnce(&mut Stack, &mut Io<'_, Simulated>)) {
        if self.crashes_in(f) {
            self.recover();
        }
        self.collect(sent);
    }

    /// Takes the frames that a call has sent.
    fn collect(&mut self, sent: &mut Vec<SentFrame>) {
        while let Some(frame) = self.link.take() {
            for piece in frame.cut() {
                if let Ok(ParsedFrame::Tcp(segment)) = packet::parse(&piece) {
                    self.observe("the stack", &segment);
                }
            }
            self.trace.add(&frame.bytes);
            self.trace.add(&[frame.partial.into()]);
            self.trace.add(format!("{:?}", frame.gso).as_bytes());
            sent.push(frame);
        }
        let Self { handovers, stack, caps, now, host, .. } = self;
        if handovers.event(stack, *caps, *now, host) {
            host.report_all();
        }
    }

    /// Makes a call to the stack; true if it has crashed.
    fn crashes_in(&mut self, f: impl FnOnce(&mut Stack, &mut Io<'_, Simulated>)) -> bool {
        let Some(mut crashes) = self.crashes.take() else {
            self.io(f);
            return false;
        };
        let crashed = crashes.call(|| self.io(f));
        self.crashes = Some(crashes);
        crashed
    }

    /// Another stack recovers the flows of one that has crashed.
    fn recover(&mut self) {
        let Self { stack, host, caps, now, crashes: Some(crashes), promotions, .. } = self else { return };
        let (config, keys) = (stack.config().clone(), keys(crashes.rng()));
        let outside = Outside { host, promotions };
        let (recovered, mut lost, quiet) = crashes.recover(stack, &config, keys, *caps, *now, outside);
        *stack = recovered;
        self.observer.crashed();
        self.io(|stack, io| stack.reset_lost(io, &mut lost));
        self.host.report_all_but_room_of(&quiet);
    }

    /// Checks a segment to the guest.
    fn observe(&mut self, sender: &str, segment: &TcpSegment) {
        if let Err(rule) = self.observer.to_guest(segment) {
            panic!("at {:?} {sender} sent a segment that is wrong: {rule}\n{segment:?}", self.now);
        }
    }

    /// Whether a frame of the guest's goes to a kernel socket instead of the stack.
    fn is_steered(&mut self, frame: &[u8]) -> bool {
        self.promotions.is_on()
            && matches!(packet::parse(frame), Ok(ParsedFrame::Tcp(segment)) if self.promotions.take(&segment))
    }

    /// One step of the kernel sockets; true if something has moved.
    fn promote(&mut self, sent: &mut Vec<SentFrame>) -> bool {
        let mut promotions = std::mem::take(&mut self.promotions);
        let mut segments = Vec::new();
        let mut moved = false;
        promotions.journal = self.crashes.as_ref().map(Crashes::driver_journal).unwrap_or_default();
        let crashed = self.crashes_in(|stack, io| moved = promotions.step(stack, io, &mut segments));
        self.promotions = promotions;
        if crashed {
            moved = true;
            self.recover();
        }
        self.collect(sent);
        let macs = Macs { to: GUEST_MAC, from: self.stack.config().mac.0 };
        for segment in segments {
            self.observe("a kernel socket", &segment);
            let bytes = segment.to_frame(macs);
            let headers_len = bytes.len() - segment.data.len();
            sent.push(SentFrame { bytes, headers_len, partial: false, gso: Gso::None });
        }
        moved
    }

    /// Adds the outcome of a turn to the trace: the time, the calls on host sockets, the next deadline.
    fn trace_turn(&mut self) {
        let calls = &self.host.calls()[self.calls_traced.min(self.host.calls().len())..];
        let left = format!("{:?} {calls:?} {:?}", self.now, self.stack.next_deadline());
        self.calls_traced = self.host.calls().len();
        self.trace.add(left.as_bytes());
    }
}

impl Drop for SimDriver {
    fn drop(&mut self) {
        if self.crashes.is_some() {
            crashes::give_back(&mut self.stack);
        }
    }
}
