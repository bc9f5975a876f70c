//! rtnetlink: the few requests of interface set-up, each sent alone and acknowledged by the kernel, and
//! dumps.
//!
//! A [`Netlink`] acts in the network namespace its socket was made in. Messages are typed by
//! `netlink-packet-route`; this file adds the socket, the acknowledgement and the choice of attributes. It is
//! used a dozen times at start and when the host's network changes, so requests are neither pipelined nor
//! batched.
//!
//! *Dumps* ([`dump`]), of this family and of sock_diag: the kernel sends a list in pieces, and marks one that
//! has changed between two of them (NLM_F_DUMP_INTR), from which entries may be missing. Such a dump is
//! repeated.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkFlags, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Room for one piece of a dump, in bytes: the kernel fills up to 32 KiB for a reader that has it.
const DUMP_MAX: usize = 32 << 10;
/// Most dumps of a list that changes all the time, before the last one is taken as it is. Later changes are
/// noticed in other ways: by a notification, or the next dump.
const DUMPS_MAX: usize = 8;
/// Bytes of `struct ifaddrmsg`, which attributes follow.
const ADDRESS_HEADER_LEN: usize = 8;

/// A route socket in the namespace it was opened in.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

/// Properties that [`Netlink::set_link`] changes; `None` keeps a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// MAC address.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet, in bytes.
    pub mtu: Option<u32>,
    /// Length of the transmit queue, in frames.
    pub tx_queue_len: Option<u32>,
    /// Whether the kernel makes an IPv6 link-local address when the link comes up.
    pub automatic_link_local: Option<bool>,
}

impl Netlink {
    /// Opens a socket in the caller's network namespace.
    pub fn open() -> Result<Self, Errno> {
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            // NETLINK_ROUTE is number zero, which is what no number means.
            None,
        )?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The index of the interface called `name`; `ENODEV` if there is none.
    pub fn index_of(&self, name: &str) -> Result<u32, Errno> {
        rustix::net::netdevice::name_to_index(&self.socket, name)
    }

    /// Changes properties of a link that is down.
    pub fn set_link(&mut self, index: u32, settings: &LinkSettings) -> Result<(), Errno> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let attributes = &mut message.attributes;
        attributes.extend(settings.mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        attributes.extend(settings.mtu.map(LinkAttribute::Mtu));
        attributes.extend(settings.tx_queue_len.map(LinkAttribute::TxQueueLen));
        attributes.extend(settings.automatic_link_local.map(|automatic| {
            let mode = if automatic { In6AddrGenMode::Eui64 } else { In6AddrGenMode::None };
            LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(mode)])])
        }));
        self.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Brings a link up.
    pub fn set_up(&mut self, index: u32) -> Result<(), Errno> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Adds an address that is usable at once, without duplicate address detection (RFC 4862): the link has
    /// no other hosts.
    pub fn add_address(&mut self, index: u32, address: IpAddr, prefix_len: u8) -> Result<(), Errno> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix_len;
        message.header.index = index;
        message.attributes.push(AddressAttribute::Address(address));
        match address {
            IpAddr::V4(v4) => {
                message.attributes.push(AddressAttribute::Local(address));
                if prefix_len < 31 {
                    message.attributes.push(AddressAttribute::Broadcast(broadcast(v4, prefix_len)));
                }
            }
            IpAddr::V6(_) => message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad)),
        }
        self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds the default route of the gateway's family; `EEXIST` if there is one already.
    pub fn add_default_route(&mut self, index: u32, gateway: IpAddr) -> Result<(), Errno> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(gateway);
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Boot;
        message.header.kind = RouteType::Unicast;
        message.attributes =
            vec![RouteAttribute::Gateway(RouteAddress::from(gateway)), RouteAttribute::Oif(index)];
        self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Every address of the namespace, of both families, in no order.
    pub fn addresses(&mut self) -> Result<Vec<IpAddr>, Errno> {
        let request = |sequence| {
            let body = RouteNetlinkMessage::GetAddress(AddressMessage::default());
            serialized(body, NLM_F_DUMP, sequence)
        };
        dump(&self.socket, &mut self.sequence, request, usize::MAX, |kind, payload| {
            (kind == libc::RTM_NEWADDR).then(|| own_address(payload))?
        })
    }

    /// Sends one request and waits for its acknowledgement.
    fn request(&mut self, body: RouteNetlinkMessage, flags: u16) -> Result<(), Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = serialized(body, NLM_F_ACK | flags, self.sequence);
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        let mut reply = [0; 4096];
        loop {
            let (length, _) = rustix::net::recv(&self.socket, &mut reply, RecvFlags::empty())?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&reply[..length])
                .map_err(|_| Errno::BADMSG)?;
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            if let NetlinkPayload::Error(error) = answer.payload {
                // An acknowledgement is an error message with code zero.
                return error.code.map_or(Ok(()), |code| Err(Errno::from_raw_os_error(-code.get())));
            }
        }
    }
}

