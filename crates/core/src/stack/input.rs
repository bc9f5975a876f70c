//! Dispatch of a guest's frame, layer by layer: to its flow, to a service, or to a counted drop.

use super::admission::Admission;
use super::{
    Connection, DatagramFlow, DropReason, Echo, EndCause, EthernetHeader, EvictionClass, EvictionGroup, Flow,
    FlowId, FlowKey, Gso, HostError, ICMP, ICMPV6, IcmpCause, Icmpv4Message, Icmpv6Message, Io, IpAddr,
    Ipv6Header, Platform, Protocol, Stack, TCP, TcpFlags, TcpHeader, UDP, icmp, reset, services,
};
use crate::fragments::IpHeader;
use crate::host::Host;
use crate::icmp::{GuestError, Quoted};
use crate::ingress::{Frame, L4, Packet};
use crate::left_out::Part;
use crate::wire::ethernet::MacAddr;
use crate::wire::tcp::Seq;
use crate::{cidr, destination};
use std::io::IoSlice;

mod reassembly;

/// Ports of the servers that brodo is on the link.
const DHCPV4_SERVER: u16 = 67;
const DHCPV6_SERVER: u16 = 547;
/// Neighbour discovery's ICMPv6 types (RFC 4861): router solicitation to redirect.
const NDP_TYPES: std::ops::RangeInclusive<u8> = 133..=137;
/// ICMPv6 types of multicast listener discovery (RFC 2710, RFC 3810). Every guest reports its groups
/// when its interface comes up; on a link of two hosts no table holds it.
const MLD_TYPES: [u8; 4] = [130, 131, 132, 143];
/// ICMPv6 type of a router solicitation.
const ROUTER_SOLICITATION: u8 = 133;

/// Most datagrams that a guest may have cut from a frame: Linux does no more (UDP_MAX_SEGMENTS, 64 before
/// 6.8). A frame of 64 KiB in pieces of a byte would be as many sends, or as many questions of DNS.
const PIECES_MAX: usize = 128;

/// Outcome of opening a datagram flow.
enum DatagramOpening {
    /// It is open.
    Open(FlowId),
    /// Refused; the ICMP error to send, and the reason to count.
    Refused { cause: IcmpCause, reason: DropReason },
}

