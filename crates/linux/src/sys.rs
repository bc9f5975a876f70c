//! The system calls of the data path that have no safe wrapper: TUN ioctls, UDP control messages, epoll_pwait2.
//!
//! Each function is a thin, safe shell over one call: it takes borrowed descriptors and slices, gives an
//! [`std::io::Result`] with the errno, and keeps no state. What the bytes mean is decided elsewhere, in safe code.
//! `rustix` covers everything else.

use rustix::event::epoll;
use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, IntegerSetter, Setter, Updater, ioctl};
use std::ffi::{c_int, c_uint};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
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
}

/// An `msghdr` without address and control message for one buffer.
fn message(iov: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: msghdr is integers and pointers; null pointers with zero lengths mean "none".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov;
    message.msg_iovlen = 1;
    message
}

/// sendmsg with UDP_SEGMENT: `data` leaves as datagrams of `segment` bytes, the last one may be shorter.
pub fn send_segmented(fd: BorrowedFd<'_>, data: &[u8], segment: u16) -> Result<usize> {
    // The kernel wants the padded length of the message and the exact one in its header.
    let mut control = Control::<8>::zeroed();
    control.header.cmsg_level = libc::SOL_UDP;
    control.header.cmsg_type = libc::UDP_SEGMENT;
    control.header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<u16>()) as _;
    control.data[..2].copy_from_slice(&segment.to_ne_bytes());
    let mut iov = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    let mut message = message(&mut iov);
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control<8>>() as _;
    // SAFETY: every pointer in `message` is to a local or to `data`, with its true length, and sendmsg only reads.
    check(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
}

/// recvmsg with UDP_GRO: the length of what was received, and the size at which it was coalesced if it was.
pub fn recv_coalesced(fd: BorrowedFd<'_>, into: &mut [u8]) -> Result<(usize, Option<u16>)> {
    let mut control = Control::<8>::zeroed();
    let mut iov = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut message = message(&mut iov);
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control<8>>() as _;
    // SAFETY: every pointer in `message` is to a local or to `into`, with its true length, and nothing else refers
    // to them during the call.
    let len = check(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0) })?;
    // Where the kernel wrote no control message the header is still zero.
    let coalesced = control.header.cmsg_level == libc::SOL_UDP && control.header.cmsg_type == libc::UDP_GRO;
    let segment = coalesced
        .then(|| c_int::from_ne_bytes([control.data[0], control.data[1], control.data[2], control.data[3]]));
    Ok((len, segment.and_then(|s| u16::try_from(s).ok()).filter(|&s| s > 0)))
}

/// One entry of a socket's error queue, as the kernel wrote it.
#[derive(Debug, Clone, Copy)]
pub struct ErrorEntry {
    /// `sock_extended_err` and behind it the offender's socket address.
    pub data: [u8; ERROR_ENTRY_LEN],
}

/// `sock_extended_err` (16 bytes) and a `sockaddr_in6` (28), padded.
pub const ERROR_ENTRY_LEN: usize = 48;

/// recvmsg with MSG_ERRQUEUE: takes one entry; the datagram that caused it is discarded. `WOULDBLOCK` if there is
/// none, `PROTO` if the kernel gave something that is not an error report.
pub fn recv_error(fd: BorrowedFd<'_>) -> Result<ErrorEntry> {
    let mut control = Control::<ERROR_ENTRY_LEN>::zeroed();
    let mut iov = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut message = message(&mut iov);
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control<ERROR_ENTRY_LEN>>() as _;
    // SAFETY: the control pointer is to a local with its true length; the data buffer is empty.
    check(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE) })?;
    let known = matches!(
        (control.header.cmsg_level, control.header.cmsg_type),
        (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
    );
    // What the kernel left out of the address stays zero, an unknown family.
    if known { Ok(ErrorEntry { data: control.data }) } else { Err(Errno::PROTO) }
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
