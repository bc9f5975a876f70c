//! Frames moved between the guest's TAP and one in this namespace, and no more, in place of a veth pair.
//!
//! Kernel TCP is at both ends, each byte is copied twice, offloads go through as they come. So the difference
//! between [`Carrier::Calls`] and a ring is the difference of these two ways alone.

use super::relay::Carrier;
use super::ring::{Ends, Ring};
use brodo_link::tap::{Tap, Wanted};
use brodo_link::vnet::HEADER_LEN;
use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread;

/// Frames moved one way before the other way has its turn.
const FRAMES: usize = 64;
/// Room for the longest frame, and buffers of a ring.
const FRAME_LEN: usize = 68 << 10;
const BUFFERS: u16 = 16;

/// The two interfaces.
#[derive(Debug, Args)]
pub(super) struct Taps {
    carrier: Carrier,
    /// Queues of each, with a thread for every pair of them; a ring has one
    queues: u32,
    /// Interface of this namespace
    device: String,
    /// The guest's namespace, in which the interface is eth0
    namespace: PathBuf,
}

/// Moves frames until it is killed.
pub(super) fn run(taps: &Taps) -> io::Result<()> {
    let open = |name| -> io::Result<Vec<OwnedFd>> {
        let queues = Tap::create_queues(name, Wanted::Everything, taps.queues).map_err(io::Error::other)?;
        Ok(queues.into_iter().map(Tap::into_fd).collect())
    };
    let here = open(&taps.device)?;
    setns(File::open(&taps.namespace)?, CloneFlags::CLONE_NEWNET)?;
    let there = open("eth0")?;
    match taps.carrier {
        Carrier::Calls => thread::scope(|scope| {
            let pairs = here.iter().zip(&there);
            let threads: Vec<_> = pairs.map(|(a, b)| scope.spawn(move || by_calls([a, b]))).collect();
            threads.into_iter().try_for_each(|one| one.join().unwrap_or(Ok(())))
        }),
        Carrier::Splice => Err(io::ErrorKind::Unsupported.into()),
        Carrier::Ring | Carrier::PolledRing => {
            let polled = taps.carrier == Carrier::PolledRing;
            Ring::new(BUFFERS, FRAME_LEN, polled, None)?.pump([&here[0], &there[0]], Ends::Interfaces)
        }
    }
}

fn by_calls(ends: [&OwnedFd; 2]) -> io::Result<()> {
    let mut buffer = vec![0; FRAME_LEN + HEADER_LEN];
    loop {
        let mut waiting = ends.map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN));
        poll(&mut waiting, PollTimeout::NONE)?;
        let ready = waiting.map(|end| end.any() == Some(true));
        for (from, to) in [(0, 1), (1, 0)] {
            if ready[from] {
                pass(ends[from], ends[to], &mut buffer)?;
            }
        }
    }
}

fn pass(from: &OwnedFd, to: &OwnedFd, buffer: &mut [u8]) -> io::Result<()> {
    for _ in 0..FRAMES {
        let len = match rustix::io::read(from, &mut *buffer) {
            Ok(len) => len,
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(error.into()),
        };
        // The kernel drops a frame that it does not take, as on any link.
        let _ = rustix::io::write(to, &buffer[..len]);
    }
    Ok(())
}
