//! A TUN interface: the kernel's IP packets without MAC addresses, for a path that is emulated in user space.
//!
//! Each read and each write is one packet behind a virtio-net header ([`super::vnet`]). With offload on, that
//! is a super-packet of up to 64 KiB which the kernel has not cut into segments, and whose checksum is not
//! computed: a packet read from one TUN can be written to another as it is. The device exists as long as its
//! descriptor.

use super::tap::TapError;
use super::vnet::HEADER_LEN;
use crate::sys;
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;

/// Makes the TUN interface `name` in the network namespace of the calling thread; its descriptor does not
/// block.
///
/// # Errors
/// [`TapError`] names the system call that failed.
pub fn create(name: &str, offload: bool) -> Result<OwnedFd, TapError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(TapError::Open)?;
    let kind = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    sys::tun_attach(&fd, name, kind).map_err(|e| TapError::Attach(name.to_owned(), e))?;
    sys::tun_set_header_len(&fd, HEADER_LEN as i32).map_err(TapError::Header)?;
    sys::tun_set_little_endian(&fd).map_err(TapError::Header)?;
    let segmentation = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    sys::tun_set_offload(&fd, if offload { segmentation } else { 0 }).map_err(TapError::Header)?;
    Ok(fd)
}

#[cfg(test)]
mod tests;
