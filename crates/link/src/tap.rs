//! A TAP interface in the guest's namespace: one read and one write system call per frame or super-frame.
//!
//! Every frame is preceded by a virtio-net header ([`super::vnet`]), so that up to 64 KiB move per call at
//! any MTU and no payload checksum is computed on this link: the guest's kernel hands us super-frames it has
//! not cut, and cuts (or rather, never needs to cut) those we write. Offloads of the kernel are probed from
//! most to least when the descriptor is taken over, down to bare frames.
//!
//! Promises: a frame is written whole or not at all; nothing is allocated per frame; a device that is down or
//! deleted loses frames as a pulled cable would, which is counted and never an error of the data path.
//!
//! The kernel keeps the guest's frames in a ring until they are read, and drops those that find it full.
//! Newer kernels can make the guest wait instead ([`IFF_BACKPRESSURE`]), which is requested.
//!
//! The length of the virtio-net header belongs to the interface, not to a descriptor: root of the guest may
//! change it by TUNSETVNETHDRSZ on a queue of its own. Reads and writes whose buffers are shorter than the
//! new header then fail with EINVAL, and the length is set again; the frame that was read is lost, and
//! counted by the stack as one that is too short. Under any other length, and other flags that TUNSETIFF on a
//! further queue sets, frames are misread, by which the guest harms itself alone.
//!
//! The descriptor may come from another process: a process in the guest's namespace opens and configures the
//! device ([`Tap::create`]), passes the descriptor ([`Tap::into_fd`]), and [`Tap::from_fd`] makes a link of
//! it. All its properties can be queried from the kernel again, so nothing else need be passed.

use crate::batch::Batch;
use crate::poller::Poller;
use crate::slices::gathered;
use crate::sys;
use crate::vnet::{self, HEADER_LEN};
use crate::{CreditWait, EventFlags, FailedCall, GuestLink, LinkLosses, Taken};
use brodo_core::link::{FRAME_MAX, Link, LinkCaps, NoCredit, RxMeta, TxFrame};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Flag of TUNSETIFF (Linux 7.3, not yet in `libc`): a full ring stops the transmit queue, which is woken
/// when half of the ring or all of it has been read. The guest's frames wait in the queueing discipline
/// meanwhile; without one the kernel drops as before, and also, rarely, where several processors send at
/// once.
const IFF_BACKPRESSURE: i32 = 0x0080;

/// Offloads to request from the kernel; it may grant less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wanted {
    /// Checksum and segmentation offload, as far as the kernel goes.
    #[default]
    Everything,
    /// The header, but no offload: frames of at most the MTU, every checksum computed.
    NoOffload,
    /// No header at all, as on a kernel without it.
    NoHeader,
}

/// Error of setting up a TAP.
#[derive(Debug)]
pub enum TapError {
    /// `/dev/net/tun` could not be opened.
    Open(Errno),
    /// TUNSETIFF was refused for this interface name.
    Attach(String, Errno),
    /// The descriptor does not belong to a TAP interface without packet information.
    NotTap,
    /// The header could not be set up (TUNSETVNETHDRSZ, TUNSETVNETLE).
    Header(Errno),
    /// The descriptor could not be made non-blocking.
    NonBlocking(Errno),
}

impl fmt::Display for TapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(Errno::NOENT) => {
                f.write_str("open /dev/net/tun: no such device; load the kernel module tun (modprobe tun)")
            }
            Self::Open(Errno::ACCESS | Errno::PERM) => {
                f.write_str("open /dev/net/tun: permission denied; make it readable and writable (chmod 666 /dev/net/tun)")
            }
            Self::Open(e) => write!(f, "open /dev/net/tun: {e}; pass the device into the container (--device /dev/net/tun)"),
            Self::Attach(name, Errno::BUSY) => {
                write!(f, "TUNSETIFF {name}: the interface is in use; choose another name or delete it")
            }
            Self::Attach(name, Errno::INVAL) => {
                write!(
                    f,
                    "TUNSETIFF {name}: not a usable TAP name; use up to 15 characters and no interface of another kind"
                )
            }
            Self::Attach(name, e @ (Errno::PERM | Errno::ACCESS)) => write!(
                f,
                "TUNSETIFF {name}: {e}; CAP_NET_ADMIN is needed in the user namespace that owns the network namespace"
            ),
            Self::Attach(name, e) => write!(f, "TUNSETIFF {name}: {e}; the kernel's tun driver lacks a flag"),
            Self::NotTap => f.write_str("TUNGETIFF: the descriptor is not a TAP made with IFF_NO_PI; pass one that is"),
            Self::Header(e) => write!(f, "TUNSETVNETHDRSZ: {e}; run with --no-offload"),
            Self::NonBlocking(e) => write!(f, "fcntl O_NONBLOCK on the TAP: {e}; pass an open descriptor"),
        }
    }
}

impl std::error::Error for TapError {}

