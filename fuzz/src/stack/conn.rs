//! One connection of the guest in an input: bytes sent, bytes received, and the resulting expectations of the
//! stack.
//!
//! Payload is a function of the place in its stream, also where the guest sends it twice or out of window, so
//! every byte that arrives at either end can be compared at once. Places are offsets from the first byte of
//! payload.

use super::op::Setup;
use super::ranges::Ranges;
use brodo_core::flow::FlowId;
use brodo_core::host::SocketId;
use brodo_core::tcp::State;
use brodo_core::tcp::info::TcpInfo;
use brodo_core::time::Instant;
use brodo_sim::host::SimHost;
use brodo_sim::packet::{TcpSegment, flags};
use brodo_sim::rng::Pattern;
use std::net::SocketAddr;

/// One connection as the guest and the host's peer see it.
pub(super) struct Conn {
    setup: Setup,
    pub(super) guest: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) incarnation: u32,
    /// The guest's initial sequence number.
    pub(super) irs: u32,
    /// The sequence number of its last SYN.
    pub(super) last_syn: u32,
    /// The stack's initial sequence number, once the guest knows it.
    pub(super) iss: Option<u32>,
    /// The stack has sent the SYN.
    pub(super) called: bool,
    stack_scale: u8,
    scales: bool,
    sack: bool,
    /// Place of the guest's next payload in order.
    pub(super) next: u32,
    pub(super) sent: Ranges,
    /// The highest place of any byte or FIN of the guest's.
    pub(super) ahead: u32,
    /// Places at which the guest has sent FIN.
    pub(super) fins: Vec<u32>,
    pub(super) got: Ranges,
    pub(super) got_fin: bool,
    /// The stack's highest sequence number sent, and its acknowledgement of the guest's.
    pub(super) max_sent: u32,
    pub(super) last_ack: u32,
    pub(super) last_edge: u32,
    /// The guest's window, bytes.
    pub(super) window: u32,
    pub(super) flow: Option<FlowId>,
    pub(super) socket: Option<SocketId>,
    /// Bytes that the host's peer has sent and taken.
    pub(super) down: u32,
    pub(super) down_fin: bool,
    pub(super) taken: u32,
    /// A violation by guest or host for which this connection may be reset or dropped.
    pub(super) excused: bool,
    /// The host socket failed.
    pub(super) broken: bool,
    /// The guest acknowledged bytes that it had not received.
    pub(super) lied: bool,
    /// The guest contradicted itself about where its stream ends.
    pub(super) odd: bool,
    /// Resets and segments seen in this turn.
    pub(super) resets: u32,
    pub(super) frames: u32,
    pub(super) bare_acks: u32,
    /// Times at which the first byte in flight was retransmitted while the guest was silent.
    pub(super) resent_at: Vec<Instant>,
}

impl Conn {
    pub(super) fn new(
        setup: Setup,
        guest: SocketAddr,
        remote: SocketAddr,
        incarnation: u32,
        irs: u32,
    ) -> Self {
        Self {
            setup,
            guest,
            remote,
            incarnation,
            irs,
            last_syn: irs,
            iss: None,
            called: false,
            stack_scale: 0,
            scales: false,
            sack: false,
            next: 0,
            sent: Ranges::default(),
            ahead: 0,
            fins: Vec::new(),
            got: Ranges::default(),
            got_fin: false,
            max_sent: 0,
            last_ack: 0,
            last_edge: 0,
            window: 65_535,
            flow: None,
            socket: None,
            down: 0,
            down_fin: false,
            taken: 0,
            excused: false,
            broken: false,
            lied: false,
            odd: false,
            resets: 0,
            frames: 0,
            bare_acks: 0,
            resent_at: Vec::new(),
        }
    }

    /// The connection that follows this one between the same ends.
    pub(super) fn restart(&mut self, irs: u32) {
        let counted = (self.resets, self.frames, self.bare_acks);
        *self = Self::new(self.setup, self.guest, self.remote, self.incarnation + 1, irs);
        (self.resets, self.frames, self.bare_acks) = counted;
    }

    fn up_pattern(&self) -> Pattern {
        Pattern(u64::from(self.guest.port()) << 32 | u64::from(self.incarnation) << 1)
    }

    fn down_pattern(&self) -> Pattern {
        Pattern(u64::from(self.guest.port()) << 32 | u64::from(self.incarnation) << 1 | 1)
    }

