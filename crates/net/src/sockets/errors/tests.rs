//! The kernel's errors by table: each errno and each ICMP type has the meaning that is documented for it.

use super::{host_error, icmp_report};
use crate::sys::ErrorEntry;
use brodo_core::host::{HostError, IcmpCause, IcmpReport};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv6Addr};

const ICMP: u8 = libc::SO_EE_ORIGIN_ICMP;
const ICMP6: u8 = libc::SO_EE_ORIGIN_ICMP6;

fn entry(origin: u8, kind: u8, code: u8, info: u32, address: &[u8]) -> ErrorEntry {
    let mut data = [0; 48];
    data[4..7].copy_from_slice(&[origin, kind, code]);
    data[8..12].copy_from_slice(&info.to_ne_bytes());
    data[16..16 + address.len()].copy_from_slice(address);
    ErrorEntry { data, quoted: [0; 8] }
}

#[test]
fn errnos_as_documented() {
    for (errno, error) in [
        (Errno::AGAIN, HostError::WouldBlock),
        (Errno::CONNREFUSED, HostError::Refused),
        (Errno::PIPE, HostError::Reset),
        (Errno::TIMEDOUT, HostError::TimedOut),
        (Errno::NETUNREACH, HostError::NetUnreachable),
        (Errno::HOSTUNREACH, HostError::HostUnreachable),
        (Errno::PERM, HostError::Prohibited),
        (Errno::MFILE, HostError::Exhausted),
        (Errno::ADDRNOTAVAIL, HostError::Exhausted),
        (Errno::AFNOSUPPORT, HostError::Unsupported),
        (Errno::INVAL, HostError::Other(22)),
    ] {
        assert_eq!(host_error(errno), error, "{errno:?}");
    }
}

#[test]
fn every_kind_of_both_families() {
    use IcmpCause::{
        HostUnreachable, NetUnreachable, PortUnreachable, Prohibited, ProtocolUnreachable,
        ReassemblyTimeExceeded, TimeExceeded, TooBig, Unreachable,
    };
    let table = [
        (ICMP, 3, 0, Some(NetUnreachable)),
        (ICMP, 3, 1, Some(HostUnreachable)),
        (ICMP, 3, 2, Some(ProtocolUnreachable)),
        (ICMP, 3, 3, Some(PortUnreachable)),
        (ICMP, 3, 4, Some(TooBig(1400))),
        (ICMP, 3, 5, Some(Unreachable(5))),
        (ICMP, 3, 6, Some(Unreachable(6))),
        (ICMP, 3, 7, Some(Unreachable(7))),
        (ICMP, 3, 8, Some(Unreachable(8))),
        (ICMP, 3, 9, Some(Unreachable(9))),
        (ICMP, 3, 10, Some(Unreachable(10))),
        (ICMP, 3, 11, Some(Unreachable(11))),
        (ICMP, 3, 12, Some(Unreachable(12))),
        (ICMP, 3, 13, Some(Prohibited)),
        (ICMP, 3, 14, Some(Unreachable(14))),
        (ICMP, 3, 15, Some(Unreachable(15))),
        (ICMP, 3, 16, None),
        (ICMP, 11, 0, Some(TimeExceeded)),
        (ICMP, 11, 1, Some(ReassemblyTimeExceeded)),
        (ICMP, 12, 0, None),
        (ICMP, 4, 0, None),
        (ICMP6, 1, 0, Some(NetUnreachable)),
        (ICMP6, 1, 1, Some(Prohibited)),
        (ICMP6, 1, 2, Some(Unreachable(2))),
        (ICMP6, 1, 3, Some(HostUnreachable)),
        (ICMP6, 1, 4, Some(PortUnreachable)),
        (ICMP6, 1, 5, Some(Unreachable(5))),
        (ICMP6, 1, 6, Some(Unreachable(6))),
        (ICMP6, 1, 7, None),
        (ICMP6, 2, 0, Some(TooBig(1400))),
        (ICMP6, 3, 0, Some(TimeExceeded)),
        (ICMP6, 3, 1, Some(ReassemblyTimeExceeded)),
        (ICMP6, 4, 0, None),
        (ICMP6, 4, 1, Some(ProtocolUnreachable)),
        // Of local origin: the failed call has returned it already.
        (libc::SO_EE_ORIGIN_LOCAL, 3, 3, None),
    ];
    for (origin, kind, code, cause) in table {
        let report = icmp_report(&entry(origin, kind, code, 1400, &[9, 9]), false);
        // An address of an unknown family.
        let expected = cause.map(|cause| IcmpReport { cause, from: None, sequence: None });
        assert_eq!(report, expected, "{origin} {kind} {code}");
    }
}

#[test]
fn the_reporting_router_is_known() {
    let family = |family: i32| (family as u16).to_ne_bytes();
    let v4 = [&family(libc::AF_INET)[..], &[0; 2], &[192, 0, 2, 1]].concat();
    let router: Ipv6Addr = "2001:db8::1".parse().expect("address");
    let v6 = [&family(libc::AF_INET6)[..], &[0; 6], &router.octets()].concat();
    for (origin, address, from) in
        [(ICMP, v4, IpAddr::from([192, 0, 2, 1])), (ICMP6, v6, IpAddr::from(router))]
    {
        let report = icmp_report(&entry(origin, 3, 0, 0, &address), false);
        assert_eq!(report.and_then(|report| report.from), Some(from));
    }
}

#[test]
fn an_echo_request_is_identified_by_its_sequence_number() {
    for (origin, request) in [(ICMP, 8), (ICMP6, 128)] {
        let mut entry = entry(origin, 3, 0, 0, &[]);
        entry.quoted = [request, 0, 0xaa, 0xaa, 0x77, 0x77, 1, 2];
        let sequence = |entry: &ErrorEntry, ping| icmp_report(entry, ping).and_then(|report| report.sequence);
        assert_eq!(sequence(&entry, true), Some(0x102));
        // The payload of a datagram is none.
        assert_eq!(sequence(&entry, false), None);
        // A router that quotes less.
        entry.quoted = [0; 8];
        assert_eq!(sequence(&entry, true), None);
    }
}
