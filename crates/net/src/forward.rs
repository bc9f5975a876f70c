//! Ports made reachable: the guest's on the host (`-t`, `-u`), and the host's on the guest's loopback (`-T`,
//! `-U`).
//!
//! ```text
//! outside peer     --TCP--> listener --accept--> Stack::inbound_tcp --> SYN on the TAP, same address
//! outside peer     --UDP--> published socket --> Stack::inbound_datagram --> the TAP, same address
//! host's loopback  --TCP--> listener --accept--> splice <--> socket in the guest --> guest's loopback
//! guest's loopback --TCP--> listener in the guest, the same to the host's loopback
//! guest's loopback --UDP--> socket in the guest --relay--> connected socket on the host's loopback
//! ```
//!
//! All of it belongs to the first worker, and runs in its loop: listeners are in its epoll instance
//! (level-triggered, so that the rest of a bounded batch is reported again), and its turn as a source handles
//! their events. The further life of a connection stands in the files of the stack, the splice and the relay.
//!
//! *Bounds.* At most [`ACCEPTS`] connections per listener and turn. Without a descriptor for
//! one more (EMFILE) the listener is left alone for [`PAUSE`], as it would report at once again. Connections
//! that wait for a socket of the guest's namespace are at most [`PENDING_MAX`], then they are reset.
//! Datagrams stay in the kernel while the link to the guest has no credit.
//!
//! *Entries.* Each value of an option is an entry, with an id by which it can be removed while the program
//! runs ([`Forwards::add`], [`Forwards::remove`]); the same value again is the same entry. Connections
//! accepted before outlive it. There are at most [`ENTRIES_MAX`], and one without any port left is refused.
//!
//! *Time.* A listener takes some 17 us to open and 8 to close, and all of an entry's are opened in one call,
//! so that a port that cannot be bound leaves no listener behind. `all` is some 70,000 of them, so it stops
//! the first worker for more than a second.
//!
//! *auto* is scanned every [`SCAN`], with one dump of listening sockets per protocol and side; see [`auto`].

mod auto;
mod datagrams;
mod elsewhere;
mod handover;
mod listen;
mod listeners;
mod recovered;
mod scan;
pub mod spec;
mod turn;

pub(crate) use handover::Slots;
pub use listen::{ForwardError, ListenSpec, Opener, Opening, PortSharing, open};
pub use listeners::inode;

use crate::resteer::Resteering;
use crate::sock_diag::SockDiag;
use crate::socket_broker::{Kind, SocketBroker};
use crate::sockets::{Published, Sockets, UdpPorts};
use crate::source::SourceId;
use crate::splice::{SpliceCounters, Splices};
use brodo_core::flow::FlowId;
use brodo_core::port_range::PortRange;
use brodo_core::time::{Duration, Instant};
use brodo_link::poller::Token;
use datagrams::Datagrams;
use listeners::{Body, Listener, Listeners};
use recovered::Accepted;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use spec::{PortRule, Ports, Spec};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Connections accepted from one listener before others have their turn.
const ACCEPTS: usize = 32;
/// Pause of a listener when there are no descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// Accepted connections that wait for a socket of the guest's namespace.
const PENDING_MAX: usize = 1024;
/// Interval between scans of `auto`.
const SCAN: Duration = Duration::from_millis(400);
/// Most entries: each is compared with a new one, and each `auto` in every scan.
const ENTRIES_MAX: usize = 256;
/// Ports by which another one is tried when two peers look the same to the guest.
const NAT_PORT_TRIES: u16 = 16;
/// Most notices to the user kept until the front end takes them.
const NOTICES_MAX: usize = 64;
/// The part of all descriptors that sockets which listen may have.
const LISTENERS_SHARE: usize = 2;

/// ForwardDirection of the connections of a forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForwardDirection {
    /// From the host's side to the guest.
    In,
    /// From the guest's loopback to the host's.
    Out,
}

/// Transport protocol of a forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// TCP connections.
    Tcp,
    /// UDP datagrams.
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Tcp { "TCP" } else { "UDP" })
    }
}

/// The option of a forward.
pub fn option(direction: ForwardDirection, transport: Transport) -> &'static str {
    match (direction, transport) {
        (ForwardDirection::In, Transport::Tcp) => "-t",
        (ForwardDirection::In, Transport::Udp) => "-u",
        (ForwardDirection::Out, Transport::Tcp) => "-T",
        (ForwardDirection::Out, Transport::Udp) => "-U",
    }
}

