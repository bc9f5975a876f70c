//! The kernel's errors by table: each errno and each ICMP type has the meaning that is documented for it.

use super::{host_error, icmp_report};
use brodo_core::host::{HostError, IcmpCause, IcmpReport};
use rustix::io::Errno;
use std::net::Ipv6Addr;

fn entry(origin: u8, kind: u8, code: u8, info: u32, address: &[u8]) -> [u8; 48] {
    let mut e = [0; 48];
    e[4..7].copy_from_slice(&[origin, kind, code]);
    e[8..12].copy_from_slice(&info.to_ne_bytes());
    e[16..16 + address.len()].copy_from_slice(address);
    e
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
fn reports_of_both_families() {
    let v4 = [2, 0, 0, 0, 192, 0, 2, 1];
    let [f0, f1] = (libc::AF_INET as u16).to_ne_bytes();
    let v4 = [&[f0, f1], &v4[2..]].concat();
    let report = icmp_report(&entry(2, 3, 4, 1400, &v4));
    assert_eq!(
        report,
        Some(IcmpReport { cause: IcmpCause::TooBig(1400), from: Some([192, 0, 2, 1].into()) })
    );
    let router: Ipv6Addr = "2001:db8::1".parse().expect("address");
    let v6 = [&(libc::AF_INET6 as u16).to_ne_bytes()[..], &[0; 6], &router.octets()].concat();
    let report = icmp_report(&entry(3, 1, 1, 0, &v6));
    assert_eq!(report, Some(IcmpReport { cause: IcmpCause::Prohibited, from: Some(router.into()) }));
}

#[test]
fn only_icmp_and_only_what_can_be_told() {
    assert_eq!(icmp_report(&entry(1, 3, 3, 0, &[])), None, "local origin");
    assert_eq!(icmp_report(&entry(2, 12, 0, 0, &[])), None, "parameter problem");
    assert_eq!(icmp_report(&entry(2, 3, 255, 0, &[])), None);
    let unknown_family = icmp_report(&entry(2, 11, 0, 0, &[9, 9])).expect("time exceeded");
    assert_eq!(unknown_family, IcmpReport { cause: IcmpCause::TimeExceeded, from: None });
}
