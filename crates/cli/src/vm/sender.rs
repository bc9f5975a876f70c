//! A monitor that sends datagrams, and its end, which no event reports.
//!
//! *Look.* A datagram socket stays connected to one that was closed until it sends, and the kernel refuses
//! the datagrams of all others until then (EPERM). An empty datagram would do, but QEMU takes one for brodo's
//! end. So another socket is connected to the monitor's: that sends nothing, and ECONNREFUSED says that no
//! process has it open. The monitor's path may lead to the next monitor's socket by then, so the way is the
//! inode, which a descriptor holds. Of an abstract name there is none: a monitor that takes the name again
//! between two looks is held for the one before.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, getpeername, send,
    socket_with,
};
use std::path::Path;

/// The other side of a connected socket for datagrams.
#[derive(Debug)]
pub(super) struct Sender {
    address: SocketAddrUnix,
    /// Keeps the address valid.
    _inode: Option<OwnedFd>,
}

impl Sender {
    /// The one that a socket is connected to; `None` if there is none, or it cannot be found.
    pub(super) fn of(socket: &OwnedFd) -> Option<Self> {
        let address = SocketAddrUnix::try_from(getpeername(socket).ok()??).ok()?;
        let Some(path) = address.path() else { return Some(Self { address, _inode: None }) };
        let inode = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", inode.as_raw_fd())).ok()?;
        Some(Self { address, _inode: Some(inode) })
    }

    /// Whether no process has its socket open any more.
    pub(super) fn is_gone(&self) -> bool {
        connected(&self.address).err() == Some(Errno::CONNREFUSED)
    }
}

/// Sends an empty datagram to a path, by which an engine knows that its connection has ended. An error: there
/// are others to be read, after which it will know.
pub(super) fn send_end(path: &Path) {
    let address = SocketAddrUnix::new(path);
    let _ = address
        .and_then(|address| connected(&address))
        .and_then(|socket| send(&socket, &[], SendFlags::empty()));
}

fn connected(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    connect(&socket, address)?;
    Ok(socket)
}
