//! The host's network while brodo runs: its resolvers, addresses and default routes, and notice of their
//! changes.
//!
//! One [`HostNetwork`] for all workers. Resolvers and search domains come from resolv.conf: any worker that
//! is awake checks it, at most every half second in all ([`HostNetwork::poll`]). No timer of its own: a DNS
//! query wakes a worker anyway, so a change is used at most half a second after it was made.
//!
//! Addresses and routes come from a route socket in the host's namespace, on which the first worker waits. A
//! change of the network comes as many messages; [`DEBOUNCE`] after the first, addresses and default routes
//! are read anew. The network has changed if one of the lists differs. Link-local addresses do not count:
//! every container that starts brings one. Nor do lifetimes of routes, which router advertisements renew.
//!
//! A process that cannot open files has another one read resolv.conf: [`HostNetwork::asking`] asks for a
//! check where [`HostNetwork::new`] makes it, and the answer comes by [`HostNetwork::set_conf`].
//!
//! Each worker compares two numbers per turn to learn of a change, and acts on it in its own time.
//!
//! System calls: socket, bind, getsockname, recvfrom, sendto (rtnetlink); stat and read of resolv.conf.

use crate::netlink::Netlink;
use crate::netlink::default_routes::DefaultRoute;
use crate::netlink::socket::{NetlinkSocket, messages};
use crate::resolv::{ResolvConf, Watch};
use crate::source::{Source, Turn};
use brodo_core::time::{Duration, Instant};
use brodo_link::poller::Poller;
use brodo_link::{EventFlags, GuestLink};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Least interval between two checks of resolv.conf.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Delay between the first notice of a change and the read of addresses and default routes.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Longest message read, in bytes: notices are short, and the beginning of a longer one is enough.
const MESSAGE_MAX: usize = 8 << 10;
/// "Never" among times in nanoseconds.
const NEVER: u64 = u64::MAX;

/// Settings of a worker's stack that follow the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostNetFollow {
    /// Whether the resolvers do.
    pub resolvers: bool,
    /// Whether the search names do.
    pub search: bool,
}

/// Numbers of changes so far: of names, of the network, and of its list of addresses, link-local ones too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Changes {
    pub(crate) names: u64,
    pub(crate) network: u64,
    pub(crate) listed: u64,
}

/// Request for a check of resolv.conf, which must not block.
pub type AskForNames = Box<dyn Fn() + Send + Sync>;

/// Source of resolvers and search names.
enum Names {
    /// The file, read by this process.
    File(Watch),
    /// Another process.
    Asked(AskForNames),
}

/// Known state of the host.
struct State {
    names: Names,
    conf: ResolvConf,
    netlink: Netlink,
    /// Addresses of the host, sorted.
    addresses: Arc<[IpAddr]>,
    /// Default routes at the last check, sorted.
    default_routes: Vec<DefaultRoute>,
}

/// Follows the host's network.
pub struct HostNetwork {
    notices: NetlinkSocket,
    state: Mutex<State>,
    /// Time of the last check of resolv.conf in nanoseconds, [`NEVER`] before the first.
    checked: AtomicU64,
    /// Time at which addresses and routes are due to be read, in nanoseconds; [`NEVER`] without a change.
    due: AtomicU64,
    /// Whether a notice was about a default route, or was lost: a host may have a million routes, which are
    /// read all to find these.
    routes_due: AtomicBool,
    names: AtomicU64,
    network: AtomicU64,
    listed: AtomicU64,
}

impl HostNetwork {
    /// A subscription to the network of the caller's namespace and to the file at `resolv_conf`, whose last
    /// content was `conf`.
    ///
    /// # Errors
    /// No route socket could be opened.
    pub fn new(resolv_conf: PathBuf, conf: ResolvConf) -> Result<Self, Errno> {
        Self::with(Names::File(Watch::new(resolv_conf)), conf)
    }

