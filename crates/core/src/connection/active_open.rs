//! Active open: a connection to the guest, for a peer whose connection the host has accepted.
//!
//! The host's kernel has already shaken hands with the peer, so the host socket is there from the start;
//! nothing is read from it before the guest has accepted too. Until then the guest's sequence numbers are not
//! known: the receiver counts from zero, and the window that our SYN has advertised is moved to where the
//! guest's numbers begin ([`Receiver::begin`]).
//!
//! A guest that refuses (reset) or does not answer has the peer's connection reset, the nearest equivalent
//! for a peer that is already connected.
//!
//! [`Receiver::begin`]: super::receiver::Receiver::begin

use super::open::{iss, peer_options, receiving};
use super::sender::{PeerOptions, SenderState};
use super::{Connection, reset};
use crate::context::{Cx, Platform};
use crate::counters::DropReason;
use crate::flow::end::EndCause;
use crate::flow::{FlowId, FlowKey};
use crate::host::SocketId;
use crate::wire::tcp::{Seq, TcpFlags, TcpHeader, TcpOptions};

impl Connection {
    /// A connection from a peer of the host's to the guest, over `socket`; sends the guest a SYN.
    pub(crate) fn active_open<P: Platform>(
        cx: &mut Cx<'_, P>,
        id: FlowId,
        key: FlowKey,
        socket: SocketId,
        iss_after: Option<Seq>,
    ) -> Self {
        // Options of the guest are assumed until its SYN-ACK.
        let assumed = TcpOptions { mss: Some(u16::MAX), window_scale: Some(0), ..TcpOptions::default() };
        let peer = PeerOptions { sack: true, ..peer_options(&key, &assumed, cx.shared.packet_max()) };
        let first = iss(cx.shared, &key, cx.now, iss_after);
        let mut connection = Self::new(cx.shared, cx.now, id, key, Seq(0), first, peer);
        connection.socket = Some(socket);
        connection.inbound = true;
        connection.tx.begin_active_open();
        connection.rx.socket_writable();
        cx.shared.counters.tcp_inbound += 1;
        connection.send_syn(cx);
        connection
    }

    /// Sends our SYN, for the first time or again.
    pub(super) fn send_syn<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let window = self.rx.offer_unscaled(cx.shared);
        let options = self.syn_options(cx.shared, true, true);
        let header = TcpHeader { seq: self.tx.una(), window, options, ..self.header(TcpFlags::SYN) };
        let syn = TcpHeader { ack: Seq(0), ..header };
        if cx.egress().tcp(self.key.to_guest().addresses(), &syn, &[], self.tx.mss()).is_err() {
            return self.list_ready(cx.shared);
        }
        // The window counts from where the guest's numbers will begin.
        self.rx.announced(&header, &mut cx.shared.tx.queue);
        self.tx.sent_syn(cx.shared, cx.now);
    }

    /// Segment in SYN-SENT (RFC 9293, 3.10.7.3). A SYN without ACK would be the guest's own active open from
    /// the very port to which ours goes: it is not answered, and one of both sides gives up.
    pub(super) fn segment_in_syn_sent<P: Platform>(&mut self, cx: &mut Cx<'_, P>, segment: &TcpHeader) {
        let acknowledges = segment.flags.contains(TcpFlags::ACK);
        let acceptable = acknowledges && self.tx.is_syn_acked_by(segment.ack);
        if segment.flags.contains(TcpFlags::RST) {
            if acceptable {
                self.end(cx, EndCause::Refused);
            }
        } else if acknowledges && !acceptable {
            reset::answer(cx, &self.key, segment, 0);
        } else if acknowledges && segment.flags.contains(TcpFlags::SYN) {
            self.accepted(cx, segment);
        } else {
            cx.shared.counters.drop(DropReason::UnacceptableSegment);
        }
    }

    /// Hard ICMP error of the guest's that quotes a segment at `seq`: in SYN-SENT, and for the SYN that is in
    /// flight, it refuses the connection as a reset does (RFC 9293, 3.9.2.2). A synchronised connection is
    /// never ended by ICMP.
    pub(crate) fn syn_unreachable<P: Platform>(&mut self, cx: &mut Cx<'_, P>, seq: Seq) {
        let in_flight = seq.ge(self.tx.una()) && seq.lt(self.tx.nxt());
        if self.tx.state() == SenderState::SynSent && in_flight {
            self.end(cx, EndCause::Refused);
        }
    }

    /// SYN-ACK of the guest. Payload in it is ignored and retransmitted by the guest.
    fn accepted<P: Platform>(&mut self, cx: &mut Cx<'_, P>, syn_ack: &TcpHeader) {
        let peer = peer_options(&self.key, &syn_ack.options, cx.shared.packet_max());
        let receiving = receiving(cx.shared, peer.scale.is_some(), cx.now);
        self.rx.begin(syn_ack.seq, receiving, peer.mss, peer.sack);
        self.tx.syn_acked(cx.shared, cx.now, syn_ack, peer);
        self.list_ack(cx.shared);
        self.list_or_watch(cx);
    }
}
