//! Steering: the 4-tuples whose segments leave the guest by the way beside its interface.
//!
//! A table of nf_tables in the guest's namespace has one set of 4-tuples per family. A chain at the egress
//! hook of the guest's interface looks each TCP segment up, and forwards those found to the guest's end of
//! the veth pair. The hook comes after the guest's own address translation, and before the queue of the
//! interface. The table is dormant while no set has an element: the chain is at no hook then, and the guest's
//! segments pass no rule of ours. (A chain that is made and deleted instead is freed later, and the end of
//! the agent waits for that: 5 to 16 ms.) It is awake while it is made, because a kernel without the hook
//! refuses the chain only then.
//!
//! ```text
//! table netdev eth0-bulk {
//!   set tcp4 { type ipv4_addr . inet_service . ipv4_addr . inet_service }
//!   set tcp6 { type ipv6_addr . inet_service . ipv6_addr . inet_service }
//!   set protocols { type inet_proto; timeout 5s }
//!   chain out { type filter hook egress device eth0 priority 0
//!     ip saddr . tcp sport . ip daddr . tcp dport @tcp4 fwd to eth0-bulk
//!     ip6 saddr . tcp sport . ip6 daddr . tcp dport @tcp6 fwd to eth0-bulk
//!     meta l4proto @protocols fwd to eth0-udp
//!   }
//! }
//! ```
//!
//! *Datagrams.* While `protocols` has UDP, all datagrams of the guest's leave by another interface, the queue
//! of their own ([`super::datagram_queue`]). The kernel takes UDP out of the set unless the agent renews it:
//! if the agent is killed the queue may go, and nothing else would lead datagrams to the interface again.
//!
//! The guest's root may list and delete all of it: then the segments come to the interface again, which takes
//! the flow back.

use super::Ends;
use crate::netlink::nftables::{Base, Batch, Expression, Field, Hook, KeyPart, Meta, Nftables, register};
use rustix::io::Errno;
use std::net::IpAddr;
use std::time::Duration;

/// Time for which datagrams are steered, unless that is renewed.
pub const STEERED_MAX: Duration = Duration::from_secs(5);

const CHAIN: &str = "out";
const SET4: &str = "tcp4";
const SET6: &str = "tcp6";
const PROTOCOLS: &str = "protocols";
const PARTS4: [KeyPart; 4] = [KeyPart::IPV4, KeyPart::PORT, KeyPart::IPV4, KeyPart::PORT];
const PARTS6: [KeyPart; 4] = [KeyPart::IPV6, KeyPart::PORT, KeyPart::IPV6, KeyPart::PORT];
/// Numbers of transport protocols.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Where segments are found, and where they go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hooked {
    /// Name of the table, one for each interface of a namespace.
    pub table: String,
    /// Name of the guest's interface.
    pub device: String,
    /// Index of the guest's end of the veth pair.
    pub beside: u32,
    /// Whether the guest's namespace ends with brodo, and takes the table with it.
    pub is_passing: bool,
}

/// The steering of one guest.
#[derive(Debug)]
pub struct Steering {
    nftables: Nftables,
    place: Hooked,
    /// Elements in the sets.
    elements: usize,
}

/// The set that has a 4-tuple, and its key there: source and destination as the guest's segments have them.
struct Element {
    set: &'static str,
    key: Vec<u8>,
}

impl Element {
    fn of(ends: &Ends) -> Self {
        let part = |address: IpAddr, port: u16| {
            let mut bytes = match address {
                IpAddr::V4(v4) => v4.octets().to_vec(),
                IpAddr::V6(v6) => v6.octets().to_vec(),
            };
            bytes.extend(port.to_be_bytes());
            bytes.extend([0; 2]);
            bytes
        };
        let set = if ends.guest.is_ipv4() { SET4 } else { SET6 };
        let parts = [ends.guest, ends.remote].map(|end| part(end.ip(), end.port()));
        Self { set, key: parts.concat() }
    }
}

