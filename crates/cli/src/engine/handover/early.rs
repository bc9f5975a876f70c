//! Sockets of connections in advance of a state, so that the guest does not wait for thousands of them.
//!
//! ```text
//! engine before                              engine after
//!                     <---- a byte ------    offer(): understands this
//! pass(): a header, then messages of
//! streams and their flows            --->    receive(): examines and registers each
//! a message of none                  --->
//!                     <---- a byte ------    all are there
//! ```
//!
//! An engine that does not offer it gets the state alone. The guest is served meanwhile: each message is a
//! command to a worker, between two of its turns.

use super::{DESCRIPTORS_MAX, Header, PATIENCE, Receiver, lines, wait_for};
use crate::engine::ask::ask;
use brodo_control::rpc::{Error, code};
use brodo_net::command::Command;
use brodo_net::handover::{EarlyHeader, EarlyStreams, Passed, PassedFrom};
use brodo_net::workers::Workers;
use rustix::event::{PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Instant;

/// Length of a state in the header in front of streams that come in advance of one.
pub(super) const ANNOUNCED: u64 = u64::MAX;
/// Byte of the receiver.
const READY: &[u8] = &[1];

/// In the engine after: offers to take streams in advance. If that fails so does the state.
pub(in crate::engine) fn offer(to: &OwnedFd) {
    let _ = lines::send(to.as_fd(), READY, None, PATIENCE);
}

/// In the engine before, while it serves: passes the streams of all workers; their number.
///
/// # Errors
/// The receiver has ended, or does not read in time; a worker does not answer.
pub(in crate::engine) fn pass(to: &Arc<OwnedFd>, workers: &Workers) -> Result<u32, Error> {
    let failed = |error: io::Error| Error::new(code::FAILED, format!("pass sockets: {error}"));
    let mut byte = [0];
    if !matches!(recv(to, &mut byte[..], RecvFlags::DONTWAIT), Ok((_, 1))) {
        return Ok(0);
    }
    let until = Instant::now() + PATIENCE;
    let header = Header { bytes: ANNOUNCED, descriptors: 0 };
    lines::send(to.as_fd(), &header.to_bytes(), None, PATIENCE).map_err(failed)?;
    let mut passed = 0;
    for worker in 0..workers.workers() {
        let mut from = Some(0);
        while let Some(at) = from {
            let place = PassedFrom { worker: worker as u16, from: at, first: passed };
            let command = |reply| Command::PassStreams { to: to.clone(), place, reply };
            match ask(workers, worker, command)? {
                Ok(Passed { count, next }) => (passed, from) = (passed + count, next),
                Err(error) => make_room(to.as_fd(), error, until).map_err(failed)?,
            }
        }
    }
    let end = EarlyHeader { count: 0, worker: 0 };
    lines::send(to.as_fd(), &end.to_bytes(), None, PATIENCE).map_err(failed)?;
    wait_for(to.as_fd(), PollFlags::IN, until).map_err(failed)?;
    match recv(to, &mut byte[..], RecvFlags::DONTWAIT) {
        Ok((_, 1)) => Ok(passed),
        _ => Err(failed(ErrorKind::UnexpectedEof.into())),
    }
}

/// Waits until fewer descriptors are on their way.
fn make_room(to: BorrowedFd<'_>, refused: io::Error, until: Instant) -> io::Result<()> {
    match Errno::from_io_error(&refused) {
        Some(Errno::AGAIN) => wait_for(to, PollFlags::OUT, until),
        Some(Errno::TOOMANYREFS) if Instant::now() < until => {
            let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
            Ok(())
        }
        _ => Err(refused),
    }
}

/// In the engine after: receives streams behind their header.
pub(super) fn receive(receiver: &mut Receiver<'_>) -> io::Result<EarlyStreams> {
    let mut streams = EarlyStreams::default();
    loop {
        let header = receiver.bytes(EarlyHeader::LEN)?;
        let header = EarlyHeader::parse(header.try_into().map_err(|_| ErrorKind::InvalidData)?);
        let (count, came) = (usize::from(header.count), std::mem::take(&mut receiver.descriptors));
        if count > DESCRIPTORS_MAX || streams.len() + count > receiver.descriptors_max {
            return Err(ErrorKind::InvalidData.into());
        }
        // The kernel omits those for which there is no number left.
        if came.len() != count {
            return Err(Errno::MFILE.into());
        }
        if count == 0 {
            streams.make_room();
            lines::send(receiver.from.as_fd(), READY, None, PATIENCE)?;
            return Ok(streams);
        }
        let flows = receiver.bytes(count * size_of::<u64>())?;
        for (stream, flow) in came.into_iter().zip(flows.chunks_exact(size_of::<u64>())) {
            let flow = flow.try_into().map_or(0, u64::from_le_bytes);
            streams.add(header.worker, flow, stream);
        }
    }
}
