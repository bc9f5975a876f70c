//! The place for promoted flows, and the agent's process in it: a middle namespace beside the guest's.
//!
//! ```text
//! brodo                                   agent
//!                                         joins the guest's namespaces, opens two netlink sockets there
//!                                         middle namespace, veth pair, addresses, redirection
//!                        <-- Go or Failed --    confined, repair mode and steering tried
//! ```
//!
//! then the conversation of [`brodo_net::promotion`], which has the picture. Each step that this kernel
//! refuses is an error with its errno; promotion is off then, and nothing else is affected.
//!
//! *Owner.* The middle namespace belongs to the user namespace that owns the guest's: there a process can
//! make both ends of the veth pair, and an ordinary user has none above it. The guest's root has rights over
//! the middle namespace by that, but no way into it: it is in no path, and the agent cannot be traced. By the
//! number that the veth pair has for the other end's namespace, link requests reach it. They can break the
//! guest's own promoted flows, and nothing else is there.
//!
//! *Datagrams* that are too many for the interface get a TAP beside it ([`datagram_queue`]).
//!
//! *Addresses.* The middle end of the pair has the router's MAC address, which is where the guest's segments
//! go; everything that comes in there is local, and the guest's addresses are permanent neighbours. The
//! guest's end has the MAC address of the interface and no IP address: it is a way between two hooks.
//!
//! *Privileges.* The agent keeps CAP_NET_ADMIN in the guest's user namespace, and CAP_NET_BIND_SERVICE
//! because the peers' ports are the low ones, and loses every other capability and descriptor. For a
//! namespace that root has made (`ip netns`) these are capabilities on the host; every network namespace but
//! the two is out of its reach without CAP_SYS_ADMIN. The rest is a list of system calls
//! ([`system_calls`]), in force once the steering was tried.
//!
//! *Its life.* It ends when brodo's end of the channel is closed, and removes its table of nf_tables, which
//! a namespace that outlives brodo would keep; that of `brodo run` ends with its command, and takes the table
//! along. So it is not killed with brodo as the socket broker is.
//!
//! System calls: socketpair, fork, setns, unshare, prctl, capset, `close_range`, seccomp; rtnetlink; those of
//! [`brodo_net::promotion`].
//!
//! [`datagram_queue`]: brodo_net::promotion::datagram_queue

pub mod system_calls;

use crate::handoff::{Handoff, Message};
use crate::namespace::{self, Target};
use crate::process::{self, Child, forget_words, raw};
use crate::setup::{Interface, SetupError, Step};
use brodo_link::tap::Tap;
use brodo_net::netlink::nftables::Nftables;
use brodo_net::netlink::side::Far;
use brodo_net::netlink::{LinkSettings, Netlink};
use brodo_net::promotion::agent::serve;
use brodo_net::promotion::client::PromotionAgent;
use brodo_net::promotion::datagram_queue::{DatagramInterface, DatagramQueue};
use brodo_net::promotion::repaired::try_mode;
use brodo_net::promotion::steering::{Hooked, Steering};
use brodo_sandbox::Confinement;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use std::net::IpAddr;

/// Routing table of the middle namespace in which every address is local.
const TABLE: u8 = 100;
/// Longest part of the interface's name in that of the way beside it; the kernel takes 15 bytes in all.
const STEM_MAX: usize = 10;

/// The guest's interface, and the MAC address of its router.
#[derive(Debug, Clone, Copy)]
pub struct Beside<'a> {
    /// The interface.
    pub interface: &'a Interface,
    /// The MAC address to which the guest sends.
    pub router_mac: [u8; 6],
}