/// One value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// Which way.
    pub direction: ForwardDirection,
    /// Protocol of the ports.
    pub transport: Transport,
    /// The ports.
    pub spec: Spec,
}

/// A forward that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Number by which it can be removed.
    pub id: u32,
    /// The forward as it was requested.
    pub forward: Forward,
    /// Sockets that listen for it now.
    pub listeners: usize,
}

brodo_core::counters! {
    /// Counters since the start.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct ForwardCounters named "forward_" {
        /// Connections accepted at forwarded ports.
        accepted,
        /// Connections at forwarded ports reset at once: the stack refused them, or too many were waiting.
        rejected,
        /// Pauses of accept for lack of descriptors.
        pauses,
        /// Datagrams read from published ports; several that the kernel had coalesced count as one.
        datagrams,
        /// Datagrams passed between loopbacks; several that the kernel had coalesced count as one.
        relayed,
        /// Datagrams at forwarded ports that could not be passed on.
        lost,
    }
    and
    /// Connections between loopbacks.
    splices: SpliceCounters;
}

/// Properties of the guest that forwards depend on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Guest {
    /// Its addresses, IPv4 and IPv6, as far as it has them.
    pub addresses: [Option<IpAddr>; 2],
    /// Its further addresses, of both families.
    pub more_addresses: Vec<IpAddr>,
    /// Destination of connections from the host's loopback.
    pub local_peers: LocalPeers,
}

impl Guest {
    /// Whether it has this address; none that is link-local of IPv6, to which no socket leads without an
    /// interface.
    fn has(&self, address: IpAddr) -> bool {
        let is_own = self.addresses.contains(&Some(address)) || self.more_addresses.contains(&address);
        is_own && !is_scoped(address)
    }
}

/// Whether an address means something on one interface only: link-local of IPv6.
fn is_scoped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Way of peers on the host's loopback from published ports to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LocalPeers {
    /// Connections as [`LocalPeers::Loopback`], datagrams as [`LocalPeers::Link`].
    #[default]
    Mixed,
    /// The guest's loopback, by a splice or a relay: also services that listen there alone are reached.
    Loopback,
    /// The guest's address, by a splice or a relay; its loopback in a family in which it has link-local
    /// addresses alone.
    Address,
    /// The guest's address by the link, as for all other peers.
    Link,
}

struct Entry {
    id: u32,
    forward: Forward,
    /// Of `auto`: addresses and ports that could not be bound, so that each is reported once.
    failed: BTreeSet<(IpAddr, u16)>,
}

/// An accepted connection that is to be spliced; perhaps it waits for a socket of the guest's namespace.
struct PendingSplice {
    accepted: OwnedFd,
    peer: SocketAddr,
    to: SocketAddr,
    /// The forward by which the other family is tried if it is refused there.
    elsewhere: Option<u32>,
}

/// Subject of an event: the upper bits of the number in its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topic {
    Listener,
    Splice,
    Relay,
    SocketBroker,
}

/// Bits of a number in event data that say which of a topic.
const NUMBER_BITS: u32 = 28;

impl Topic {
    const ALL: [Self; 4] = [Self::Listener, Self::Splice, Self::Relay, Self::SocketBroker];

    fn data(self, number: u32) -> EventData {
        let key = (self as u32) << NUMBER_BITS | number;
        EventData::new_u64(Token::Source { source: SourceId::Forwards as u32, key }.data())
    }

    fn read(key: u32) -> Option<(Self, u32)> {
        let topic = Self::ALL.get((key >> NUMBER_BITS) as usize)?;
        Some((*topic, key & ((1 << NUMBER_BITS) - 1)))
    }
}

/// All forwards of one guest.
pub struct Forwards {
    guest: Guest,
    ephemeral: PortRange,
    /// Opens listening sockets; this process by itself without one.
    opener: Option<Opener>,
    broker: Option<SocketBroker>,
    /// Lists the sockets of the host, and of the guest.
    diag: [Option<SockDiag>; 2],
    epoll: Arc<OwnedFd>,
    entries: Vec<Entry>,
    last_id: u32,
    listeners: Listeners,
    /// Ports of the guest's UDP flows on the host, if those have its own.
    udp_ports: Option<UdpPorts>,
    splices: Splices,
    datagrams: Datagrams,
    pending: VecDeque<PendingSplice>,
    /// Connections accepted by a process that has crashed, until the first turn.
    accepted_before: Vec<Accepted>,
    paused: Vec<u32>,
    resume_at: Option<Instant>,
    scan_at: Option<Instant>,
    events: Vec<(u32, EventFlags)>,
    /// A spliced connection has had an event since the last turn.
    joined: bool,
    /// Flows of relays that were closed, which the flow table is to learn of in the next turn.
    closed: Vec<FlowId>,
    notices: VecDeque<String>,
    counters: ForwardCounters,
}

