//! Frames built and read by the simulator, independent of the stack under test.
//!
//! Building writes the bytes of the RFCs' figures; reading goes through smoltcp's checked views, which verify
//! lengths and checksums. So a mistake that brodo-core makes both in writing and in reading a header is found
//! here. A frame that is invalid for a guest is an error `String` with the reason, because it ends in a
//! failed test.

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpOption, TcpPacket,
    UdpPacket, checksum,
};
use std::net::{IpAddr, SocketAddr};

/// TCP flag bits, in the order of the header.
pub mod flags {
    /// No more data.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push function.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement field counts.
    pub const ACK: u8 = 0x10;
    /// The urgent field counts.
    pub const URG: u8 = 0x20;
    /// ECN echo.
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced.
    pub const CWR: u8 = 0x80;
    /// Names and bits, in the order in which they are written.
    pub const NAMES: [(&str, u8); 8] = [
        ("SYN", SYN),
        ("FIN", FIN),
        ("RST", RST),
        ("ACK", ACK),
        ("PSH", PSH),
        ("URG", URG),
        ("ECE", ECE),
        ("CWR", CWR),
    ];
}

/// MAC addresses of a frame.
#[derive(Debug, Clone, Copy)]
pub struct Macs {
    /// MAC address of the receiver.
    pub to: [u8; 6],
    /// MAC address of the sender.
    pub from: [u8; 6],
}

/// One TCP segment with absolute sequence numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSegment {
    /// Address of the sender.
    pub src: SocketAddr,
    /// Address of the receiver.
    pub dst: SocketAddr,
    /// Bits of [`flags`].
    pub flags: u8,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// The window field as it stands in the header, unscaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Maximum segment size option, bytes.
    pub mss: Option<u16>,
    /// Window scale option, bits.
    pub wscale: Option<u8>,
    /// SACK-permitted option.
    pub sack_ok: bool,
    /// SACK blocks: left and right edge.
    pub sack: Vec<(u32, u32)>,
    /// Timestamps option: value, echo.
    pub timestamps: Option<(u32, u32)>,
    /// Payload bytes.
    pub data: Vec<u8>,
}

impl TcpSegment {
    /// An empty segment without flags.
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Self {
        Self {
            src,
            dst,
            flags: 0,
            seq: 0,
            ack: 0,
            window: 0,
            urgent: 0,
            mss: None,
            wscale: None,
            sack_ok: false,
            sack: Vec::new(),
            timestamps: None,
            data: Vec::new(),
        }
    }

    /// Whether all `bits` are set.
    pub const fn has(&self, bits: u8) -> bool {
        self.flags & bits == bits
    }

    /// Sequence space that the segment takes: payload, SYN and FIN.
    pub fn seq_len(&self) -> u32 {
        self.data.len() as u32 + u32::from(self.has(flags::SYN)) + u32::from(self.has(flags::FIN))
    }

    fn options(&self) -> Vec<u8> {
        let mut o = Vec::new();
        if let Some(mss) = self.mss {
            o.extend([2, 4]);
            o.extend(mss.to_be_bytes());
        }
        if let Some(shift) = self.wscale {
            o.extend([3, 3, shift]);
        }
        if self.sack_ok {
            o.extend([4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            o.extend([8, 10]);
            o.extend(value.to_be_bytes());
            o.extend(echo.to_be_bytes());
        }
        if !self.sack.is_empty() {
            o.extend([5, 2 + 8 * self.sack.len() as u8]);
            for (left, right) in &self.sack {
                o.extend(left.to_be_bytes());
                o.extend(right.to_be_bytes());
            }
        }
        o.resize(o.len().next_multiple_of(4), 0);
        o
    }

    /// The whole frame, checksums filled in.
    pub fn to_frame(&self, macs: Macs) -> Vec<u8> {
        let options = self.options();
        let mut l4 = Vec::with_capacity(20 + options.len() + self.data.len());
        l4.extend(self.src.port().to_be_bytes());
        l4.extend(self.dst.port().to_be_bytes());
        l4.extend(self.seq.to_be_bytes());
        l4.extend(self.ack.to_be_bytes());
        l4.extend([((5 + options.len() / 4) << 4) as u8, self.flags]);
        l4.extend(self.window.to_be_bytes());
        l4.extend([0, 0]);
        l4.extend(self.urgent.to_be_bytes());
        l4.extend(options);
        l4.extend(&self.data);
        ip_frame(macs, self.src.ip(), self.dst.ip(), 6, l4)
    }
}

/// One UDP datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpDatagram {
    /// Address of the sender.
    pub src: SocketAddr,
    /// Address of the receiver.
    pub dst: SocketAddr,
    /// Payload bytes.
    pub data: Vec<u8>,
}

impl UdpDatagram {
    /// The whole frame, checksums filled in.
    pub fn to_frame(&self, macs: Macs) -> Vec<u8> {
        let mut l4 = Vec::with_capacity(8 + self.data.len());
        l4.extend(self.src.port().to_be_bytes());
        l4.extend(self.dst.port().to_be_bytes());
        l4.extend((8 + self.data.len() as u16).to_be_bytes());
        l4.extend([0, 0]);
        l4.extend(&self.data);
        ip_frame(macs, self.src.ip(), self.dst.ip(), 17, l4)
    }
}

/// One ICMP message, of either version by its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IcmpMessage {
    /// Address of the sender.
    pub src: IpAddr,
    /// Address of the receiver.
    pub dst: IpAddr,
    /// ICMP type.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// The word after the checksum: identifier and sequence number of an echo, MTU of an error.
    pub word: u32,
    /// The rest after the first eight bytes: echo data, or the packet quoted by an error.
    pub body: Vec<u8>,
}