impl Steering {
    /// Makes the table, in the network namespace of the socket; one that an earlier instance has left is
    /// replaced. A kernel that lacks an expression or the hook says so now.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn new(nftables: Nftables, place: Hooked) -> Result<Self, Errno> {
        let steering = Self { nftables, place, elements: 0 };
        let batch = steering.batch();
        let batch = if steering.place.is_passing {
            // The namespace is new and has no table, and the agent's end would wait for one that was deleted.
            batch
        } else {
            // To add it first makes the removal one that never fails for want of a table.
            batch.suspend_table().delete_table()
        };
        let size = super::FLOWS_MAX as u32;
        let batch = batch.wake_table().add_set(SET4, &PARTS4, size, 1).add_set(SET6, &PARTS6, size, 2);
        // Room for one whose time is over beside the one in force.
        let batch = batch.add_lapsing_set(PROTOCOLS, &[KeyPart::PROTOCOL], 2, 3, STEERED_MAX);
        let batch = batch.add_chain(CHAIN, Hook::Egress, &steering.place.device);
        let batch = batch.add_rule(CHAIN, &rule(&RULE4, steering.place.beside));
        let batch = batch.add_rule(CHAIN, &rule(&RULE6, steering.place.beside));
        steering.nftables.commit(batch)?;
        steering.nftables.commit(steering.batch().suspend_table())?;
        Ok(steering)
    }

    fn batch(&self) -> Batch<'_> {
        Batch::new(&self.place.table)
    }

    /// Steers the segments that the guest sends from one end to the other beside its interface.
    ///
    /// # Errors
    /// The kernel's refusal: nothing has changed.
    pub fn add(&mut self, ends: &Ends) -> Result<(), Errno> {
        let Element { set, key } = Element::of(ends);
        self.add_key(set, &key)
    }

    /// Adds the rule for datagrams, which are to leave by the interface of this index while they are steered.
    ///
    /// # Errors
    /// The kernel's refusal: nothing has changed.
    pub(super) fn lead_datagrams(&self, queue: u32) -> Result<(), Errno> {
        let rule =
            [Expression::Meta(Meta::Transport), Expression::Lookup(PROTOCOLS), Expression::Forward(queue)];
        self.nftables.commit(self.batch().add_rule(CHAIN, &rule))
    }

    /// Steers all datagrams of the guest's, for [`STEERED_MAX`].
    ///
    /// # Errors
    /// The kernel's refusal: nothing has changed.
    pub(super) fn add_datagrams(&mut self) -> Result<(), Errno> {
        self.add_key(PROTOCOLS, &[UDP])
    }

    /// Steers them for [`STEERED_MAX`] more.
    ///
    /// # Errors
    /// The kernel's refusal: nothing has changed.
    pub(super) fn renew_datagrams(&self) -> Result<(), Errno> {
        // A kernel before 6.12 leaves the time of a key that is there as it is.
        let renewed = self.batch().delete_element(PROTOCOLS, &[UDP]).add_element(PROTOCOLS, &[UDP]);
        match self.nftables.commit(renewed) {
            // Its time is over.
            Err(Errno::NOENT) => self.nftables.commit(self.batch().add_element(PROTOCOLS, &[UDP])),
            result => result,
        }
    }

    /// Lets them leave by the interface again.
    ///
    /// # Errors
    /// As of [`Steering::remove`].
    pub(super) fn remove_datagrams(&mut self) -> Result<(), Errno> {
        self.remove_key(PROTOCOLS, &[UDP])
    }

    fn add_key(&mut self, set: &str, key: &[u8]) -> Result<(), Errno> {
        let batch = self.batch().add_element(set, key);
        let batch = if self.elements == 0 { batch.wake_table() } else { batch };
        self.nftables.commit(batch)?;
        self.elements += 1;
        Ok(())
    }

    /// Lets them leave by the interface again.
    ///
    /// # Errors
    /// The kernel's refusal: the guest has deleted the table or a part of it.
    pub fn remove(&mut self, ends: &Ends) -> Result<(), Errno> {
        let Element { set, key } = Element::of(ends);
        self.remove_key(set, &key)
    }

    fn remove_key(&mut self, set: &str, key: &[u8]) -> Result<(), Errno> {
        self.elements = self.elements.saturating_sub(1);
        let batch = self.batch().delete_element(set, key);
        let batch = if self.elements == 0 { batch.suspend_table() } else { batch };
        self.nftables.commit(batch)
    }

    /// Removes all of it, where it would be left: the kernel waits for 10 to 20 ms until no processor uses
    /// the table any more.
    pub fn end(self) {
        if !self.place.is_passing {
            // Gone already if the namespace is.
            let _ = self.nftables.commit(self.batch().delete_table());
        }
    }
}

/// Fields of a segment of one family.
struct Fields {
    /// The Ethernet protocol.
    protocol: [u8; 2],
    /// Offsets of the two addresses in the IP header, and their length.
    source: u32,
    destination: u32,
    address_len: u32,
    set: &'static str,
}

const RULE4: Fields =
    Fields { protocol: [0x08, 0x00], source: 12, destination: 16, address_len: 4, set: SET4 };
const RULE6: Fields =
    Fields { protocol: [0x86, 0xdd], source: 8, destination: 24, address_len: 16, set: SET6 };

/// The rule for one family: the parts of the key into registers one behind the other, the search, the
/// interface.
fn rule(fields: &Fields, beside: u32) -> [Expression<'_>; 10] {
    let words = fields.address_len / 4;
    let address = |offset, to| {
        Expression::Load(Field { base: Base::Network, offset, len: fields.address_len }, register(to))
    };
    let port = |offset, to| Expression::Load(Field { base: Base::Transport, offset, len: 2 }, register(to));
    [
        Expression::Meta(Meta::Protocol),
        Expression::Equals(&fields.protocol),
        Expression::Meta(Meta::Transport),
        Expression::Equals(&[TCP]),
        address(fields.source, 0),
        port(0, words),
        address(fields.destination, words + 1),
        port(2, 2 * words + 1),
        Expression::Lookup(fields.set),
        Expression::Forward(beside),
    ]
}
