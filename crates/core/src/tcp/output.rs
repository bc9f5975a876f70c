//! Transmission of a connection: data within the guest's window and our limit, FIN, acknowledgements, resets.

use super::Connection;
use super::limiting_factor::LimitingFactor;
use super::receiver::ReceiverState;
use super::reset;
use super::sender::SenderState;
use crate::context::{Cx, Platform, Shared};
use crate::egress::Egress;
use crate::egress::headers::ip_header_len;
use crate::flow::end::EndCause;
use crate::host::{Close, Host, HostError};
use crate::link::{Link, NoCredit};
use crate::memory::budget::Need;
use crate::memory::chunk::{Filled, SLICES_MAX};
use crate::time::Instant;
use crate::trace::{Direction, Event, Observer, Resend};
use crate::wire::tcp::{Seq, TcpFlags, TcpHeader, TcpOptions};
use std::io::IoSlice;

impl Connection {
    /// Does what this flow can do now; lists it again if it can do more. How much it may send to the guest in
    /// a turn is said in [`crate::schedule`].
    pub(super) fn take_turn<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let bytes = self.turn.begin(cx.shared.ready.is_empty());
        let bytes =
            bytes.min(cx.shared.tx.queue.sendable().saturating_mul(self.frame_payload_max(cx.shared)));
        if self.tx.nxt == self.tx.una {
            match self.tx.state {
                SenderState::SynAckSent => self.send_syn_ack(cx),
                SenderState::SynSent => self.send_syn(cx),
                _ => {}
            }
        }
        self.tune_sender(cx);
        let failed =
            self.read_host(cx, bytes).inspect_err(|&error| self.cause = EndCause::of(error)).is_err();
        let sent = self.send_frames(cx);
        if failed || (self.broken && self.has_passed_on_all()) {
            return self.reset_guest(cx);
        }
        if sent.is_ok() && self.tx.fin_due() {
            self.send_fin(cx);
        }
        self.watch_closed_window(cx);
        self.settle(cx);
        if self.rx.is_shut(self.tx.mss) {
            // Data has taken the acknowledgement along that would have seen to this.
            self.update_window(cx.shared, cx.now);
        }
        self.note_sending_limit(cx, sent.is_err());
        match sent {
            Ok(()) => {
                self.turn.end();
                if self.wants_service() {
                    cx.shared.ready.list_again(self.id, &mut self.turn);
                }
            }
            Err(NoCredit) => self.list_ready(cx.shared),
        }
    }

    /// Sends what is left of this turn: first what was lost, then what is new.
    fn send_frames<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> Result<(), NoCredit> {
        while self.turn.goes_on() {
            let sent = if let Some((piece, why)) = self.next_resend(cx.shared) {
                self.resend(cx, piece, why)?
            } else {
                self.send_data(cx)?
            };
            if sent == 0 {
                break;
            }
            self.turn.spend(sent);
        }
        Ok(())
    }

    fn next_resend(&self, shared: &Shared) -> Option<((Seq, u32), Resend)> {
        let why = self.tx.recovery?.why;
        Some((self.tx.next_resend(self.frame_payload_max(shared))?, why))
    }

    /// Whether a SYN of ours is on its way to the guest, with or without an acknowledgement of its own.
    pub(super) const fn is_shaking_hands(&self) -> bool {
        matches!(self.tx.state, SenderState::SynAckSent | SenderState::SynSent)
    }

    /// Whether [`Connection::serve`] would do something now, credit provided.
    pub(super) fn wants_service(&self) -> bool {
        !self.ended
            && ((self.broken && !self.tx.short_of_memory && !(self.tx.eof && self.tx.unsent() > 0))
                || self.sendable() > 0
                || self.tx.next_resend(u32::MAX).is_some()
                || self.tx.fin_due()
                || self.wants_to_read()
                || (self.is_shaking_hands() && self.tx.nxt == self.tx.una))
    }

    /// While what is lost waits for an acknowledgement nothing new could be sent, and a turn that has read
    /// all it may would be followed by another that does nothing.
    fn wants_to_read(&self) -> bool {
        self.can_read() && !self.tx.short_of_memory && self.tx.board.lost() == 0 && self.read_room() > 0
    }

    /// Whether nothing more of a host socket that has failed goes to the guest: all of its stream was sent,
    /// where the end of that is known, or no more of it can be read now.
    fn has_passed_on_all(&self) -> bool {
        if self.tx.eof { self.tx.unsent() == 0 } else { !self.can_read() || self.read_room() == 0 }
    }

    fn can_read(&self) -> bool {
        self.tx.readable && !self.tx.eof && self.socket.is_some()
    }

    /// The most payload one frame to this guest carries: a super-segment of whole segments, or one segment.
    fn frame_payload_max(&self, shared: &Shared) -> u32 {
        let mss = u32::from(self.tx.mss);
        if !shared.tx.caps.tso {
            return mss;
        }
        let room = 65_535 - (ip_header_len(self.key.guest.ip()) + TcpHeader::LEN) as u32;
        (room / mss).max(1) * mss
    }

    /// How much is worth reading from the host socket now: bytes that can be sent at once, but no sliver
    /// while more room is on its way (the sender's side of silly window avoidance).
    fn read_room(&self) -> u32 {
        if self.tx.state != SenderState::Open {
            return 0;
        }
        let room = self.tx.wnd.min(self.tx.tx_limit()).saturating_sub(self.tx.queue.len());
        if room < u32::from(self.tx.mss) && !self.tx.queue.is_empty() { 0 } else { room }
    }

    /// How much of what has been read may be sent now. Lost ranges go first, also when they have to wait.
    fn sendable(&self) -> u32 {
        if self.tx.board.lost() > 0 {
            return 0;
        }
        let (unsent, usable) = (self.tx.unsent(), self.tx.usable());
        let sliver = usable < unsent && usable < u32::from(self.tx.mss) && self.tx.in_flight() > 0;
        if sliver || self.is_shaking_hands() { 0 } else { unsent.min(usable) }
    }

    /// Reads from the host socket, straight into chunks, what fills the frames that `bytes` make. An error
    /// means that the connection is over.
    fn read_host<P: Platform>(&mut self, cx: &mut Cx<'_, P>, bytes: u32) -> Result<(), HostError> {
        let frame_max = self.frame_payload_max(cx.shared);
        let ahead = (bytes / frame_max).max(1) * frame_max;
        self.tx.short_of_memory = false;
        while self.can_read() {
            let Some(socket) = self.socket else { break };
            let room = self.read_room();
            if room == 0 && self.tx.tx_limit() < self.tx.wnd && self.tx.memory_cap > self.tx.tx_limit() {
                // Our limit, not the guest's window or memory, is what keeps these bytes in the kernel.
                self.tx.limit_hit();
            }
            let mut max = room.min(ahead.saturating_sub(self.tx.unsent()));
            if max > u32::from(self.tx.mss) {
                // Whole segments: the sliver behind them stays in the kernel until it has become one.
                max -= max % u32::from(self.tx.mss);
            }
            if max == 0 {
                // With bytes in flight an acknowledgement makes room, however little there is for each.
                if self.memory_holds_back()
                    && (self.tx.queue.is_empty() || !cx.shared.memory.pool.budget().has_room(Need::Read))
                    && !self.wait_to_read(cx.shared, cx.now)
                {
                    continue;
                }
                break;
            }
            let read = cx
                .shared
                .memory
                .pool
                .fill(&mut self.tx.queue, max as usize, |into| cx.host.tcp_recv(socket, into));
            match read {
                Ok(Some(Filled { bytes: 0, .. })) => {
                    // After an error that a write has met, the end is not one: no FIN may say that this was
                    // all.
                    self.tx.eof = !self.broken;
                    self.tx.readable = false;
                    self.check_error(cx);
                }
                // A short read means an empty socket, with two exceptions: recvmsg stops at an urgent mark,
                // also in line, and an end of stream known to follow is read at once, so that FIN goes out
                // with the last bytes.
                Ok(Some(filled)) => {
                    self.tx.readable = filled.whole || self.tx.hangup || self.tx.urgent;
                }
                Ok(None) => {
                    if self.wait_to_read(cx.shared, cx.now) {
                        break;
                    }
                }
                Err(HostError::WouldBlock) => (self.tx.readable, self.tx.urgent) = (false, false),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether our limit is what memory leaves, and the guest would take more. Before the guest has
    /// acknowledged our SYN, and after our FIN, it is not memory that is waited for.
    fn memory_holds_back(&self) -> bool {
        self.tx.state == SenderState::Open
            && self.tx.tx_limit() == self.tx.memory_cap
            && self.tx.memory_cap < self.tx.wnd
    }

    /// Waits for memory; false if there is some after all.
    fn wait_to_read(&mut self, shared: &mut Shared, now: Instant) -> bool {
        shared.memory.reads.stop(now, self.id, &mut self.tx.memory_listed);
        self.tx.memory_cap = shared.memory.pool.send_cap(self.tx.mss);
        self.tx.short_of_memory = !shared.memory.pool.budget().has_room(Need::Read);
        self.tx.short_of_memory
    }

    /// Sends one frame of data if it may; gives the bytes in it.
    fn send_data<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> Result<u32, NoCredit> {
        let mss = u32::from(self.tx.mss);
        let unsent = self.tx.unsent();
        let mut len = self.sendable().min(self.frame_payload_max(cx.shared));
        if len == 0 {
            return Ok(0);
        }
        if len > mss && len < unsent {
            len -= len % mss;
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (count, bytes, after) =
            cx.shared.memory.pool.slices(&self.tx.queue, self.tx.cursor, len, &mut slices);
        let last = bytes == unsent;
        let with_fin = last && self.tx.eof && self.tx.state == SenderState::Open;
        let mut flags = TcpFlags::ACK;
        if last {
            flags |= TcpFlags::PSH;
        }
        if with_fin {
            flags |= TcpFlags::FIN;
        }
        let window = self.rx.offer(self.receive_cap(cx.shared), self.tx.mss);
        let header = TcpHeader { window, ..self.header(flags) };
        let waited = self.rx.delayed_ack.is_waiting();
        let mut egress = Egress { tx: &mut cx.shared.tx, counters: &mut cx.shared.counters, link: cx.link };
        self.send(&mut egress, &header, &slices[..count])?;
        self.answered(cx.shared, cx.now, waited);
        self.tx.cursor = after;
        self.tx.sent(cx.shared, cx.now, bytes + u32::from(with_fin));
        if with_fin {
            self.fin_sent();
        }
        Ok(bytes)
    }

    fn send_fin<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let window = self.rx.offer(self.receive_cap(cx.shared), self.tx.mss);
        let header = TcpHeader { window, ..self.header(TcpFlags::FIN | TcpFlags::ACK) };
        let waited = self.rx.delayed_ack.is_waiting();
        if self.send(&mut cx.egress(), &header, &[]).is_err() {
            return self.list_ready(cx.shared);
        }
        self.answered(cx.shared, cx.now, waited);
        self.tx.sent(cx.shared, cx.now, 1);
        self.fin_sent();
    }

    fn fin_sent(&mut self) {
        if self.tx.state == SenderState::Open {
            self.tx.state = SenderState::FinSent { passive: self.rx.state != ReceiverState::Open };
        }
    }

    /// Sends again what lies at `piece`, a sequence number and a length, or as much of it as one frame takes;
    /// gives how much.
    pub(super) fn resend<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        piece: (Seq, u32),
        why: Resend,
    ) -> Result<u32, NoCredit> {
        let (seq, len) = piece;
        let offset = (seq - self.tx.una) as u32;
        let data = len.min(self.tx.queue.len() - offset.min(self.tx.queue.len()));
        let cursor = cx.shared.memory.pool.seek(&self.tx.queue, offset.min(self.tx.queue.len()));
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (count, bytes, _) = cx.shared.memory.pool.slices(&self.tx.queue, cursor, data, &mut slices);
        // Sequence space beyond the data is the FIN.
        let fin = bytes == data && data < len;
        let flags = if fin { TcpFlags::ACK | TcpFlags::FIN } else { TcpFlags::ACK };
        let window = self.rx.offer(self.receive_cap(cx.shared), self.tx.mss);
        let header = TcpHeader { seq, window, ..self.header(flags) };
        let mut egress = Egress { tx: &mut cx.shared.tx, counters: &mut cx.shared.counters, link: cx.link };
        self.send(&mut egress, &header, &slices[..count])?;
        let len = bytes + u32::from(fin);
        self.tx.resent(cx.shared, cx.now, seq, len);
        cx.observer.trace(&Event::Retransmission { flow: self.id, seq: seq.0, len, why });
        Ok(len)
    }

    /// Acknowledges at the end of a batch, if still due. Err if the link has no credit.
    pub(crate) fn acknowledge_now<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> Result<(), NoCredit> {
        if !self.rx.ack_listed || self.ended {
            return Ok(());
        }
        self.try_ack(cx)
    }

    /// Acknowledges now; without credit, at the end of the turn that has it again.
    pub(super) fn send_ack<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.try_ack(cx).is_err() {
            self.list_ack(cx.shared);
        }
    }

    fn try_ack<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> Result<(), NoCredit> {
        let window = self.rx.offer(self.receive_cap(cx.shared), self.tx.mss);
        let options = TcpOptions { sack: self.rx.take_sack_blocks(), ..TcpOptions::default() };
        let header = TcpHeader { window, options, ..self.header(TcpFlags::ACK) };
        let before = self.rx.told();
        self.send(&mut cx.egress(), &header, &[])?;
        self.note_window_update(cx, before);
        self.rx.reserve_window(&mut cx.shared.memory.pool);
        Ok(())
    }

    /// Draws an acknowledgement: a segment one before what the guest expects.
    pub(super) fn send_probe<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let window = self.rx.offer(self.receive_cap(cx.shared), self.tx.mss);
        let header = TcpHeader { seq: self.tx.una - 1, window, ..self.header(TcpFlags::ACK) };
        // Without credit the next probe does it.
        let _ = self.send(&mut cx.egress(), &header, &[]);
    }

    /// Resets the guest, and the host's peer if it is still there.
    pub(super) fn reset_guest<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        // In SYN-SENT there is nothing yet to acknowledge.
        let syn_sent = self.tx.state == SenderState::SynSent;
        let flags = if syn_sent { TcpFlags::RST } else { TcpFlags::RST | TcpFlags::ACK };
        reset::send(cx, &self.key, self.tx.nxt, self.rx.nxt, flags);
        self.close_socket(cx.host, Close::Reset);
        self.ended = true;
    }

    /// If bytes wait for a window that is closed and nothing is in flight, only a probe can find out that the
    /// guest's update was lost.
    pub(super) fn watch_closed_window<P: Platform>(&mut self, cx: &Cx<'_, P>) {
        let waiting = self.tx.unsent() > 0 || self.can_read();
        if waiting
            && self.tx.state == SenderState::Open
            && self.tx.una == self.tx.nxt
            && self.tx.usable() == 0
            && self.tx.timer.is_none()
        {
            self.tx.start_window_timer(cx.shared, cx.now);
        }
    }

    /// Notes what holds the sending back now.
    fn note_sending_limit<P: Platform>(&mut self, cx: &mut Cx<'_, P>, no_credit: bool) {
        let more = self.tx.unsent() > 0 || self.can_read();
        let by = if no_credit {
            LimitingFactor::Link
        } else if self.tx.recovery.is_some() {
            LimitingFactor::Loss
        } else if self.tx.short_of_memory || (self.can_read() && self.memory_holds_back()) {
            LimitingFactor::Memory
        } else if !more || self.tx.state != SenderState::Open {
            LimitingFactor::Application
        } else if self.tx.wnd <= self.tx.tx_limit() {
            LimitingFactor::GuestWindow
        } else {
            LimitingFactor::OurLimit
        };
        if let Some((from, time)) = self.tx.clock.set(cx.now, by) {
            let after_us = time.as_micros() as u64;
            let direction = Direction::Send;
            cx.observer.trace(&Event::LimitingFactor { flow: self.id, direction, from, to: by, after_us });
        }
    }

    /// A header with this connection's ports and numbers.
    pub(super) fn header(&self, flags: TcpFlags) -> TcpHeader {
        TcpHeader {
            src_port: self.key.remote.port(),
            dst_port: self.key.guest.port(),
            seq: self.tx.nxt,
            ack: self.rx.nxt,
            flags,
            window: 0,
            urgent: 0,
            options: TcpOptions::default(),
        }
    }

    /// Sends a segment; every one acknowledges, so none is owed afterwards.
    pub(super) fn send<L: Link>(
        &mut self,
        egress: &mut Egress<'_, L>,
        header: &TcpHeader,
        payload: &[IoSlice<'_>],
    ) -> Result<(), NoCredit> {
        if !payload.is_empty() {
            egress.tx.queue.reserve_ack_slot()?;
        }
        egress.tcp(self.key.to_guest().addresses(), header, payload, self.tx.mss)?;
        self.segments[1] = self.segments[1].saturating_add(u32::from(!payload.is_empty()));
        self.rx.announced(header, &mut egress.tx.queue);
        self.rx.delayed_ack.acknowledged();
        // SACK blocks go in a segment of their own; others leave it owed.
        self.rx.ack_listed &= header.options.sack.is_empty() && self.rx.has_sack_blocks();
        Ok(())
    }
}
