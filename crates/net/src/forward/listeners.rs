//! The sockets that listen for forwards: opened, registered, found by slot, closed.
//!
//! The slot of a closed listener is given away only after the turn ([`crate::slab`]). Other workers learn
//! which frames of the guest are answers to a published port ([`Resteering`]). `auto` leaves out brodo's own
//! sockets, whose inodes are kept here.

use super::listen::ListenSpec;
use super::{ForwardDirection, Topic};
use crate::resteer::Resteering;
use crate::slab::Slab;
use crate::sockets::{Published, PublishedPort, UdpPorts};
use rustix::event::epoll::{self, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The socket of a listener.
pub(super) enum Body {
    Stream(OwnedFd),
    Datagrams(Arc<Published>),
}

impl Body {
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Stream(fd) => fd.as_fd(),
            Self::Datagrams(port) => port.descriptor(),
        }
    }
}

/// A socket that listens.
pub(super) struct Listener {
    /// Id of the forward that it is for.
    pub(super) entry: u32,
    pub(super) direction: ForwardDirection,
    /// The address and port that it is bound to.
    pub(super) at: (IpAddr, u16),
    /// The address that it leads to, if one was given.
    pub(super) to_address: Option<IpAddr>,
    pub(super) to_port: u16,
    pub(super) body: Body,
    inode: u32,
    /// None of its events are wanted for now.
    pub(super) held: bool,
    /// Datagrams that the kernel has dropped, as last reported by it.
    pub(super) overflows: u32,
}

impl Listener {
    pub(super) fn new(
        entry: u32,
        place: &ListenSpec,
        body: Body,
        to_address: Option<IpAddr>,
        to_port: u16,
    ) -> Self {
        Self::at(entry, place.direction, (place.address, place.port), body, to_address, to_port)
    }

    /// At an address and port, for connections to others.
    pub(super) fn at(
        entry: u32,
        direction: ForwardDirection,
        at: (IpAddr, u16),
        body: Body,
        to_address: Option<IpAddr>,
        to_port: u16,
    ) -> Self {
        Self {
            entry,
            direction,
            at,
            to_address,
            to_port,
            inode: inode(body.descriptor()).unwrap_or(0),
            body,
            held: false,
            overflows: 0,
        }
    }

    /// Its port on the host for this one of the guest's.
    fn place(&self, guest_port: u16) -> PublishedPort {
        PublishedPort { v6: self.at.0.is_ipv6(), guest_port, at: self.at }
    }

    /// The guest's UDP port to which it leads.
    fn publishes(&self) -> Option<u16> {
        let published = self.direction == ForwardDirection::In && matches!(self.body, Body::Datagrams(_));
        published.then_some(self.to_port)
    }
}

/// All listeners, by slot.
pub(super) struct Listeners {
    epoll: Arc<OwnedFd>,
    slots: Slab<Listener>,
    /// Most listeners.
    max: usize,
    /// Inodes of brodo's own sockets.
    own: BTreeSet<u32>,
    /// The guest's UDP ports that are published, and by how many listeners.
    published: BTreeMap<u16, u32>,
    /// Ports of the guest's UDP flows on the host, if those have its own.
    udp_ports: Option<UdpPorts>,
    /// The other workers' knowledge of published ports, if there are other workers.
    resteering: Option<Arc<Resteering>>,
}

impl Listeners {
    /// None yet, and at most `max`, which report to this epoll instance.
    pub(super) fn new(epoll: Arc<OwnedFd>, max: usize, udp_ports: Option<UdpPorts>) -> Self {
        let (slots, own, published) = Default::default();
        Self { epoll, slots, max, own, published, udp_ports, resteering: None }
    }

    /// Announces listeners to the other workers, those there are and those to come.
    pub(super) fn announce(&mut self, resteering: &Arc<Resteering>) {
        self.resteering = Some(resteering.clone());
        self.iter().for_each(|listener| self.announce_one(listener));
    }

    fn announce_one(&self, listener: &Listener) {
        let resteering = self.resteering.as_ref().filter(|_| listener.direction == ForwardDirection::In);
        if let (Some(resteering), Some(port)) = (resteering, listener.publishes()) {
            resteering.publish_datagrams(port, true);
        }
    }