impl IcmpMessage {
    /// The whole frame, checksums filled in.
    pub fn to_frame(&self, macs: Macs) -> Vec<u8> {
        let mut l4 = vec![self.kind, self.code, 0, 0];
        l4.extend(self.word.to_be_bytes());
        l4.extend(&self.body);
        ip_frame(macs, self.src, self.dst, if self.src.is_ipv4() { 1 } else { 58 }, l4)
    }
}

/// A frame, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParsedFrame {
    /// A TCP segment.
    Tcp(TcpSegment),
    /// A UDP datagram.
    Udp(UdpDatagram),
    /// ICMPv4 or ICMPv6, neighbour discovery included.
    Icmp(IcmpMessage),
    /// ARP, the bytes after the Ethernet header.
    Arp(Vec<u8>),
}

/// An IP packet in an Ethernet frame; fills in the checksum of `l4`, the message of protocol `protocol`.
///
/// Both addresses are of the same family; if not, or if the packet is longer than IP can say, this panics.
pub fn ip_frame(Macs { to, from }: Macs, src: IpAddr, dst: IpAddr, protocol: u8, mut l4: Vec<u8>) -> Vec<u8> {
    let at = checksum_offset(protocol, src.is_ipv4());
    if let Some(at) = at {
        l4[at..at + 2].fill(0);
        let sum = match l4_sum(src, dst, protocol, &l4) {
            0xffff if protocol == 17 => 0xffff,
            sum => !sum,
        };
        l4[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let mut frame = Vec::with_capacity(54 + l4.len());
    frame.extend(to);
    frame.extend(from);
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            frame.extend([0x08, 0x00, 0x45, 0]);
            frame.extend(u16::try_from(20 + l4.len()).expect("fits an IPv4 packet").to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            frame.extend(src.octets());
            frame.extend(dst.octets());
            let sum = !checksum::data(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(u16::try_from(l4.len()).expect("fits an IPv6 packet").to_be_bytes());
            frame.extend([protocol, if protocol == 58 { 255 } else { 64 }]);
            frame.extend(src.octets());
            frame.extend(dst.octets());
        }
        _ => panic!("{src} and {dst} are of different families"),
    }
    frame.extend(l4);
    frame
}

/// DSCP and ECN byte of an IP packet's frame.
pub fn tos(frame: &[u8]) -> u8 {
    match frame[14] >> 4 {
        4 => frame[15],
        _ => frame[14] << 4 | frame[15] >> 4,
    }
}

/// Replaces that byte.
pub fn set_tos(frame: &mut [u8], tos: u8) {
    if frame[14] >> 4 == 4 {
        frame[15] = tos;
        finish_ipv4(frame);
    } else {
        frame[14] = 0x60 | tos >> 4;
        frame[15] = tos << 4 | frame[15] & 0xf;
    }
}

/// Replaces the time to live or hop limit.
pub fn set_ttl(frame: &mut [u8], ttl: u8) {
    if frame[14] >> 4 == 4 {
        frame[22] = ttl;
        finish_ipv4(frame);
    } else {
        frame[21] = ttl;
    }
}

/// Sets or clears the bit "do not fragment", which IPv6 does not have.
pub fn set_dont_fragment(frame: &mut [u8], dont_fragment: bool) {
    if frame[14] >> 4 == 4 {
        frame[20] = frame[20] & !0x40 | if dont_fragment { 0x40 } else { 0 };
        finish_ipv4(frame);
    }
}

/// The bit "do not fragment" and the identification of an IPv4 packet's frame.
pub fn ident(frame: &[u8]) -> Option<(bool, u16)> {
    let v4 = frame.get(12..14) == Some(&[0x08, 0x00]);
    v4.then(|| (frame[20] & 0x40 != 0, u16::from_be_bytes([frame[18], frame[19]])))
}

/// Fills in the checksum of an IPv4 header.
fn finish_ipv4(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = !checksum::data(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Offset of the checksum in a message of `protocol`, in bytes.
pub const fn checksum_offset(protocol: u8, v4: bool) -> Option<usize> {
    match (protocol, v4) {
        (6, _) => Some(16),
        (17, _) => Some(6),
        (1, true) | (58, false) => Some(2),
        _ => None,
    }
}

/// The one's complement sum over the pseudo-header (where the protocol has one) and `l4`, not inverted.
pub fn l4_sum(src: IpAddr, dst: IpAddr, protocol: u8, l4: &[u8]) -> u16 {
    checksum::combine(&[pseudo_sum(src, dst, protocol, l4.len() as u32), checksum::data(l4)])
}

/// The one's complement sum over the pseudo-header alone; 0 for ICMPv4, which has none.
pub fn pseudo_sum(src: IpAddr, dst: IpAddr, protocol: u8, len: u32) -> u16 {
    if protocol == 1 {
        return 0;
    }
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            checksum::pseudo_header_v4(&src, &dst, IpProtocol::from(protocol), len)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            checksum::pseudo_header_v6(&src, &dst, IpProtocol::from(protocol), len)
        }
        _ => panic!("{src} and {dst} are of different families"),
    }
}

/// Layout of an IP frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Layer-4 protocol number.
    pub protocol: u8,
    /// Offset of the layer-4 header from the start of the frame, bytes.
    pub l4: usize,
}

/// The destination port of a TCP or UDP packet, whose checksum may be wrong.
pub fn destination_port(frame: &[u8]) -> Option<u16> {
    let at = layout(frame).ok()??;
    let port = frame.get(at.l4 + 2..at.l4 + 4).filter(|_| matches!(at.protocol, 6 | 17))?;
    Some(u16::from_be_bytes([port[0], port[1]]))
}

/// Reads the IP header of a frame; `None` for ARP.
///
/// # Errors
/// The fault: lengths that contradict each other or the frame, a wrong header checksum, fragments.
pub fn layout(frame: &[u8]) -> Result<Option<Layout>, String> {
    let eth = EthernetFrame::new_checked(frame).map_err(|_| "shorter than an Ethernet header")?;
    match eth.ethertype() {
        EthernetProtocol::Arp => Ok(None),
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_checked(eth.payload()).map_err(|_| "IPv4 lengths contradict")?;
            let checks = [
                (ip.version() == 4, "IPv4 version"),
                (ip.verify_checksum(), "IPv4 header checksum"),
                (ip.total_len() as usize == frame.len() - 14, "IPv4 total length is not the frame's"),
                (!ip.more_frags() && ip.frag_offset() == 0, "fragment"),
            ];
            check(&checks)?;
            Ok(Some(Layout {
                src: ip.src_addr().into(),
                dst: ip.dst_addr().into(),
                protocol: ip.next_header().into(),
                l4: 14 + ip.header_len() as usize,
            }))
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(eth.payload()).map_err(|_| "IPv6 lengths contradict")?;
            let checks = [
                (ip.version() == 6, "IPv6 version"),
                (ip.total_len() == frame.len() - 14, "IPv6 payload length is not the frame's"),
            ];
            check(&checks)?;
            Ok(Some(Layout {
                src: ip.src_addr().into(),
                dst: ip.dst_addr().into(),
                protocol: ip.next_header().into(),
                l4: 54,
            }))
        }
        EthernetProtocol::Unknown(t) => Err(format!("EtherType {t:#06x}")),
    }
}

