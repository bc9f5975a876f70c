//! Resets without a connection: refusals, and answers to unexpected segments (RFC 9293, 3.10.7.1).

use crate::context::{Cx, Platform};
use crate::counters::DropReason;
use crate::flow::FlowKey;
use crate::link::NoCredit;
use crate::snapshot::saved::{Invalid, Saved};
use crate::wire::tcp::{Seq, TcpFlags, TcpHeader, TcpOptions};

/// Numbers of a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResetNumbers {
    /// Its sequence number: the guest takes it only at its RCV.NXT (RFC 5961, 3.2).
    pub(crate) seq: Seq,
    /// Its acknowledgement.
    pub(crate) ack: Seq,
}

impl Saved<(u32, u32)> for ResetNumbers {
    fn save(&self) -> (u32, u32) {
        (self.seq.0, self.ack.0)
    }

    fn restore(saved: (u32, u32)) -> Result<Self, Invalid> {
        let (seq, ack) = saved;
        Ok(Self { seq: Seq(seq), ack: Seq(ack) })
    }
}

/// Refusal of a SYN whose acknowledgement would be `ack`.
pub(crate) fn refuse<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, ack: Seq) {
    send(cx, key, ResetNumbers { seq: Seq(0), ack }, TcpFlags::RST | TcpFlags::ACK);
}

/// Reset in answer to a segment for which there is no connection (RFC 9293, 3.5.2, group 1). A reset is never
/// answered. False if there was no credit for it.
pub(crate) fn answer<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    segment: &TcpHeader,
    payload_len: usize,
) -> bool {
    if segment.flags.contains(TcpFlags::RST) {
        return true;
    }
    if segment.flags.contains(TcpFlags::ACK) {
        send(cx, key, ResetNumbers { seq: segment.ack, ack: Seq(0) }, TcpFlags::RST)
    } else {
        let syn = u32::from(segment.flags.contains(TcpFlags::SYN));
        let fin = u32::from(segment.flags.contains(TcpFlags::FIN));
        let end = segment.seq + payload_len as u32 + syn + fin;
        send(cx, key, ResetNumbers { seq: Seq(0), ack: end }, TcpFlags::RST | TcpFlags::ACK)
    }
}

/// Sends a reset with the given numbers; false without credit. Then it is lost, as on any network, and the
/// guest's next segment meets the next one.
fn send<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, numbers: ResetNumbers, flags: TcpFlags) -> bool {
    let sent = try_send(cx, key, numbers, flags);
    if sent.is_err() {
        cx.shared.counters.drop(DropReason::LinkFull);
    }
    sent.is_ok()
}

/// Sends a reset with the given numbers, if there is credit.
pub(crate) fn try_send<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    ResetNumbers { seq, ack }: ResetNumbers,
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
