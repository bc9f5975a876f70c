//! Operations of the guest: honest, odd and hostile ones.

use super::op::{Kind, Op};
use super::{Run, is_opening};
use brodo_core::link::{Gso, RxChecksum, RxMeta};
use brodo_core::tcp::State;
use brodo_core::tcp::info::TcpInfo;
use brodo_sim::link::to_stack;
use brodo_sim::packet::{TcpSegment, flags, ip_frame};

/// Most payload of an ordinary segment.
const SEGMENT_MAX: u32 = 1460;

impl Run {
    /// One operation of the guest on connection `i`.
    pub(super) fn guest_step(&mut self, i: usize, op: Op) {
        let (a, v) = (op.a, op.v);
        match op.kind {
            Kind::Syn => self.syn(i),
            Kind::Accept => self.accept(i),
            Kind::Data => self.data(i, u32::from(v) % SEGMENT_MAX + 1, op.batched),
            Kind::DataAt => {
                let place = self.place(i, a, v);
                let segment = self.conns[i].data(place, u32::from(v & 0xfff));
                self.send(&segment, RxMeta::default(), op.batched);
            }
            Kind::Bulk => {
                for _ in 0..=a & 63 {
                    let segment = self.next_data(i, u32::from(v) % SEGMENT_MAX + 1);
                    self.send(&segment, RxMeta::default(), true);
                }
                self.turn();
            }
            Kind::Super => self.super_segment(i, a, v, op.batched),
            Kind::Ack => self.send(&self.conns[i].ack_with_sack(), RxMeta::default(), op.batched),
            Kind::AckHalf => {
                let mut segment = self.conns[i].ack(self.conns[i].next);
                segment.ack = self.conns[i].ack_of(self.conns[i].received() / 2);
                self.send(&segment, RxMeta::default(), op.batched);
            }
            Kind::AckAt => self.ack_at(i, a, v, op.batched),
            Kind::SackLie => self.sack_lie(i, a, v, op.batched),
            Kind::Duplicate => {
                let conn = &self.conns[i];
                let mut segment = conn.ack_with_sack();
                let end = segment.ack.wrapping_sub(u32::from(v & 0xff));
                segment.sack.truncate(2);
                segment.sack.insert(0, (end.wrapping_sub(u32::from(a)), end));
                self.send(&segment, RxMeta::default(), op.batched);
            }
            Kind::Window => {
                let windows =
                    [0, 1, 10, 48, 1000, 1460, 2920, 5000, 20_000, 65_535, 200_000, 1 << 20, u32::MAX];
                self.conns[i].window = windows[usize::from(a) % windows.len()];
                self.send(&self.conns[i].ack_with_sack(), RxMeta::default(), op.batched);
            }
            Kind::Reset | Kind::SynAt => self.intrude(i, op),
            Kind::Fin => self.fin(i, self.conns[i].next, op.batched),
            Kind::FinAt => {
                let place = self.place(i, a, v);
                self.fin(i, place, op.batched);
            }
            Kind::Flags => self.any_flags(i, a, v),
            Kind::Options => self.options(i, a, v),
            Kind::Again => self.again(i, u32::from(a & 15) + 1, u32::from(v) % SEGMENT_MAX + 1),
            Kind::KeepAlive => {
                let place = self.conns[i].next.wrapping_sub(1);
                let segment = self.conns[i].data(place, u32::from(a & 1));
                self.send(&segment, RxMeta::default(), op.batched);
            }
            _ => {}
        }
    }

    fn syn(&mut self, i: usize) {
        self.turn();
        let conn = &mut self.conns[i];
        if self.driver.stack.tcp_infos(self.now).all(|info| info.guest != conn.guest) {
            let irs = self.setup.irs(conn.incarnation);
            conn.restart(irs);
        }
        conn.last_syn = conn.irs;
        let segment = conn.syn(conn.irs);
        self.send(&segment, RxMeta::default(), false);
    }

    /// The next segment of data in order.
    fn next_data(&mut self, i: usize, len: u32) -> TcpSegment {
        let conn = &mut self.conns[i];
        let segment = conn.data(conn.next, len);
        conn.next += len;
        segment
    }

