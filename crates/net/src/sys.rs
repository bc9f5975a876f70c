//! System calls without a safe wrapper, most of them of the data path: UDP control messages, epoll_pwait2,
//! TCP_INFO; and the process at the other end of a Unix socket.
//!
//! Each function is a thin, safe shell over one call: it takes borrowed descriptors and slices, gives an
//! [`std::io::Result`] with the errno, and keeps no state. The bytes are interpreted elsewhere, in safe code.
//! `rustix` covers everything else. [`addressed`] has the datagrams of sockets with many peers.

pub(crate) mod addressed;
pub(crate) mod inherited;
pub(crate) mod repair;

use rustix::event::epoll;
use rustix::io::{Errno, Result};
use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// getsockopt, for the options rustix does not have: the value as bytes, as many as there is room for and the
/// kernel has; the rest stays.
fn socket_option(socket: BorrowedFd<'_>, level: c_int, name: c_int, into: &mut [u8]) -> Result<()> {
    let mut len = into.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the slice, which has as many, and the length it has
    // written.
    let status =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, into.as_mut_ptr().cast(), &raw mut len) };
    check(status as isize).map(drop)
}

/// TCP_INFO: the structure as bytes, as [`socket_option`] gives them.
pub(crate) fn tcp_info(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<()> {
    socket_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, into)
}

/// SO_NETNS_COOKIE: the network namespace of a socket, as a number that is never used again. `ENOPROTOOPT`
/// before Linux 5.14.
pub(crate) fn namespace_of(socket: BorrowedFd<'_>) -> Result<u64> {
    /// As the kernel's uapi/asm-generic/socket.h has it.
    const SO_NETNS_COOKIE: c_int = 71;
    let mut cookie = [0; 8];
    socket_option(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// SO_PEERCRED: process id (0 if the process is outside of the caller's PID namespace) and user id of the
/// process at the other end of a Unix socket. rustix takes the process id for one that is never 0.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> Result<(i32, u32)> {
    // struct ucred: process, user, group.
    let mut credentials = [0; 12];
    socket_option(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials)?;
    let [p0, p1, p2, p3, u0, u1, u2, u3, ..] = credentials;
    Ok((i32::from_ne_bytes([p0, p1, p2, p3]), u32::from_ne_bytes([u0, u1, u2, u3])))
}

/// SO_PEERPIDFD: the process at the other end of a Unix socket, as a descriptor. `ENOPROTOOPT` before Linux
/// 6.5.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd> {
    /// As the kernel's uapi/asm-generic/socket.h has it.
    const SO_PEERPIDFD: c_int = 77;
    let mut fd = [0xff; size_of::<c_int>()];
    socket_option(socket, libc::SOL_SOCKET, SO_PEERPIDFD, &mut fd)?;
    // SAFETY: the call has succeeded, so this is a descriptor that it has opened for us.
    Ok(unsafe { OwnedFd::from_raw_fd(c_int::from_ne_bytes(fd)) })
}

/// setsockopt with one int, for the options rustix does not have.
pub(crate) fn set_socket_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> Result<()> {
    // SAFETY: the kernel reads `size_of::<c_int>()` bytes at the address of `value`, which lives through the
    // call.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    check(status as isize).map(drop)
}

/// setsockopt SO_PASSRIGHTS 0: messages with descriptors are refused to the socket's peer (`EPERM`).
/// `ENOPROTOOPT` before Linux 6.16.
pub(crate) fn refuse_descriptors(socket: BorrowedFd<'_>) -> Result<()> {
    // Not in libc yet.
    const SO_PASSRIGHTS: c_int = 83;
    set_socket_option(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, 0)
}

/// setsockopt SO_BINDTODEVICE: the socket sends and receives by this interface alone. Needs no right since
/// Linux 5.7.
pub(crate) fn bind_to_device(fd: BorrowedFd<'_>, name: &str) -> Result<()> {
    // SAFETY: the kernel reads `name.len()` bytes at its address.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    check(status as isize).map(drop)
}

