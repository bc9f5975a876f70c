//! The link of an engine: a TAP, or the socket or the rings of a virtual machine, or either of them.

use super::arrivals::Arrivals;
use super::launch::{GuestSide, Launch, MonitorProtocol};
use crate::failure::Failure;
use brodo_core::link::{Link, LinkCaps, NoCredit, TxFrame, Unread};
use brodo_core::wire::ethernet::MacAddr;
use brodo_link::batch::Batch;
use brodo_link::poller::Poller;
use brodo_link::socket::SocketLink;
use brodo_link::spoken::SpokenLink;
use brodo_link::tap::{Tap, Wanted};
use brodo_link::vhost_user::{MachineConfig, VhostUserLink};
use brodo_link::virtio::unread::UnreadFrames;
use brodo_link::{CreditWait, EventFlags, FailedCall, GuestLink, LinkLosses, LinkReady, SavedLink, Taken};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The link to the guest, of any kind.
#[allow(clippy::large_enum_variant, reason = "one for each worker")]
pub(super) enum EngineLink {
    Tap(Tap),
    Socket(SocketLink),
    VhostUser(VhostUserLink),
    AsSpoken(SpokenLink),
}

/// The links to the guest, one for each worker, on copies of the descriptors; with `goes_on` for an engine
/// that goes on with what one before has left. A stream's position is noted in `position`.
pub(super) fn links(
    launch: &Launch,
    goes_on: bool,
    position: Option<&'static AtomicU64>,
) -> Result<Vec<EngineLink>, Failure> {
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(Failure::io("start the engine: dup"));
    match &launch.attached.side {
        GuestSide::Interface { taps, .. } => {
            let tap = |tap| Tap::from_fd(copy(tap)?, launch.offload).map_err(Failure::Tap);
            taps.iter().map(|queue| tap(queue).map(EngineLink::Tap)).collect()
        }
        GuestSide::Monitor { channel, protocol, workers } => {
            let arrivals = Box::new(Arrivals::new(copy(channel)?, goes_on));
            match *protocol {
                MonitorProtocol::Frames(framing) => {
                    Ok(vec![EngineLink::Socket(SocketLink::new(arrivals, framing).noting(position))])
                }
                MonitorProtocol::VhostUser { queues, plain } => {
                    let config = MachineConfig { plain, ..machine(launch, queues) };
                    let links = VhostUserLink::links(arrivals, config, *workers)
                        .map_err(Failure::io("serve the virtual machine's rings: eventfd"))?;
                    Ok(links.into_iter().map(EngineLink::VhostUser).collect())
                }
                MonitorProtocol::AsSpoken { queues } => {
                    let link = SpokenLink::new(arrivals, machine(launch, queues))
                        .map_err(Failure::io("serve the virtual machine's rings: eventfd"))?;
                    Ok(vec![EngineLink::AsSpoken(link.noting(position))])
                }
            }
        }
    }
}

/// Properties of the machine's device.
fn machine(launch: &Launch, queues: usize) -> MachineConfig {
    // The command line has one, or its own for all machines.
    let mac = launch.config.guest_mac.unwrap_or(MacAddr::BROADCAST);
    let (mtu, offload) = (launch.config.mtu, launch.offload == Wanted::Everything);
    MachineConfig { mac, mtu, offload, queues, plain: false }
}

/// Does the same with the link of any kind.
macro_rules! each {
    ($self:expr, $link:ident => $what:expr) => {
        match $self {
            EngineLink::Tap($link) => $what,
            EngineLink::Socket($link) => $what,
            EngineLink::VhostUser($link) => $what,
            EngineLink::AsSpoken($link) => $what,
        }
    };
}

impl Link for EngineLink {
    fn caps(&self) -> LinkCaps {
        each!(self, link => link.caps())
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        each!(self, link => link.send(frame))
    }

    fn read(&self, unread: Unread, into: &mut [u8]) -> usize {
        each!(self, link => link.read(unread, into))
    }
}

impl GuestLink for EngineLink {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        each!(self, link => link.register(poller))
    }

    fn ready(&mut self, key: u32, events: EventFlags) -> LinkReady {
        each!(self, link => link.ready(key, events))
    }

    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        each!(self, link => link.take(batch))
    }

    fn unread(&self) -> Option<Arc<UnreadFrames>> {
        each!(self, link => link.unread())
    }

    fn has_frames(&mut self, arm: bool) -> bool {
        each!(self, link => link.has_frames(arm))
    }

    fn flush(&mut self, poller: Poller<'_>) {
        each!(self, link => link.flush(poller));
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        each!(self, link => link.credit_wait())
    }

    fn await_credit(&mut self, poller: Poller<'_>, awaited: bool) -> io::Result<()> {
        each!(self, link => link.await_credit(poller, awaited))
    }

    fn wait_overdue(&mut self) {
        each!(self, link => link.wait_overdue());
    }

    fn forget_refusal(&mut self) {
        each!(self, link => link.forget_refusal());
    }

    fn has_lossy_ring(&self) -> bool {
        each!(self, link => link.has_lossy_ring())
    }

    fn take_reset(&mut self) -> bool {
        each!(self, link => link.take_reset())
    }

    fn gone(&self) -> bool {
        each!(self, link => link.gone())
    }

    fn losses(&self) -> LinkLosses {
        each!(self, link => link.losses())
    }

    fn save(&self) -> Option<SavedLink<'_>> {
        each!(self, link => link.save())
    }

    fn restore(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        each!(self, link => link.restore(bytes, descriptors));
    }
}