fn check(checks: &[(bool, &str)]) -> Result<(), String> {
    checks.iter().find(|(ok, _)| !ok).map_or(Ok(()), |(_, what)| Err((*what).to_owned()))
}

/// Reads a whole frame with complete checksums.
///
/// # Errors
/// The fault of the frame.
pub fn parse(frame: &[u8]) -> Result<ParsedFrame, String> {
    let Some(at) = layout(frame)? else {
        return Ok(ParsedFrame::Arp(frame[14..].to_vec()));
    };
    let l4 = &frame[at.l4..];
    let (src, dst) = (IpAddress::from(at.src), IpAddress::from(at.dst));
    match at.protocol {
        6 => {
            let tcp = TcpPacket::new_checked(l4).map_err(|_| "TCP lengths contradict")?;
            check(&[(tcp.verify_checksum(&src, &dst), "TCP checksum")])?;
            parse_tcp(&tcp, at.src, at.dst).map(ParsedFrame::Tcp)
        }
        17 => {
            let udp = UdpPacket::new_checked(l4).map_err(|_| "UDP lengths contradict")?;
            check(&[
                (udp.len() as usize == l4.len(), "UDP length is not the packet's"),
                (udp.checksum() != 0, "UDP without checksum"),
                (udp.verify_checksum(&src, &dst), "UDP checksum"),
            ])?;
            Ok(ParsedFrame::Udp(UdpDatagram {
                src: SocketAddr::new(at.src, udp.src_port()),
                dst: SocketAddr::new(at.dst, udp.dst_port()),
                data: udp.payload().to_vec(),
            }))
        }
        p @ (1 | 58) => {
            check(&[
                ((p == 1) == at.src.is_ipv4(), "ICMP of the other family"),
                (l4.len() >= 8, "ICMP shorter than its header"),
                (l4_sum(at.src, at.dst, p, l4) == 0xffff, "ICMP checksum"),
            ])?;
            Ok(ParsedFrame::Icmp(IcmpMessage {
                src: at.src,
                dst: at.dst,
                kind: l4[0],
                code: l4[1],
                word: u32::from_be_bytes([l4[4], l4[5], l4[6], l4[7]]),
                body: l4[8..].to_vec(),
            }))
        }
        p => Err(format!("IP protocol {p}")),
    }
}

