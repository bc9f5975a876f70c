//! The addresses on the guest's link, of either family: given, derived, and contradictory ones.
//!
//! Required are only the guest's address and prefix. The gateway is the first free one of the prefix's
//! addresses 2, 3 and 1, and the DNS server the first free one of 3, 4, 2 and 1, which with the defaults
//! gives .2 and .3. In a prefix too small for three the gateway answers DNS as well.
//!
//! Addresses are handled as numbers, so that both families share the code.

use crate::option_values::Cidr;
use brodo_core::config::{Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) guest: Cidr,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) dns: Option<IpAddr>,
    pub(crate) host_loopback: Option<IpAddr>,
}

/// A consistent network of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    guest: u128,
    prefix_len: u8,
    gateway: u128,
    dns: u128,
    host_loopback: Option<u128>,
}

impl Network {
    /// Completes the given addresses; the error is a sentence that names the option.
    pub(crate) fn new(given: &Given) -> Result<Self, String> {
        let Cidr { address, prefix_len } = given.guest;
        let prefix = Prefix::of(given.guest);
        if let Some(why) = unusable(address) {
            return Err(format!("--address {address}/{prefix_len} cannot be the guest's: it is {why}"));
        }
        let guest = bits(address);
        if let Some(why) = prefix.reserved(guest) {
            return Err(format!("--address {address}/{prefix_len} cannot be the guest's: it is {why}"));
        }

        let gateway = match given.gateway {
            Some(gateway) => prefix.check_gateway(gateway, given.guest)?,
            None => prefix.first_free([2, 3, 1], &[guest]).ok_or_else(|| {
                format!(
                    "--address {address}/{prefix_len} leaves no address for a gateway: use a shorter prefix"
                )
            })?,
        };
        let free_dns = || prefix.first_free([3, 4, 2, 1], &[guest, gateway]).unwrap_or(gateway);
        let dns = given.dns.map_or_else(|| Ok(free_dns()), |dns| check_service("--dns", dns, guest))?;
        let host_loopback = given
            .host_loopback
            .map(|address| check_service("--map-host-loopback", address, guest))
            .transpose()?;
        if host_loopback == Some(dns) {
            let address = Family::of(address).address(dns);
            return Err(format!(
                "{address} cannot be both the DNS server (--dns) and the host's loopback (--map-host-loopback)"
            ));
        }
        Ok(Self { guest, prefix_len, gateway, dns, host_loopback })
    }

    /// Configuration of the stack, for IPv4.
    pub(crate) fn v4(&self) -> Ipv4Net {
        let address = |bits: u128| Ipv4Addr::from_bits(bits as u32);
        Ipv4Net {
            guest: address(self.guest),
            prefix_len: self.prefix_len,
            gateway: address(self.gateway),
            dns: address(self.dns),
            host_loopback: self.host_loopback.map(address),
        }
    }

    /// Configuration of the stack, for IPv6.
    pub(crate) fn v6(&self, gateway_link_local: Ipv6Addr) -> Ipv6Net {
        Ipv6Net {
            guest: Ipv6Addr::from_bits(self.guest),
            prefix_len: self.prefix_len,
            gateway: Ipv6Addr::from_bits(self.gateway),
            gateway_link_local,
            dns: Ipv6Addr::from_bits(self.dns),
            host_loopback: self.host_loopback.map(Ipv6Addr::from_bits),
        }
    }
}

/// A prefix as a range of numbers.
#[derive(Debug, Clone, Copy)]
struct Prefix {
    family: Family,
    first: u128,
    last: u128,
}

impl Prefix {
    fn of(cidr: Cidr) -> Self {
        let family = Family::of(cidr.address);
        // Between 2 and 127, because a `Cidr`'s length is.
        let host_bits = family.width() - u32::from(cidr.prefix_len);
        let host_mask = (1u128 << host_bits) - 1;
        let address = bits(cidr.address);
        Self { family, first: address & !host_mask, last: address | host_mask }
    }

    /// Reason why a host may not have this address of the prefix, if there is one.
    fn reserved(&self, address: u128) -> Option<&'static str> {
        match self.family {
            Family::V4 if address == self.first => Some("the network's own address"),
            Family::V4 if address == self.last => Some("the network's broadcast address"),
            Family::V6 if address == self.first => Some("the routers' anycast address (RFC 4291)"),
            _ => None,
        }
    }

    /// The first of the prefix's addresses with these numbers that a host may have and that is not `taken`.
    fn first_free<const N: usize>(&self, numbers: [u128; N], taken: &[u128]) -> Option<u128> {
        let addresses = numbers.into_iter().map(|number| self.first + number);
        addresses.filter(|&a| a <= self.last && self.reserved(a).is_none()).find(|a| !taken.contains(a))
    }

    fn check_gateway(&self, gateway: IpAddr, guest: Cidr) -> Result<u128, String> {
        let Cidr { address, prefix_len } = guest;
        let number = bits(gateway);
        if !(self.first..=self.last).contains(&number) {
            return Err(format!("--gateway {gateway} is outside the guest's network {address}/{prefix_len}"));
        }
        match self.reserved(number) {
            Some(why) => Err(format!("--gateway {gateway} cannot be a gateway: it is {why}")),
            None if gateway == address => Err(format!("--gateway {gateway} is the guest's own address")),
            None => Ok(number),
        }
    }
}

/// An address that brodo answers to, inside the prefix or not.
fn check_service(option: &str, address: IpAddr, guest: u128) -> Result<u128, String> {
    if let Some(why) = unusable(address) {
        return Err(format!("{option} {address} cannot be reached over the guest's link: it is {why}"));
    }
    if bits(address) == guest {
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
