//! Resets without a connection: refusals, and answers to unexpected segments (RFC 9293, 3.10.7.1).

use crate::context::{Cx, Platform};
use crate::counters::DropReason;
use crate::flow::FlowKey;
use crate::wire::tcp::{Seq, TcpFlags, TcpHeader, TcpOptions};

/// Refusal of a SYN whose acknowledgement would be `ack`.
pub(crate) fn refuse<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, ack: Seq) {
    send(cx, key, Seq(0), ack, TcpFlags::RST | TcpFlags::ACK);
}

/// Reset in answer to a segment for which there is no connection (RFC 9293, 3.5.2, group 1). A reset is never
/// answered.
pub(crate) fn answer<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    segment: &TcpHeader,
    payload_len: usize,
) {
    if segment.flags.contains(TcpFlags::RST) {
        return;
    }
    if segment.flags.contains(TcpFlags::ACK) {
        send(cx, key, segment.ack, Seq(0), TcpFlags::RST);
    } else {
        let syn = u32::from(segment.flags.contains(TcpFlags::SYN));
        let fin = u32::from(segment.flags.contains(TcpFlags::FIN));
        let end = segment.seq + payload_len as u32 + syn + fin;
        send(cx, key, Seq(0), end, TcpFlags::RST | TcpFlags::ACK);
    }
}

/// Sends a reset with the given numbers.
pub(crate) fn send<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, seq: Seq, ack: Seq, flags: TcpFlags) {
    let header = TcpHeader {
        src_port: key.remote.port(),
        dst_port: key.guest.port(),
        seq,
        ack,
        flags,
        window: 0,
        urgent: 0,
        options: TcpOptions::default(),
    };
    // Without credit the reset is lost, as on any network; the guest's next segment meets the next one.
    match cx.egress().tcp(key.to_guest().addresses(), &header, &[], u16::MAX) {
        Ok(()) => cx.shared.counters.tcp_resets_sent += 1,
        Err(_) => cx.shared.counters.drop(DropReason::LinkFull),
    }
}