/// A request with these flags and this number, in wire format.
fn serialized(body: RouteNetlinkMessage, flags: u16, sequence: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(body));
    message.finalize();
    let mut request = vec![0; message.buffer_len()];
    message.serialize(&mut request);
    request
}

/// Requests a dump and collects the items that `parse` makes of its messages, by kind and payload, at most
/// `max`. `request` is serialised for each number. A list that changed meanwhile is requested again,
/// [`DUMPS_MAX`] times at most. `sequence` is the number of the socket's last request: messages of another
/// number belong to an abandoned answer.
///
/// # Errors
/// The kernel's refusal; [`Errno::BADMSG`] for a malformed answer; on a non-blocking socket [`Errno::AGAIN`]
/// for a missing one.
pub(crate) fn dump<T>(
    socket: impl AsFd,
    sequence: &mut u32,
    request: impl Fn(u32) -> Vec<u8>,
    max: usize,
    mut parse: impl FnMut(u16, &[u8]) -> Option<T>,
) -> Result<Vec<T>, Errno> {
    let (mut found, mut buffer) = (Vec::new(), vec![0; DUMP_MAX]);
    for _ in 0..DUMPS_MAX {
        *sequence = sequence.wrapping_add(1);
        rustix::net::send(socket.as_fd(), &request(*sequence), SendFlags::empty())?;
        found.clear();
        let changed = receive_dump(socket.as_fd(), *sequence, &mut buffer, |kind, payload| {
            if found.len() < max {
                found.extend(parse(kind, payload));
            }
        })?;
        if !changed {
            break;
        }
    }
    Ok(found)
}

/// Reads one answer to its end; true if the list has changed meanwhile.
fn receive_dump(
    socket: BorrowedFd<'_>,
    sequence: u32,
    buffer: &mut [u8],
    mut each: impl FnMut(u16, &[u8]),
) -> Result<bool, Errno> {
    let mut interrupted = false;
    loop {
        let received = retry_on_intr(|| rustix::net::recv(socket, &mut *buffer, RecvFlags::empty()));
        let mut bytes = buffer.get(..received?.1).filter(|bytes| !bytes.is_empty()).ok_or(Errno::BADMSG)?;
        while let Ok(message) = NetlinkBuffer::new_checked(bytes) {
            if message.sequence_number() == sequence {
                interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
                match i32::from(message.message_type()) {
                    libc::NLMSG_DONE => return Ok(interrupted),
                    libc::NLMSG_ERROR => return Err(refusal(message.payload())),
                    _ => each(message.message_type(), message.payload()),
                }
            }
            bytes = bytes.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// The kernel's refusal: a negative errno at the start of the payload.
pub(crate) fn refusal(payload: &[u8]) -> Errno {
    let code = payload.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    if code < 0 { Errno::from_raw_os_error(-code) } else { Errno::BADMSG }
}

/// The address of an address message: on a point-to-point link the local end's.
fn own_address(payload: &[u8]) -> Option<IpAddr> {
    let attributes = payload.get(ADDRESS_HEADER_LEN..)?;
    let (mut address, mut local) = (None, None);
    for attribute in NlasIterator::new(attributes) {
        let Ok(attribute) = attribute else { break };
        let value = attribute.value();
        let read = || match value.len() {
            4 => value.first_chunk::<4>().map(|b| Ipv4Addr::from(*b).into()),
            16 => value.first_chunk::<16>().map(|b| Ipv6Addr::from(*b).into()),
            _ => None,
        };
        match attribute.kind() {
            libc::IFA_ADDRESS => address = read(),
            libc::IFA_LOCAL => local = read(),
            _ => {}
        }
    }
    local.or(address)
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn broadcast(address: Ipv4Addr, prefix_len: u8) -> Ipv4Addr {
    let host_bits = u32::MAX.checked_shr(u32::from(prefix_len)).unwrap_or(0);
    Ipv4Addr::from_bits(address.to_bits() | host_bits)
}

#[cfg(test)]
mod tests;
