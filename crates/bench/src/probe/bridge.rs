//! The bound of a back end for virtual machines: frames between a monitor and an interface, and no more.
//!
//! The interface is a TAP in this namespace, whose kernel is the machine's peer: no TCP lies between the two,
//! each byte is copied as often as a forwarder's first and last copies do it, and offloads go through as they
//! come. A forwarder with a TCP of its own does more for each byte, so its share of this throughput is what
//! that costs.
//!
//! One thread: frames are taken from one side in batches and sent to the other; without credit there they
//! wait in their batch, and that side is not read.

use super::machine::{MonitorKind, Subnet};
use crate::world::ip_batch;
use brodo_core::link::{PartialChecksum, RxChecksum, RxMeta, TxFrame};
use brodo_core::wire::ethernet::MacAddr;
use brodo_core::wire::{TCP, UDP};
use brodo_link::batch::{ARENA_LEN, Batch};
use brodo_link::connections::Listening;
use brodo_link::poller::{Poller, Token};
use brodo_link::socket::{Framing, SocketLink};
use brodo_link::tap::{Tap, Wanted};
use brodo_link::vhost_user::{MachineConfig, VhostUserLink};
use brodo_link::{FailedCall, GuestLink, Taken};
use clap::Args;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event};
use rustix::net::SocketType;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

/// Batches moved one way before the other way has its turn.
const BATCHES: usize = 4;
/// Events taken at a time.
const EVENTS: usize = 16;
/// Wait while a side is without credit, as far as no event ends it: a millisecond.
const CREDIT_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The bridge.
#[derive(Debug, Args)]
pub(super) struct Bridge {
    kind: MonitorKind,
    path: PathBuf,
    #[arg(long)]
    mtu: u16,
    #[command(flatten)]
    subnet: Subnet,
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// Serves one monitor after the other, until it is killed.
pub(super) fn run(bridge: &Bridge) -> io::Result<()> {
    // Offloads: frames on a stream have none.
    let offload = match bridge.kind {
        MonitorKind::VhostUser => true,
        MonitorKind::Stream => false,
        MonitorKind::Dgram | MonitorKind::Seqpacket => return Err(io::ErrorKind::Unsupported.into()),
    };
    let wanted = if offload { Wanted::Everything } else { Wanted::NoOffload };
    let tap = Tap::create(&bridge.interface(), wanted).map_err(other)?;
    bridge.configure()?;
    let listener = UnixListener::bind(&bridge.path)?;
    listener.set_nonblocking(true)?;
    std::fs::set_permissions(&bridge.path, PermissionsExt::from_mode(0o666))?;
    let source = Box::new(Listening::new(OwnedFd::from(listener)));
    if offload {
        let config =
            MachineConfig { mac: MacAddr::BROADCAST, mtu: bridge.mtu, offload, queues: 1, plain: false };
        let link = VhostUserLink::links(source, config, 1)?.pop().ok_or(io::ErrorKind::NotFound)?;
        serve(link, tap)
    } else {
        serve(SocketLink::new(source, Framing::of(SocketType::STREAM)), tap)
    }
}

impl Bridge {
    fn interface(&self) -> String {
        format!("bridge{}", self.subnet.number)
    }

    /// Brings the interface up with the addresses of the machine's router.
    fn configure(&self) -> io::Result<()> {
        let (name, mtu, subnet) = (self.interface(), self.mtu, &self.subnet);
        let lines = format!(
            "link set {name} mtu {mtu} up\naddr add {}/24 dev {name}\naddr add {}/64 dev {name} nodad\n",
            subnet.v4(2),
            subnet.v6(2)
        );
        ip_batch(&[], &lines).map_err(|e| other(e.0))
    }
}

/// Frames of one direction that wait for credit.
struct Passage {
    arena: Vec<u8>,
    waiting: VecDeque<(RxMeta, Range<usize>)>,
    /// The side they come from may have more.
    more: bool,
}

impl Passage {
    fn new() -> Self {
        Self { arena: vec![0; ARENA_LEN], waiting: VecDeque::new(), more: true }
    }

