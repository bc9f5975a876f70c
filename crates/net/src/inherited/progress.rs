//! Progress of a stream by the kernel's counters: how many bytes were ever written to a socket, and read.
//!
//! written = bytes acknowledged (TCP_INFO) - our SYN + unacknowledged (SIOCOUTQ) - our FIN
//! read    = bytes received in order (TCP_INFO) - unread (SIOCINQ) - the peer's FIN
//!
//! SYN and FIN take a place in the sequence space and are counted by the kernel as bytes: our SYN if the
//! socket has connected and not accepted, ours or the peer's FIN by the state of the connection. SIOCINQ
//! leaves the FIN out. The numbers belong together only if no segment has come between the calls, so TCP_INFO
//! is asked for again behind them.
//!
//! *A connection at rest* needs TCP_INFO alone: no segment is unacknowledged and no byte unsent, and no more
//! was received than the journal says was read at least.
//!
//! A socket in the state CLOSE may have been reset, and its error may have been read since: it has progress
//! only if it has received the peer's FIN. The kernel tells that in the difference of two counts of what is
//! unread: TCP_INQ includes a FIN, SIOCINQ does not (Linux: `tcp_inq_hint`, `tcp_inq`). If it was reset after
//! that, not all that was written was acknowledged, and the record contradicts the counters. Of a splice's
//! end ([`EndProgress`]) the count of the other end tells it: an orderly end is one byte less, and where that
//! is wrong the sum is.

use crate::sys;
use crate::tcp_info::TcpInfo;
use brodo_core::journal::Progress;
use rustix::fd::BorrowedFd;
use rustix::net::sockopt;

/// States of a connection that is open in both directions, and closed in either or both (`TCP_ESTABLISHED`
/// and so on).
const ESTABLISHED: u8 = 1;
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const SYN_SENT: u8 = 2;
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// Attempts to find the counters unmoved.
const ATTEMPTS: usize = 100;

/// Progress of a connected stream, which was `accepted` or has connected, and from which at least so many
/// bytes were `read`, modulo 2^32; `None` if it is over, or never rests.
pub(crate) fn of(socket: BorrowedFd<'_>, accepted: bool, read: u32) -> Option<Progress> {
    let info = TcpInfo::of(socket).ok()?;
    if is_at_rest(&info, read) {
        return progress(&info, 0, 0, accepted);
    }
    let Counters { info, unacknowledged, unread } = Counters::after(info, socket)?;
    if info.state == CLOSE && !has_received_fin(socket, unread) {
        return None;
    }
    progress(&info, unacknowledged, unread, accepted)
}

/// Progress of one end of a splice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EndProgress {
    /// Bytes written to it, and read from it.
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// Shut down for writing.
    pub(crate) shut: bool,
    /// FIN of the peer received, perhaps behind bytes that were not read.
    pub(crate) peer_closed: bool,
    /// Its connect is under way.
    pub(crate) connecting: bool,
}

impl EndProgress {
    /// Of a stream that was `accepted` or has connected, or is about to; `None` if it has failed.
    pub(crate) fn of(socket: BorrowedFd<'_>, accepted: bool) -> Option<Self> {
        let Counters { info, unacknowledged, unread } = Counters::after(TcpInfo::of(socket).ok()?, socket)?;
        let is_over = info.state == CLOSE;
        if info.state == SYN_SENT {
            return Some(Self { connecting: true, ..Self::default() });
        }
        if is_over && (unacknowledged > 0 || sockopt::socket_error(socket) != Ok(Ok(()))) {
            return None;
        }
        let Progress { written, read, shut, peer_closed } =
            progress(&info, unacknowledged, unread, accepted)?;
        Some(Self { written, read, shut, peer_closed, connecting: false })
    }
}

/// Counters of a stream at one moment.
struct Counters {
    info: TcpInfo,
    unacknowledged: u32,
    unread: u64,
}

impl Counters {
    /// Of a socket whose TCP_INFO was just this.
    fn after(mut before: TcpInfo, socket: BorrowedFd<'_>) -> Option<Self> {
        for _ in 0..ATTEMPTS {
            let unacknowledged = sys::unacknowledged(socket).ok()?;
            let unread = rustix::io::ioctl_fionread(socket).ok()?;
            let info = TcpInfo::of(socket).ok()?;
            let counters = |info: &TcpInfo| (info.state, info.acknowledged, info.received);
            if counters(&before) == counters(&info) {
                return Some(Self { info, unacknowledged, unread });
            }
            before = info;
        }
        None
    }
}

/// Whether nothing is on its way from or to the peer, and nothing unread.
fn is_at_rest(info: &TcpInfo, read: u32) -> bool {
    let nothing_sent = info.unacknowledged_segments == 0 && info.unsent_bytes == 0;
    info.state == ESTABLISHED && nothing_sent && info.received as u32 == read
}

/// Whether a socket without a pending error, of which so many bytes are `unread`, has received FIN.
fn has_received_fin(socket: BorrowedFd<'_>, unread: u64) -> bool {
    let with_fin = || sys::unread_with_fin(socket).ok().flatten();
    sockopt::socket_error(socket) == Ok(Ok(())) && with_fin().map(u64::from) == Some(unread + 1)
}

fn progress(info: &TcpInfo, unacknowledged: u32, unread: u64, accepted: bool) -> Option<Progress> {
    let (shut, peer_closed) = match info.state {
        ESTABLISHED => (false, false),
        FIN_WAIT_1 | FIN_WAIT_2 => (true, false),
        CLOSE_WAIT => (false, true),
        LAST_ACK | CLOSING | CLOSE => (true, true),
        _ => return None,
    };
    let sent = info.acknowledged.checked_add(unacknowledged.into())?;
    let written = sent.checked_sub(u64::from(!accepted) + u64::from(shut))?;
    let read = info.received.checked_sub(unread)?.checked_sub(u64::from(peer_closed))?;
    Some(Progress { written, read, shut, peer_closed })
}
