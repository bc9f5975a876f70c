//! What the kernel's errors mean: errno to [`HostError`], error queue entries to [`IcmpReport`].

use brodo_core::host::{HostError, IcmpCause, IcmpReport};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The error of a call on a host socket, as the stack knows it.
pub(super) fn host_error(errno: Errno) -> HostError {
    match errno {
        Errno::AGAIN | Errno::INPROGRESS | Errno::ALREADY => HostError::WouldBlock,
        Errno::CONNREFUSED => HostError::Refused,
        // ENOTCONN: a connection that was, and whose reset an earlier call has already reported.
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED | Errno::NETRESET | Errno::NOTCONN => {
            HostError::Reset
        }
        Errno::TIMEDOUT => HostError::TimedOut,
        Errno::NETUNREACH | Errno::NETDOWN => HostError::NetUnreachable,
        Errno::HOSTUNREACH | Errno::HOSTDOWN => HostError::HostUnreachable,
        Errno::ACCESS | Errno::PERM => HostError::Prohibited,
        Errno::MSGSIZE => HostError::TooBig(0),
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC | Errno::ADDRNOTAVAIL => {
            HostError::Exhausted
        }
        Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT => HostError::Unsupported,
        other => HostError::Other(other.raw_os_error()),
    }
}

/// Reads a `sock_extended_err` and the offender's address behind it; `None` if it is not an ICMP error that a guest
/// could be told of. Errors of local origin are left out: the call that caused them has reported them.
pub(super) fn icmp_report(entry: &[u8; crate::sys::ERROR_ENTRY_LEN]) -> Option<IcmpReport> {
    // errno(4) origin type code pad info(4) data(4), then sockaddr.
    let [_, _, _, _, origin, kind, code, _, i0, i1, i2, i3, ..] = *entry;
    let info = u32::from_ne_bytes([i0, i1, i2, i3]);
    let cause = match origin {
        libc::SO_EE_ORIGIN_ICMP => icmpv4_cause(kind, code, info)?,
        libc::SO_EE_ORIGIN_ICMP6 => icmpv6_cause(kind, code, info)?,
        _ => return None,
    };
    Some(IcmpReport { cause, from: offender(&entry[16..]) })
}

/// RFC 792, RFC 1122 3.2.2.1, RFC 1812 5.2.7.1.
fn icmpv4_cause(kind: u8, code: u8, info: u32) -> Option<IcmpCause> {
    Some(match (kind, code) {
        // Protocol unreachable (2): the host has no UDP, which for the guest is the same as no port.
        (3, 2 | 3) => IcmpCause::PortUnreachable,
        (3, 0 | 6 | 11) => IcmpCause::NetUnreachable,
        (3, 1 | 5 | 7 | 8 | 12) => IcmpCause::HostUnreachable,
        (3, 9 | 10 | 13) => IcmpCause::Prohibited,
        (3, 4) => IcmpCause::TooBig(info),
        (11, _) => IcmpCause::TimeExceeded,
        _ => return None,
    })
}

/// RFC 4443, section 3.
fn icmpv6_cause(kind: u8, code: u8, info: u32) -> Option<IcmpCause> {
    Some(match (kind, code) {
        (1, 0) => IcmpCause::NetUnreachable,
        (1, 1 | 5 | 6) => IcmpCause::Prohibited,
        (1, 2 | 3) => IcmpCause::HostUnreachable,
        (1, 4) => IcmpCause::PortUnreachable,
        (2, _) => IcmpCause::TooBig(info),
        (3, _) => IcmpCause::TimeExceeded,
        _ => return None,
    })
}

/// The address in a socket address; an unknown family gives none.
fn offender(address: &[u8]) -> Option<IpAddr> {
    let family = i32::from(u16::from_ne_bytes(address.get(..2)?.try_into().ok()?));
    match family {
        libc::AF_INET => <[u8; 4]>::try_from(address.get(4..8)?).ok().map(|a| Ipv4Addr::from(a).into()),
        libc::AF_INET6 => <[u8; 16]>::try_from(address.get(8..24)?).ok().map(|a| Ipv6Addr::from(a).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
