//! State of one engine for the next: bytes and descriptors over a stream socket between the two.
//!
//! ```text
//! warden                     engine before                          engine after
//! start ------------------------------------------------------------> Awaiting
//! engine.pass_streams -----> sockets of connections ---------------> examines them (early.rs)
//! engine.freeze -----------> all workers park
//!                            header, descriptors, bytes ------------> restores, seals itself: Ready
//! engine.retire -----------> ends                       (or engine.thaw: goes on)
//! engine.go --------------------------------------------------------> serves
//! ```
//!
//! *Directly*, not by way of the warden: thousands of sockets would pass its table of descriptors, and their
//! content is no business of its. It decides, and both engines obey it alone. The receiver checks everything,
//! because the sender may have been taken over: lengths before memory is used, the number of descriptors,
//! and every value in `brodo-net` and `brodo-core`.
//!
//! *At no time do two engines carry frames.* The engine before goes on by itself only while no retirement was
//! asked of it ([`Freezing`]): a warden that stands still for too long finds the retirement refused, and
//! the engine after ends. The passage of the state and the wait for the decision together take no longer
//! than the warden itself lets the guest wait ([`PAUSE_MAX`]).
//!
//! *In the end one does.* An engine that has retired never goes on. A warden that has not seen the reply
//! (its machine was halted meanwhile) ends the engine after and thaws the one before, which then ends as one
//! that has crashed: another one goes on with its flows. The same follows if no word comes at all
//! ([`Freezing::await_end`]).

pub(super) mod early;

use crate::conversation::lines::{self, wait_for};
use crate::conversation::message::PAUSE_MAX;
use brodo_control::rpc::{Error, code};
use brodo_net::fd_passing::{self, DESCRIPTORS_MAX};
use brodo_net::{EarlyStreams, Takeover};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest time for the passage of sockets in advance, while the guest is served.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes received at a time: as many as a socket holds by default. The room for them is filled with zeros
/// first.
const READ_SIZE: usize = 256 << 10;
/// Lengths of both parts, each in 8 bytes.
const HEADER_LEN: usize = 16;

/// Sends a state.
///
/// # Errors
/// The receiver has ended, or has not read it all by the time `until`.
pub(super) fn send(
    to: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    until: Instant,
) -> io::Result<()> {
    let header = Header { bytes: bytes.len() as u64, descriptors: descriptors.len() as u64 };
    lines::send(to, &header.to_bytes(), None, until.saturating_duration_since(Instant::now()))?;
    for some in descriptors.chunks(DESCRIPTORS_MAX) {
        send_descriptors(to, some, until)?;
    }
    lines::send(to, bytes, None, until.saturating_duration_since(Instant::now()))
}

