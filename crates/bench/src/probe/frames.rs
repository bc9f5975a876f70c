//! A hostile guest: frames that no kernel would send, written straight to the interface through a packet
//! socket.
//!
//! Mutation is reproducible from its seed. It starts from correct frames of every protocol that brodo parses;
//! half of the mutants get their checksums repaired, as frames with a wrong checksum never reach the code
//! behind its check.

use super::forge::{ETHERNET, ICMP, ICMPV6, Mac, TCP, UDP, ethernet, ip_frame, repair, tcp, udp};
use super::pattern::mix;
use crate::process::{PATIENCE, wait_until};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, sendto, socket};
use serde_json::{Value, json};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

/// The guest's interface, as a packet socket sees it.
pub(super) struct Wire {
    pub(super) socket: OwnedFd,
    interface: LinkAddr,
    pub(super) mac: Mac,
    pub(super) gateway_mac: Mac,
    /// The guest's own addresses.
    v4: Ipv4Addr,
    pub(super) v6: Ipv6Addr,
}

impl Wire {
    /// Opens the only interface that is not loopback.
    pub(super) fn open() -> io::Result<Self> {
        let mut found = (None, None, None);
        for entry in nix::ifaddrs::getifaddrs()?.filter(|entry| entry.interface_name != "lo") {
            let Some(address) = entry.address else { continue };
            if let Some(link) = address.as_link_addr() {
                found.0 = Some(*link);
            } else if let Some(v4) = address.as_sockaddr_in() {
                found.1 = Some(v4.ip());
            } else if let Some(v6) = address.as_sockaddr_in6().filter(|v6| !v6.ip().is_unicast_link_local()) {
                found.2 = Some(v6.ip());
            }
        }
        let (Some(interface), Some(v4), Some(v6)) = found else {
            return Err(io::Error::other("the interface has not all addresses yet"));
        };
        let mac =
            interface.addr().ok_or_else(|| io::Error::other("the interface has no hardware address"))?;
        let socket =
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
        Ok(Self { socket, interface, mac, gateway_mac: gateway_mac()?, v4, v6 })
    }

