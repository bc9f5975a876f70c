//! The network that the words of `brodo attach` describe, for a runtime's result.

use crate::args::{Attach, Command};
use crate::config::Settings;
use crate::config_file::{self, Refusal};
use crate::serve::host_facts;
use brodo_net::netlink::template::InterfaceAddress;
use std::ffi::OsString;
use std::net::IpAddr;

/// Addresses and properties of the guest's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    /// As a text with colons.
    pub(super) mac: String,
    /// Largest IP packet in bytes.
    pub(super) mtu: u16,
    pub(super) addresses: Vec<InterfaceAddress>,
    /// Routers of default routes, at most one of each family.
    pub(super) gateways: Vec<IpAddr>,
    /// DNS servers for the guest.
    pub(super) dns: Vec<IpAddr>,
    /// Search names for the guest.
    pub(super) search: Vec<String>,
}

impl Described {
    /// The network of these words, which follow `brodo attach`.
    ///
    /// # Errors
    /// An option's value is invalid, or options contradict each other or the host.
    pub(super) fn of(words: &[OsString]) -> Result<Self, String> {
        let line: Vec<_> = ["brodo", "attach"].into_iter().map(OsString::from).collect();
        let parsed = config_file::parse(&[&line, words].concat()).map_err(|refusal| match refusal {
            Refusal::Line(error) => config_file::sentence(&error),
            Refusal::File(failure) => failure.to_string(),
        })?;
        let Command::Attach(Attach { network, .. }) = parsed.cli.command else {
            return Err("not a command line of brodo attach".to_owned());
        };
        let host = host_facts(&network).map_err(|failure| failure.to_string())?;
        let Settings { stack, plan, dns, .. } = Settings::new(&network, &host)?;
        let interface = plan.interface;
        let defaults = interface.routes.iter().filter(|route| route.is_default());
        let mut gateways: Vec<IpAddr> = Vec::new();
        for router in defaults.filter_map(|route| route.via) {
            if gateways.iter().all(|other| other.is_ipv4() != router.is_ipv4()) {
                gateways.push(router);
            }
        }
        let dns = stack.dns_offered.unwrap_or(dns);
        let mac = interface.mac.map(|octet| format!("{octet:02x}")).join(":");
        Ok(Self { mac, mtu: stack.mtu, addresses: interface.addresses, gateways, dns, search: stack.search })
    }

    /// The router of an address's family.
    pub(super) fn gateway_of(&self, address: IpAddr) -> Option<IpAddr> {
        self.gateways.iter().copied().find(|router| router.is_ipv4() == address.is_ipv4())
    }
}
