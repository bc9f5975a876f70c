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
use brodo_net::netlink::{LinkSettings, Netlink};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Default length of the interface's transmit queue, in frames. It is the ring from which brodo reads; a
/// frame that finds it full is lost without an error to its sender.
pub const TX_QUEUE_LEN_DEFAULT: u32 = 4096;
/// The longest transmit queue, in frames: the kernel allocates a pointer for each.
pub const TX_QUEUE_LEN_MAX: u32 = 65_536;

/// An address of the guest, and its router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addressing<A> {
    /// The guest's own address.
    pub address: A,
    /// Length of the network prefix.
    pub prefix_len: u8,
    /// Gateway of the default route; inside the prefix.
    pub gateway: A,
}

/// The guest's network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, at most 15 bytes.
    pub name: String,
    /// MAC address.
    pub mac: [u8; 6],
    /// Largest IP packet, in bytes, 1280 to 65521.
    pub mtu: u16,
    /// Length of the transmit queue, in frames.
    pub tx_queue_len: u32,
    /// IPv4, unless the guest has none.
    pub v4: Option<Addressing<Ipv4Addr>>,
    /// IPv6, unless the guest has none; a link-local address made from the MAC address comes with it.
    pub v6: Option<Addressing<Ipv6Addr>>,
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
    // A kernel without IPv6 has no such property.
    let has_ipv6 = ipv6_available();
    let settings = LinkSettings {
        mac: Some(interface.mac),
        mtu: Some(interface.mtu.into()),
        tx_queue_len: Some(interface.tx_queue_len),
        // The kernel's own would go through duplicate address detection; ours below does not.
        automatic_link_local: has_ipv6.then_some(false),
    };
    netlink.set_link(index, &settings).map_err(fail(Step::ConfigureLink, name.into()))?;
    if has_ipv6 {
        // A namespace can inherit the host's settings. Where /proc/sys is read-only, as in some containers,
        // the kernel's defaults serve too: our router advertisements agree with the addresses set here.
        set_sysctl(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
        let disabled = if interface.v6.is_some() { "0" } else { "1" };
        set_sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), disabled);
    }
    netlink.set_up(index).map_err(fail(Step::LinkUp, name.into()))?;

    let add = |address: IpAddr, prefix_len: u8| {
        netlink
            .add_address(index, address, prefix_len)
            .map_err(fail(Step::AddAddress, format!("{address}/{prefix_len}")))
    };
    if let Some(v4) = interface.v4 {
        add(v4.address.into(), v4.prefix_len)?;
    }
    if let Some(v6) = interface.v6 {
        add(link_local(interface.mac).into(), 64)?;
        add(v6.address.into(), v6.prefix_len)?;
    }
    let gateways = [interface.v4.map(|v4| v4.gateway.into()), interface.v6.map(|v6| v6.gateway.into())];
    for gateway in gateways.into_iter().flatten() {
        let gateway: IpAddr = gateway;
        netlink.add_default_route(index, gateway).map_err(fail(Step::AddRoute, gateway.to_string()))?;
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
