//! Set-up of the guest: an interface with addresses and routes, loopback, a resolv.conf, unprivileged ping.
//!
//! Everything here acts on the namespaces of the calling process, which is therefore a forked child (see
//! [`crate::namespace`]). Addresses are set without announcement or negotiation on the link, and without
//! duplicate address detection, so that the command can use the network in its first millisecond. DHCP and
//! router advertisements serve guests that run a client nevertheless.
//!
//! System calls: socket, sendto, recvfrom (rtnetlink); open, write (/proc/sys); those of [`mod@resolv_conf`].

mod error;
pub(crate) mod resolv_conf;

pub use error::{SetupError, Step};
pub use resolv_conf::resolv_conf;

use brodo_link::tap::{Tap, TapError, Wanted};
use brodo_net::netlink::template::{InterfaceAddress, Route};
use brodo_net::netlink::{LinkSettings, Netlink};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// Default length of the interface's transmit queue, in frames. It is the ring from which brodo reads; a
/// frame that finds it full is lost without an error to its sender.
pub const TX_QUEUE_LEN_DEFAULT: u32 = 4096;
/// The longest transmit queue, in frames: the kernel allocates a pointer for each.
pub const TX_QUEUE_LEN_MAX: u32 = 65_536;

/// Smallest MTU of a link on which the kernel has IPv6 (RFC 8200, 5), in bytes.
const IPV6_MTU_MIN: u16 = 1280;

/// The guest's network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, at most 15 bytes.
    pub name: String,
    /// MAC address.
    pub mac: [u8; 6],
    /// Largest IP packet, in bytes, 88 to 65521; at least 1280 with IPv6.
    pub mtu: u16,
    /// Length of the transmit queue, in frames.
    pub tx_queue_len: u32,
    /// Addresses of both families. With one of IPv6 comes a link-local address made from the MAC address.
    pub addresses: Vec<InterfaceAddress>,
    /// Routes of both families.
    pub routes: Vec<Route>,
    /// Whether it gets addresses and routes and comes up; otherwise the guest is to configure it.
    pub configured: bool,
    /// Whether the routes are the host's, of which those that the guest's kernel does not take are left out.
    pub best_effort: bool,
}

impl Interface {
    /// Whether it has an address of IPv6.
    pub(crate) fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(|it| it.address.is_ipv6())
    }

    /// Whether it has one that is not link-local.
    fn has_ipv6_beyond_link(&self) -> bool {
        let beyond = |address| matches!(address, IpAddr::V6(ip) if !ip.is_unicast_link_local());
        self.addresses.iter().any(|it| beyond(it.address))
    }
}

/// Makes the TAP, with the offloads that are `wanted`, in the caller's network namespace; returns its queues.
pub(crate) fn create_tap(name: &str, wanted: Wanted, queues: u32) -> Result<Vec<OwnedFd>, SetupError> {
    let taps = Tap::create_queues(name, wanted, queues).map_err(|error| match error {
        TapError::Open(errno) => SetupError::new(Step::OpenTun, errno, "/dev/net/tun"),
        TapError::Attach(_, errno) => SetupError::new(Step::CreateTap, errno, name),
        TapError::Header(errno) | TapError::NonBlocking(errno) => {
            SetupError::new(Step::PrepareTap, errno, name)
        }
        TapError::NotTap => SetupError::new(Step::PrepareTap, Errno::BADF, name),
    })?;
    Ok(taps.into_iter().map(Tap::into_fd).collect())
}

