//! Progress of a stream by the kernel's counters: how many bytes were ever written to a socket, and read.
//!
//! ```text
//! written = bytes acknowledged (TCP_INFO) - our SYN + unacknowledged (SIOCOUTQ) - our FIN
//! read    = bytes received in order (TCP_INFO) - unread (SIOCINQ) - the peer's FIN
//! ```
//!
//! SYN and FIN take a place in the sequence space and are counted by the kernel as bytes: our SYN if the
//! socket has connected and not accepted, ours or the peer's FIN by the state of the connection. SIOCINQ
//! leaves the FIN out. The numbers belong together only if no segment has come between the calls, so TCP_INFO
//! is asked for before and after.
//!
//! A socket in the state CLOSE may have been reset, and nothing tells that from an orderly end once the error
//! was read: it has no progress.

use crate::sys;
use crate::tcp_info::TcpInfo;
use brodo_core::journal::Progress;
use rustix::fd::BorrowedFd;

/// States of a connection that is open in both directions, and closed in either or both (`TCP_ESTABLISHED`
/// and so on).
const ESTABLISHED: u8 = 1;
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// Bytes written and not acknowledged by the peer, its FIN among them (linux/sockios.h).
const SIOCOUTQ: u32 = 0x5411;

/// Attempts to find the counters unmoved.
const ATTEMPTS: usize = 100;

/// Progress of a connected stream, which was `accepted` or has connected; `None` if it is over, or never
/// rests.
pub(super) fn of(socket: BorrowedFd<'_>, accepted: bool) -> Option<Progress> {
    let mut before = TcpInfo::of(socket).ok()?;
    for _ in 0..ATTEMPTS {
        let unacknowledged = sys::ioctl_number(socket, SIOCOUTQ).ok()?;
        let unread = rustix::io::ioctl_fionread(socket).ok()?;
        let after = TcpInfo::of(socket).ok()?;
        let counters = |info: &TcpInfo| (info.state, info.acknowledged, info.received);
        if counters(&before) == counters(&after) {
            return progress(&after, u64::from(unacknowledged), unread, accepted);
        }
        before = after;
    }
    None
}

fn progress(info: &TcpInfo, unacknowledged: u64, unread: u64, accepted: bool) -> Option<Progress> {
    let (shut, peer_closed) = match info.state {
        ESTABLISHED => (false, false),
        FIN_WAIT_1 | FIN_WAIT_2 => (true, false),
        CLOSE_WAIT => (false, true),
        LAST_ACK | CLOSING => (true, true),
        _ => return None,
    };
    let sent = info.acknowledged.checked_add(unacknowledged)?;
    let written = sent.checked_sub(u64::from(!accepted) + u64::from(shut))?;
    let read = info.received.checked_sub(unread)?.checked_sub(u64::from(peer_closed))?;
    Some(Progress { written, read, shut, peer_closed })
}