/// Bounds of forwarded ports.
#[derive(Debug, Clone, Copy)]
pub struct ForwardsMax {
    /// Descriptors that there may be; half of them are for sockets that listen.
    pub descriptors: usize,
    /// Connections between loopbacks.
    pub splices: usize,
}

impl Forwards {
    /// None yet. `broker` opens sockets of the guest's namespace: without one connections from the host's
    /// loopback reach the guest by its interface, and nothing can be offered on its own loopback.
    /// `ephemeral` are the ports that the host hands out to clients.
    ///
    /// # Errors
    /// No descriptor is left, or the broker's cannot be registered with epoll.
    pub fn new(
        guest: Guest,
        broker: Option<SocketBroker>,
        sockets: &Sockets,
        ephemeral: &RangeInclusive<u16>,
        ForwardsMax { descriptors, splices }: ForwardsMax,
    ) -> io::Result<Self> {
        let epoll = Arc::new(sockets.epoll().try_clone_to_owned()?);
        if let Some(broker) = &broker {
            epoll::add(&epoll, broker.descriptor(), Topic::SocketBroker.data(0), EventFlags::IN)?;
        }
        Ok(Self {
            guest,
            ephemeral: PortRange { first: *ephemeral.start(), last: *ephemeral.end() },
            opener: None,
            broker,
            diag: [Kind::Diag.open().map(SockDiag::new).ok(), None],
            listeners: Listeners::new(epoll.clone(), descriptors / LISTENERS_SHARE, sockets.udp_ports()),
            udp_ports: sockets.udp_ports(),
            epoll,
            entries: Vec::new(),
            last_id: 0,
            splices: Splices::new(splices),
            datagrams: Datagrams::default(),
            pending: VecDeque::new(),
            accepted_before: Vec::new(),
            paused: Vec::new(),
            resume_at: None,
            scan_at: None,
            events: Vec::new(),
            joined: false,
            closed: Vec::new(),
            notices: VecDeque::new(),
            counters: ForwardCounters::default(),
        })
    }

    /// Has listening sockets opened by another process.
    pub fn open_by(&mut self, opener: Opener) {
        self.opener = Some(opener);
    }

    /// Tells the other workers which flows may begin here, now and when that changes.
    pub(crate) fn announce(&mut self, resteering: &Arc<Resteering>) {
        self.listeners.announce(resteering);
    }

    /// Closes the pipes that no direction has.
    pub(crate) fn give_up_idle_pipes(&mut self) {
        self.splices.give_up_idle_pipes();
    }

    /// The counters.
    pub fn counters(&self) -> ForwardCounters {
        ForwardCounters { splices: self.splices.counters(), ..self.counters }
    }

    /// A notice for the user, such as a port that `auto` could not bind.
    pub fn take_notice(&mut self) -> Option<String> {
        self.notices.pop_front()
    }