impl Beside<'_> {
    /// Name of both ends of the veth pair, and of the table.
    fn name(&self) -> String {
        self.named("bulk")
    }

    /// The queue of datagrams.
    fn queue(&self) -> DatagramInterface {
        DatagramInterface {
            name: self.named("udp"),
            mtu: self.interface.mtu.into(),
            tx_queue_len: self.interface.tx_queue_len,
        }
    }

    fn named(&self, purpose: &str) -> String {
        // An interface's name is ASCII.
        let stem = self.interface.name.get(..STEM_MAX).unwrap_or(&self.interface.name);
        format!("{stem}-{purpose}")
    }

    /// The guest's addresses, without link-local ones of IPv6: flows between those are not promoted.
    fn addresses(&self) -> Vec<IpAddr> {
        let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        self.interface.addresses.iter().map(|it| it.address).filter(|ip| !link_local(ip)).collect()
    }
}

/// An agent's process, which is making its place: several milliseconds, in which its parent has other things
/// to do.
#[derive(Debug)]
pub struct Starting {
    pid: Pid,
    handoff: Handoff,
}

impl Starting {
    /// Waits for the agent.
    ///
    /// # Errors
    /// The step that was refused.
    pub fn wait(self) -> Result<PromotionAgent, SetupError> {
        let channel = namespace::served_channel(self.pid, self.handoff)?;
        PromotionAgent::new(self.pid, channel).map_err(|errno| SetupError::new(Step::Channel, errno, ""))
    }
}

/// An agent beside the interface of a command of [`namespace::fresh`]. Only before there are threads.
pub fn beside(child: &Child, place: Beside<'_>, confinement: Confinement) -> Result<Starting, SetupError> {
    start(&Target::process(child.pid().as_raw_pid())?, place, true, confinement)
}

/// An agent beside the interface in an existing namespace. Only before there are threads.
pub fn inside(target: &Target, place: Beside<'_>, confinement: Confinement) -> Result<Starting, SetupError> {
    start(target, place, false, confinement)
}

/// An agent; `is_passing` where the guest's namespace ends with brodo.
fn start(
    target: &Target,
    place: Beside<'_>,
    is_passing: bool,
    confinement: Confinement,
) -> Result<Starting, SetupError> {
    let (pid, handoff) = namespace::fork(|handoff| {
        let made = make(target, place, is_passing)?;
        let unconfined = |errno| SetupError::new(Step::ConfineAgent, errno, &place.interface.name);
        let Confined { handoff, nftables, queue } =
            confine(handoff, made.nftables.into(), made.queue).map_err(unconfined)?;
        let queue =
            queue.map(|[device, netlink]| DatagramQueue::new(place.queue(), device, Netlink::adopt(netlink)));
        // Errors have a way of their own from here on: the descriptor that the caller knows is closed.
        match tried(place, Nftables::adopt(nftables), made.hooked) {
            Ok(steering) => {
                process::allow_only(confinement, &system_calls::listed()).map_err(unconfined)?;
                handoff.send(&Message::Go)?;
                serve(handoff.into_descriptor(), steering, place.addresses(), queue);
            }
            Err(error) => handoff.send(&Message::Failed(error))?,
        }
        Ok(())
    })?;
    Ok(Starting { pid, handoff })
}

/// Tries what a promotion takes, so that the lack of it has a name before there is one. The steering stays.
fn tried(place: Beside<'_>, nftables: Nftables, hooked: Hooked) -> Result<Steering, SetupError> {
    let fail = |step| move |errno| SetupError::new(step, errno, &place.interface.name);
    try_mode(place.addresses().first().is_none_or(IpAddr::is_ipv4)).map_err(fail(Step::RepairMode))?;
    Steering::new(nftables, hooked).map_err(fail(Step::Steering))
}

/// A place that is made, but for the steering.
struct Made {
    /// A socket of the guest's namespace.
    nftables: Nftables,
    hooked: Hooked,
    /// For the queue of datagrams: a descriptor that can be an interface, and a route socket.
    queue: Option<[OwnedFd; 2]>,
}