    /// The bytes that the host's peer sends next.
    pub(super) fn down_bytes(&self, len: usize) -> Vec<u8> {
        self.down_pattern().bytes(self.down.into(), len)
    }

    /// The sequence number of a place in the guest's stream.
    pub(super) const fn seq(&self, place: u32) -> u32 {
        self.irs.wrapping_add(1).wrapping_add(place)
    }

    /// The acknowledgement number of everything before a place in the stack's stream.
    pub(super) fn ack_of(&self, place: u32) -> u32 {
        self.iss.unwrap_or(0).wrapping_add(1).wrapping_add(place)
    }

    /// Sequence space received by an honest guest, FIN included.
    pub(super) fn received(&self) -> u32 {
        let bytes = self.got.contiguous();
        bytes + u32::from(self.got_fin && bytes == self.down)
    }

    /// The SYN of this connection.
    pub(super) fn syn(&self, seq: u32) -> TcpSegment {
        TcpSegment {
            flags: flags::SYN,
            seq,
            window: self.window.min(65_535) as u16,
            mss: self.setup.mss(),
            wscale: self.setup.scale(),
            sack_ok: self.setup.sack(),
            timestamps: self.setup.timestamps().then_some((1, 0)),
            ..TcpSegment::new(self.guest, self.remote)
        }
    }

    /// The answer to the stack's SYN.
    pub(super) fn syn_ack(&self) -> TcpSegment {
        let offered = self.setup.scale().filter(|_| self.scales);
        TcpSegment {
            flags: flags::SYN | flags::ACK,
            ack: self.ack_of(0),
            wscale: offered,
            sack_ok: self.sack,
            ..self.syn(self.irs)
        }
    }

    /// An honest acknowledgement at a place of the guest's stream, to which flags and payload may be added.
    pub(super) fn ack(&self, place: u32) -> TcpSegment {
        let shift = if self.scales { self.setup.scale().unwrap_or(0).min(14) } else { 0 };
        let known = self.iss.is_some();
        TcpSegment {
            flags: if known { flags::ACK } else { 0 },
            seq: self.seq(place),
            ack: if known { self.ack_of(self.received()) } else { 0 },
            window: (self.window >> shift).min(65_535) as u16,
            timestamps: self.setup.timestamps().then_some((2, 1)),
            ..TcpSegment::new(self.guest, self.remote)
        }
    }

    /// An honest acknowledgement with SACK blocks, if they were agreed.
    pub(super) fn ack_with_sack(&self) -> TcpSegment {
        let mut segment = self.ack(self.next);
        if self.sack {
            let blocks = self.got.beyond_gap().take(3);
            segment.sack = blocks.map(|(start, end)| (self.ack_of(start), self.ack_of(end))).collect();
        }
        segment
    }

    /// A segment of `len` bytes at a place of the guest's stream.
    pub(super) fn data(&mut self, place: u32, len: u32) -> TcpSegment {
        let mut segment = self.ack(place);
        let pattern = self.up_pattern();
        segment.data = (0..len).map(|i| pattern.byte(place.wrapping_add(i).into())).collect();
        segment.flags |= flags::PSH;
        let start = i64::from(place.cast_signed());
        let end = start + i64::from(len);
        self.ahead = self.ahead.max(start.max(0) as u32);
        // Bytes further ahead than any window are not part of the stream.
        if end > 0 && start <= i64::from(self.next) + (1 << 24) {
            self.sent.add(start.max(0) as u32, end as u32);
            self.odd |= self.fins.iter().any(|&fin| end > i64::from(fin));
        }
        segment
    }

    /// Notes that the guest sends FIN at this place.
    pub(super) fn note_fin(&mut self, place: u32) {
        self.odd |=
            place != self.next || self.sent.end() > place || self.fins.iter().any(|&fin| fin != place);
        self.fins.push(place);
        self.ahead = self.ahead.max(place);
    }