/// An open TAP interface.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    header: bool,
    /// The guest waits when the ring toward us is full.
    back_pressure: bool,
    caps: LinkCaps,
    wait: Option<CreditWait>,
    gone: bool,
    losses: LinkLosses,
}

impl Tap {
    /// Makes (or joins) the TAP interface `name` in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`TapError`] names the system call that failed.
    pub fn create(name: &str, wanted: Wanted) -> Result<Self, TapError> {
        Self::attach(Self::device()?, name, wanted)
    }

    /// Makes the TAP interface `name` with so many queues in the network namespace of the calling thread;
    /// gives its queues.
    ///
    /// To be called before the interface is brought up, and all queues are to be kept open as long as any is
    /// used: the kernel divides flows by the number of queues (`tun_automq_select_queue`).
    ///
    /// # Errors
    /// [`TapError`] names the system call that failed.
    pub fn create_queues(name: &str, wanted: Wanted, queues: u32) -> Result<Vec<Self>, TapError> {
        if queues <= 1 {
            return Self::create(name, wanted).map(|tap| vec![tap]);
        }
        let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE) as i16;
        (0..queues).map(|_| Self::open(Self::device()?, name, wanted, flags)).collect()
    }

    /// A descriptor that [`Tap::attach`] can make a TAP of, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`TapError::Open`].
    pub fn device() -> Result<OwnedFd, TapError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(TapError::Open)
    }

    /// Makes the TAP interface `name` of a descriptor of [`Tap::device`].
    ///
    /// # Errors
    /// [`TapError`] names the system call that failed.
    pub fn attach(device: OwnedFd, name: &str, wanted: Wanted) -> Result<Self, TapError> {
        Self::open(device, name, wanted, (libc::IFF_TAP | libc::IFF_NO_PI) as i16)
    }

    /// Opens one queue of the interface with these flags, and the header if it is wanted and supported.
    fn open(fd: OwnedFd, name: &str, wanted: Wanted, bare: i16) -> Result<Self, TapError> {
        let known = sys::tun_features(&fd).unwrap_or(0).cast_signed();
        let bare = bare | (known & IFF_BACKPRESSURE) as i16;
        let with_header = bare | libc::IFF_VNET_HDR as i16;
        let attached = match wanted {
            Wanted::NoHeader => sys::tun_attach(&fd, name, bare),
            // A kernel without the header answers EINVAL to the flag.
            _ => match sys::tun_attach(&fd, name, with_header) {
                Err(Errno::INVAL) => sys::tun_attach(&fd, name, bare),
                other => other,
            },
        };
        attached.map_err(|e| TapError::Attach(name.to_owned(), e))?;
        Self::from_fd(fd, wanted)
    }

    /// Takes over the descriptor of a TAP interface, and requests offloads as `wanted`. The presence of a
    /// header was fixed when the descriptor was attached and is queried from the kernel.
    ///
    /// # Errors
    /// [`TapError`] names the system call that failed.
    pub fn from_fd(fd: OwnedFd, wanted: Wanted) -> Result<Self, TapError> {
        let flags = c_flags(sys::tun_flags(&fd).map_err(|_| TapError::NotTap)?);
        if flags & libc::IFF_TAP == 0 || flags & libc::IFF_NO_PI == 0 {
            return Err(TapError::NotTap);
        }
        let status = rustix::fs::fcntl_getfl(&fd).map_err(TapError::NonBlocking)?;
        rustix::fs::fcntl_setfl(&fd, status | OFlags::NONBLOCK).map_err(TapError::NonBlocking)?;
        let header = flags & libc::IFF_VNET_HDR != 0;
        let mut caps = LinkCaps::default();
        if header {
            sys::tun_set_header_len(&fd, HEADER_LEN as i32).map_err(TapError::Header)?;
            sys::tun_set_little_endian(&fd).map_err(TapError::Header)?;
            caps = probe_offloads(&fd, wanted);
        }
        let back_pressure = flags & IFF_BACKPRESSURE != 0;
        Ok(Self { fd, header, back_pressure, caps, wait: None, gone: false, losses: LinkLosses::default() })
    }

    /// A queue of a TAP that another process has made by [`Tap::create`], of which only frames are taken.
    pub fn only_to_take(fd: OwnedFd) -> Self {
        let (caps, losses) = Default::default();
        Self { fd, header: true, back_pressure: false, caps, wait: None, gone: false, losses }
    }

    /// Whether each frame has a virtio-net header.
    pub fn has_header(&self) -> bool {
        self.header
    }

    /// Returns the descriptor, to pass it to another process.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Sets the length of the header again, after another owner of a queue has changed it.
    fn set_header_len(&self) -> Result<(), Errno> {
        sys::tun_set_header_len(&self.fd, HEADER_LEN as i32)
    }

    /// Takes one frame: its metadata and its length at the start of `buf`; `None` if there is none now. A
    /// frame longer than `buf` would lose its end without a sign, hence `buf` has room for [`FRAME_MAX`]
    /// bytes.
    ///
    /// # Errors
    /// The descriptor is broken for good.
    pub fn recv(&mut self, buf: &mut [u8]) -> Result<Option<(RxMeta, usize)>, FailedCall> {
        debug_assert!(buf.len() >= FRAME_MAX, "a short buffer truncates frames silently");
        let mut header = [0; HEADER_LEN];
        loop {
            let read = if self.header {
                rustix::io::readv(&self.fd, &mut [IoSliceMut::new(&mut header), IoSliceMut::new(buf)])
            } else {
                rustix::io::read(&self.fd, &mut *buf)
            };
            return match read {
                Ok(len) if self.header => {
                    let len = len.saturating_sub(HEADER_LEN);
                    Ok(Some((vnet::complete(&header, &mut buf[..len]), len)))
                }
                Ok(len) => Ok(Some((RxMeta::default(), len))),
                Err(Errno::AGAIN) => Ok(None),
                Err(Errno::INTR) => continue,
                Err(Errno::BADFD) => {
                    self.gone = true;
                    Ok(None)
                }
                // The kernel has taken a frame off the ring for this, so a guest that goes on like that pays
                // for each.
                Err(Errno::INVAL) if self.header => {
                    self.set_header_len().map_err(FailedCall::of("ioctl TUNSETVNETHDRSZ"))?;
                    Ok(Some((RxMeta::default(), 0)))
                }
                Err(e) => Err(FailedCall { call: "readv", error: e.into() }),
            };
        }
    }

    /// Treatment of a frame whose write failed: refused for now, or lost.
    fn write_failed(&mut self, errno: Errno) -> Result<(), NoCredit> {
        match errno {
            Errno::AGAIN => {
                self.wait = Some(CreditWait::Event);
                return Err(NoCredit);
            }
            Errno::NOBUFS | Errno::NOMEM => {
                self.wait = Some(CreditWait::Timer);
                return Err(NoCredit);
            }
            Errno::BADFD => {
                self.gone = true;
                self.losses.down += 1;
            }
            Errno::IO => self.losses.down += 1,
            _ => self.losses.refused += 1,
        }
        self.wait = None;
        Ok(())
    }
}

