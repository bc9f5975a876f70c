//! The system calls that have no safe wrapper, most of them of the data path: TUN ioctls, UDP control messages, epoll_pwait2; who is
//! at the other end of a Unix socket.
//!
//! Each function is a thin, safe shell over one call: it takes borrowed descriptors and slices, gives an
//! [`std::io::Result`] with the errno, and keeps no state. What the bytes mean is decided elsewhere, in safe code.
//! `rustix` covers everything else. [`addressed`] has the datagrams of sockets with many peers.

pub mod addressed;

use rustix::event::epoll;
use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, IntegerSetter, Setter, Updater, ioctl};
use std::ffi::{c_int, c_uint};
use std::io::{IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

const TUNSETIFF: u32 = libc::TUNSETIFF as u32;
const TUNGETIFF: u32 = libc::TUNGETIFF as u32;
const TUNGETFEATURES: u32 = libc::TUNGETFEATURES as u32;
const TUNSETOFFLOAD: u32 = libc::TUNSETOFFLOAD as u32;
const TUNSETVNETHDRSZ: u32 = libc::TUNSETVNETHDRSZ as u32;
const TUNGETVNETHDRSZ: u32 = libc::TUNGETVNETHDRSZ as u32;
const TUNSETVNETLE: u32 = libc::TUNSETVNETLE as u32;

/// Length in bytes of an interface name with its final NUL.
pub const IF_NAME_MAX: usize = libc::IFNAMSIZ;

/// An all-zero `ifreq` that carries `name` and `flags`. A name that does not fit gives `EINVAL`.
fn interface_request(name: &str, flags: i16) -> Result<libc::ifreq> {
    if name.len() >= IF_NAME_MAX || name.bytes().any(|b| b == 0) {
        return Err(Errno::INVAL);
    }
    // SAFETY: ifreq is a C structure of integers and unions of integers and pointers that nobody follows here; all
    // zeroes is a value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = flags;
    Ok(request)
}

/// TUNSETIFF: makes or joins the interface `name` with `IFF_*` flags.
pub fn tun_attach(fd: impl AsFd, name: &str, flags: i16) -> Result<()> {
    let mut request = interface_request(name, flags)?;
    // SAFETY: TUNSETIFF reads and writes one ifreq (its declared argument, int, is a historical error).
    let call = unsafe { Updater::<TUNSETIFF, libc::ifreq>::new(&mut request) };
    // SAFETY: as above; the request outlives the call.
    unsafe { ioctl(fd, call) }
}

/// TUNGETIFF: the `IFF_*` flags of the interface this descriptor is attached to.
pub fn tun_flags(fd: impl AsFd) -> Result<i16> {
    // SAFETY: TUNGETIFF writes one ifreq.
    let call = unsafe { Getter::<TUNGETIFF, libc::ifreq>::new() };
    // SAFETY: as above.
    let request = unsafe { ioctl(fd, call) }?;
    // SAFETY: the kernel stored the flags in this member of the union, and any integer is a value of it.
    Ok(unsafe { request.ifr_ifru.ifru_flags })
}

/// TUNGETFEATURES: the `IFF_*` flags that TUNSETIFF knows on this kernel.
pub fn tun_features(fd: impl AsFd) -> Result<u32> {
    // SAFETY: TUNGETFEATURES writes one unsigned int.
    let call = unsafe { Getter::<TUNGETFEATURES, c_uint>::new() };
    // SAFETY: as above.
    unsafe { ioctl(fd, call) }
}

/// TUNSETOFFLOAD: what the reader of this descriptor accepts, as `TUN_F_*` flags.
pub fn tun_set_offload(fd: impl AsFd, flags: u32) -> Result<()> {
    // SAFETY: TUNSETOFFLOAD takes the flags themselves as its argument.
    let call = unsafe { IntegerSetter::<TUNSETOFFLOAD>::new_usize(flags as usize) };
    // SAFETY: as above.
    unsafe { ioctl(fd, call) }
}

/// TUNSETVNETHDRSZ: length in bytes of the header before each frame.
pub fn tun_set_header_len(fd: impl AsFd, len: c_int) -> Result<()> {
    // SAFETY: TUNSETVNETHDRSZ reads one int.
    let call = unsafe { Setter::<TUNSETVNETHDRSZ, c_int>::new(len) };
    // SAFETY: as above.
    unsafe { ioctl(fd, call) }
}

/// TUNGETVNETHDRSZ: length in bytes of the header before each frame.
pub fn tun_header_len(fd: impl AsFd) -> Result<c_int> {
    // SAFETY: TUNGETVNETHDRSZ writes one int.
    let call = unsafe { Getter::<TUNGETVNETHDRSZ, c_int>::new() };
    // SAFETY: as above.
    unsafe { ioctl(fd, call) }
}

/// TUNSETVNETLE: the header is little-endian, as in virtio 1.x, whatever the machine.
pub fn tun_set_little_endian(fd: impl AsFd) -> Result<()> {
    // SAFETY: TUNSETVNETLE reads one int.
    let call = unsafe { Setter::<TUNSETVNETLE, c_int>::new(1) };
    // SAFETY: as above.
    unsafe { ioctl(fd, call) }
}

/// TCP_INFO: the smoothed round-trip time of a connection, in microseconds; 0 before there is one.
pub fn tcp_round_trip_us(socket: BorrowedFd<'_>) -> Result<u32> {
    // SAFETY: tcp_info is a C structure of integers; all zeroes is a value of it.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which has as many, and the length it has written.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    check(status as isize)?;
    Ok(info.tcpi_rtt)
}

/// SO_PEERPIDFD: the process at the other end of a Unix socket, as a descriptor. `ENOPROTOOPT` before Linux 6.5.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd> {
    /// As the kernel's uapi/asm-generic/socket.h has it.
    const SO_PEERPIDFD: c_int = 77;
    let (mut fd, mut len): (c_int, libc::socklen_t) = (-1, size_of::<c_int>() as _);
    // SAFETY: the kernel writes at most `len` bytes to `fd`, an integer of that size, and the length it has written.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    check(status as isize)?;
    // SAFETY: the call has succeeded, so this is a descriptor that it has opened for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// setsockopt with one int, for the options rustix does not have.
pub fn set_socket_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> Result<()> {
    // SAFETY: the kernel reads `size_of::<c_int>()` bytes at the address of `value`, which lives through the call.
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

/// setsockopt SO_BINDTODEVICE: the socket sends and receives by this interface alone. Needs no right since Linux 5.7.
pub fn bind_to_device(fd: BorrowedFd<'_>, name: &str) -> Result<()> {
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

/// The result of a libc call that answers -1 and sets errno.
fn check(status: isize) -> Result<usize> {
    usize::try_from(status).map_err(|_| {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Errno::from_raw_os_error(errno)
    })
}

/// A control message of up to `N` bytes of data, aligned as the kernel wants it.
#[repr(C)]
struct Control<const N: usize> {
    header: libc::cmsghdr,
    data: [u8; N],
}

impl<const N: usize> Control<N> {
    const fn zeroed() -> Self {
        // SAFETY: cmsghdr is three integers (and padding on some targets); zero is a value of each.
        Self { header: unsafe { MaybeUninit::zeroed().assume_init() }, data: [0; N] }
    }

    /// The first `len` bytes, header first, or all.
    const fn bytes(&self, len: usize) -> &[u8] {
        let len = if len < size_of::<Self>() { len } else { size_of::<Self>() };
        // SAFETY: it is integers without padding between them, all of them initialised, and `len` bytes are within it.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), len) }
    }
}

/// sendmsg, with UDP_SEGMENT if `segment` is given: `data`, gathered, leaves as datagrams of `segment` bytes, the last
/// one may be shorter. Gives the bytes sent, which is all.
pub fn send_datagrams(fd: BorrowedFd<'_>, data: &[IoSlice<'_>], segment: Option<u16>) -> Result<usize> {
    // The kernel wants the padded length of the message and the exact one in its header.
    let mut control = Control::<8>::zeroed();
    // SAFETY: msghdr is integers and pointers; null pointers with zero lengths mean "none".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // An IoSlice has the layout of an iovec (std promises it on Unix).
    message.msg_iov = data.as_ptr().cast_mut().cast();
    message.msg_iovlen = data.len() as _;
    if let Some(segment) = segment {
        control.header.cmsg_level = libc::SOL_UDP;
        control.header.cmsg_type = libc::UDP_SEGMENT;
        control.header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<u16>()) as _;
        control.data[..2].copy_from_slice(&segment.to_ne_bytes());
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control<8>>() as _;
    }
    // SAFETY: every pointer in `message` is to a local or to `data`, with its true length, and sendmsg only reads.
    check(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
}

/// Most datagrams that [`recv_datagrams`] takes.
pub const DATAGRAMS_MAX: usize = 32;
/// Room for control messages with one word each: UDP_GRO, IP_TOS or IPV6_TCLASS, SO_RXQ_OVFL.
const CONTROL_LEN: usize = 3 * 24 - size_of::<libc::cmsghdr>();

/// recvmmsg: one datagram, or several coalesced ones, into each buffer, until there are no more. `each` is told the index, the
/// length and the control messages of each, which [`control_messages`] takes apart. Gives how many there were.
pub fn recv_datagrams(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    mut each: impl FnMut(usize, usize, &[u8]),
) -> Result<usize> {
    let wanted = into.len().min(DATAGRAMS_MAX);
    let mut controls = [const { MaybeUninit::<Control<CONTROL_LEN>>::uninit() }; DATAGRAMS_MAX];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; DATAGRAMS_MAX];
    for ((buffer, control), message) in into.iter_mut().zip(&mut controls).zip(&mut messages) {
        // SAFETY: msghdr is integers and pointers; null pointers with zero lengths mean "none".
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        // An IoSliceMut has the layout of an iovec (std promises it on Unix).
        header.msg_iov = std::ptr::from_mut(buffer).cast();
        header.msg_iovlen = 1;
        header.msg_control = std::ptr::from_mut(control.write(Control::zeroed())).cast();
        header.msg_controllen = size_of::<Control<CONTROL_LEN>>() as _;
        message.write(libc::mmsghdr { msg_hdr: header, msg_len: 0 });
    }
    let first = messages.as_mut_ptr().cast::<libc::mmsghdr>();
    // SAFETY: the first `wanted` messages are initialised, and every pointer in them is to a buffer of `into` or to one
    // of `controls`, with its true length; nothing else refers to these during the call.
    let count = check(
        unsafe { libc::recvmmsg(fd.as_raw_fd(), first, wanted as _, 0, std::ptr::null_mut()) } as isize,
    )?;
    for (i, (message, control)) in messages.iter().zip(&controls).enumerate().take(count.min(wanted)) {
        // SAFETY: the first `wanted` were initialised before the call.
        let message = unsafe { message.assume_init_ref() };
        // SAFETY: as above.
        let control = unsafe { control.assume_init_ref() };
        let control = control.bytes(message.msg_hdr.msg_controllen);
        each(i, message.msg_len as usize, control);
    }
    Ok(count)
}

/// Takes control messages apart: level, kind and data of each.
pub fn control_messages(mut control: &[u8]) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
    const WORD: usize = size_of::<usize>();
    const HEADER: usize = size_of::<libc::cmsghdr>();
    std::iter::from_fn(move || {
        let header = control.get(..HEADER)?;
        let (len, ends) = header.split_first_chunk::<WORD>()?;
        // The kernel's cmsg_len is a word on every target of the GNU library; level and kind are the last two integers.
        let (rest, kind) = ends.split_last_chunk::<4>()?;
        let (_, level) = rest.split_last_chunk::<4>()?;
        let data = control.get(HEADER..usize::from_ne_bytes(*len))?;
        control = control.get((HEADER + data.len()).next_multiple_of(WORD)..).unwrap_or(&[]);
        Some((c_int::from_ne_bytes(*level), c_int::from_ne_bytes(*kind), data))
    })
}