    fn notice(&mut self, sentence: String) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(sentence);
        }
    }

    /// `auto` does not follow these sockets of brodo's own.
    pub fn leave_out(&mut self, inodes: &[u32]) {
        self.listeners.leave_out(inodes);
    }

    /// The forwards in force.
    pub fn list(&self) -> Vec<Listed> {
        let mut listeners = BTreeMap::new();
        for listener in self.listeners.iter() {
            *listeners.entry(listener.entry).or_default() += 1;
        }
        let listed = |entry: &Entry| Listed {
            id: entry.id,
            forward: entry.forward.clone(),
            listeners: listeners.get(&entry.id).copied().unwrap_or_default(),
        };
        self.entries.iter().map(listed).collect()
    }

    /// Addresses at which a forward listens now, up to a bound.
    pub fn listening(&self, id: u32, max: usize) -> Vec<SocketAddr> {
        self.listeners.places_of(id, max)
    }

    /// Puts a forward in force; its id. One that is in force already keeps its own.
    ///
    /// # Errors
    /// A contradiction to others, no port left, one forward too many, or a port that cannot be bound: then
    /// nothing of it is in force.
    pub fn add(&mut self, forward: Forward) -> Result<u32, ForwardError> {
        if let Some(entry) = self.entries.iter().find(|entry| entry.forward == forward) {
            return Ok(entry.id);
        }
        self.check(&forward)?;
        self.last_id += 1;
        let id = self.last_id;
        let Forward { direction, transport, .. } = forward;
        let is_auto = forward.spec.is_auto();
        let rules = forward.spec.rules(self.ephemeral);
        if rules.is_empty() && !is_auto {
            return Err(invalid(&forward, "it has no port left"));
        }
        self.check_room(&forward, rules.len())?;
        let (optional, count) = (forward.spec.is_optional(), rules.len());
        let named = spec::named(&self.specs(direction, transport));
        self.entries.push(Entry { id, forward, failed: BTreeSet::new() });
        let mut failure = None;
        for rule in rules {
            // An explicit port goes before `all`.
            if optional && named.contains(rule.port) {
                continue;
            }
            if let Err(error) = self.open_rule(id, rule) {
                failure = failure.or(Some(error));
                if !optional {
                    break;
                }
            }
        }
        let none = !is_auto && self.listeners.slots_of(id).is_empty();
        match failure {
            Some(error) if !optional || (none && count > 0) => {
                self.remove(id);
                return Err(error);
            }
            _ => {}
        }
        if is_auto && let Err(error) = self.scan_all(direction, transport) {
            self.remove(id);
            return Err(error);
        }
        if is_auto {
            // The next turn sets the time.
            self.scan_at = self.scan_at.or(Some(Instant::ZERO));
        }
        Ok(id)
    }

    fn specs(&self, direction: ForwardDirection, transport: Transport) -> Vec<&Spec> {
        let same = move |forward: &&Forward| (forward.direction, forward.transport) == (direction, transport);
        self.entries.iter().map(|entry| &entry.forward).filter(same).map(|forward| &forward.spec).collect()
    }

    /// Whether it makes sense, alone and beside the others.
    fn check(&self, forward: &Forward) -> Result<(), ForwardError> {
        let Forward { direction, transport, spec } = forward;
        let invalid = |why: String| Err(invalid(forward, why));
        if self.entries.len() >= ENTRIES_MAX {
            return invalid(format!("there are {ENTRIES_MAX} forwards already, the maximum"));
        }
        if spec.ports == Ports::None {
            return invalid("there is nothing to forward".to_owned());
        }
        if let Err(why) = spec::check_beside(spec, &self.specs(*direction, *transport)) {
            return invalid(why);
        }
        if self.broker.is_none() && (*direction == ForwardDirection::Out || spec.is_auto()) {
            return invalid(
                "it needs sockets of the guest's namespace, and no socket broker runs: start brodo with this forward"
                    .into(),
            );
        }
        if let Some(address) =
            spec.address.into_iter().chain(spec.targets()).find(|address| !self.has_family_of(address))
        {
            return invalid(format!("the guest has no address of the family of {address}"));
        }
        for to in spec.targets() {
            let its_own = self.guest.has(to);
            if *direction == ForwardDirection::In && !its_own && !to.is_loopback() {
                return invalid(format!("{to} is neither an address of the guest nor its loopback"));
            }
        }
        Ok(())
    }

    fn has_family_of(&self, address: &IpAddr) -> bool {
        self.guest.addresses[usize::from(address.is_ipv6())].is_some()
    }

    /// Whether there are descriptors for so many ports.
    fn check_room(&self, forward: &Forward, ports: usize) -> Result<(), ForwardError> {
        let given = forward.spec.address;
        let fits = |ipv6: &bool| {
            let has = self.guest.addresses[usize::from(*ipv6)].is_some();
            has && given.is_none_or(|address| address.is_ipv6() == *ipv6)
        };
        let wanted = ports * [false, true].iter().filter(|ipv6| fits(ipv6)).count();
        let left = self.listeners.room();
        if wanted <= left {
            return Ok(());
        }
        Err(ForwardError::Invalid(format!(
            "{} {} needs {wanted} sockets, and the limit on open files leaves {left}: raise it (ulimit -Hn) or name fewer ports",
            option(forward.direction, forward.transport),
            forward.spec
        )))
    }

    /// Opens the sockets of one port: one of each family.
    fn open_rule(&mut self, id: u32, rule: PortRule) -> Result<(), ForwardError> {
        let Some(entry) = self.entries.iter().find(|entry| entry.id == id) else { return Ok(()) };
        let Forward { direction, transport, ref spec } = entry.forward;
        let (given, interface) = (spec.address, spec.interface.clone());
        let (mut opened, mut failure) = (0, None);
        for ipv6 in [false, true] {
            let target_fits = rule.to_address.is_none_or(|to| to.is_ipv6() == ipv6);
            if self.guest.addresses[usize::from(ipv6)].is_none() || !target_fits {
                continue;
            }
            let address = match given {
                Some(address) if address.is_ipv6() == ipv6 => address,
                Some(_) => continue,
                None if direction == ForwardDirection::In || interface.is_some() => auto::unspecified(ipv6),
                None => auto::loopback(ipv6),
            };
            let port = rule.port;
            let shared = self.sharing(direction, transport, address, port);
            let place =
                ListenSpec { direction, transport, address, port, interface: interface.clone(), shared };
            match self.listen(id, &place, rule.to_address, rule.to) {
                Ok(()) => opened += 1,
                Err(error) => {
                    // A host may be without one of the families.
                    if given.is_some() || !error.is_absence() {
                        return Err(error);
                    }
                    failure = Some(error);
                }
            }
        }
        failure.filter(|_| opened == 0).map_or(Ok(()), Err)
    }

    /// Sharing of a port with flows that the guest begins.
    fn sharing(
        &self,
        direction: ForwardDirection,
        transport: Transport,
        address: IpAddr,
        port: u16,
    ) -> PortSharing {
        match (&self.udp_ports, direction, transport) {
            (Some(ports), ForwardDirection::In, Transport::Udp) if ports.has(address.is_ipv6(), port) => {
                PortSharing::Now
            }
            (Some(_), ForwardDirection::In, Transport::Udp) => PortSharing::Later,
            _ => PortSharing::None,
        }
    }

    /// Listens at one place.
    fn listen(
        &mut self,
        entry: u32,
        place: &ListenSpec,
        to_address: Option<IpAddr>,
        to_port: u16,
    ) -> Result<(), ForwardError> {
        if self.listeners.room() == 0 {
            let max = self.listeners.max();
            return Err(ForwardError::Invalid(format!("there are {max} listening sockets already")));
        }
        let fd = match &mut self.opener {
            Some(opener) => opener(place)?,
            None => open(place, Opening::default(), self.broker.as_mut())?,
        };
        let body = match place.transport {
            Transport::Tcp => Body::Stream(fd),
            Transport::Udp => Body::Datagrams(Published::new(fd)),
        };
        let listener = Listener::new(entry, place, body, to_address, to_port);
        let near = SocketAddr::new(auto::loopback(place.address.is_ipv6()), 0);
        if place.direction == ForwardDirection::In
            && place.transport == Transport::Udp
            && self.is_spliced(near, &listener)
            && let Some(broker) = &mut self.broker
        {
            // A first datagram cannot wait for a socket.
            broker.prepare(Kind::of(false, place.address.is_ipv6()));
        }
        self.listeners.insert(listener).map(drop).map_err(|errno| ForwardError::Socket {
            direction: place.direction,
            transport: place.transport,
            at: SocketAddr::new(place.address, place.port),
            interface: place.interface.clone(),
            call: "epoll_ctl".into(),
            errno,
        })
    }

    /// Takes a forward out of force; false if there is none with this id. Connections that came by it go on.
    pub fn remove(&mut self, id: u32) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.id != id);
        self.listeners.slots_of(id).into_iter().for_each(|slot| self.listeners.close(slot));
        self.end_orphans();
        if !self.entries.iter().any(|entry| entry.forward.spec.is_auto()) {
            self.scan_at = None;
        }
        self.entries.len() < before
    }

    /// Ends relays of listeners that were closed, of all at once, and discards datagrams read from them.
    fn end_orphans(&mut self) {
        let Self { datagrams, listeners, epoll, counters, paused, closed, .. } = self;
        let is_there = |slot: u32| listeners.get(slot).is_some();
        paused.retain(|&slot| is_there(slot));
        counters.lost += datagrams.retain_listeners(epoll, is_there, closed);
    }
}

fn invalid(Forward { direction, transport, spec }: &Forward, why: impl fmt::Display) -> ForwardError {
    ForwardError::Invalid(format!("{} {spec}: {why}", option(*direction, *transport)))
}

#[cfg(test)]
mod tests;