    /// Takes a segment as the guest gets it, or would if it were not `lost`; all its fields must be correct.
    pub(super) fn receive(&mut self, s: &TcpSegment, lost: bool, now: Instant, before: Option<&TcpInfo>) {
        self.frames += 1;
        if s.has(flags::RST) {
            self.resets += 1;
            return;
        }
        if s.has(flags::SYN) && !s.has(flags::ACK) {
            if !lost {
                (self.iss, self.called) = (Some(s.seq), true);
                self.scales = s.wscale.is_some() && self.setup.scale().is_some();
                self.stack_scale = s.wscale.filter(|_| self.scales).unwrap_or(0);
                self.sack = s.sack_ok && self.setup.sack();
                let first = self.seq(0);
                (self.last_ack, self.last_edge) = (first, first.wrapping_add(s.window.into()));
            }
            return;
        }
        if s.has(flags::SYN) {
            if s.ack.wrapping_sub(1) == self.last_syn && self.last_syn != self.irs {
                self.restart(self.last_syn);
            }
            if !lost {
                self.iss = Some(s.seq);
                self.scales = s.wscale.is_some();
                self.stack_scale = s.wscale.unwrap_or(0);
                self.sack = s.sack_ok && self.setup.sack();
                (self.last_ack, self.last_edge) = (s.ack, s.ack.wrapping_add(s.window.into()));
            }
            return;
        }
        self.bare_acks += u32::from(s.seq_len() == 0);
        let Some(iss) = self.iss else { return };
        let place = s.seq.wrapping_sub(iss).wrapping_sub(1);
        let len = s.data.len() as u32;
        let end = place.wrapping_add(len);
        if len > 0 {
            assert!(end <= self.down, "sends up to {end}, the host's peer has sent {}", self.down);
            let wrong = self.down_pattern().mismatch(place.into(), &s.data);
            assert_eq!(wrong, None, "a wrong byte to the guest");
        }
        if s.has(flags::FIN) {
            // Invariant 6, the end of a stream comes after all of it.
            assert!(self.down_fin && end == self.down, "FIN at {end}, the stream ends at {}", self.down);
        }
        if s.seq_len() > 0 {
            if place < self.max_sent && before.is_some_and(|b| b.tx.bytes == u64::from(place)) {
                self.resent_at.push(now);
                self.check_time_outs();
            }
            self.max_sent = self.max_sent.max(place.wrapping_add(s.seq_len()));
        }
        if !lost {
            self.got.add(place, end);
            self.got_fin |= s.has(flags::FIN);
            self.last_ack = s.ack;
            self.last_edge = s.ack.wrapping_add(u32::from(s.window) << self.stack_scale);
        }
    }

    /// Invariant 17: while the guest is silent, each time-out is about twice the one before, none is shorter
    /// than the least or longer than the longest. The first time may be a loss that was noticed otherwise.
    fn check_time_outs(&self) {
        let [_, .., a, b, c] = self.resent_at[..] else { return };
        let ((first, second), ms) = ((b - a, c - b), |ms| brodo_core::time::Duration::from_millis(ms));
        let doubled = second >= first * 9 / 5 || second >= ms(55_000);
        assert!(first >= ms(190) && second <= ms(66_000) && doubled, "time-outs of {first:?}, {second:?}");
    }

    /// The host's peer takes up to `max` bytes, which must be what the guest has sent.
    pub(super) fn take(&mut self, host: &mut SimHost, max: usize) -> usize {
        let Some(socket) = self.socket else { return 0 };
        let data = host.peer_take(socket, max);
        // Invariant 5: delivered bytes are the sent ones, from the beginning and without a gap.
        let wrong = self.up_pattern().mismatch(self.taken.into(), &data);
        assert_eq!(wrong, None, "a wrong byte to the host's peer");
        self.taken += data.len() as u32;
        assert!(self.taken <= self.sent.contiguous(), "{} bytes out of nothing", self.taken);
        if host.peer_sees_fin(socket) && !self.excused && !self.fins.is_empty() {
            assert!(
                self.fins.contains(&self.taken),
                "an end after {} bytes, sent {:?}",
                self.taken,
                self.fins
            );
        }
        data.len()
    }

    /// Bytes written to the host socket so far.
    pub(super) fn delivered(&self, host: &SimHost) -> u64 {
        u64::from(self.taken) + self.socket.map_or(0, |s| host.unread(s)) as u64
    }

    /// Whether the guest can have data accepted in this state.
    pub(super) fn accepts(&self, info: &TcpInfo) -> bool {
        let open = matches!(info.state, State::Established | State::FinWait1 | State::FinWait2);
        open && !self.broken && !self.excused && self.fins.is_empty()
    }
}
