//! Arbitrary values of every header, each one that `emit` can write in full, and the settings of the property
//! tests.

use brodo_core::wire::arp::{ArpOperation, ArpPacket};
use brodo_core::wire::ethernet::{EthernetHeader, MacAddr};
use brodo_core::wire::ipv4::Ipv4Header;
use brodo_core::wire::ipv6::Ipv6Header;
use brodo_core::wire::ndp::{NdpMessage, NeighborAdvertisement};
use brodo_core::wire::tcp::{SackBlock, SackBlocks, Seq, TcpFlags, TcpHeader, TcpOptions};
use brodo_core::wire::udp::UdpHeader;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Few enough cases that the whole suite takes seconds.
pub(crate) fn quick() -> ProptestConfig {
    ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() }
}

pub(crate) fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

pub(crate) fn ethernet() -> impl Strategy<Value = EthernetHeader> {
    (mac(), mac(), any::<u16>()).prop_map(|(dst, src, ethertype)| EthernetHeader {
        dst,
        src,
        ethertype: ethertype.into(),
    })
}

/// A header and a payload of its length.
pub(crate) fn ipv4() -> impl Strategy<Value = (Ipv4Header, Vec<u8>)> {
    let addresses = any::<(Ipv4Addr, Ipv4Addr)>();
    (addresses, any::<(u8, u8, u16, bool, u8)>(), vec(any::<u8>(), 0..200)).prop_map(
        |((src, dst), (protocol, ttl, ident, dont_fragment, tos), payload)| {
            let payload_len = payload.len() as u16;
            (Ipv4Header { src, dst, protocol, ttl, ident, dont_fragment, tos, payload_len }, payload)
        },
    )
}

/// A header of an upper-layer protocol and a payload of its length.
pub(crate) fn ipv6() -> impl Strategy<Value = (Ipv6Header, Vec<u8>)> {
    let upper = any::<u8>().prop_filter("upper layer", |n| ![0, 43, 44, 60].contains(n));
    let addresses = any::<(Ipv6Addr, Ipv6Addr)>();
    (addresses, upper, any::<(u8, u8)>(), 0..1u32 << 20, vec(any::<u8>(), 0..200)).prop_map(
        |((src, dst), next_header, (hop_limit, traffic_class), flow_label, payload)| {
            let payload_len = payload.len() as u16;
            let header =
                Ipv6Header { src, dst, next_header, hop_limit, traffic_class, flow_label, payload_len };
            (header, payload)
        },
    )
}

pub(crate) fn udp() -> impl Strategy<Value = (UdpHeader, Vec<u8>)> {
    (any::<(u16, u16, u16)>(), vec(any::<u8>(), 0..200)).prop_map(
        |((src_port, dst_port, checksum), payload)| {
            let length = (UdpHeader::LEN + payload.len()) as u16;
            (UdpHeader { src_port, dst_port, length, checksum }, payload)
        },
    )
}

fn sack() -> impl Strategy<Value = SackBlocks> {
    vec(any::<(u32, u32)>(), 0..=SackBlocks::MAX).prop_map(|pairs| {
        let mut sack = SackBlocks::EMPTY;
        for (start, end) in pairs {
            assert!(sack.push(SackBlock { left: Seq(start), right: Seq(end) }));
        }
        sack
    })
}

/// A header whose SACK blocks all fit.
pub(crate) fn tcp() -> impl Strategy<Value = TcpHeader> {
    let options = (
        option::of(any::<u16>()),
        option::of(0..=14u8),
        any::<bool>(),
        option::of(any::<(u32, u32)>()),
        sack(),
    )
        .prop_map(|(mss, window_scale, sack_permitted, timestamps, sack)| TcpOptions {
            mss,
            window_scale,
            sack_permitted,
            timestamps,
            sack,
        });
    (any::<(u16, u16, u32, u32, u8, u16, u16)>(), options)
        .prop_map(|((src_port, dst_port, seq, ack, flags, window, urgent), options)| TcpHeader {
            src_port,
            dst_port,
            seq: Seq(seq),
            ack: Seq(ack),
            flags: TcpFlags(flags),
            window,
            urgent,
            options,
        })
        .prop_filter("all blocks fit", |header| {
            let sack = header.options.sack.as_slice().len();
            let without = TcpOptions { sack: SackBlocks::EMPTY, ..header.options };
            sack == 0 || without.len() + 4 + 8 * sack <= TcpOptions::LEN_MAX
        })
}

pub(crate) fn arp() -> impl Strategy<Value = ArpPacket> {
    (any::<bool>(), mac(), any::<Ipv4Addr>(), mac(), any::<Ipv4Addr>()).prop_map(
        |(request, sender_mac, sender_ip, target_mac, target_ip)| ArpPacket {
            operation: if request { ArpOperation::Request } else { ArpOperation::Reply },
            sender_mac,
            sender_ip,
            target_mac,
            target_ip,
        },
    )
}

pub(crate) fn ndp() -> impl Strategy<Value = NdpMessage> {
    let target = any::<Ipv6Addr>().prop_filter("one host", |a| !a.is_multicast());
    (0..3, target, option::of(mac()), any::<[bool; 3]>()).prop_map(
        |(kind, target, lladdr, [router, solicited, override_entry])| match kind {
            0 => NdpMessage::RouterSolicitation { source_lladdr: lladdr },
            1 => NdpMessage::NeighborSolicitation { target, source_lladdr: lladdr },
            _ => NdpMessage::NeighborAdvertisement(NeighborAdvertisement {
                router,
                solicited,
                override_entry,
                target,
                target_lladdr: lladdr,
            }),
        },
    )
}