    /// A subscription to the network of the caller's namespace, with names from another process: `ask` is
    /// called where the file would be checked, and a change comes by [`HostNetwork::set_conf`].
    ///
    /// # Errors
    /// No route socket could be opened.
    pub fn asking(ask: AskForNames, conf: ResolvConf) -> Result<Self, Errno> {
        Self::with(Names::Asked(ask), conf)
    }

    fn with(names: Names, conf: ResolvConf) -> Result<Self, Errno> {
        let groups = libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE;
        let notices = NetlinkSocket::subscribed(groups)?;
        // Later changes are notified.
        let netlink = Netlink::open()?;
        let addresses = sorted(netlink.addresses()?);
        // As if there were none: the next notice tells.
        let default_routes = netlink.default_routes().unwrap_or_default();
        let state = State { names, conf, netlink, addresses, default_routes };
        Ok(Self {
            notices,
            state: Mutex::new(state),
            checked: AtomicU64::new(NEVER),
            due: AtomicU64::new(NEVER),
            routes_due: AtomicBool::new(false),
            names: AtomicU64::new(0),
            network: AtomicU64::new(0),
            listed: AtomicU64::new(0),
        })
    }

    /// Readable when the host's network may have changed: [`HostNetwork::notice`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.notices.descriptor()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers of changes.
    pub(crate) fn changes(&self) -> Changes {
        let number = |of: &AtomicU64| of.load(Ordering::Acquire);
        Changes { names: number(&self.names), network: number(&self.network), listed: number(&self.listed) }
    }

    /// Content of resolv.conf at the last read.
    pub(crate) fn conf(&self) -> ResolvConf {
        self.state().conf.clone()
    }

    /// The host's addresses, sorted.
    pub(crate) fn addresses(&self) -> Arc<[IpAddr]> {
        self.state().addresses.clone()
    }

    /// Checks resolv.conf, at most once in [`CHECK_EVERY`] for all workers.
    pub(crate) fn poll(&self, now: Instant) {
        let before = self.checked.load(Ordering::Relaxed);
        if before != NEVER && now.since(Instant::from_ns(before)) < CHECK_EVERY {
            return;
        }
        let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.checked.compare_exchange(before, now.as_ns(), set, failed).is_err() {
            return;
        }
        let changed = match &mut self.state().names {
            Names::File(watch) => watch.poll(),
            Names::Asked(ask) => {
                ask();
                None
            }
        };
        if let Some(conf) = changed {
            self.set_conf(conf);
        }
    }

    /// Takes the content of resolv.conf, of which workers learn at their next turns.
    pub fn set_conf(&self, conf: ResolvConf) {
        let mut state = self.state();
        if conf != state.conf {
            state.conf = conf;
            self.names.fetch_add(1, Ordering::Release);
        }
    }

    /// Reads pending notices. Only one worker does this.
    pub(crate) fn notice(&self, now: Instant) {
        let mut concerned = Concerned::default();
        let mut buffer = [0; MESSAGE_MAX];
        loop {
            match self.notices.receive(&mut buffer) {
                Ok(bytes) => concerned.note(bytes),
                // Some messages were lost: a full read is due.
                Err(Errno::NOBUFS) => concerned = Concerned { addresses: true, routes: true },
                Err(_) => break,
            }
        }
        if concerned.routes {
            self.routes_due.store(true, Ordering::Relaxed);
        }
        if (concerned.addresses || concerned.routes) && self.due.load(Ordering::Relaxed) == NEVER {
            self.due.store((now + DEBOUNCE).as_ns(), Ordering::Relaxed);
        }
    }