    /// Sends what waits; false if the other side has no credit.
    fn send(&mut self, to: &mut impl GuestLink) -> bool {
        while let Some((meta, range)) = self.waiting.front() {
            if send(to, *meta, &self.arena[range.clone()]) {
                self.waiting.pop_front();
            } else {
                return false;
            }
        }
        true
    }

    /// Moves some batches; false if it ended for lack of credit.
    fn pass(&mut self, from: &mut impl GuestLink, to: &mut impl GuestLink) -> Result<bool, FailedCall> {
        for _ in 0..BATCHES {
            if !self.send(to) {
                return Ok(false);
            }
            if !self.more {
                break;
            }
            let mut batch = Batch::new(&mut self.arena, false);
            self.more = from.take(&mut batch)? == Taken::Some;
            let mut at = 0;
            for frame in batch.frames() {
                self.waiting.push_back((frame.meta, at..at + frame.bytes.len()));
                at += frame.bytes.len();
            }
        }
        Ok(self.send(to))
    }
}

/// Sends a frame as it came; false without credit.
fn send(to: &mut impl GuestLink, meta: RxMeta, frame: &[u8]) -> bool {
    let layer4 = layer4(frame);
    let headers_len = layer4.map_or(frame.len().min(14), |at| at.payload);
    let (headers, payload) = frame.split_at(headers_len);
    let is_partial = meta.checksum == RxChecksum::Valid && to.caps().checksum;
    let partial = layer4.filter(|_| is_partial).map(|at| at.partial);
    to.send(&TxFrame { headers, payload: &[IoSlice::new(payload)], partial, gso: meta.gso }).is_ok()
}

/// Places in a frame of TCP or UDP.
#[derive(Debug, Clone, Copy)]
struct Layer4 {
    partial: PartialChecksum,
    payload: usize,
}

fn layer4(frame: &[u8]) -> Option<Layer4> {
    let at = |offset: usize| frame.get(offset).copied();
    let (start, protocol) = match (at(12)?, at(13)?) {
        (0x08, 0x00) => (14 + usize::from(at(14)? & 15) * 4, at(23)?),
        (0x86, 0xdd) => (14 + 40, at(20)?),
        _ => return None,
    };
    let (offset, len) = match protocol {
        TCP => (16, usize::from(at(start + 12)? >> 4) * 4),
        UDP => (6, 8),
        _ => return None,
    };
    let payload = start + len;
    (payload <= frame.len()).then_some(())?;
    Some(Layer4 { partial: PartialChecksum { start: start as u16, offset }, payload })
}

fn serve(mut machine: impl GuestLink, mut tap: Tap) -> io::Result<()> {
    const MACHINE: u32 = 0;
    const TAP: u32 = 1;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let pollers = [MACHINE, TAP].map(|source| Poller::new(epoll.as_fd(), source));
    machine.register(pollers[0])?;
    tap.register(pollers[1])?;
    let (mut up, mut down) = (Passage::new(), Passage::new());
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
    let failed = |failed: FailedCall| other(failed);
    loop {
        let credit = up.pass(&mut machine, &mut tap).map_err(failed)?;
        let credit = down.pass(&mut tap, &mut machine).map_err(failed)? && credit;
        machine.flush(pollers[0]);
        tap.flush(pollers[1]);
        let waits = [machine.credit_wait().is_some(), tap.credit_wait().is_some()];
        if waits[0] {
            machine.await_credit(pollers[0], true)?;
        }
        if waits[1] {
            tap.await_credit(pollers[1], true)?;
        }
        up.more |= up.waiting.is_empty() && machine.has_frames(true);
        let busy = [&up, &down].iter().any(|passage| passage.more && passage.waiting.is_empty());
        let timeout = match (busy, credit) {
            (true, _) => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
            (false, false) => Some(CREDIT_WAIT),
            (false, true) => None,
        };
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref())?;
        for event in &events {
            let Token::Source { source, key } = Token::read({ event.data }.u64()) else { continue };
            if source == MACHINE {
                up.more |= machine.ready(key, event.flags).frames;
            } else {
                down.more |= tap.ready(key, event.flags).frames;
            }
        }
        machine.forget_refusal();
        tap.forget_refusal();
    }
}
