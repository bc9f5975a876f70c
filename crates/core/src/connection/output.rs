//! Transmission of a connection: data within the guest's window and our limit, FIN, acknowledgements, resets.

use super::reset::ResetNumbers;
use super::sender::{Piece, SenderState, Timer};
use super::{Connection, reset};
use crate::context::{Cx, Platform, Shared};
use crate::counters::DropReason;
use crate::egress::Egress;
use crate::egress::headers::ip_header_len;
use crate::flow::end::EndCause;
use crate::host::HostError;
use crate::link::{Link, NoCredit};
use crate::memory::chunk::SLICES_MAX;
use crate::time::Instant;
use crate::trace::{Direction, Event, Observer, Resend};
use crate::wire::tcp::{Seq, SeqRange, TcpFlags, TcpHeader, TcpOptions};
use std::io::IoSlice;

impl Connection {
    /// One turn of this flow: does what it can now, and lists it again if it can do more. [`crate::schedule`]
    /// bounds how much it may send to the guest.
    pub(super) fn take_turn<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.tx.is_lost() {
            return self.probe_if_due(cx);
        }
        let most = cx.shared.standing_queue.turn_bytes(cx.now) as u32;
        let bytes = self.turn.begin(cx.shared.ready.is_empty()).min(most);
        let bytes =
            bytes.min(cx.shared.tx.queue.sendable().saturating_mul(self.frame_payload_max(cx.shared)));
        if self.tx.is_syn_due() {
            self.repeat_syn(cx);
        }
        if self.is_dns() {
            self.converse(cx);
            if self.ended {
                return self.turn.skip();
            }
        }
        self.tune_sender(cx);
        if let Err(error) = self.read_host(cx, bytes) {
            self.cause = EndCause::of(error);
            self.begin_rest();
            self.tx.stop_reading();
        }
        let sent = self.send_frames(cx);
        if self.broken && self.tx.has_passed_on_all() {
            return self.reset_guest(cx);
        }
        if sent.is_ok() && self.tx.is_fin_due() {
            self.send_fin(cx);
        }
        self.tx.watch_closed_window(cx.shared, cx.now);
        self.settle(cx);
        if self.rx.is_shut() {
            // Data has taken the acknowledgement along that would have seen to this.
            self.update_window(cx.shared, cx.now);
        }
        let change = self.tx.note_limiting_factor(cx.now, sent.is_err());
        self.trace_limiting_factor(cx, Direction::Send, change);
        self.consider_promotion(cx);
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

