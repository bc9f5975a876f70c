//! Errors of the kernel: errno to [`HostError`], error queue entries to [`IcmpReport`].

use crate::sys::ErrorEntry;
use brodo_core::host::{HostError, IcmpCause, IcmpReport};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// ICMP types of an echo request.
const ECHO_V4: u8 = 8;
const ECHO_V6: u8 = 128;

/// The stack's error for that of a call on a host socket.
pub(crate) fn host_error(errno: Errno) -> HostError {
    match errno {
        Errno::AGAIN | Errno::INPROGRESS | Errno::ALREADY => HostError::WouldBlock,
        Errno::CONNREFUSED => HostError::Refused,
        // ENOTCONN: a former connection, whose reset an earlier call has already reported.
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

/// The same for a call that names a local address or lets the kernel choose one: bind, and all calls on
/// datagram sockets. EADDRNOTAVAIL there is want of an address (a host without IPv6, an address that is gone)
/// and never of a port, for which those calls have EADDRINUSE and EAGAIN.
pub(crate) fn address_error(errno: Errno) -> HostError {
    match errno {
        Errno::ADDRNOTAVAIL => HostError::NetUnreachable,
        other => host_error(other),
    }
}

/// Parses a `sock_extended_err` and the offender's address behind it; `None` if it is not an ICMP error for a
/// guest. Errors of local origin are left out: the call that caused them has reported them.
///
/// On a ping socket the entry quotes the request from its ICMP header on, hence its sequence number.
pub(super) fn icmp_report(entry: &ErrorEntry, ping: bool) -> Option<IcmpReport> {
    // errno(4) origin type code pad info(4) data(4), then sockaddr.
    let [_, _, _, _, origin, kind, code, _, i0, i1, i2, i3, ..] = entry.data;
    let info = u32::from_ne_bytes([i0, i1, i2, i3]);
    let cause = match origin {
        libc::SO_EE_ORIGIN_ICMP => icmpv4_cause(kind, code, info)?,
        libc::SO_EE_ORIGIN_ICMP6 => icmpv6_cause(kind, code, info)?,
        _ => return None,
    };
    let [request, .., s0, s1] = entry.quoted;
    let sequence = (ping && matches!(request, ECHO_V4 | ECHO_V6)).then(|| u16::from_be_bytes([s0, s1]));
    Some(IcmpReport { cause, from: offender(&entry.data[16..]), sequence })
}

/// RFC 792, RFC 1122 3.2.2.1, RFC 1812 5.2.7.1.
fn icmpv4_cause(kind: u8, code: u8, info: u32) -> Option<IcmpCause> {
    Some(match (kind, code) {
        (3, 0) => IcmpCause::NetUnreachable,
        (3, 1) => IcmpCause::HostUnreachable,
        (3, 2) => IcmpCause::ProtocolUnreachable,
        (3, 3) => IcmpCause::PortUnreachable,
        (3, 4) => IcmpCause::TooBig(info),
        (3, 13) => IcmpCause::Prohibited,
        // Source route failed, unknown, isolated, prohibited by kind, for this type of service, precedence.
        (3, 5..=12 | 14 | 15) => IcmpCause::Unreachable(code),
        (11, 1) => IcmpCause::ReassemblyTimeExceeded,
        (11, _) => IcmpCause::TimeExceeded,
        _ => return None,
    })
}

/// RFC 4443, section 3.
fn icmpv6_cause(kind: u8, code: u8, info: u32) -> Option<IcmpCause> {
    Some(match (kind, code) {
        (1, 0) => IcmpCause::NetUnreachable,
        (1, 1) => IcmpCause::Prohibited,
        (1, 3) => IcmpCause::HostUnreachable,
        (1, 4) => IcmpCause::PortUnreachable,
        // Beyond the scope of the source, a source that failed a policy, a route that rejects.
        (1, 2 | 5 | 6) => IcmpCause::Unreachable(code),
        (2, _) => IcmpCause::TooBig(info),
        (3, 1) => IcmpCause::ReassemblyTimeExceeded,
        (3, _) => IcmpCause::TimeExceeded,
        (4, 1) => IcmpCause::ProtocolUnreachable,
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
