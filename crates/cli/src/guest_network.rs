//! The addresses on the guest's link, of either family: given, derived, and contradictory ones.
//!
//! Required are only the guest's address and prefix. The gateway is the first free one of the prefix's
//! addresses 2, 3 and 1, and the DNS server the first free one of 3, 4, 2 and 1, which with the defaults
//! gives .2 and .3. In a prefix too small for three the gateway answers DNS as well. A network that is a copy
//! of the host's ([`copied`]) has the host's addresses and router instead.
//!
//! Addresses are handled as numbers, so that both families share the code.

pub(crate) mod copied;
mod hidden_resolver;

use crate::option_values::{Cidr, HostLoopback, MaybeAddress};
use brodo_core::config::{Ipv4Net, Ipv6Net};
use brodo_net::netlink::template::{InterfaceAddress, Route};
use clap::ValueEnum;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Family {
    #[value(name = "ipv4")]
    V4,
    #[value(name = "ipv6")]
    V6,
}

impl Family {
    /// Its name as people write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The family of an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    fn width(self) -> u32 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    fn address(self, bits: u128) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from_bits(bits as u32).into(),
            Self::V6 => Ipv6Addr::from_bits(bits).into(),
        }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Options given for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    /// The guest's addresses, at least one.
    pub(crate) guest: Vec<Cidr>,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) dns: Option<MaybeAddress>,
    pub(crate) host_loopback: Option<HostLoopback>,
    pub(crate) host_address: Option<IpAddr>,
}

/// A consistent network of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Network {
    family: Family,
    guest: u128,
    prefix_len: u8,
    more: Vec<Cidr>,
    gateway: u128,
    dns: Option<u128>,
    host_loopback: Option<u128>,
    dns_at_loopback: bool,
    host_address: Option<u128>,
    /// Routes of the guest.
    pub(crate) routes: Vec<Route>,
}

impl Network {
    /// Completes the given addresses; the error is a sentence that names the option.
    pub(crate) fn new(given: &Given) -> Result<Self, String> {
        let Some((&first, more)) = given.guest.split_first() else {
            return Err("--address is missing".to_owned());
        };
        for &cidr in &given.guest {
            check_guest(cidr, Prefix::reserved)?;
        }
        let Cidr { address, prefix_len } = first;
        let prefix = Prefix::of(first);
        let guest = bits(address);
        let gateway = match given.gateway {
            Some(gateway) => check_gateway(prefix, gateway, &given.guest)?,
            None => prefix.first_free([2, 3, 1], &[guest]).ok_or_else(|| {
                format!(
                    "--address {address}/{prefix_len} leaves no address for a gateway: use a shorter prefix, or --gateway"
                )
            })?,
        };
        let free_dns = || prefix.first_free([3, 4, 2, 1], &[guest, gateway]).unwrap_or(gateway);
        let dns = match given.dns {
            None => Some(free_dns()),
            Some(MaybeAddress::None) => None,
            Some(MaybeAddress::Address(dns)) => Some(check_service("--dns", dns, &given.guest)?),
        };
        let services = Services::new(given, gateway)?;
        Ok(Self {
            family: Family::of(address),
            guest,
            prefix_len,
            more: more.to_vec(),
            gateway,
            dns,
            host_loopback: services.host_loopback,
            dns_at_loopback: false,
            host_address: services.host_address,
            routes: vec![Route::default_via(Family::of(address).address(gateway))],
        })
    }

    /// All addresses of the guest, the first one first.
    pub(crate) fn addresses(&self) -> Vec<InterfaceAddress> {
        let first = Cidr { address: self.family.address(self.guest), prefix_len: self.prefix_len };
        let of = |Cidr { address, prefix_len }: Cidr| InterfaceAddress { address, prefix_len };
        std::iter::once(first).chain(self.more.iter().copied()).map(of).collect()
    }

    /// Configuration of the stack, for IPv4.
    pub(crate) fn v4(&self) -> Ipv4Net {
        let address = |bits: u128| Ipv4Addr::from_bits(bits as u32);
        Ipv4Net {
            guest: address(self.guest),
            prefix_len: self.prefix_len,
            gateway: address(self.gateway),
            dns: self.dns.map(address),
            host_loopback: self.host_loopback.map(address),
            dns_at_loopback: self.dns_at_loopback,
            host_address: self.host_address.map(address),
        }
    }

    /// Configuration of the stack, for IPv6; with a link-local address of the gateway's for one that has no
    /// such address itself.
    pub(crate) fn v6(&self, gateway_link_local: Ipv6Addr) -> Ipv6Net {
        let gateway = Ipv6Addr::from_bits(self.gateway);
        Ipv6Net {
            guest: Ipv6Addr::from_bits(self.guest),
            prefix_len: self.prefix_len,
            gateway,
            gateway_link_local: if gateway.is_unicast_link_local() { gateway } else { gateway_link_local },
            dns: self.dns.map(Ipv6Addr::from_bits),
            host_loopback: self.host_loopback.map(Ipv6Addr::from_bits),
            dns_at_loopback: self.dns_at_loopback,
            host_address: self.host_address.map(Ipv6Addr::from_bits),
        }
    }
}

/// Addresses that stand for the host's.
#[derive(Debug, Clone, Copy)]
struct Services {
    host_loopback: Option<u128>,
    host_address: Option<u128>,
}