    /// Whether the frame was sent; false if the transmit queue is full, as brodo is slower than this program.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<bool> {
        loop {
            match sendto(self.socket.as_raw_fd(), frame, &self.interface, MsgFlags::empty()) {
                Ok(_) => return Ok(true),
                Err(Errno::ENOBUFS | Errno::EAGAIN) => std::thread::yield_now(),
                // Too short or too long for the interface.
                Err(Errno::EINVAL | Errno::EMSGSIZE) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// The router's hardware address, from the kernel's own table; resolved by a datagram to a closed port.
fn gateway_mac() -> io::Result<Mac> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.send_to(b"", "198.18.0.2:9")?;
    let found = wait_until(PATIENCE, || {
        let table = std::fs::read_to_string("/proc/self/net/arp").ok()?;
        let text = table.lines().skip(1).find_map(|line| line.split_whitespace().nth(3))?;
        let octets: Vec<u8> =
            text.split(':').filter_map(|octet| u8::from_str_radix(octet, 16).ok()).collect();
        Mac::try_from(octets).ok().filter(|mac| mac != &Mac::default())
    });
    found.ok_or_else(|| io::Error::other("the router does not answer ARP"))
}

/// One UDP datagram with this source address, otherwise correct.
pub(super) fn forged(source: IpAddr, peer: SocketAddr, text: &str) -> io::Result<Value> {
    let wire = Wire::open()?;
    let body = udp(40_000, peer.port(), text.as_bytes());
    let frame = ip_frame(wire.gateway_mac, wire.mac, (source, peer.ip()), UDP, &body);
    Ok(json!({ "sent": wire.send(&frame)? }))
}

/// Sends `count` mutants.
pub(super) fn hostile(count: u64, seed: u64) -> io::Result<Value> {
    let wire = Wire::open()?;
    let seeds = seeds(&wire);
    let mut random = Random(seed);
    let (mut sent, mut refused) = (0_u64, 0_u64);
    while sent < count {
        let mut frame = seeds[random.below(seeds.len())].clone();
        mutate(&mut frame, &mut random);
        if wire.send(&frame)? {
            sent += 1;
        } else {
            refused += 1;
        }
    }
    Ok(json!({ "sent": sent, "refused": refused, "seed": seed }))
}

/// Correct frames of every protocol that brodo parses.
fn seeds(wire: &Wire) -> Vec<Vec<u8>> {
    let (to, from) = (wire.gateway_mac, wire.mac);
    let v4 = (IpAddr::V4(wire.v4), IpAddr::V4(Ipv4Addr::new(198, 19, 0, 1)));
    let v6 = (IpAddr::V6(wire.v6), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x19, 0, 0, 0, 0, 0, 1)));
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    let dns = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x01\x00\x01";
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend(from);
    arp.extend(wire.v4.octets());
    arp.extend([0; 6]);
    arp.extend([10, 0, 2, 2]);
    let mut frames = vec![ethernet([0xff; 6], from, 0x0806, &arp)];
    for addresses in [v4, v6] {
        let frame = |protocol, body: &[u8]| ip_frame(to, from, addresses, protocol, body);
        for flags in [0x02, 0x10, 0x18, 0x11, 0x04, 0x12, 0x3f] {
            frames.push(frame(TCP, &tcp(1024 + u16::from(flags), 7000, 1, flags, b"")));
            frames.push(frame(TCP, &tcp(1024 + u16::from(flags), 7000, 2, flags, &[0x55; 600])));
        }
        frames.push(frame(UDP, &udp(5000, 7000, &[0x55; 300])));
        frames.push(frame(UDP, &udp(5000, 53, dns)));
        frames.push(frame(UDP, &udp(5000, 1, b"")));
    }
    let embedded = frames[1][ETHERNET..].to_vec();
    for (kind, code) in [(8, 0), (0, 0), (3, 3), (3, 4), (11, 0), (13, 0)] {
        let mut body = vec![kind, code, 0, 0, 0, 1, 0, 1];
        body.extend(&embedded);
        frames.push(ip_frame(to, from, v4, ICMP, &body));
    }
    for kind in [1, 2, 3, 128, 129, 133, 134, 135, 136, 137] {
        let mut body = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        body.extend(wire.v6.octets());
        body.extend([1, 1]);
        body.extend(from);
        frames.push(ip_frame(to, from, v6, ICMPV6, &body));
        frames.push(ip_frame([0x33, 0x33, 0, 0, 0, 2], from, (v6.0, IpAddr::V6(all_nodes)), ICMPV6, &body));
    }
    let mut discover = vec![1, 1, 6, 0, 1, 2, 3, 4];
    discover.resize(28, 0);
    discover.extend(from);
    discover.resize(236, 0);
    discover.extend(b"\x63\x82\x53\x63\x35\x01\x01\x37\x04\x01\x03\x06\x0f\x0c\x04name\xff");
    let broadcast = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::BROADCAST));
    frames.push(ip_frame([0xff; 6], from, broadcast, UDP, &udp(68, 67, &discover)));
    let solicit =
        b"\x01\x12\x34\x56\x00\x01\x00\x0a\x00\x03\x00\x01\x02\x00\x00\x00\x00\x01\x00\x06\x00\x02\x00\x17";
    let servers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
    frames.push(ip_frame(
        [0x33, 0x33, 0, 1, 0, 2],
        from,
        (v6.0, IpAddr::V6(servers)),
        UDP,
        &udp(546, 547, solicit),
    ));
    frames
}

/// A few mutations of kinds known to break parsers.
fn mutate(frame: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(frame.len().max(1));
        match random.below(7) {
            0 => frame.truncate(at),
            1 => frame.extend((0..random.below(200)).map(|i| i as u8)),
            2 if at < frame.len() => frame[at] ^= 1 << random.below(8),
            3 if at < frame.len() => frame[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            // Header fields matter more than payload.
            4 | 5 if frame.len() > 34 => {
                let headers = frame.len().min(100) - 12;
                frame[12 + random.below(headers)] = random.below(256) as u8;
            }
            _ => {
                let extra = frame[at.min(frame.len())..].to_vec();
                frame.extend(extra);
            }
        }
        frame.truncate(1400);
    }
    if random.below(2) == 0 {
        repair(frame);
    }
}

/// A small generator whose sequence is given by its seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// Less than `bound`, or zero.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}
