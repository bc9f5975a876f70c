//! Resets without a connection: refusals, and answers to unexpected segments (RFC 9293, 3.10.7.1).

use crate::context::{Cx, Platform};
use crate::counters::DropReason;
use crate::flow::FlowKey;
use crate::link::NoCredit;
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

/// Sends a reset with the given numbers. Without credit it is lost, as on any network; the guest's next
/// segment meets the next one.
pub(crate) fn send<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, seq: Seq, ack: Seq, flags: TcpFlags) {
    if try_send(cx, key, seq, ack, flags).is_err() {
        cx.shared.counters.drop(DropReason::LinkFull);
    }
}

/// Sends a reset with the given numbers, if there is credit.
pub(crate) fn try_send<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    seq: Seq,
    ack: Seq,
    flags: TcpFlags,
) -> Result<(), NoCredit> {
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
    cx.egress().tcp(key.to_guest().addresses(), &header, &[], u16::MAX)?;
    cx.shared.counters.tcp_resets_sent += 1;
    Ok(())
}
