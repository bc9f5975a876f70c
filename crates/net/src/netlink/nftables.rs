//! nf_tables: batches of changes to a table of the family `netdev`, written attribute by attribute.
//!
//! The kernel takes changes in a batch, all of them or none ([`Batch`], [`Nftables::commit`]). This file
//! has the parts that steering is made of: a table, sets of concatenated keys, a chain at a hook of one
//! interface, rules made of a few expressions, elements.
//!
//! The messages are made by hand because no library can be used for them: those for Rust are under the GPL
//! (`rustables`), need the C library libnftnl (`nftnl`) or the program nft (`nftables`), and
//! `netlink-packet-netfilter` has no tables.
//!
//! *Attributes.* Length and kind in the machine's byte order, values in network byte order unless they are
//! texts or raw keys, everything aligned to four bytes. Nested attributes carry a flag.
//!
//! *Registers.* Expressions pass values in registers of four bytes, [`register`]: a key of several parts
//! stands in consecutive ones, each part from the beginning of a register.
//!
//! System calls: socket, sendto, recvfrom.

use super::socket::{messages, refusal};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::ffi::c_int;
use std::time::Duration;

/// Room for all answers to a batch, in bytes: one of some hundred bytes for each message refused.
const ANSWERS_MAX: usize = 16 << 10;
/// The family of hooks of one interface, `NFPROTO_NETDEV`.
const FAMILY: u8 = 5;
/// Number of nf_tables among the parts of netfilter, `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`.
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_CREATE`.
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
/// Flag of an attribute made of attributes, `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;
/// Bytes of `struct nlmsghdr`, and of `struct nfgenmsg` behind it.
const HEADER_LEN: usize = 16;
/// Attribute of one element of a list, `NFTA_LIST_ELEM`.
const LIST_ELEMENT: u16 = 1;
/// Attribute of plain data, `NFTA_DATA_VALUE`.
const DATA_VALUE: u16 = 1;

/// Types of messages: `NFT_MSG_*`.
#[derive(Debug, Clone, Copy)]
#[repr(u16)]
enum Message {
    NewTable = 0,
    DeleteTable = 2,
    NewChain = 3,
    NewRule = 6,
    NewSet = 9,
    NewElement = 12,
    DeleteElement = 14,
}

/// A hook of an interface: `NF_NETDEV_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Hook {
    /// Frames that the interface has received.
    Ingress = 0,
    /// Frames that are to leave by the interface, before its queues.
    Egress = 1,
}

/// Part of a key: its number as a type of nft's, for programs that list the set, and its length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPart {
    number: u32,
    /// Length as a packet has it.
    len: u32,
}

impl KeyPart {
    /// An IPv4 address.
    pub const IPV4: Self = Self { number: 7, len: 4 };
    /// An IPv6 address.
    pub const IPV6: Self = Self { number: 8, len: 16 };
    /// A transport protocol.
    pub const PROTOCOL: Self = Self { number: 12, len: 1 };
    /// A port.
    pub const PORT: Self = Self { number: 13, len: 2 };
    /// Bits of a type's number in the number of a concatenation.
    const BITS: u32 = 6;

    /// Bytes in registers and in keys.
    const fn padded(self) -> u32 {
        self.len.next_multiple_of(4)
    }
}

/// Base of a header field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Base {
    /// The IP header.
    Network = 1,
    /// The TCP header.
    Transport = 2,
}

/// A field of a header, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its header.
    pub base: Base,
    /// Its first byte.
    pub offset: u32,
    /// Its length.
    pub len: u32,
}

/// The register of four bytes with this number: `NFT_REG32_00` and the next.
pub const fn register(number: u32) -> u32 {
    8 + number
}

/// Properties of a packet: `NFT_META_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Meta {
    /// Its Ethernet protocol, in network byte order.
    Protocol = 1,
    /// Its transport protocol.
    Transport = 16,
}

/// One step of a rule. A comparison or search without success ends the rule.
#[derive(Debug, Clone, Copy)]
pub enum Expression<'a> {
    /// Loads a property into the first register.
    Meta(Meta),
    /// Compares the first register with a value.
    Equals(&'a [u8]),
    /// Loads a field of a header into a register.
    Load(Field, u32),
    /// Searches a set for the key that begins in the first register.
    Lookup(&'a str),
    /// Sends the frame by the interface of this index.
    Forward(u32),
}

/// Attributes of a message under construction.
#[derive(Debug, Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn raw(mut self, kind: u16, value: &[u8]) -> Self {
        let length = (4 + value.len()) as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn text(self, kind: u16, value: &str) -> Self {
        self.raw(kind, &[value.as_bytes(), &[0]].concat())
    }

    fn number(self, kind: u16, value: u32) -> Self {
        self.raw(kind, &value.to_be_bytes())
    }

    fn nested(self, kind: u16, value: &Self) -> Self {
        self.raw(kind | NESTED, &value.0)
    }

    /// A value as data of nf_tables.
    fn data(self, kind: u16, value: &[u8]) -> Self {
        self.nested(kind, &Self::default().raw(DATA_VALUE, value))
    }
}

