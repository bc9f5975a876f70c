//! The state of a frozen socket, with the bytes that it holds: from there the flow goes on elsewhere.
//!
//! Reading needs no right: a process may look at a socket in repair mode once it has it. All bytes are
//! peeked, so that a frozen socket which cannot be read out completely can be thawed.
//!
//! *The window.* Linux keeps RCV.WND as its buffer allows, and limits only the field on the wire to 65535
//! times the scale (`tcp_select_window`): the guest knows the limited one, so that is what the seed gets.
//!
//! *Ends of streams.* A FIN has a sequence number, which the kernel counts: RCV.NXT is behind the guest's,
//! the end of the send queue and both counts of its bytes are behind ours, sent or not. Seeds have no FIN, so
//! it is taken out of each number, and the state of the socket says which one there is. A socket of which
//! both streams have ended is not read out.
//!
//! System calls: setsockopt TCP_REPAIR_QUEUE, getsockopt, ioctl SIOCINQ, SIOCOUTQ and SIOCOUTQNSD, recvfrom.

use super::repaired::{RECEIVE_QUEUE, SEND_QUEUE, choose_queue};
use crate::sys::{self, repair};
use crate::tcp_info::{CLOSE_WAIT, ESTABLISHED, FIN_WAIT_1, FIN_WAIT_2, TcpInfo};
use brodo_core::promotion::{Fins, OurFin, SeedFields, TcpSeed};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// State of a frozen socket, with its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOut {
    /// Numbers and windows of the connection.
    pub seed: TcpSeed,
    /// Every byte from SND.UNA on, sent or not.
    pub to_guest: Vec<u8>,
    /// Bytes below RCV.NXT that were not read.
    pub from_guest: Vec<u8>,
    /// The FIN that has come, if there is one.
    pub fins: Fins,
}

/// Whether a socket has a stream that has not ended, so that it can be read out when no urgent mark stands in
/// the way.
pub(crate) fn is_readable(socket: BorrowedFd<'_>) -> bool {
    TcpInfo::of(socket).is_ok_and(|info| fins(info.state, 0).is_some())
}

/// Bytes that a socket holds, frozen or not: those for the guest that are not acknowledged, of which a FIN
/// counts as one, and the guest's that were not read.
///
/// # Errors
/// The kernel's.
pub(crate) fn held(socket: BorrowedFd<'_>) -> Result<[usize; 2], Errno> {
    let unread = rustix::io::ioctl_fionread(socket)?;
    let unacknowledged = sys::unacknowledged(socket)?;
    Ok([unacknowledged as usize, usize::try_from(unread).map_err(|_| Errno::OVERFLOW)?])
}

/// FINs of a socket in this state, with so much unsent of what was written, FIN and all. `None` if both
/// streams have ended.
fn fins(state: u8, unsent: u32) -> Option<Fins> {
    let ours = |ours| Some(Fins { guest: false, ours });
    match state {
        ESTABLISHED => ours(OurFin::None),
        FIN_WAIT_1 if unsent > 0 => ours(OurFin::Unsent),
        FIN_WAIT_1 => ours(OurFin::Sent),
        FIN_WAIT_2 => ours(OurFin::Acknowledged),
        CLOSE_WAIT => Some(Fins { guest: true, ours: OurFin::None }),
        _ => None,
    }
}

/// Reads a frozen socket that was made from the seed `made`.
///
/// # Errors
/// The kernel's; `MSGSIZE` if a queue does not give all of its bytes, because it has a mark of urgent data;
/// `NOTCONN` if both streams have ended; `INVAL` if its numbers contradict each other.
pub fn read_out(socket: BorrowedFd<'_>, made: &TcpSeed) -> Result<ReadOut, Errno> {
    let unsent = sys::unsent(socket)?;
    let fins = fins(TcpInfo::of(socket)?.state, unsent).ok_or(Errno::NOTCONN)?;
    let [snd_wl1, snd_wnd, wnd_max, rcv_wnd, rcv_wup] = repair::repair_window(socket)?;
    choose_queue(socket, RECEIVE_QUEUE)?;
    let rcv_nxt = repair::queue_sequence(socket)?.wrapping_sub(fins.guest.into());
    // The acknowledgement of the guest's FIN moves it too.
    let rcv_wup = if rcv_wup == rcv_nxt.wrapping_add(1) { rcv_nxt } else { rcv_wup };
    let unread = rustix::io::ioctl_fionread(socket)?;
    let from_guest = peek(socket, usize::try_from(unread).map_err(|_| Errno::MSGSIZE)?)?;
    choose_queue(socket, SEND_QUEUE)?;
    let (in_end, in_unacknowledged, in_unsent) = match fins.ours {
        OurFin::None => (0, 0, 0),
        OurFin::Unsent => (1, 1, 1),
        OurFin::Sent => (1, 1, 0),
        OurFin::Acknowledged => (1, 0, 0),
    };
    let end = repair::queue_sequence(socket)?.wrapping_sub(in_end);
    let unacknowledged = sys::unacknowledged(socket)?.saturating_sub(in_unacknowledged);
    let unsent = unsent.saturating_sub(in_unsent);
    let to_guest = peek(socket, unacknowledged as usize)?;
    let (rcv_wup, rcv_wnd) = advertised(made, rcv_nxt, rcv_wup, rcv_wnd);
    let fields = SeedFields {
        snd_una: end.wrapping_sub(unacknowledged),
        snd_nxt: end.wrapping_sub(unsent),
        snd_wnd,
        wnd_max,
        snd_wl1,
        rcv_nxt,
        rcv_wup,
        rcv_wnd,
        ..*made.fields()
    };
    let seed = TcpSeed::new(fields).map_err(|_| Errno::INVAL)?;
    Ok(ReadOut { seed, to_guest, from_guest, fins })
}

/// RCV.WUP and RCV.WND as the guest knows them. One that sends beyond them, for which the kernel has room,
/// has no window left.
fn advertised(made: &TcpSeed, rcv_nxt: u32, rcv_wup: u32, rcv_wnd: u32) -> (u32, u32) {
    let scale = made.fields().scales.map_or(0, |scales| scales.rcv);
    let (wnd, taken) = (rcv_wnd.min(u32::from(u16::MAX) << scale), rcv_nxt.wrapping_sub(rcv_wup));
    if taken <= wnd { (rcv_wup, wnd) } else { (rcv_nxt, 0) }
}

/// All bytes of the chosen queue.
fn peek(socket: BorrowedFd<'_>, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    if len > 0 {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let got = rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut bytes[..], flags));
        if got?.0 != len {
            return Err(Errno::MSGSIZE);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
