//! Ioctls of TUN and of Unix sockets, which have no safe wrapper.
//!
//! Each function is a thin, safe shell over one call: it borrows the descriptor, gives the kernel's errno,
//! and keeps no state.

use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, IntegerSetter, Setter, Updater, ioctl};
use std::ffi::{c_int, c_uint};
use std::os::fd::AsFd;

const TUNSETIFF: u32 = libc::TUNSETIFF as u32;
const TUNGETIFF: u32 = libc::TUNGETIFF as u32;
const TUNGETFEATURES: u32 = libc::TUNGETFEATURES as u32;
const TUNSETOFFLOAD: u32 = libc::TUNSETOFFLOAD as u32;
const TUNSETVNETHDRSZ: u32 = libc::TUNSETVNETHDRSZ as u32;
#[cfg(test)]
const TUNGETVNETHDRSZ: u32 = libc::TUNGETVNETHDRSZ as u32;
const TUNSETVNETLE: u32 = libc::TUNSETVNETLE as u32;
/// The number of SIOCOUTQ.
const TIOCOUTQ: u32 = libc::TIOCOUTQ as u32;

/// Length in bytes of an interface name with its final NUL.
const IF_NAME_MAX: usize = libc::IFNAMSIZ;

/// An all-zero `ifreq` that carries `name` and `flags`. A name that does not fit gives `EINVAL`.
fn interface_request(name: &str, flags: i16) -> Result<libc::ifreq> {
    if name.len() >= IF_NAME_MAX || name.bytes().any(|b| b == 0) {
        return Err(Errno::INVAL);
    }
    // SAFETY: ifreq is a C structure of integers and unions of integers and pointers that are never followed
    // here; all zeroes is a value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = flags;
    Ok(request)
}

/// TUNSETIFF: makes or joins the interface `name` with `IFF_*` flags.
pub(crate) fn tun_attach(fd: impl AsFd, name: &str, flags: i16) -> Result<()> {
    let mut request = interface_request(name, flags)?;
    // SAFETY: TUNSETIFF reads and writes one ifreq (its declared argument, int, is a historical error).
    let call = unsafe { Updater::<TUNSETIFF, libc::ifreq>::new(&mut request) };
    // SAFETY: the argument is that ifreq, which outlives the call.
    unsafe { ioctl(fd, call) }
}

/// TUNGETIFF: name and flags of the interface this descriptor is attached to.
fn attached(fd: impl AsFd) -> Result<libc::ifreq> {
    // SAFETY: TUNGETIFF writes one ifreq.
    let call = unsafe { Getter::<TUNGETIFF, libc::ifreq>::new() };
    // SAFETY: the argument has the type and direction declared by the request number.
    unsafe { ioctl(fd, call) }
}

/// The `IFF_*` flags of the interface this descriptor is attached to.
pub(crate) fn tun_flags(fd: impl AsFd) -> Result<i16> {
    let request = attached(fd)?;
    // SAFETY: the kernel stored the flags in this member of the union, and any integer is a value of it.
    Ok(unsafe { request.ifr_ifru.ifru_flags })
}

/// The name of the interface this descriptor is attached to.
pub(crate) fn tun_name(fd: impl AsFd) -> Result<String> {
    let bytes = attached(fd)?.ifr_name.map(libc::c_char::cast_unsigned);
    let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// TUNGETFEATURES: the `IFF_*` flags that TUNSETIFF knows on this kernel.
pub(crate) fn tun_features(fd: impl AsFd) -> Result<u32> {
    // SAFETY: TUNGETFEATURES writes one unsigned int.
    let call = unsafe { Getter::<TUNGETFEATURES, c_uint>::new() };
    // SAFETY: the argument has the type and direction declared by the request number.
    unsafe { ioctl(fd, call) }
}

/// TUNSETOFFLOAD: the offloads accepted by the reader of this descriptor, as `TUN_F_*` flags.
pub(crate) fn tun_set_offload(fd: impl AsFd, flags: u32) -> Result<()> {
    // SAFETY: TUNSETOFFLOAD takes the flags themselves as its argument.
    let call = unsafe { IntegerSetter::<TUNSETOFFLOAD>::new_usize(flags as usize) };
    // SAFETY: the argument has the type and direction declared by the request number.
    unsafe { ioctl(fd, call) }
}

/// TUNSETVNETHDRSZ: length in bytes of the header before each frame.
pub(crate) fn tun_set_header_len(fd: impl AsFd, len: c_int) -> Result<()> {
    // SAFETY: TUNSETVNETHDRSZ reads one int.
    let call = unsafe { Setter::<TUNSETVNETHDRSZ, c_int>::new(len) };
    // SAFETY: the argument has the type and direction declared by the request number.
    unsafe { ioctl(fd, call) }
}

/// TUNGETVNETHDRSZ: length in bytes of the header before each frame.
#[cfg(test)]
pub(crate) fn tun_header_len(fd: impl AsFd) -> Result<c_int> {
    // SAFETY: TUNGETVNETHDRSZ writes one int.
    let call = unsafe { Getter::<TUNGETVNETHDRSZ, c_int>::new() };
    // SAFETY: the argument has the type and direction declared by the request number.
    unsafe { ioctl(fd, call) }
}

/// TUNSETVNETLE: the header is little-endian, as in virtio 1.x, on every machine.
pub(crate) fn tun_set_little_endian(fd: impl AsFd) -> Result<()> {
    // SAFETY: TUNSETVNETLE reads one int.
    let call = unsafe { Setter::<TUNSETVNETLE, c_int>::new(1) };
    // SAFETY: the argument has the type and direction declared by the request number.
    unsafe { ioctl(fd, call) }
}

/// SIOCOUTQ of a Unix socket: the kernel's memory for what was written and the peer has not read, in bytes.
pub(crate) fn unread_memory(socket: impl AsFd) -> Result<usize> {
    // SAFETY: SIOCOUTQ writes one int.
    let call = unsafe { Getter::<TIOCOUTQ, c_int>::new() };
    // SAFETY: the argument has the type and direction declared by the request number.
    let bytes = unsafe { ioctl(socket, call) }?;
    usize::try_from(bytes).map_err(|_| Errno::INVAL)
}