    /// Data in order. Invariant 2: bytes below the advertised edge are accepted.
    fn data(&mut self, i: usize, len: u32, batched: bool) {
        // An honest acknowledgement after a false one may be too old to count (RFC 5961, 5.2).
        let may_count = self.batch.is_empty() && !self.conns[i].lied;
        let before = self.info(i).filter(|info| may_count && self.conns[i].accepts(info));
        let expected = before.and_then(|info| {
            let plenty = self.config.memory >= 256 << 20;
            let ahead = u64::from(self.conns[i].next).checked_sub(info.rx.bytes)?;
            let room = u64::from(info.rx.window).checked_sub(ahead)?;
            (plenty && ahead == 0).then_some(info.rx.bytes + room.min(len.into()))
        });
        let segment = self.next_data(i, len);
        self.send(&segment, RxMeta::default(), batched);
        if let (Some(expected), false, Some(after)) = (expected, batched, self.info(i)) {
            assert!(after.rx.bytes >= expected, "{} of {expected} bytes were taken", after.rx.bytes);
        }
    }

    fn super_segment(&mut self, i: usize, a: u8, v: u16, batched: bool) {
        let segment = self.next_data(i, u32::from(v).clamp(1, 65_000));
        let size = [1460, 536, 48, 1400][usize::from(a & 3)];
        let gso = if self.setup.v6() { Gso::Tcp6(size) } else { Gso::Tcp4(size) };
        self.send(&segment, RxMeta { checksum: RxChecksum::Valid, gso }, batched);
    }

    /// A place in the guest's stream: near the next byte, near what the stack has, near the edge, or
    /// anywhere.
    fn place(&self, i: usize, a: u8, v: u16) -> u32 {
        let conn = &self.conns[i];
        let base = match v >> 14 {
            0 => conn.next,
            1 => conn.last_ack.wrapping_sub(conn.seq(0)),
            2 => conn.last_edge.wrapping_sub(conn.seq(0)),
            _ => return u32::from(a) << 24,
        };
        let unit = if v & 0x2000 == 0 { 1 } else { 1460 };
        base.wrapping_add((i32::from(a.cast_signed()) * unit).cast_unsigned())
    }

    /// An acknowledgement near the oldest byte in flight, near the next, near what the guest has, or
    /// anywhere.
    fn ack_at(&mut self, i: usize, a: u8, v: u16, batched: bool) {
        let Some(info) = self.info(i) else { return };
        let conn = &mut self.conns[i];
        let una = info.tx.bytes as u32;
        let (nxt, honest) = (una.wrapping_add(info.in_flight), conn.received());
        let unit = if v & 0x2000 == 0 { 1 } else { 1460 };
        let offset = (i32::from(a.cast_signed()) * unit).cast_unsigned();
        let place = match v >> 14 {
            0 => una.wrapping_add(offset),
            1 => nxt.wrapping_add(offset),
            2 => honest.wrapping_add(offset),
            _ => u32::from(a) << 24,
        };
        conn.lied |= place > honest && place <= nxt;
        conn.excused |= is_opening(info.state);
        let mut segment = conn.ack(conn.next);
        segment.ack = conn.ack_of(place);
        self.send(&segment, RxMeta::default(), batched);
    }

    fn sack_lie(&mut self, i: usize, a: u8, v: u16, batched: bool) {
        let Some(info) = self.info(i) else { return };
        let conn = &self.conns[i];
        let mut segment = conn.ack(conn.next);
        let una = conn.ack_of(info.tx.bytes as u32);
        let unit = if v & 0x8000 == 0 { 1 } else { 1460 };
        for n in 0..=u32::from(a >> 6) {
            let start = una.wrapping_add(unit * (u32::from(a & 63) + 3 * n * u32::from(v & 0xff)));
            segment.sack.push((start, start.wrapping_add(unit * u32::from(v >> 8 & 0x7f))));
        }
        self.send(&segment, RxMeta::default(), batched);
    }

    /// A reset or a SYN somewhere. Invariant 18: unless it stands exactly where it counts, it draws at most
    /// one acknowledgement and changes nothing.
    fn intrude(&mut self, i: usize, op: Op) {
        self.turn();
        let (before, place) = (self.info(i), self.place(i, op.a, op.v));
        let conn = &mut self.conns[i];
        let mut segment = if op.kind == Kind::Reset {
            TcpSegment { flags: flags::RST, ..conn.ack(place) }
        } else {
            let irs = conn.seq(place);
            if before.is_none() {
                // Any earlier connection is over, for example after hours of silence.
                conn.restart(irs);
            }
            conn.last_syn = irs;
            conn.syn(irs)
        };
        if op.kind == Kind::Reset && op.v & 1 != 0 {
            segment.flags |= flags::ACK;
        }
        let counts = before.is_none_or(|info| {
            let fin = !matches!(info.state, State::Established | State::FinWait1 | State::FinWait2);
            let next = conn.seq(info.rx.bytes as u32).wrapping_add(u32::from(fin));
            let opening = is_opening(info.state) || info.state == State::TimeWait;
            opening || (op.kind == Kind::Reset && segment.seq == next)
        });
        conn.excused |= counts;
        self.send(&segment, RxMeta::default(), false);
        if let Some(before) = before.filter(|_| !counts) {
            let (after, conn) = (self.info(i), &self.conns[i]);
            if after.is_none() && conn.broken {
                // Its socket has failed before, and the reset for that has found credit at last.
                return;
            }
            let after = after.expect("the connection goes on");
            assert_eq!((before.flow, before.state), (after.flow, after.state));
            assert!(conn.frames <= 1 && conn.bare_acks == conn.frames, "more than one challenge");
        }
    }