/// Name of the interface that the descriptor of a TAP is attached to, as long as it exists.
pub fn interface_name(tap: impl AsFd) -> Option<String> {
    sys::tun_name(tap).ok()
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The flags of an ifreq are a signed short whose top bit is a flag like any other.
fn c_flags(flags: i16) -> i32 {
    i32::from(flags.cast_unsigned())
}

/// Requests offloads from most to least; returns the granted ones. USO4 and USO6 are only granted together.
fn probe_offloads(fd: &OwnedFd, wanted: Wanted) -> LinkCaps {
    let checksum = libc::TUN_F_CSUM;
    let tso = checksum | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    let uso = tso | libc::TUN_F_USO4 | libc::TUN_F_USO6;
    if wanted == Wanted::Everything {
        for flags in [uso, tso, checksum] {
            if sys::tun_set_offload(fd, flags).is_ok() {
                return LinkCaps {
                    checksum: true,
                    tso: flags & tso == tso,
                    uso: flags & uso == uso,
                    packet_max: None,
                };
            }
        }
    }
    // An earlier owner of the descriptor may have requested more. A kernel that refuses even this has none
    // on.
    let _ = sys::tun_set_offload(fd, 0);
    LinkCaps::default()
}

impl GuestLink for Tap {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        Ok(poller.add(&self.fd, 0, EventFlags::IN | EventFlags::ET)?)
    }

    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        while let Some(room) = batch.room() {
            match self.recv(room)? {
                Some((meta, len)) => batch.push(meta, len),
                None => return Ok(Taken::All),
            }
        }
        Ok(Taken::Some)
    }

    /// A TAP is nearly always writable, and every frame of the guest would report that as well: hence only
    /// while credit is awaited. The kernel registers a waiter only when it is polled.
    fn await_credit(&mut self, poller: Poller<'_>, awaited: bool) -> io::Result<()> {
        let room = if awaited { EventFlags::OUT } else { EventFlags::empty() };
        Ok(poller.modify(&self.fd, 0, EventFlags::IN | EventFlags::ET | room)?)
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        self.wait
    }

    fn forget_refusal(&mut self) {
        self.wait = None;
    }

    fn has_lossy_ring(&self) -> bool {
        !self.back_pressure
    }

    fn gone(&self) -> bool {
        self.gone
    }

    fn losses(&self) -> LinkLosses {
        self.losses
    }
}

impl Link for Tap {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        let header = vnet::build(frame);
        let front = [IoSlice::new(&header), IoSlice::new(frame.headers)];
        let mut again = self.header;
        gathered(&front[usize::from(!self.header)..], frame.payload, |slices| {
            loop {
                match rustix::io::writev(&self.fd, slices) {
                    // A TAP takes a frame whole.
                    Ok(_) => {
                        self.wait = None;
                        return Ok(());
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::INVAL) if again && self.set_header_len().is_ok() => again = false,
                    Err(e) => return self.write_failed(e),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests;