/// Enters the guest's namespaces and makes the place; leaves the process in the middle namespace.
fn make(target: &Target, place: Beside<'_>, is_passing: bool) -> Result<Made, SetupError> {
    let interface = place.interface;
    let (device, name) = (interface.name.as_str(), place.name());
    let fail = |step| move |errno| SetupError::new(step, errno, device);

    target.enter()?;
    let guest = Netlink::open().map_err(fail(Step::OpenNetlink))?;
    let nftables = Nftables::open().map_err(fail(Step::OpenNetfilter))?;
    // The middle namespace of an instance that has ended may not be gone yet.
    let _ = guest.remove_link(&name);
    // Without it datagrams stay with the interface, whatever they do to it.
    let unmade = Tap::device().ok();

    raw::unshare(UnshareFlags::NEWNET).map_err(fail(Step::MiddleNamespace))?;
    let middle = Netlink::open().map_err(fail(Step::OpenNetlink))?;
    let far = Far { name: &name, namespace: target.network() };
    middle.add_veth(&name, far, interface.mtu.into()).map_err(fail(Step::WayBeside))?;
    set_up_middle(&middle, &name, place).map_err(fail(Step::MiddleAddresses))?;

    let beside = guest.index_of(&name).map_err(fail(Step::WayBeside))?;
    // A frame for another MAC address would count as another host's, and be dropped behind the redirection.
    let same = LinkSettings { mac: Some(interface.mac), ..LinkSettings::default() };
    guest.set_link(beside, &same).map_err(fail(Step::WayBeside))?;
    let quiet = LinkSettings { automatic_link_local: Some(false), ..LinkSettings::default() };
    // A kernel without IPv6 has no such property.
    let _ = guest.set_link(beside, &quiet);
    guest.set_up(beside).map_err(fail(Step::WayBeside))?;
    let to = guest.index_of(device).map_err(fail(Step::Redirect))?;
    guest.redirect_ingress(beside, to).map_err(fail(Step::Redirect))?;
    Ok(Made {
        nftables,
        queue: unmade.map(|device| [device, guest.into()]),
        hooked: Hooked { table: name, device: device.to_owned(), beside, is_passing },
    })
}

/// Makes every address local in the middle namespace, and the guest's its neighbours.
fn set_up_middle(middle: &Netlink, name: &str, place: Beside<'_>) -> Result<(), Errno> {
    let Beside { interface, router_mac } = place;
    middle.set_up(middle.index_of("lo")?)?;
    let index = middle.index_of(name)?;
    middle.set_link(index, &LinkSettings { mac: Some(router_mac), ..LinkSettings::default() })?;
    // They take room in each segment even if the handshake had none.
    crate::setup::set_sysctl("net/ipv4/tcp_timestamps", "0");
    if interface.has_ipv6() {
        // The host's settings may have been inherited.
        for (property, value) in [("disable_ipv6", "0"), ("accept_ra", "0"), ("addr_gen_mode", "1")] {
            crate::setup::set_sysctl(&format!("net/ipv6/conf/{name}/{property}"), value);
        }
    }
    middle.set_up(index)?;
    for address in place.addresses() {
        middle.take_all_from(name, address.is_ipv6(), TABLE)?;
        middle.add_neighbour(index, address, interface.mac)?;
    }
    Ok(())
}

/// The descriptors of a confined agent.
struct Confined {
    handoff: Handoff,
    nftables: OwnedFd,
    queue: Option<[OwnedFd; 2]>,
}

/// Gives up everything but these descriptors and two capabilities.
fn confine(handoff: &Handoff, nftables: OwnedFd, queue: Option<[OwnedFd; 2]>) -> Result<Confined, Errno> {
    raw::block_all()?;
    let channel = handoff.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
    let (channel, nftables, queue) = if let Some([device, netlink]) = queue {
        let [channel, nftables, device, netlink] = raw::close_all_but([channel, nftables, device, netlink])?;
        (channel, nftables, Some([device, netlink]))
    } else {
        let [channel, nftables] = raw::close_all_but([channel, nftables])?;
        (channel, nftables, None)
    };
    // Otherwise it would hold the mount that brodo was started in.
    let _ = rustix::process::chdir("/");
    let _ = rustix::thread::set_name(c"brodo-agent");
    forget_words()?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    let kept = CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE;
    let inheritable = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    Ok(Confined { handoff: Handoff::from(channel), nftables, queue })
}