    fn fin(&mut self, i: usize, place: u32, batched: bool) {
        let conn = &mut self.conns[i];
        if conn.iss.is_none() {
            return;
        }
        conn.note_fin(place);
        let mut segment = conn.ack(place);
        segment.flags |= flags::FIN;
        self.send(&segment, RxMeta::default(), batched);
    }

    fn any_flags(&mut self, i: usize, a: u8, v: u16) {
        self.turn();
        let before = self.info(i);
        let opening = before.is_none_or(|info| is_opening(info.state) || info.state == State::TimeWait);
        let accepts = a & (flags::SYN | flags::ACK | flags::RST) == flags::SYN | flags::ACK;
        if accepts && before.is_some_and(|info| info.state == State::SynSent) {
            // It might accept the active open with numbers and options unknown to the guest.
            return self.accept(i);
        }
        let place = self.place(i, (v & 0xff) as u8, v & 0xc000);
        let conn = &mut self.conns[i];
        let len = u32::from(v >> 8 & 0x1f);
        let mut segment = conn.data(place, len);
        segment.flags = a;
        segment.urgent = v & 0xff;
        if segment.has(flags::FIN) {
            conn.note_fin(place.wrapping_add(len));
        }
        if segment.flags & (flags::SYN | flags::ACK | flags::RST) == flags::SYN {
            if before.is_none() {
                conn.restart(segment.seq);
            }
            conn.last_syn = segment.seq;
        }
        conn.excused |= segment.has(flags::RST) || opening;
        self.send(&segment, RxMeta::default(), false);
    }

    /// An honest acknowledgement, and the same again with options of any kind and length.
    fn options(&mut self, i: usize, a: u8, v: u16) {
        // The observer parses fewer options than the stack: it must have seen this acknowledgement already.
        let s = self.conns[i].ack_with_sack();
        self.send(&s, RxMeta::default(), false);
        let words = usize::from(a % 11);
        let mut l4 = Vec::new();
        l4.extend(s.src.port().to_be_bytes());
        l4.extend(s.dst.port().to_be_bytes());
        l4.extend(s.seq.to_be_bytes());
        l4.extend(s.ack.to_be_bytes());
        l4.extend([((5 + words) << 4) as u8, s.flags]);
        l4.extend(s.window.to_be_bytes());
        l4.extend([0; 4]);
        let kinds = [v as u8, (v >> 8) as u8, a, 1, v as u8 ^ 5, (v >> 8) as u8 ^ 0x0a];
        l4.extend(kinds.iter().cycle().take(4 * words));
        let (src, dst) = (self.conns[i].guest.ip(), self.conns[i].remote.ip());
        self.say(|| format!("guest > options {:02x?}, window {}, ack {}", &l4[20..], s.window, s.ack));
        self.batch.push((RxMeta::default(), ip_frame(to_stack(self.config.mac.0), src, dst, 6, l4)));
        self.turn();
    }

    /// Retransmits up to `count` segments from the stack's acknowledgement on.
    pub(super) fn again(&mut self, i: usize, count: u32, len: u32) {
        let conn = &self.conns[i];
        let mut place = conn.last_ack.wrapping_sub(conn.seq(0));
        for _ in 0..count {
            if self.conns[i].iss.is_none() || place >= self.conns[i].next {
                break;
            }
            let len = len.min(self.conns[i].next - place);
            let segment = self.conns[i].data(place, len);
            place += len;
            self.send(&segment, RxMeta::default(), true);
        }
        self.turn();
    }

    /// The sequence number that the stack expects next.
    pub(super) fn expected(&self, i: usize, info: &TcpInfo) -> u32 {
        let open = matches!(info.state, State::Established | State::FinWait1 | State::FinWait2);
        let fin = !open && !is_opening(info.state);
        self.conns[i].seq(info.rx.bytes as u32).wrapping_add(u32::from(fin))
    }
}