    /// Turn of a connection whose guest has to confirm something first: a probe or a reset, if one has found
    /// no credit.
    fn probe_if_due<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.turn.skip();
        if self.tx.is_reset_due() {
            if reset::try_send(cx, &self.key, self.reset_numbers(), TcpFlags::RST | TcpFlags::ACK).is_ok() {
                self.tx.reset_sent(cx.shared, cx.now);
            }
        } else if self.tx.is_probe_due() {
            self.sender_timer(cx, Timer::Window);
        }
        self.list_or_watch(cx);
    }

    /// Sends our SYN or SYN-ACK again.
    pub(super) fn repeat_syn<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        match self.tx.state() {
            SenderState::SynSent => self.send_syn(cx),
            _ => self.send_syn_ack(cx),
        }
    }

    /// Sends in the rest of this turn: first lost ranges, then new data.
    fn send_frames<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> Result<(), NoCredit> {
        while self.turn.goes_on() {
            let sent = if let Some(why) = self.tx.resend_reason()
                && let Some(range) = self.tx.next_resend(self.frame_payload_max(cx.shared))
            {
                self.resend(cx, range, why)?
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

    /// Whether [`Connection::take_turn`] would do something now, credit provided.
    pub(super) fn wants_service(&self) -> bool {
        !self.ended && self.tx.wants_service(self.broken)
    }

    /// Lists the flow for service if there is something to do, and otherwise watches a closed window.
    pub(super) fn list_or_watch<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.wants_service() {
            self.list_ready(cx.shared);
        } else {
            self.tx.watch_closed_window(cx.shared, cx.now);
        }
    }

    /// Most payload of one frame to this guest, bytes: a super-segment of whole segments, or one segment.
    fn frame_payload_max(&self, shared: &Shared) -> u32 {
        let mss = u32::from(self.tx.mss());
        if !shared.tx.caps.tso {
            return mss;
        }
        let room = 65_535 - (ip_header_len(self.key.guest.ip()) + TcpHeader::LEN) as u32;
        (room / mss).max(1) * mss
    }

    /// Reads from the host socket what fills the frames that `bytes` make. An error means that the connection
    /// is over.
    fn read_host<P: Platform>(&mut self, cx: &mut Cx<'_, P>, bytes: u32) -> Result<(), HostError> {
        let frame_max = self.frame_payload_max(cx.shared);
        let ahead = (bytes / frame_max).max(1) * frame_max;
        if self.tx.read(cx, self.id, self.socket, ahead, self.broken)? {
            self.check_error(cx);
        }
        Ok(())
    }

    /// Sends one frame of data if it may; gives the bytes in it.
    fn send_data<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> Result<u32, NoCredit> {
        let frame_max = self.frame_payload_max(cx.shared);
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let Some(piece) = self.tx.next_new(&cx.shared.memory.pool, frame_max, &mut slices) else {
            return Ok(0);
        };
        let window = self.rx.offer(cx.shared);
        let header = TcpHeader { window, ..self.header(piece.flags()) };
        let waited = self.rx.ack().is_waiting();
        let (tx, counters, journal) = (&mut cx.shared.tx, &mut cx.shared.counters, &cx.shared.journal);
        let mut egress = Egress { tx, counters, journal, link: cx.link };
        self.send(&mut egress, &header, &slices[..piece.slices])?;
        self.sent_new(cx.shared, cx.now, &piece, waited);
        Ok(piece.bytes)
    }

    fn send_fin<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let piece = self.tx.fin();
        let header = TcpHeader { window: self.rx.offer(cx.shared), ..self.header(piece.flags()) };
        let waited = self.rx.ack().is_waiting();
        if self.send(&mut cx.egress(), &header, &[]).is_err() {
            return self.list_ready(cx.shared);
        }
        self.sent_new(cx.shared, cx.now, &piece, waited);
    }

    /// Transmission of new data or FIN: an answer to the guest, if it had asked; `waited` if its
    /// acknowledgement was delayed for it.
    fn sent_new(&mut self, shared: &mut Shared, now: Instant, piece: &Piece, waited: bool) {
        if let Some((prompt, record)) = self.rx.ack_mut().answered(now - self.keep_alive.last_arrival()) {
            shared.counters.tcp_acks_carried += u64::from(prompt && waited);
            shared.tcp.prompt_peers.keep(&self.key.remote, record);
        }
        self.tx.sent_new(shared, now, piece);
        if piece.fin {
            self.closer.fin_sent(self.rx.state());
        }
    }

    /// Retransmits `range`, or as much of it as one frame takes; gives how much.
    pub(super) fn resend<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        range: SeqRange,
        why: Resend,
    ) -> Result<u32, NoCredit> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let piece = self.tx.resend(&cx.shared.memory.pool, range, &mut slices);
        let window = self.rx.offer(cx.shared);
        let header = TcpHeader { seq: piece.seq, window, ..self.header(piece.flags()) };
        let (tx, counters, journal) = (&mut cx.shared.tx, &mut cx.shared.counters, &cx.shared.journal);
        let mut egress = Egress { tx, counters, journal, link: cx.link };
        self.send(&mut egress, &header, &slices[..piece.slices])?;
        self.tx.resent(cx.shared, cx.now, &piece);
        let len = piece.len();
        cx.observer.trace(&Event::Retransmission { flow: self.id, seq: piece.seq.0, len, why });
        Ok(len)
    }

    /// Sees to the acknowledgement of `segments` that have come in order, `len` bytes together: delayed, or
    /// at the end of the batch.
    pub(super) fn owe_ack(&mut self, shared: &mut Shared, segments: u8, len: usize) {
        self.rx.ack_mut().segments_arrived(segments);
        if self.may_delay_ack(shared, len) {
            self.rx.ack_mut().wait();
        } else {
            self.list_ack(shared);
        }
    }

    /// Whether an answer can come that carries the acknowledgement ([`crate::tcp::delayed_ack`]).
    fn may_delay_ack(&self, shared: &Shared, len: usize) -> bool {
        self.rx.may_delay_ack(shared)
            && len < usize::from(self.tx.mss())
            && self.tx.is_open()
            && !self.tx.has_read_all()
            && !self.broken
            && self.socket.is_some()
    }

    /// Expiry of a delayed acknowledgement.
    pub(super) fn delayed_ack_expired(&mut self, shared: &mut Shared) {
        let record = self.rx.ack_mut().expired();
        shared.tcp.prompt_peers.keep(&self.key.remote, record);
        shared.counters.tcp_acks_late += 1;
        self.list_ack(shared);
    }

    /// Lists the flow for an acknowledgement at the end of this turn.
    pub(super) fn list_ack(&mut self, shared: &mut Shared) {
        if self.rx.ack_mut().list() {
            shared.tcp.ack_due.push(self.id);
        }
    }

    /// Acknowledges at the end of a batch, if still due. Err if the link has no credit.
    pub(crate) fn acknowledge_now<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> Result<(), NoCredit> {
        if !self.rx.ack().is_listed() || self.ended {
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
        let window = self.rx.offer(cx.shared);
        let options = TcpOptions { sack: self.rx.sack_blocks(), ..TcpOptions::default() };
        let header = TcpHeader { window, options, ..self.header(TcpFlags::ACK) };
        let last = self.rx.last_advertised();
        self.send(&mut cx.egress(), &header, &[])?;
        self.note_window_update(cx, last);
        if !self.broken {
            self.rx.reserve_window(&mut cx.shared.memory.pool);
        }
        Ok(())
    }

    /// Keep-alive or zero-window probe: a segment one before what the guest is known to expect draws an
    /// acknowledgement (RFC 9293, 3.8.4).
    pub(super) fn send_probe<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> Result<(), NoCredit> {
        let window = self.rx.offer(cx.shared);
        let header = TcpHeader { seq: self.tx.confirmed() - 1, window, ..self.header(TcpFlags::ACK) };
        self.send(&mut cx.egress(), &header, &[])
    }

    /// Resets the guest, and the host's peer if it is still there.
    pub(super) fn reset_guest<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.reset_guest_at(cx, self.reset_numbers(), self.tx.confirmed());
    }

    /// The same with these numbers; the guest has acknowledged all before `una`. If it may not take the
    /// reset, for lack of credit or because its RCV.NXT is not known for sure, the connection is lost, and
    /// stays until it has.
    pub(super) fn reset_guest_at<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        numbers: ResetNumbers,
        una: Seq,
    ) {
        // Before its handshake a guest sends again, and meets another reset.
        let is_opening = matches!(self.tx.state(), SenderState::Connecting | SenderState::SynSent);
        // In SYN-SENT there is nothing yet to acknowledge.
        let syn_sent = self.tx.state() == SenderState::SynSent;
        let flags = if syn_sent { TcpFlags::RST } else { TcpFlags::RST | TcpFlags::ACK };
        let sent = reset::try_send(cx, &self.key, numbers, flags);
        if sent.is_err() {
            cx.shared.counters.drop(DropReason::LinkFull);
        }
        let is_taken = sent.is_ok() && !self.tx.is_in_doubt();
        if is_taken || is_opening || self.tx.is_lost() {
            self.end(cx, self.cause);
        } else {
            self.lose(cx, una);
        }
    }

    /// A header with this connection's ports and numbers.
    pub(super) fn header(&self, flags: TcpFlags) -> TcpHeader {
        TcpHeader {
            src_port: self.key.remote.port(),
            dst_port: self.key.guest.port(),
            seq: self.tx.nxt(),
            ack: self.rx.nxt(),
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
        debug_assert!(!self.ended, "nothing is sent after the end of a connection");
        if !payload.is_empty() {
            egress.tx.queue.reserve_ack_slot()?;
        }
        egress.journal.advertise(self.id, header.ack, self.rx.edge_beside(header));
        egress.tcp(self.key.to_guest().addresses(), header, payload, self.tx.mss())?;
        self.segments_sent = self.segments_sent.saturating_add(u32::from(!payload.is_empty()));
        self.rx.announced(header, &mut egress.tx.queue);
        Ok(())
    }
}