/// Sends one message of descriptors, with a byte that carries them.
fn send_descriptors(to: BorrowedFd<'_>, some: &[BorrowedFd<'_>], until: Instant) -> io::Result<()> {
    loop {
        match fd_passing::send(to, &[0], some, SendFlags::DONTWAIT) {
            Ok(_) => return Ok(()),
            // Too many are on their way, in the socket or among all of the user's processes.
            Err(Errno::AGAIN) => wait_for(to, PollFlags::OUT, until)?,
            Err(Errno::TOOMANYREFS) if Instant::now() < until => {
                let pause = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let _ = poll(&mut [], Some(&pause));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Bounds on a state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most {
    pub(super) bytes: u64,
    pub(super) descriptors: u64,
}

/// Receives a state, after waiting for its beginning for any time: the warden ends an engine that waits too
/// long.
///
/// # Errors
/// The sender has ended, does not send in time, or sends more than `most`.
pub(super) fn receive(from: &OwnedFd, most: Most) -> io::Result<Takeover> {
    let descriptors_max = most.descriptors as usize;
    let mut receiver = Receiver { from, until: Instant::now(), descriptors: Vec::new(), descriptors_max };
    receiver.await_more(PATIENCE)?;
    let mut header = receiver.header()?;
    let mut streams = EarlyStreams::default();
    if header.bytes == early::ANNOUNCED {
        streams = early::receive(&mut receiver)?;
        // The state may be long in coming: the warden ends an engine that waits for too long.
        receiver.await_more(PAUSE_MAX)?;
        header = receiver.header()?;
    }
    let Header { bytes, descriptors } = header;
    if bytes > most.bytes || descriptors.saturating_add(streams.len() as u64) > most.descriptors {
        return Err(ErrorKind::InvalidData.into());
    }
    receiver.bytes(descriptors.div_ceil(DESCRIPTORS_MAX as u64) as usize)?;
    let bytes = receiver.bytes(bytes as usize)?;
    // The kernel omits those for which there is no number left.
    if receiver.descriptors.len() as u64 != descriptors {
        return Err(Errno::MFILE.into());
    }
    Ok(Takeover { bytes, descriptors: receiver.descriptors, early: streams })
}

/// Lengths of what follows.
struct Header {
    bytes: u64,
    descriptors: u64,
}

impl Header {
    fn to_bytes(&self) -> Vec<u8> {
        [self.bytes, self.descriptors].iter().flat_map(|length| length.to_le_bytes()).collect()
    }
}

struct Receiver<'a> {
    from: &'a OwnedFd,
    until: Instant,
    descriptors: Vec<OwnedFd>,
    descriptors_max: usize,
}

impl Receiver<'_> {
    /// Waits for any time, and from then on no longer than `patience`.
    fn await_more(&mut self, patience: Duration) -> io::Result<()> {
        let mut begun = [PollFd::new(self.from, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut begun, None))?;
        self.until = Instant::now() + patience;
        Ok(())
    }

    fn header(&mut self) -> io::Result<Header> {
        let header = self.bytes(HEADER_LEN)?;
        let (bytes, descriptors) = header.split_at(HEADER_LEN / 2);
        let number = |bytes: &[u8]| bytes.try_into().map_or(u64::MAX, u64::from_le_bytes);
        Ok(Header { bytes: number(bytes), descriptors: number(descriptors) })
    }

    /// So many bytes, and the descriptors that come with them. Pages of memory are used as they come.
    fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| ErrorKind::OutOfMemory)?;
        while bytes.len() < length {
            let (at, more) = (bytes.len(), (length - bytes.len()).min(READ_SIZE));
            bytes.resize(at + more, 0);
            let received = self.some(&mut bytes[at..])?;
            bytes.truncate(at + received);
        }
        Ok(bytes)
    }

    fn some(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match fd_passing::receive(self.from, into, DESCRIPTORS_MAX, RecvFlags::DONTWAIT) {
            Ok(received) => {
                self.descriptors.extend(received.descriptors);
                if self.descriptors.len() > self.descriptors_max {
                    return Err(ErrorKind::InvalidData.into());
                }
                if received.length == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(received.length) }
            }
            Err(Errno::AGAIN) => wait_for(self.from.as_fd(), PollFlags::IN, self.until).map(|()| 0),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Progress of a freeze.
#[derive(Debug, Default)]
enum Phase {
    /// It serves.
    #[default]
    Serving,
    /// It is about to freeze, and gives its state to this socket.
    Asked(OwnedFd),
    /// No worker runs.
    Frozen,
    /// It goes on as soon as it sees this.
    Thawing,
    /// It has given up the guest for ever.
    Retired,
    /// It has, and the engine after does not begin: it ends.
    Abandoned,
}

/// The decision about a frozen engine, between the thread that answers the warden and the first worker.
#[derive(Debug, Default)]
pub(crate) struct Freezing {
    phase: Mutex<Phase>,
    changed: Condvar,
    /// Streams passed in advance of the next freeze.
    passed: AtomicU32,
}

impl Freezing {
    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many streams were passed in advance.
    pub(super) fn note_passed(&self, count: u32) {
        self.passed.store(count, Ordering::Relaxed);
    }

    /// Streams passed in advance.
    pub(super) fn passed(&self) -> u32 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Takes the socket for the state.
    ///
    /// # Errors
    /// A freeze is under way.
    pub(super) fn ask(&self, to: OwnedFd) -> Result<(), Error> {
        let mut phase = self.lock();
        match *phase {
            Phase::Serving => *phase = Phase::Asked(to),
            _ => return Err(Error::new(code::BUSY, "the engine is frozen already")),
        }
        Ok(())
    }

    /// In the first worker: the socket for the state, once all workers are parked.
    pub(super) fn frozen(&self) -> Option<OwnedFd> {
        match std::mem::replace(&mut *self.lock(), Phase::Frozen) {
            Phase::Asked(to) => Some(to),
            _ => None,
        }
    }

    /// Makes the engine go on, or end if it has retired.
    pub(super) fn thaw(&self) {
        let mut phase = self.lock();
        match *phase {
            Phase::Serving => {}
            Phase::Retired | Phase::Abandoned => *phase = Phase::Abandoned,
            Phase::Asked(_) | Phase::Frozen | Phase::Thawing => *phase = Phase::Thawing,
        }
        self.changed.notify_all();
    }

    /// Ends the engine's service.
    ///
    /// # Errors
    /// It is not frozen, or not any more.
    pub(super) fn retire(&self) -> Result<(), Error> {
        let mut phase = self.lock();
        match *phase {
            Phase::Frozen | Phase::Retired => *phase = Phase::Retired,
            _ => return Err(Error::new(code::FAILED, "the engine is not frozen any more")),
        }
        self.changed.notify_all();
        Ok(())
    }

    /// In the first worker: waits for the decision up to the time `until`; true if the engine has retired.
    pub(super) fn is_to_retire(&self, until: Instant) -> bool {
        let undecided = |phase: &mut Phase| matches!(phase, Phase::Frozen);
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, undecided);
        let (mut phase, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let retired = matches!(*phase, Phase::Retired | Phase::Abandoned);
        if !retired {
            *phase = Phase::Serving;
        }
        retired
    }

    /// In the first worker of an engine that has retired: waits for its end by the warden. Returns when the
    /// warden wants it to end by itself, or if that wait is longer than `patience`.
    pub(super) fn await_end(&self, patience: Duration) {
        let retired = |phase: &mut Phase| matches!(phase, Phase::Retired);
        drop(self.changed.wait_timeout_while(self.lock(), patience, retired));
    }

    /// In the first worker: the engine could not be frozen, or its state not be sent.
    pub(super) fn failed(&self) {
        *self.lock() = Phase::Serving;
    }
}

#[cfg(test)]
mod tests;
