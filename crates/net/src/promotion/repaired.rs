//! Sockets in repair mode: made from a seed, frozen, thawed. In the agent.
//!
//! *Making.* In repair mode bind(2) takes any address and port, connect(2) makes an established connection
//! without a segment, and sequence numbers, options of the handshake and windows are set. The end of the mode
//! sends a window probe, which the guest answers: its window is known then, and that the way to it is open.
//!
//! *Freezing.* A filter that refuses every packet goes on the socket, and membarrier(2) waits until no
//! processor is still at work on an earlier one. Nothing can be received, and acknowledged, behind the back
//! of the reader of the queues.
//!
//! System calls: socket, bind, connect, setsockopt, membarrier.

use super::message::Refused;
use super::{Ends, Stage};
use crate::sys::{self, repair};
use brodo_core::promotion::{SeedFields, TcpSeed};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::thread::{MembarrierCommand, membarrier};

/// `TCP_REPAIR`: on, off with a window probe, off without one.
const ON: i32 = 1;
const OFF: i32 = 0;
const OFF_SILENTLY: i32 = -1;
/// Queues of TCP_REPAIR_QUEUE.
pub(super) const RECEIVE_QUEUE: i32 = 1;
pub(super) const SEND_QUEUE: i32 = 2;
/// Options of the handshake, by their kinds (TCPOPT_*).
const MAXIMUM_SEGMENT: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
/// Largest value of TCP_MAXSEG.
const SEGMENT_SIZE_MAX: u16 = 32_767;
/// Congestion control toward the guest, which is a copy away. A fresh namespace has the host's default, and
/// BBR, which paces, reaches half of this one's throughput on a veth pair.
const CONGESTION_CONTROL: &str = "cubic";

fn set_repair(socket: BorrowedFd<'_>, mode: i32) -> Result<(), Errno> {
    sys::set_socket_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, mode)
}

/// Chooses a queue of a socket in repair mode.
pub(super) fn choose_queue(socket: BorrowedFd<'_>, queue: i32) -> Result<(), Errno> {
    sys::set_socket_option(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue)
}

/// A socket in repair mode that has the state of a seed. It sends nothing before [`start`]; closed before, it
/// leaves no trace.
///
/// # Errors
/// The kernel's refusal.
pub fn make(seed: &TcpSeed) -> Result<OwnedFd, Refused> {
    let opened = open(Ends::of(seed).guest.is_ipv4()).map_err(|errno| Stage::Socket.refusal(errno))?;
    restore(opened.as_fd(), seed).map_err(|errno| Stage::Repair.refusal(errno))?;
    Ok(opened)
}

/// Tries whether this kernel makes such sockets: one that may have any address, in repair mode.
///
/// # Errors
/// The kernel's refusal.
pub fn try_mode(ipv4: bool) -> Result<(), Errno> {
    set_repair(open(ipv4)?.as_fd(), ON)
}

/// A socket of the family that may have an address which is not this namespace's.
fn open(ipv4: bool) -> Result<OwnedFd, Errno> {
    let family = if ipv4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    let (level, option) = if ipv4 {
        (libc::IPPROTO_IP, libc::IP_TRANSPARENT)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT)
    };
    sys::set_socket_option(socket.as_fd(), level, option, 1)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    // From the first byte on: urgent data stays in its place, as of every socket of a flow.
    sockopt::set_socket_oobinline(&socket, true)?;
    // Where it is missing the default serves too.
    let _ = sockopt::set_tcp_congestion(&socket, CONGESTION_CONTROL);
    Ok(socket)
}

/// Gives a fresh socket the state of a seed.
fn restore(socket: BorrowedFd<'_>, seed: &TcpSeed) -> Result<(), Errno> {
    let seed = seed.fields();
    set_repair(socket, ON)?;
    rustix::net::bind(socket, &seed.remote)?;
    for (queue, number) in [(SEND_QUEUE, seed.snd_nxt), (RECEIVE_QUEUE, seed.rcv_nxt)] {
        choose_queue(socket, queue)?;
        repair::set_queue_sequence(socket, number)?;
    }
    // The kernel derives the size of segments at connect(2), and takes no larger value for this option; the
    // one of the handshake below counts only after a change of the path's MTU.
    let size = seed.mss.min(SEGMENT_SIZE_MAX).into();
    sys::set_socket_option(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, size)?;
    rustix::net::connect(socket, &seed.guest)?;
    // Without window scaling too: connect(2) has chosen a scale for our windows, which only a SYN-ACK or this
    // option takes back.
    let scales = seed.scales.map_or(0, |scales| u32::from(scales.snd) | u32::from(scales.rcv) << 16);
    let mut options = vec![[MAXIMUM_SEGMENT, seed.mss.into()], [WINDOW_SCALE, scales]];
    options.extend(seed.sack.then_some([SACK_PERMITTED, 0]));
    repair::set_repair_options(socket, &options)?;
    let SeedFields { snd_wl1, snd_wnd, wnd_max, rcv_wnd, rcv_wup, .. } = *seed;
    // The window is counted from the last acknowledgement sent, as in the seed.
    repair::set_repair_window(socket, &[snd_wl1, snd_wnd, wnd_max, rcv_wnd, rcv_wup])
}

/// Lets a made socket go: it probes the guest's window.
///
/// # Errors
/// The kernel's refusal.
pub fn start(socket: BorrowedFd<'_>) -> Result<(), Refused> {
    set_repair(socket, OFF).map_err(|errno| Stage::Repair.refusal(errno))
}

/// The first step of a freeze: keeps every later packet from the socket.
pub(super) fn refuse_packets(socket: BorrowedFd<'_>) -> Result<(), Refused> {
    repair::refuse_packets(socket).map_err(|errno| Stage::Repair.refusal(errno))
}

/// The second, for any number of sockets: waits for the packets that are on their way into one. It takes some
/// 15 ms.
pub(super) fn await_packets() {
    // Fails on processors in full dynticks mode; packets that come in now were received before then, but for
    // an interrupt of a virtual processor within some instructions.
    let _ = membarrier(MembarrierCommand::Global);
}

/// The last: puts the socket into repair mode.
pub(super) fn freeze(socket: BorrowedFd<'_>) -> Result<(), Refused> {
    set_repair(socket, ON).map_err(|errno| Stage::Repair.refusal(errno))
}

/// Lets a socket go on that is frozen, or of which a step of the freeze was refused.
pub(super) fn thaw(socket: BorrowedFd<'_>) -> Result<(), Refused> {
    let thawed = || {
        set_repair(socket, OFF_SILENTLY)?;
        // Its value is read and has no meaning.
        match sys::set_socket_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
            // It has none.
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    };
    thawed().map_err(|errno| Stage::Repair.refusal(errno))
}