impl Expression<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Meta(_) => "meta",
            Self::Equals(_) => "cmp",
            Self::Load(..) => "payload",
            Self::Lookup(_) => "lookup",
            Self::Forward(_) => "fwd",
        }
    }

    fn attributes(self) -> Attributes {
        let first = register(0);
        let empty = Attributes::default();
        match self {
            // NFTA_META_DREG, NFTA_META_KEY.
            Self::Meta(meta) => empty.number(1, first).number(2, meta as u32),
            // NFTA_CMP_SREG, NFTA_CMP_OP with NFT_CMP_EQ, NFTA_CMP_DATA.
            Self::Equals(value) => empty.number(1, first).number(2, 0).data(3, value),
            // NFTA_PAYLOAD_DREG, _BASE, _OFFSET, _LEN.
            Self::Load(Field { base, offset, len }, to) => {
                empty.number(1, to).number(2, base as u32).number(3, offset).number(4, len)
            }
            // NFTA_LOOKUP_SET, NFTA_LOOKUP_SREG.
            Self::Lookup(set) => empty.text(1, set).number(2, first),
            // NFTA_FWD_SREG_DEV, loaded by an expression before.
            Self::Forward(_) => empty.number(1, first),
        }
    }

    /// The expressions of the kernel's that make this one.
    fn append(self, list: Attributes) -> Attributes {
        let element = |name, attributes| {
            // NFTA_EXPR_NAME, NFTA_EXPR_DATA.
            Attributes::default().text(1, name).nested(2, &attributes)
        };
        let list = match self {
            // NFTA_IMMEDIATE_DREG, NFTA_IMMEDIATE_DATA: the index is a number in the machine's byte order.
            Self::Forward(index) => {
                let load = Attributes::default().number(1, register(0)).data(2, &index.to_ne_bytes());
                list.nested(LIST_ELEMENT, &element("immediate", load))
            }
            _ => list,
        };
        list.nested(LIST_ELEMENT, &element(self.name(), self.attributes()))
    }
}

/// Changes to one table.
#[derive(Debug)]
#[must_use = "nothing changes before it is committed"]
pub struct Batch<'a> {
    table: &'a str,
    bytes: Vec<u8>,
    messages: u32,
}

impl<'a> Batch<'a> {
    /// No change yet to this table.
    pub fn new(table: &'a str) -> Self {
        let mut batch = Self { table, bytes: Vec::new(), messages: 0 };
        batch.push(BATCH_BEGIN, 0, SUBSYSTEM, Attributes::default());
        batch
    }

    fn push(&mut self, kind: u16, flags: u16, resource: u16, attributes: Attributes) {
        let family = if resource == 0 { FAMILY } else { 0 };
        let length = (HEADER_LEN + 4 + attributes.0.len()) as u32;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((REQUEST | flags).to_ne_bytes());
        self.bytes.extend(self.messages.to_ne_bytes());
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        self.bytes.extend(attributes.0);
        self.messages += 1;
    }

    fn change(mut self, message: Message, flags: u16, attributes: Attributes) -> Self {
        self.push(SUBSYSTEM << 8 | message as u16, ACK | flags, 0, attributes);
        self
    }

    /// Attributes that begin with the table's name, which is number 1 in every message.
    fn of_table(&self) -> Attributes {
        Attributes::default().text(1, self.table)
    }

    /// Adds the table, or wakes up the one that exists: its chains are at their hooks. The kernel takes no
    /// such change together with one of the table's chains (EINVAL).
    pub fn wake_table(self) -> Self {
        self.set_table(0)
    }

    /// Adds the table as a dormant one, or makes the one that exists dormant: its chains are at no hook.
    pub fn suspend_table(self) -> Self {
        // The flag NFT_TABLE_F_DORMANT.
        self.set_table(1)
    }

    fn set_table(self, flags: u32) -> Self {
        // The attribute NFTA_TABLE_FLAGS.
        let attributes = self.of_table().number(2, flags);
        self.change(Message::NewTable, CREATE, attributes)
    }

    /// Removes the table with all that is in it.
    pub fn delete_table(self) -> Self {
        let attributes = self.of_table();
        self.change(Message::DeleteTable, 0, attributes)
    }

    /// Adds a set of keys of these parts, with room for `size` of them. `id` identifies it in the batch.
    pub fn add_set(self, name: &str, parts: &[KeyPart], size: u32, id: u32) -> Self {
        let attributes = self.of_set(name, parts, size, id).number(3, 0);
        self.change(Message::NewSet, CREATE, attributes)
    }