/// One entry of a socket's error queue, as the kernel wrote it.
#[derive(Debug, Clone, Copy)]
pub struct ErrorEntry {
    /// `sock_extended_err` and behind it the offender's socket address.
    pub data: [u8; ERROR_ENTRY_LEN],
    /// The start of what the error quotes of the datagram, behind its UDP header or from its ICMP header on; zero where
    /// nothing is quoted.
    pub quoted: [u8; 8],
}

/// `sock_extended_err` (16 bytes) and a `sockaddr_in6` (28), padded.
pub const ERROR_ENTRY_LEN: usize = 48;

/// recvmsg with MSG_ERRQUEUE: takes one entry; of the datagram that caused it the start is kept. `WOULDBLOCK` if there is
/// none, `PROTO` if the kernel gave something that is not an error report.
pub fn recv_error(fd: BorrowedFd<'_>) -> Result<ErrorEntry> {
    // What else the socket asks for comes before the error.
    const LEN: usize = ERROR_ENTRY_LEN + 2 * 24;
    let mut control = Control::<LEN>::zeroed();
    // SAFETY: msghdr is integers and pointers; null pointers with zero lengths mean "none".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    let mut quoted = [0; 8];
    let mut slice = IoSliceMut::new(&mut quoted);
    // An IoSliceMut has the layout of an iovec (std promises it on Unix).
    message.msg_iov = (&raw mut slice).cast();
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control<LEN>>() as _;
    // SAFETY: the control pointer is to a local with its true length, and so is the one slice, which is to eight bytes.
    check(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE) })?;
    let error = control_messages(control.bytes(message.msg_controllen)).find(|(level, kind, _)| {
        matches!((*level, *kind), (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR))
    });
    let (.., found) = error.ok_or(Errno::PROTO)?;
    // What the kernel left out of the address stays zero, an unknown family.
    let mut data = [0; ERROR_ENTRY_LEN];
    data.iter_mut().zip(found).for_each(|(to, from)| *to = *from);
    Ok(ErrorEntry { data, quoted })
}

/// Events of an epoll instance, whose data are numbers.
#[derive(Default)]
pub struct Events(pub Vec<epoll::Event>);

// SAFETY: what keeps an event from another thread is that its data may be a pointer; here it is a number in which
// nobody sees one, and whatever thread has it may copy it.
unsafe impl Send for Events {}

/// epoll_pwait2: waits with a resolution of nanoseconds, `NOSYS` before Linux 5.11. The events replace the content of
/// `events`, as many as its capacity takes; `None` waits for ever.
pub fn epoll_wait(
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