/// SO_BINDTODEVICE: the interface to which a socket is bound; empty if it is to none.
pub(crate) fn bound_device(socket: BorrowedFd<'_>) -> Result<String> {
    let mut name = [0_u8; libc::IFNAMSIZ];
    socket_option(socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &mut name)?;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Bytes that were written to a TCP socket and are not acknowledged by its peer, sent or not; a FIN counts as
/// one (ioctl `SIOCOUTQ`, linux/sockios.h).
pub(crate) fn unacknowledged(socket: BorrowedFd<'_>) -> Result<u32> {
    ioctl_number(socket, 0x5411)
}

/// Bytes of those that were not even sent (ioctl `SIOCOUTQNSD`).
pub(crate) fn unsent(socket: BorrowedFd<'_>) -> Result<u32> {
    ioctl_number(socket, 0x894b)
}

/// ioctl that answers with one int, which is a count.
fn ioctl_number(fd: BorrowedFd<'_>, request: u32) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: the callers' requests write one int to the address, which lives through the call.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), request.into(), &raw mut value) };
    check(status as isize)?;
    u32::try_from(value).map_err(|_| Errno::RANGE)
}

/// The result of a libc call that answers -1 and sets errno.
fn check(status: isize) -> Result<usize> {
    usize::try_from(status).map_err(|_| {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Errno::from_raw_os_error(errno)
    })
}

/// A message header that points to nothing.
fn empty_header() -> libc::msghdr {
    // SAFETY: msghdr is integers and pointers; null pointers with zero lengths mean "none".
    unsafe { std::mem::zeroed() }
}

/// Control messages to send, one behind the other, aligned as the kernel wants them.
#[repr(C, align(8))]
struct SendControl {
    bytes: [u8; 128],
    len: usize,
}

impl SendControl {
    const fn new() -> Self {
        Self { bytes: [0; 128], len: 0 }
    }

    fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        let end = self.len + HEADER + data.len();
        let (Some(space), padded) = (self.bytes.get_mut(self.len..end), end.next_multiple_of(8)) else {
            return;
        };
        // cmsg_len is a word on every target of the GNU library; level and kind are the last two integers of
        // the header.
        space[..size_of::<usize>()].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        space[HEADER - 8..HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        space[HEADER - 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        space[HEADER..].copy_from_slice(data);
        self.len = padded;
    }

    fn push_segment(&mut self, segment: Option<u16>) {
        if let Some(segment) = segment {
            self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
    }
}

/// sendmsg: `data`, gathered, leaves with these control messages for the socket address `name`, or if that is
/// empty for the peer that the socket is connected to. Gives the bytes sent, which is all.
fn send_message(
    fd: BorrowedFd<'_>,
    data: &[IoSlice<'_>],
    name: &[u8],
    control: &SendControl,
) -> Result<usize> {
    let mut header = empty_header();
    // A pointer with a length of 0, to no name and to no control messages, is one that the kernel does not
    // follow.
    header.msg_name = name.as_ptr().cast_mut().cast();
    header.msg_namelen = name.len() as _;
    // An IoSlice has the layout of an iovec (std promises it on Unix).
    header.msg_iov = data.as_ptr().cast_mut().cast();
    header.msg_iovlen = data.len() as _;
    header.msg_control = control.bytes.as_ptr().cast_mut().cast();
    header.msg_controllen = control.len as _;
    // SAFETY: every pointer in `header` is to an argument with its true length, and sendmsg only reads.
    check(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) })
}

/// sendmsg, with UDP_SEGMENT if `segment` is given: `data`, gathered, leaves as datagrams of `segment` bytes,
/// the last one may be shorter. Gives the bytes sent, which is all.
pub(crate) fn send_datagrams(
    fd: BorrowedFd<'_>,
    data: &[IoSlice<'_>],
    segment: Option<u16>,
) -> Result<usize> {
    let mut control = SendControl::new();
    control.push_segment(segment);
    send_message(fd, data, &[], &control)
}

/// Most datagrams that are received in one call.
pub(crate) const DATAGRAMS_MAX: usize = 32;
/// Room for a control message of one word.
const CONTROL_WORD: usize = 24;
/// Room for those of a connected socket: UDP_GRO, IP_TOS or IPV6_TCLASS, SO_RXQ_OVFL.
const CONTROL_LEN: usize = 3 * CONTROL_WORD;

/// Control messages and source address of a datagram, aligned as the kernel wants them.
#[repr(C, align(8))]
struct Envelope<const NAME: usize, const CONTROL: usize> {
    control: [u8; CONTROL],
    name: [u8; NAME],
}

/// recvmmsg, as [`recv_datagrams`], with room for `NAME` bytes of the sender's socket address, which `each`
/// gets before the control messages, and for `CONTROL` bytes of those.
fn recv_messages<const NAME: usize, const CONTROL: usize>(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    flags: c_int,
    mut each: impl FnMut(usize, usize, &[u8], &[u8]),
) -> Result<usize> {
    let wanted = into.len().min(DATAGRAMS_MAX);
    let mut envelopes = [const { MaybeUninit::<Envelope<NAME, CONTROL>>::uninit() }; DATAGRAMS_MAX];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; DATAGRAMS_MAX];
    for ((buffer, envelope), message) in into.iter_mut().zip(&mut envelopes).zip(&mut messages) {
        let envelope = envelope.write(Envelope { control: [0; CONTROL], name: [0; NAME] });
        let mut header = empty_header();
        // An IoSliceMut has the layout of an iovec (std promises it on Unix).
        header.msg_iov = std::ptr::from_mut(buffer).cast();
        header.msg_iovlen = 1;
        if NAME > 0 {
            header.msg_name = envelope.name.as_mut_ptr().cast();
            header.msg_namelen = NAME as _;
        }
        header.msg_control = envelope.control.as_mut_ptr().cast();
        header.msg_controllen = CONTROL as _;
        message.write(libc::mmsghdr { msg_hdr: header, msg_len: 0 });
    }
    let first = messages.as_mut_ptr().cast::<libc::mmsghdr>();
    // SAFETY: the first `wanted` messages are initialised, and every pointer in them is to a buffer of `into`
    // or into one of `envelopes`, with its true length; nothing else refers to these during the call.
    let status =
        unsafe { libc::recvmmsg(fd.as_raw_fd(), first, wanted as _, flags as _, std::ptr::null_mut()) };
    let count = check(status as isize)?;
    for (i, (message, envelope)) in messages.iter().zip(&envelopes).enumerate().take(count.min(wanted)) {
        // SAFETY: the first `wanted` were initialised before the call.
        let libc::mmsghdr { msg_hdr: header, msg_len } = unsafe { message.assume_init_ref() };
        // SAFETY: so were the first `wanted` of these.
        let Envelope { control, name } = unsafe { envelope.assume_init_ref() };
        let name = &name[..NAME.min(header.msg_namelen as usize)];
        each(i, *msg_len as usize, name, &control[..CONTROL.min(header.msg_controllen)]);
    }
    Ok(count)
}

/// TCP_INQ: bytes of a stream that are unread, with the peer's FIN as one. `None` if the kernel does not say.
pub(crate) fn unread_with_fin(stream: BorrowedFd<'_>) -> Result<Option<u32>> {
    let mut found = None;
    set_socket_option(stream, libc::SOL_TCP, libc::TCP_INQ, 1)?;
    let (mut byte, flags) = ([0], libc::MSG_PEEK | libc::MSG_DONTWAIT);
    let peeked = recv_messages::<0, CONTROL_WORD>(
        stream,
        &mut [IoSliceMut::new(&mut byte)],
        flags,
        |_, _, _, control| {
            let inq = |(level, kind, _): &(c_int, c_int, &[u8])| {
                (*level, *kind) == (libc::SOL_TCP, libc::TCP_CM_INQ)
            };
            found = control_messages(control).find(inq).and_then(|(_, _, data)| data.first_chunk().copied());
        },
    );
    set_socket_option(stream, libc::SOL_TCP, libc::TCP_INQ, 0)?;
    peeked.map(|_| found.map(u32::from_ne_bytes))
}

/// recvmmsg on a connected socket: one datagram, or several coalesced ones, into each buffer, until there are
/// no more, and into [`DATAGRAMS_MAX`] at most. `each` gets the index, the length and the control messages of
/// each, which [`control_messages`] takes apart. Gives how many there were.
pub(crate) fn recv_datagrams(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    mut each: impl FnMut(usize, usize, &[u8]),
) -> Result<usize> {
    recv_messages::<0, CONTROL_LEN>(fd, into, 0, |i, len, _, control| each(i, len, control))
}

/// Takes control messages apart: level, kind and data of each.
pub(crate) fn control_messages(mut control: &[u8]) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
    const WORD: usize = size_of::<usize>();
    const HEADER: usize = size_of::<libc::cmsghdr>();
    std::iter::from_fn(move || {
        let header = control.get(..HEADER)?;
        let (len, ends) = header.split_first_chunk::<WORD>()?;
        // The kernel's cmsg_len is a word on every target of the GNU library; level and kind are the last two
        // integers.
        let (rest, kind) = ends.split_last_chunk::<4>()?;
        let (_, level) = rest.split_last_chunk::<4>()?;
        let data = control.get(HEADER..usize::from_ne_bytes(*len))?;
        control = control.get((HEADER + data.len()).next_multiple_of(WORD)..).unwrap_or(&[]);
        Some((c_int::from_ne_bytes(*level), c_int::from_ne_bytes(*kind), data))
    })
}