    /// Time at which [`HostNetwork::check`] is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        Some(self.due.load(Ordering::Relaxed)).filter(|&due| due != NEVER).map(Instant::from_ns)
    }

    /// Reads addresses and default routes, if that is due. True if the network has changed.
    pub(crate) fn check(&self, now: Instant) -> bool {
        if self.due().is_none_or(|due| due > now) {
            return false;
        }
        self.due.store(NEVER, Ordering::Relaxed);
        let mut state = self.state();
        let addresses = state.netlink.addresses().map_or_else(|_| state.addresses.clone(), sorted);
        let moved =
            !addresses.iter().filter(|ip| counts(ip)).eq(state.addresses.iter().filter(|ip| counts(ip)));
        if state.addresses != addresses {
            state.addresses = addresses;
            self.listed.fetch_add(1, Ordering::Release);
        }
        let routes_due = self.routes_due.swap(false, Ordering::Relaxed) || moved;
        let rerouted = routes_due
            && match state.netlink.default_routes() {
                Ok(routes) => std::mem::replace(&mut state.default_routes, routes.clone()) != routes,
                // They may have changed.
                Err(_) => true,
            };
        if moved || rerouted {
            self.network.fetch_add(1, Ordering::Release);
        }
        moved || rerouted
    }
}

/// Subscription of a worker to the host's network.
pub(crate) struct HostNetSubscription {
    network: Arc<HostNetwork>,
    follow: HostNetFollow,
    /// Whether this worker reads notices, for all workers.
    is_poller: bool,
    /// Changes already applied.
    pub(crate) seen: Changes,
}

impl HostNetSubscription {
    pub(crate) fn new(network: Arc<HostNetwork>, follow: HostNetFollow, is_poller: bool) -> Self {
        Self { network, follow, is_poller, seen: Changes::default() }
    }

    /// The host's addresses, sorted.
    pub(crate) fn addresses(&self) -> Arc<[IpAddr]> {
        self.network.addresses()
    }

    /// Compares with the addresses that another process had last: the next turn acts on a difference as on
    /// any change.
    pub(crate) fn compare(&mut self, before: &[IpAddr]) {
        if *self.network.addresses() != *before {
            self.seen.network = self.network.changes().network.wrapping_sub(1);
        }
    }
}

impl<L: GuestLink> Source<L> for HostNetSubscription {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        if self.is_poller {
            poller.add(self.network.descriptor(), 0, EventFlags::IN)?;
        }
        Ok(())
    }

    fn ready(&mut self, _: u32, _: EventFlags, now: Instant) {
        self.network.notice(now);
    }

    fn deadline(&self) -> Option<Instant> {
        self.network.due().filter(|_| self.is_poller)
    }

    /// A change may have been noticed by this worker or another.
    fn turn(&mut self, turn: &mut Turn<'_, L>) -> bool {
        if self.is_poller && self.network.check(turn.now) {
            turn.wakes = u64::MAX;
        }
        let HostNetFollow { resolvers, search } = self.follow;
        if resolvers || search {
            self.network.poll(turn.now);
        }
        let changes = self.network.changes();
        let seen = std::mem::replace(&mut self.seen, changes);
        if changes.names != seen.names {
            let conf = self.network.conf();
            if resolvers {
                turn.stack.set_resolvers(conf.resolvers);
            }
            if search {
                turn.stack.set_search(conf.search);
            }
        }
        if changes.network != seen.network {
            let addresses = self.network.addresses();
            turn.stack.set_host_addresses(addresses.clone());
            turn.sockets.set_addresses(addresses);
            let (stack, mut io) = turn.stack();
            stack.network_changed(&mut io);
        } else if changes.listed != seen.listed {
            turn.sockets.add_addresses(&self.network.addresses());
        }
        false
    }
}

fn sorted(mut addresses: Vec<IpAddr>) -> Arc<[IpAddr]> {
    addresses.sort_unstable();
    addresses.dedup();
    addresses.into()
}

/// Whether the address counts as a change of the network.
fn counts(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    }
}

/// Subjects of received notices.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Concerned {
    addresses: bool,
    /// Default routes.
    routes: bool,
}

impl Concerned {
    fn note(&mut self, bytes: &[u8]) {
        for message in messages(bytes) {
            match message.message_type() {
                libc::RTM_NEWADDR => self.addresses = true,
                // The kernel removes routes with an address, and with an interface that goes down, without a
                // notice of theirs.
                libc::RTM_DELADDR => (self.addresses, self.routes) = (true, true),
                libc::RTM_NEWROUTE | libc::RTM_DELROUTE => {
                    self.routes |= DefaultRoute::parse(message.payload()).is_some();
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