impl Services {
    fn new(given: &Given, gateway: u128) -> Result<Self, String> {
        let check = |option, address: IpAddr| check_service(option, address, &given.guest);
        let host_loopback = match given.host_loopback {
            None => None,
            Some(HostLoopback::Gateway) => Some(gateway),
            Some(HostLoopback::Address(address)) => Some(check("--map-host-loopback", address)?),
        };
        let mut host_address =
            given.host_address.map(|address| check("--map-host-address", address)).transpose()?;
        if given.host_loopback == Some(HostLoopback::Gateway) && host_address == host_loopback {
            // The option names no address, so this is no contradiction: the loopback wins, as with pasta.
            host_address = None;
        }
        if let Some(address) = given.host_address.filter(|_| host_address == host_loopback) {
            return Err(format!(
                "{address} cannot be both the host's address (--map-host-address) and its loopback (--map-host-loopback)"
            ));
        }
        Ok(Self { host_loopback, host_address })
    }
}

/// A prefix as a range of numbers.
#[derive(Debug, Clone, Copy)]
struct Prefix {
    family: Family,
    first: u128,
    last: u128,
    len: u8,
}

impl Prefix {
    fn of(cidr: Cidr) -> Self {
        let family = Family::of(cidr.address);
        let host_bits = family.width().saturating_sub(u32::from(cidr.prefix_len));
        let host_mask = 1u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
        let address = bits(cidr.address);
        Self { family, first: address & !host_mask, last: address | host_mask, len: cidr.prefix_len }
    }

    /// Reason why a host may not have this address of the prefix, if there is one. The two addresses of the
    /// longest prefixes are hosts' (RFC 3021, RFC 6164).
    fn reserved(&self, address: u128) -> Option<&'static str> {
        match self.family {
            _ if self.is_small() => None,
            Family::V4 if address == self.first => Some("the network's own address"),
            Family::V6 if address == self.first => Some("the routers' anycast address (RFC 4291)"),
            _ => self.broadcast(address),
        }
    }

    /// The same for hosts whose kernel takes the prefix's first address like any other, as Linux does.
    fn broadcast(&self, address: u128) -> Option<&'static str> {
        let is_broadcast = self.family == Family::V4 && address == self.last && !self.is_small();
        is_broadcast.then_some("the network's broadcast address")
    }

    /// Whether it has two addresses at most.
    fn is_small(&self) -> bool {
        u32::from(self.len) + 1 >= self.family.width()
    }

    /// The first of the prefix's addresses with these numbers that a host may have and that is not `taken`.
    fn first_free<const N: usize>(&self, numbers: [u128; N], taken: &[u128]) -> Option<u128> {
        let addresses = numbers.into_iter().filter_map(|number| self.first.checked_add(number));
        addresses.filter(|&a| a <= self.last && self.reserved(a).is_none()).find(|a| !taken.contains(a))
    }
}

/// An address of the guest's own, which may be link-local of IPv4: some callers have nothing else. `reserved`
/// are those of its prefix that it may not be.
fn check_guest(
    cidr: Cidr,
    reserved: impl FnOnce(&Prefix, u128) -> Option<&'static str>,
) -> Result<(), String> {
    let Cidr { address, prefix_len } = cidr;
    let why = unusable(address).or_else(|| reserved(&Prefix::of(cidr), bits(address)));
    why.map_or(Ok(()), |why| {
        Err(format!("--address {address}/{prefix_len} cannot be the guest's: it is {why}"))
    })
}

/// The router, which need not be inside the prefix: the link leads to it all the same.
fn check_gateway(prefix: Prefix, gateway: IpAddr, guest: &[Cidr]) -> Result<u128, String> {
    let number = bits(gateway);
    let link_local = matches!(gateway, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let why = if link_local { None } else { unusable(gateway).or_else(|| prefix.reserved(number)) };
    match why {
        Some(why) => Err(format!("--gateway {gateway} cannot be a gateway: it is {why}")),
        None if guest.iter().any(|cidr| cidr.address == gateway) => {
            Err(format!("--gateway {gateway} is the guest's own address"))
        }
        None => Ok(number),
    }
}

/// An address that brodo answers to, inside the prefix or not.
fn check_service(option: &str, address: IpAddr, guest: &[Cidr]) -> Result<u128, String> {
    if let Some(why) = unusable(address) {
        return Err(format!("{option} {address} cannot be reached over the guest's link: it is {why}"));
    }
    if guest.iter().any(|cidr| cidr.address == address) {
        return Err(format!("{option} {address} is the guest's own address"));
    }
    Ok(bits(address))
}

/// Reason why no host on a link can have this address, if there is one.
fn unusable(address: IpAddr) -> Option<&'static str> {
    let (link_local, mapped, reserved) = match address {
        IpAddr::V4(v4) => (false, false, v4.octets()[0] == 0 || v4.octets()[0] >= 240),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.to_ipv4_mapped().is_some(), false),
    };
    match address {
        _ if address.is_unspecified() => Some("the unspecified address"),
        _ if address.is_loopback() => Some("a loopback address"),
        _ if address.is_multicast() => Some("a multicast address"),
        _ if link_local => Some("a link-local address"),
        _ if mapped => Some("an IPv4 address in IPv6 form"),
        _ if reserved => Some("reserved"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