    /// Adds a set whose keys are removed by the kernel `lifetime` after they were added, in milliseconds. A
    /// key takes its room for up to a second more.
    pub fn add_lapsing_set(
        self,
        name: &str,
        parts: &[KeyPart],
        size: u32,
        id: u32,
        lifetime: Duration,
    ) -> Self {
        let lifetime_ms = lifetime.as_millis() as u64;
        // The flag NFT_SET_TIMEOUT, NFTA_SET_TIMEOUT.
        let attributes = self.of_set(name, parts, size, id).number(3, 0x10);
        let attributes = attributes.raw(11, &lifetime_ms.to_be_bytes());
        self.change(Message::NewSet, CREATE, attributes)
    }

    /// Attributes of a set, all but NFTA_SET_FLAGS, which is number 3.
    fn of_set(&self, name: &str, parts: &[KeyPart], size: u32, id: u32) -> Attributes {
        let number = parts.iter().fold(0, |number, part| number << KeyPart::BITS | part.number);
        let len = match parts {
            [part] => part.len,
            _ => parts.iter().map(|part| part.padded()).sum(),
        };
        // NFTA_SET_DESC_SIZE alone: no intervals.
        let description = Attributes::default().number(1, size);
        // NFTA_SET_NAME, _KEY_TYPE, _KEY_LEN, _DESC, _ID.
        let attributes = self.of_table().text(2, name).number(4, number).number(5, len);
        attributes.nested(9, &description).number(10, id)
    }

    /// Adds a chain at a hook of the interface called `device`; what no rule forwards goes on.
    pub fn add_chain(self, name: &str, hook: Hook, device: &str) -> Self {
        // NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_HOOK_DEV.
        let hook = Attributes::default().number(1, hook as u32).number(2, 0).text(3, device);
        // NFTA_CHAIN_NAME, _HOOK, _POLICY with NF_ACCEPT, _TYPE.
        let attributes = self.of_table().text(3, name).nested(4, &hook).number(5, 1).text(7, "filter");
        self.change(Message::NewChain, CREATE, attributes)
    }

    /// Adds a rule to the end of a chain.
    pub fn add_rule(self, chain: &str, expressions: &[Expression<'_>]) -> Self {
        let list = expressions.iter().fold(Attributes::default(), |list, step| step.append(list));
        // NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS. NLM_F_APPEND is 0x800.
        let attributes = self.of_table().text(2, chain).nested(4, &list);
        self.change(Message::NewRule, CREATE | 0x800, attributes)
    }

    /// Adds a key to a set.
    pub fn add_element(self, set: &str, key: &[u8]) -> Self {
        self.element(Message::NewElement, CREATE, set, key)
    }

    /// Removes a key from a set.
    pub fn delete_element(self, set: &str, key: &[u8]) -> Self {
        self.element(Message::DeleteElement, 0, set, key)
    }

    fn element(self, message: Message, flags: u16, set: &str, key: &[u8]) -> Self {
        // NFTA_SET_ELEM_KEY alone: no mapping.
        let element = Attributes::default().data(1, key);
        let list = Attributes::default().nested(LIST_ELEMENT, &element);
        // NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_ELEMENTS.
        let attributes = self.of_table().text(2, set).nested(3, &list);
        self.change(message, flags, attributes)
    }
}

/// A socket of nf_tables, in the network namespace that it was made in.
#[derive(Debug)]
pub struct Nftables {
    fd: OwnedFd,
}

impl Nftables {
    /// Opens one in the caller's network namespace.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the kernel has no netfilter.
    pub fn open() -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::NETFILTER);
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).map(Self::adopt)
    }

    /// Takes a socket of [`Nftables::open`].
    pub fn adopt(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Makes all changes of a batch, or none.
    ///
    /// # Errors
    /// The kernel's first refusal.
    pub fn commit(&self, mut batch: Batch<'_>) -> Result<(), Errno> {
        let expected = batch.messages - 1;
        batch.push(BATCH_END, 0, SUBSYSTEM, Attributes::default());
        // Answers to an earlier batch were read by its own call, all that there were.
        rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, &batch.bytes, SendFlags::empty()))?;
        let (mut buffer, mut acknowledged) = (vec![0; ANSWERS_MAX], 0);
        let mut refused = None;
        loop {
            // The kernel has answered within the call that sent the batch.
            let received = rustix::io::retry_on_intr(|| {
                rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::DONTWAIT)
            });
            let length = match received {
                Ok((_, length)) => length.min(buffer.len()),
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(refused.unwrap_or(errno)),
            };
            for message in messages(&buffer[..length]) {
                match (c_int::from(message.message_type()), message.payload().first_chunk()) {
                    (libc::NLMSG_ERROR, Some(&[0, 0, 0, 0])) => acknowledged += 1,
                    (libc::NLMSG_ERROR, _) => _ = refused.get_or_insert(refusal(message.payload())),
                    _ => {}
                }
            }
        }
        match refused {
            Some(errno) => Err(errno),
            None if acknowledged == expected => Ok(()),
            None => Err(Errno::BADMSG),
        }
    }
}

impl AsFd for Nftables {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Nftables> for OwnedFd {
    fn from(nftables: Nftables) -> Self {
        nftables.fd
    }
}

#[cfg(test)]
mod tests;