fn parse_tcp(tcp: &TcpPacket<&[u8]>, src: IpAddr, dst: IpAddr) -> Result<TcpSegment, String> {
    let mut segment = TcpSegment {
        flags: tcp_flags(tcp),
        seq: tcp.seq_number().0 as u32,
        ack: tcp.ack_number().0 as u32,
        window: tcp.window_len(),
        urgent: tcp.urgent_at(),
        data: tcp.payload().to_vec(),
        ..TcpSegment::new(SocketAddr::new(src, tcp.src_port()), SocketAddr::new(dst, tcp.dst_port()))
    };
    let mut options = tcp.options();
    while !options.is_empty() {
        let (rest, option) = TcpOption::parse(options).map_err(|_| "TCP options contradict")?;
        let bytes = std::mem::replace(&mut options, rest);
        match option {
            TcpOption::EndOfList => break,
            TcpOption::NoOperation => {}
            TcpOption::MaxSegmentSize(mss) => segment.mss = Some(mss),
            TcpOption::WindowScale(shift) => segment.wscale = Some(shift),
            TcpOption::SackPermitted => segment.sack_ok = true,
            // The parser keeps three blocks of the four that there may be.
            TcpOption::SackRange(_) => {
                let number = |at: &[u8]| u32::from_be_bytes([at[0], at[1], at[2], at[3]]);
                let blocks = bytes[2..usize::from(bytes[1])].chunks_exact(8);
                segment.sack = blocks.map(|block| (number(block), number(&block[4..]))).collect();
            }
            TcpOption::TimeStamp { tsval, tsecr } => segment.timestamps = Some((tsval, tsecr)),
            TcpOption::Unknown { kind, .. } => return Err(format!("TCP option {kind}")),
        }
    }
    Ok(segment)
}

fn tcp_flags(tcp: &TcpPacket<&[u8]>) -> u8 {
    [
        (tcp.fin(), flags::FIN),
        (tcp.syn(), flags::SYN),
        (tcp.rst(), flags::RST),
        (tcp.psh(), flags::PSH),
        (tcp.ack(), flags::ACK),
        (tcp.urg(), flags::URG),
        (tcp.ece(), flags::ECE),
        (tcp.cwr(), flags::CWR),
    ]
    .iter()
    .filter(|(set, _)| *set)
    .fold(0, |bits, (_, bit)| bits | bit)
}

#[cfg(test)]
mod tests;