    /// The listener in a slot.
    pub(super) fn get(&self, slot: u32) -> Option<&Listener> {
        self.slots.get(slot)
    }

    /// The same, to change it.
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Listener> {
        self.slots.get_mut(slot)
    }

    /// All listeners.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Listener> {
        self.slots.iter()
    }

    /// All listeners with their slots.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u32, &Listener)> {
        self.slots.slots_where(|_| true).into_iter().filter_map(|slot| Some((slot, self.get(slot)?)))
    }

    /// Slots of the listeners of one forward.
    pub(super) fn slots_of(&self, entry: u32) -> Vec<u32> {
        self.slots.slots_where(|listener| listener.entry == entry)
    }

    /// Listeners that may still be opened.
    pub(super) fn room(&self) -> usize {
        self.max.saturating_sub(self.slots.len())
    }

    /// Most listeners.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// UDP ports of the guest that are published.
    #[cfg(test)]
    pub(super) fn published_ports(&self) -> usize {
        self.published.len()
    }

    /// Inodes of brodo's own sockets, listeners and others.
    pub(super) fn own(&self) -> &BTreeSet<u32> {
        &self.own
    }

    /// Counts further sockets among brodo's own.
    pub(super) fn leave_out(&mut self, inodes: &[u32]) {
        self.own.extend(inodes);
    }

    /// Registers a listener and keeps it; its slot.
    ///
    /// # Errors
    /// epoll_ctl failed; the listener is closed.
    pub(super) fn insert(&mut self, listener: Listener) -> Result<u32, Errno> {
        let data = Topic::Listener.data(self.slots.next_slot());
        epoll::add(&self.epoll, listener.body.descriptor(), data, EventFlags::IN)?;
        self.own.insert(listener.inode);
        if let Some(port) = listener.publishes() {
            *self.published.entry(port).or_default() += 1;
            if let Some(ports) = &self.udp_ports {
                ports.publish(listener.place(port));
            }
        }
        self.announce_one(&listener);
        Ok(self.slots.insert(listener))
    }

    /// Closes a listener. State of other parts that names its slot is to be ended before the slot is reused.
    pub(super) fn close(&mut self, slot: u32) {
        let Some(listener) = self.slots.remove(slot) else { return };
        // Not left to the close: the broker may still hold a copy.
        let _ = epoll::delete(&self.epoll, listener.body.descriptor());
        self.own.remove(&listener.inode);
        if let Some(port) = listener.publishes()
            && let btree_map::Entry::Occupied(mut count) = self.published.entry(port)
        {
            if let Some(ports) = &self.udp_ports {
                ports.withdraw(&listener.place(port));
            }
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                if let Some(resteering) = &self.resteering {
                    resteering.publish_datagrams(port, false);
                }
            }
        }
    }

    /// Gives slots away that were freed in this turn.
    pub(super) fn reuse_slots(&mut self) {
        self.slots.reuse_freed();
    }

    /// Has no event of a listener reported, or all again.
    pub(super) fn hold(&mut self, slot: u32, held: bool) {
        if let Some(listener) = self.get_mut(slot) {
            listener.held = held;
            self.ask_for_events(slot);
        }
    }

    /// Asks for the events that a listener waits for now.
    pub(super) fn ask_for_events(&self, slot: u32) {
        let Some(listener) = self.get(slot) else { return };
        let mut interest = if listener.held { EventFlags::empty() } else { EventFlags::IN };
        if matches!(&listener.body, Body::Datagrams(port) if port.is_awaited()) {
            interest |= EventFlags::OUT;
        }
        // It is registered, so this does not fail.
        let _ = epoll::modify(&self.epoll, listener.body.descriptor(), Topic::Listener.data(slot), interest);
    }

    /// Addresses of a forward's listeners, up to a bound.
    pub(super) fn places_of(&self, entry: u32, max: usize) -> Vec<SocketAddr> {
        let of_it = self.iter().filter(|listener| listener.entry == entry);
        of_it.map(|listener| SocketAddr::new(listener.at.0, listener.at.1)).take(max).collect()
    }
}

/// Inode of a socket, by which `SOCK_DIAG` names it.
///
/// # Errors
/// It is no descriptor of this process.
pub fn inode(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(rustix::fs::fstat(socket)?.st_ino as u32)
}