/// Configures the interface, which exists and is down, and brings it and the loopback up.
pub fn configure(interface: &Interface) -> Result<(), SetupError> {
    let name = interface.name.as_str();
    let fail = |step, subject: String| move |errno| SetupError::new(step, errno, subject);

    let netlink = Netlink::open().map_err(fail(Step::OpenNetlink, String::new()))?;
    let loopback = netlink.index_of("lo").map_err(fail(Step::LinkUp, "lo".into()))?;
    netlink.set_up(loopback).map_err(fail(Step::LinkUp, "lo".into()))?;

    let index = netlink.index_of(name).map_err(fail(Step::ConfigureLink, name.into()))?;
    // A kernel without IPv6 has no such property, and a link that is too small for it neither.
    let has_ipv6 = ipv6_available() && interface.mtu >= IPV6_MTU_MIN;
    let settings = LinkSettings {
        mac: Some(interface.mac),
        mtu: Some(interface.mtu.into()),
        tx_queue_len: Some(interface.tx_queue_len),
        // The kernel's own would go through duplicate address detection; ours below does not.
        automatic_link_local: has_ipv6.then_some(!interface.configured),
    };
    netlink.set_link(index, &settings).map_err(fail(Step::ConfigureLink, name.into()))?;
    if !interface.configured {
        return Ok(());
    }
    if has_ipv6 {
        // A namespace can inherit the host's settings. Where /proc/sys is read-only, as in some containers,
        // the kernel's defaults serve too: our router advertisements agree with the addresses set here.
        set_sysctl(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
        // IPv6 that the namespace has switched off is switched on for addresses of the host's alone.
        let property = format!("net/ipv6/conf/{name}/disable_ipv6");
        if !interface.has_ipv6() {
            set_sysctl(&property, "1");
        } else if interface.has_ipv6_beyond_link() {
            set_sysctl(&property, "0");
        }
    }
    netlink.set_up(index).map_err(fail(Step::LinkUp, name.into()))?;

    let link_local = interface
        .has_ipv6()
        .then(|| InterfaceAddress { address: link_local(interface.mac).into(), prefix_len: 64 });
    for InterfaceAddress { address, prefix_len } in link_local.into_iter().chain(interface.addresses.clone())
    {
        let is_made_up = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        match netlink.add_address(index, address, prefix_len) {
            // The namespace has IPv6 switched off, and the host may have none to copy either.
            Err(_) if is_made_up && interface.best_effort => {}
            added => added.map_err(fail(Step::AddAddress, format!("{address}/{prefix_len}")))?,
        }
    }
    add_routes(&netlink, index, interface)
}

/// Adds the routes: those that others depend on first, default routes last.
fn add_routes(netlink: &Netlink, index: u32, interface: &Interface) -> Result<(), SetupError> {
    let mut routes = interface.routes.clone();
    routes.sort_by_key(|route| (route.is_default(), route.via.is_some()));
    for route in &routes {
        let added = match netlink.add_route(index, route, false) {
            // The router is outside of the prefixes: the link leads to it all the same.
            Err(Errno::NETUNREACH | Errno::INVAL | Errno::HOSTUNREACH) if route.via.is_some() => {
                netlink.add_route(index, route, true)
            }
            // A source address that the guest does not have.
            Err(Errno::INVAL) if route.source.is_some() => {
                netlink.add_route(index, &Route { source: None, ..*route }, false)
            }
            other => other,
        };
        match added {
            Ok(()) => {}
            // An address has brought it.
            Err(Errno::EXIST) if !route.is_default() => {}
            Err(_) if interface.best_effort => {}
            Err(errno) => {
                let subject = route.via.unwrap_or(route.destination).to_string();
                return Err(SetupError::new(Step::AddRoute, errno, subject));
            }
        }
    }
    Ok(())
}

/// Lets every group of the namespace, up to `gid_max`, use ping sockets; a fresh namespace lets none.
pub(crate) fn allow_ping(gid_min: u32, gid_max: u32) {
    set_sysctl("net/ipv4/ping_group_range", &format!("{gid_min} {gid_max}"));
}

/// Whether the kernel supports IPv6 (it may be booted with `ipv6.disable=1`).
pub fn ipv6_available() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

/// The link-local address with the interface identifier of RFC 4291, appendix A, made from the MAC address.
pub fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let mut address = [0; 16];
    address[..2].copy_from_slice(&[0xfe, 0x80]);
    address[8..11].copy_from_slice(&mac[..3]);
    address[8] ^= 2;
    address[11..13].copy_from_slice(&[0xff, 0xfe]);
    address[13..].copy_from_slice(&mac[3..]);
    address.into()
}

/// Whether `name` is valid for an interface of brodo's: `dev_valid_name` of the kernel, without `%` (a
/// pattern to TUNSETIFF) and names that exist in every namespace or have a meaning in /proc/sys.
pub fn is_interface_name(name: &str) -> bool {
    let length_ok = (1..=15).contains(&name.len());
    let bytes_ok = name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%'));
    length_ok && bytes_ok && !matches!(name, "." | ".." | "lo" | "all" | "default")
}

/// Sets a sysctl where that is possible: without it the guest works, only less well.
pub(crate) fn set_sysctl(name: &str, value: &str) {
    let _ = std::fs::write(Path::new("/proc/sys").join(name), value);
}

/// An error for a subject that is a path.
pub(crate) fn path_error(step: Step, path: &Path) -> impl FnOnce(Errno) -> SetupError + use<> {
    let subject = path.display().to_string();
    move |errno| SetupError::new(step, errno, subject)
}

#[cfg(test)]
mod tests;