impl Stack {
    pub(super) fn dispatch<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        frame: Frame<'_>,
    ) -> Result<(), DropReason> {
        let packet = match frame {
            Frame::Arp(l2, packet) => {
                let answer = services::arp::answer(&self.shared.config, packet, &mut self.buffers.scratch)?;
                self.learn(l2.src);
                if let Some(sender) = services::arp::sender(packet) {
                    self.notice_address(sender.into());
                }
                self.answer(io, answer);
                return Ok(());
            }
            Frame::Fragment { l2, ip, fragment, data } => return self.fragment(io, l2, ip, fragment, data),
            Frame::Packet(packet) => packet,
        };
        if let (IpHeader::V6(ip), ICMPV6, Some(kind)) = (&packet.ip, packet.protocol, packet.payload.first())
        {
            if MLD_TYPES.contains(kind) {
                return Ok(());
            }
            if NDP_TYPES.contains(kind) {
                return self.neighbour(io, &packet.l2, ip, packet.payload);
            }
        }
        self.packet(io, &packet)
    }

    /// Learns the guest's MAC address, from frames that passed their checks.
    fn learn(&mut self, mac: MacAddr) {
        if self.shared.tx.guest_mac != mac {
            self.shared.tx.guest_mac = mac;
            self.shared.journal.guest_mac(mac);
            if let Some((owners, _)) = self.flows.owners() {
                owners.set_guest_mac(mac);
            }
        }
    }

    /// Sends the frame that a service wrote to the scratch buffer.
    pub(super) fn answer<P: Platform>(&mut self, io: &mut Io<'_, P>, len: Option<usize>) {
        if let Some(len) = len {
            icmp::send(&mut io.cx(&mut self.shared), &self.buffers.scratch[..len]);
        }
    }

    fn neighbour<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        eth: &EthernetHeader,
        ip: &Ipv6Header,
        message: &[u8],
    ) -> Result<(), DropReason> {
        if !ip.src.is_unspecified() && !self.is_guest(ip.src.into()) {
            return Err(DropReason::SpoofedSource);
        }
        self.offered(Part::Ndp)?;
        if message.first() == Some(&ROUTER_SOLICITATION) {
            self.offered(Part::Ra)?;
        }
        let (config, scratch) = (&self.shared.config, &mut self.buffers.scratch);
        let answer = services::ndp::answer(config, eth.src, ip, message, &self.withdrawn, scratch)?;
        if message.first() == Some(&ROUTER_SOLICITATION) {
            self.advertise_at = Some(io.now + services::ndp::ADVERTISE_EVERY);
        }
        self.learn(eth.src);
        self.notice_address(services::ndp::claimed(ip, message).unwrap_or(ip.src).into());
        self.answer(io, answer);
        Ok(())
    }

    /// # Errors
    /// [`DropReason::LeftOut`] if `part` is left out.
    pub(super) fn offered(&self, part: Part) -> Result<(), DropReason> {
        if self.shared.config.without.contains(part) { Err(DropReason::LeftOut) } else { Ok(()) }
    }

    /// Whether `ip` is an address of the guest's own.
    pub(super) fn is_guest(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(_) => self.shared.config.is_guests(ip),
            IpAddr::V6(ip) => self.shared.config.v6.is_some_and(|n| {
                let in_prefix = (ip.to_bits() ^ n.guest.to_bits()) & cidr::mask_v6(n.prefix_len) == 0;
                let known =
                    in_prefix || ip.is_unicast_link_local() || self.shared.config.is_guests(ip.into());
                known && !self.shared.config.is_ours(ip.into())
            }),
        }
    }

    /// Whether a router forwards a packet to `dst` no further (RFC 1812, 5.3.1). Packets for brodo itself
    /// have arrived, and to groups and neighbours of the guest they pass no router.
    pub(super) fn ends_here(&self, dst: IpAddr, ttl: u8) -> bool {
        if ttl > 1 {
            return false;
        }
        let config = &self.shared.config;
        let broadcast = matches!(dst, IpAddr::V4(dst) if dst.is_broadcast());
        let group = dst.is_multicast() || broadcast || destination::is_group(config, dst);
        let direct = ttl > 0 && destination::is_direct(config, dst);
        !(group || direct || config.is_ours(dst))
    }

    fn packet<P: Platform>(&mut self, io: &mut Io<'_, P>, packet: &Packet<'_>) -> Result<(), DropReason> {
        // A guest that has no address of this network may only ask for one: without an address, or from that
        // of another network, whose lease it wants to extend (RFC 2131, 4.3.2).
        let asks_for_address = match packet.dst {
            IpAddr::V4(dst) => {
                packet.src.is_unspecified() || (dst.is_broadcast() && !self.is_guest(packet.src))
            }
            IpAddr::V6(_) => false,
        };
        let without_address = asks_for_address && packet.protocol == UDP;
        if !without_address && !self.is_guest(packet.src) {
            return Err(DropReason::SpoofedSource);
        }
        if !without_address && self.ends_here(packet.dst, packet.hop_limit) {
            icmp::send_error(&mut io.cx(&mut self.shared), IcmpCause::TimeExceeded, None, packet.whole);
            return Err(DropReason::TtlExpired);
        }
        match packet.protocol {
            TCP => self.tcp(io, packet),
            UDP => self.udp(io, packet, without_address),
            ICMP if packet.src.is_ipv4() => self.icmpv4(io, packet),
            ICMPV6 if packet.src.is_ipv6() => self.icmpv6(io, packet),
            _ => Err(DropReason::UnknownProtocol),
        }
    }

    fn tcp<P: Platform>(&mut self, io: &mut Io<'_, P>, packet: &Packet<'_>) -> Result<(), DropReason> {
        if !packet.verify(packet.payload) {
            return Err(DropReason::TcpChecksum);
        }
        self.offered(Part::Tcp)?;
        let L4::Tcp(decoded) = &packet.l4 else { return Err(DropReason::UnknownProtocol) };
        let (segment, payload) = decoded.as_ref().map_err(|&reason| reason)?;
        let key = packet.key_of(Protocol::Tcp, segment.src_port, segment.dst_port);
        self.learn(packet.l2.src);
        let mut iss_after = None;
        if let Some(id) = self.flows.find(&key) {
            match self.flows.get(id) {
                Some(Flow::Tcp(connection)) if connection.may_be_replaced_by(segment) => {
                    iss_after = Some(connection.sequence_used());
                }
                _ => {
                    self.use_flow(io, id, |flow, cx, _| {
                        if let Flow::Tcp(connection) = flow {
                            connection.segment(cx, segment, payload);
                        }
                    });
                    return Ok(());
                }
            }
            self.remove(io, id);
        }
        let control = TcpFlags::SYN | TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN;
        if segment.flags.0 & control.0 != TcpFlags::SYN.0 {
            if !packet.dst.is_multicast() {
                reset::answer(&mut io.cx(&mut self.shared), &key, segment, payload.len());
            }
            return Err(DropReason::NoConnection);
        }
        self.open(io, key, segment, iss_after, packet.whole)
    }

    /// A SYN, the packet `whole`, for a new connection; `iss_after` is what an earlier one between the same
    /// ends has used.
    fn open<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: FlowKey,
        syn: &TcpHeader,
        iss_after: Option<Seq>,
        whole: &[u8],
    ) -> Result<(), DropReason> {
        let (dial, gate) = match self.admit(io, &key, io.now)? {
            Admission::Granted(dial, gate) => (dial, gate),
            Admission::Waits(reason) => return Err(reason),
            Admission::Refused { cause: IcmpCause::NetUnreachable, reason } => {
                icmp::send_error(&mut io.cx(&mut self.shared), IcmpCause::NetUnreachable, None, whole);
                return Err(reason);
            }
            Admission::Refused { cause, reason } => {
                let cx = &mut io.cx(&mut self.shared);
                // Linux reports this error of ICMPv6 as EACCES, and no error of ICMPv4 (icmpv6_err_convert,
                // icmp_err_convert). The reset is for guests that wait for one all the same.
                if reason == DropReason::Denied && key.remote.ip().is_ipv6() {
                    icmp::send_error(cx, cause, None, whole);
                }
                reset::refuse(cx, &key, syn.seq + 1);
                return Err(reason);
            }
        };
        let id = self.flows.insert(EvictionClass::Unanswered.list(EvictionGroup::Guest), io.now, |id| {
            let connection =
                Connection::open(&mut io.cx(&mut self.shared), id, key, dial, gate, syn, iss_after);
            Flow::Tcp(connection)
        });
        self.count_opened(id);
        self.hold_destination(io.now, id);
        // The next SYN asks whether there is room, long before the host has connected.
        if self.policy.is_limiting() {
            self.charge(io, id);
        }
        self.settle(io, id);
        Ok(())
    }

    fn udp<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        packet: &Packet<'_>,
        without_address: bool,
    ) -> Result<(), DropReason> {
        let L4::Udp(decoded) = &packet.l4 else { return Err(DropReason::UnknownProtocol) };
        let (header, payload) = decoded.as_ref().map_err(|&reason| reason)?;
        let unchecked = header.checksum == 0 && packet.src.is_ipv4();
        if !unchecked && !packet.verify(&packet.payload[..usize::from(header.length)]) {
            return Err(DropReason::UdpChecksum);
        }
        if let (IpAddr::V4(src), IpAddr::V4(dst), DHCPV4_SERVER) = (packet.src, packet.dst, header.dst_port)
            && (dst.is_broadcast() || self.shared.config.is_ours(packet.dst))
        {
            self.offered(Part::Dhcp)?;
            let config = &self.shared.config;
            let answer =
                services::dhcpv4::answer(config, &packet.l2, src, dst, payload, &mut self.buffers.scratch)?;
            self.learn(packet.l2.src);
            self.answer(io, answer);
            return Ok(());
        }
        if without_address {
            return Err(DropReason::SpoofedSource);
        }
        if let (IpAddr::V6(src), IpAddr::V6(dst), DHCPV6_SERVER) = (packet.src, packet.dst, header.dst_port)
            && dst.is_multicast()
        {
            self.offered(Part::Dhcpv6)?;
            let config = &self.shared.config;
            let answer =
                services::dhcpv6::answer(config, &packet.l2, src, dst, payload, &mut self.buffers.scratch)?;
            self.learn(packet.l2.src);
            self.answer(io, answer);
            return Ok(());
        }
        self.offered(Part::Udp)?;
        let segment = match packet.meta.gso {
            Gso::None => None,
            Gso::Udp(size) if size > 0 && payload.len().div_ceil(size.into()) <= PIECES_MAX => Some(size),
            _ => return Err(DropReason::BadOffload),
        };
        self.learn(packet.l2.src);
        let key = packet.key_of(Protocol::Udp, header.src_port, header.dst_port);
        if destination::is_dns(&self.shared.config, key.remote) {
            self.offered(Part::Dns)?;
            return self.questions(io, key, payload, segment);
        }
        self.datagram(io, key, payload, segment, packet)
    }

    /// A datagram or echo request for a flow, new or not.
    fn datagram<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: FlowKey,
        payload: &[u8],
        segment: Option<u16>,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let id = match self.flows.find(&key) {
            Some(id) => id,
            None => match self.open_datagram(io, key)? {
                DatagramOpening::Open(id) => id,
                DatagramOpening::Refused { cause, reason } => {
                    icmp::send_error(&mut io.cx(&mut self.shared), cause, None, packet.whole);
                    return Err(reason);
                }
            },
        };
        self.use_flow(io, id, |flow, cx, _| {
            if let Flow::Datagram(datagrams) = flow {
                let fields = packet.fields(&cx.shared.config);
                datagrams.send(cx, &mut [IoSlice::new(payload)], segment, fields, |_| packet.whole);
            }
        });
        Ok(())
    }

    /// A new flow, or the ICMP error that refuses it and what to count.
    fn open_datagram<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: FlowKey,
    ) -> Result<DatagramOpening, DropReason> {
        let (to, gate) = match self.admit(io, &key, io.now)? {
            Admission::Granted(dial, gate) => (dial.to, gate),
            Admission::Waits(reason) => return Err(reason),
            Admission::Refused { cause, reason } => return Ok(DatagramOpening::Refused { cause, reason }),
        };
        let id = self.flows.reserve();
        let opened = match key.protocol {
            Protocol::Echo => io.host.ping_open(id, to.ip()),
            _ if destination::is_group(&self.shared.config, key.remote.ip()) => {
                io.host.group_open(id, key.guest.into(), to)
            }
            _ => io.host.udp_open(id, Some(key.guest.into()), to),
        };
        let socket = match opened {
            Ok(socket) => socket,
            Err(HostError::Unsupported) if key.protocol == Protocol::Echo => {
                return Err(DropReason::EchoUnsupported);
            }
            Err(error) => {
                self.note_unopened(key, EndCause::of(error), None);
                let refusal = |cause| DatagramOpening::Refused { cause, reason: DropReason::Refused };
                return icmp::cause_of(error).map(refusal).ok_or(DropReason::HostExhausted);
            }
        };
        let group = if key.protocol == Protocol::Echo {
            self.shared.counters.echo_opened += 1;
            EvictionGroup::Guest
        } else {
            self.shared.counters.udp_opened += 1;
            EvictionGroup::GuestUdp
        };
        let id = self.flows.insert(EvictionClass::Unanswered.list(group), io.now, |id| {
            let flow = DatagramFlow::new(id, key, socket, io.now);
            Flow::Datagram(match gate {
                Some(subject) => flow.behind_gate(&mut self.shared, subject),
                None => flow,
            })
        });
        self.count_opened(id);
        self.hold_destination(io.now, id);
        Ok(DatagramOpening::Open(id))
    }

    fn icmpv4<P: Platform>(&mut self, io: &mut Io<'_, P>, packet: &Packet<'_>) -> Result<(), DropReason> {
        self.learn(packet.l2.src);
        let message = Icmpv4Message::parse(packet.payload)?;
        if let Icmpv4Message::EchoRequest(echo) = message {
            return self.echo(io, packet, echo);
        }
        self.guest_error(io, GuestError::of_v4(&message).ok_or(DropReason::UnknownIcmp)?);
        Ok(())
    }

    fn icmpv6<P: Platform>(&mut self, io: &mut Io<'_, P>, packet: &Packet<'_>) -> Result<(), DropReason> {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (packet.src, packet.dst) else {
            return Err(DropReason::UnknownIcmp);
        };
        self.learn(packet.l2.src);
        let message = Icmpv6Message::parse(src, dst, packet.payload)?;
        if let Icmpv6Message::EchoRequest(echo) = message {
            return self.echo(io, packet, echo);
        }
        self.guest_error(io, GuestError::of_v6(&message).ok_or(DropReason::UnknownIcmp)?);
        Ok(())
    }

    fn echo<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        packet: &Packet<'_>,
        echo: Echo<'_>,
    ) -> Result<(), DropReason> {
        self.offered(Part::Ping)?;
        if self.shared.config.ends_at_brodo(packet.dst) {
            let (cx, scratch) = (&mut io.cx(&mut self.shared), &mut self.buffers.scratch);
            icmp::answer_own(cx, packet.src, packet.dst, echo, scratch);
            return Ok(());
        }
        let key = packet.key_of(Protocol::Echo, echo.ident, echo.ident);
        self.datagram(io, key, packet.payload, None, packet)
    }

    /// Error of the guest for a packet of ours.
    ///
    /// *Unreachable:* a datagram's flow is over, and with its socket closed the host's kernel says the same
    /// to the peer; but questions stay, as other ports of the guest's may have asked the same and share the
    /// flow. A SYN of ours is refused by a hard error only (RFC 9293, 3.9.2.2): any other may pass, and the
    /// SYN is sent again.
    ///
    /// *Too big:* a connection sends shorter segments, and datagrams over IPv6 leave in fragments from now
    /// on. Over IPv4 they may be fragmented on their way ([`crate::egress`]).
    fn guest_error<P: Platform>(&mut self, io: &mut Io<'_, P>, error: GuestError<'_>) {
        let Some(Quoted { key, seq }) = icmp::quoted(error.quoted()) else { return };
        let found = self.flows.find(&key);
        if let GuestError::TooBig { mtu, .. } = error
            && key.protocol != Protocol::Tcp
        {
            // Answers of brodo's own, to questions and echoes, are of no flow with their key.
            let is_known = found.is_some() || self.shared.config.is_ours(key.remote.ip());
            if is_known && key.guest.is_ipv6() {
                self.shared.tx.across.narrow(io.now, mtu);
            }
            return;
        }
        let Some(id) = found else { return };
        let over = self.notify_flow(io, id, |flow, cx, _| match (error, flow, seq) {
            (GuestError::Unreachable { hard: true, .. }, Flow::Tcp(connection), Some(seq)) => {
                connection.syn_unreachable(cx, seq);
                false
            }
            (GuestError::TooBig { mtu, .. }, Flow::Tcp(connection), Some(seq)) => {
                connection.too_big(cx, seq, mtu);
                false
            }
            (GuestError::Unreachable { .. }, flow, _) if key.protocol == Protocol::Udp => {
                let over = !matches!(flow, Flow::Dns(_));
                if over {
                    flow.ends_by(EndCause::ResetByGuest);
                }
                over
            }
            _ => false,
        });
        if over == Some(true) {
            self.remove(io, id);
        }
    }
}