/// One entry of a socket's error queue, as the kernel wrote it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErrorEntry {
    /// `sock_extended_err` and behind it the offender's socket address.
    pub(crate) data: [u8; ERROR_ENTRY_LEN],
    /// The start of the datagram as quoted by the error, behind its UDP header or from its ICMP header on;
    /// zero where nothing is quoted.
    pub(crate) quoted: [u8; 8],
}

/// `sock_extended_err` (16 bytes) and a `sockaddr_in6` (28), padded.
pub(crate) const ERROR_ENTRY_LEN: usize = 48;

/// recvmmsg with MSG_ERRQUEUE: takes one entry; of the datagram that caused it the start is kept.
/// `WOULDBLOCK` if there is none, `PROTO` if the kernel gave something that is not an error report.
pub(crate) fn recv_error(fd: BorrowedFd<'_>) -> Result<ErrorEntry> {
    // Other control messages of the socket come before the error.
    const LEN: usize = size_of::<libc::cmsghdr>() + ERROR_ENTRY_LEN + 2 * CONTROL_WORD;
    let (mut quoted, mut data) = ([0; 8], None);
    let into = &mut [IoSliceMut::new(&mut quoted)];
    recv_messages::<0, LEN>(fd, into, libc::MSG_ERRQUEUE, |_, _, _, control| data = error_report(control))?;
    Ok(ErrorEntry { data: data.ok_or(Errno::PROTO)?, quoted })
}

/// The report among control messages.
fn error_report(control: &[u8]) -> Option<[u8; ERROR_ENTRY_LEN]> {
    let (.., found) = control_messages(control).find(|(level, kind, _)| {
        matches!((*level, *kind), (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR))
    })?;
    // Bytes of the address that the kernel left out stay zero, an unknown family.
    let mut data = [0; ERROR_ENTRY_LEN];
    data.iter_mut().zip(found).for_each(|(to, from)| *to = *from);
    Some(data)
}

/// Events of an epoll instance, whose data are numbers.
#[derive(Default)]
pub(crate) struct Events(pub Vec<epoll::Event>);

// SAFETY: an event is not Send because its data may be a pointer; here it is always a number, which any
// thread may copy.
unsafe impl Send for Events {}

/// epoll_pwait2: waits with a resolution of nanoseconds, `NOSYS` before Linux 5.11. The events replace the
/// content of `events`, as many as its capacity takes; `None` waits for ever.
pub(crate) fn epoll_wait(
    epoll: BorrowedFd<'_>,
    events: &mut Vec<epoll::Event>,
    timeout: Option<Duration>,
) -> Result<()> {
    let timeout = timeout.map(|t| rustix::time::Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    let timeout_ptr = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    events.clear();
    let capacity = events.spare_capacity_mut();
    // SAFETY: the kernel writes at most `capacity.len()` events, whose layout rustix takes from the kernel's
    // header; the time-out has the kernel's 64-bit layout and lives through the call; no signal mask.
    let count = check(unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            capacity.as_mut_ptr(),
            c_int::try_from(capacity.len()).unwrap_or(c_int::MAX),
            timeout_ptr,
            std::ptr::null::<libc::sigset_t>(),
            0usize,
        )
    } as isize)?;
    // SAFETY: the kernel has initialised the first `count` events, which is at most the spare capacity.
    unsafe { events.set_len(count) };
    Ok(())
}
