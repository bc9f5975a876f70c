//! pasta: the options of passt's pasta as words of `brodo attach` or `brodo run`.
//!
//! With a namespace or a process as target it is `attach`, in the background unless `-f`; with a command, or
//! without anything, `run`. Defaults that differ from brodo's own are written out: the host's network copied
//! (`--copy-host`), all four kinds of ports followed (`auto`), the router standing for the host's loopback,
//! link-local addresses reachable, no DNS server, no busy polling, no second interface beside the guest's.
//!
//! A few options that change nothing here are accepted (logging to standard error, the sandbox's fallback).

pub(super) mod passt;
mod table;
mod target;

use super::getopt::{Order, Read, read};
use super::{Personality, Refused, Translated, complain};
use crate::option_values::{HOST_NAME_MAX, LOG_MIN, offered_name};
use crate::run_as::{self, RunAs};
use brodo_core::left_out::Part;
use brodo_netns::setup;
use std::ffi::OsString;
use std::net::IpAddr;
use table::Is;
pub(super) use table::{TABLE, USAGE};
use target::Target;

/// Largest MTU of an Ethernet frame of 64 KiB, in bytes.
const MTU_MAX: u32 = 65_521;
/// Smallest MTU of brodo's link, in bytes: below, Linux sends TCP in fragments (tcp_min_snd_mss is 48).
const MTU_MIN: u32 = 88;
/// Smallest MTU of IPv6 (RFC 8200), in bytes.
const MTU_MIN_V6: u32 = 1280;

/// The user that pasta and passt become when root starts them.
const NOBODY: &str = "nobody";

/// Options of the kinds of ports.
const LETTERS: [&str; 4] = ["t", "u", "T", "U"];

/// Environment variable that puts brodo's refusal of link-local addresses back.
const FLOOR: &str = "BRODO_FLOOR";

/// Options with a value each, or a switch, as given so far.
#[derive(Debug, Default)]
struct Given {
    foreground: bool,
    debug: u8,
    quiet: bool,
    /// User to become, or to stay.
    runas: Option<String>,
    config_net: bool,
    family: Option<&'static str>,
    /// Whether the host's kernel has IPv6.
    has_ipv6: bool,
    addresses: Vec<(IpAddr, Option<u8>)>,
    gateways: Vec<IpAddr>,
    netmask: Option<u8>,
    mtu: Option<u32>,
    interface: Option<String>,
    dns_forward: Vec<IpAddr>,
    dns_host: Vec<IpAddr>,
    dns: Vec<IpAddr>,
    offers_dns: bool,
    /// The last `--dns` was `none`, by which no server is offered, whatever else says so.
    no_dns: bool,
    search: Vec<String>,
    offers_search: bool,
    /// The last `--search` was `none`.
    no_search: bool,
    /// The router stands for the host's loopback, in a family that has no other address for it.
    map_gateway: bool,
    host_loopback: Vec<IpAddr>,
    guest_address: Vec<IpAddr>,
    ports: [Vec<String>; 4],
    local_to_local: bool,
    no_splice: bool,
    netns: Option<String>,
    userns: Option<String>,
    outlives: bool,
    host_name: Option<String>,
    fqdn: Option<String>,
    no_pidns: bool,
    outbound: Vec<IpAddr>,
    /// Interfaces, with the unspecified address of their family.
    outbound_interfaces: Vec<(&'static str, String)>,
    splice_only: bool,
    tap_fd: Option<u16>,
    without: Vec<Part>,
    /// Lines for standard error about options with another effect than the original's.
    notes: Vec<String>,
    /// Words of options with a counterpart of the same meaning.
    words: Vec<String>,
}

/// Translates a command line that begins with pasta's name. `extra` are words of brodo's own.
pub(super) fn translate(words: &[OsString], extra: Vec<OsString>) -> Result<Translated, Refused> {
    translate_where(setup::ipv6_available(), words, extra)
}

/// The same on a host with or without IPv6.
fn translate_where(has_ipv6: bool, words: &[OsString], extra: Vec<OsString>) -> Result<Translated, Refused> {
    let name = words.first().map_or("pasta".into(), |word| word.to_string_lossy().into_owned());
    let words = words.get(1..).unwrap_or_default();
    let Read { given: options, own, rest } = read(TABLE, Order::InFront, words)
        .map_err(|why| Refused(format!("{name}: {why}\nUsage: {USAGE}")))?;
    let mut given = Given { map_gateway: true, has_ipv6, ..Given::default() };
    for (is, value) in options {
        let value = value.to_str().ok_or_else(|| Refused("an option's value is not UTF-8".to_owned()))?;
        match is {
            Is::Help => return Ok(Translated::Text(Personality::Pasta.help())),
            Is::Version => return Ok(Translated::Text(table::version())),
            is => given.take(is, value).map_err(Refused)?,
        }
    }
    let target = target::target(&given, rest).map_err(Refused)?;
    // A command stays the user's that started it.
    let user = if target.is_existing() { given.user_words().map_err(Refused)? } else { None };
    for note in std::mem::take(&mut given.notes) {
        complain(&format!("{name}: {note}"));
    }
    let mut line = given.line(&target).map_err(Refused)?;
    line.extend(user.map(OsString::from));
    line.extend(own);
    line.extend(extra);
    line.extend(target.words());
    Ok(Translated::Words(line))
}

impl Given {
    /// Takes one option.
    fn take(&mut self, is: Is, value: &str) -> Result<(), String> {
        match is {
            Is::Debug => (self.debug, self.quiet) = (self.debug.max(1), false),
            Is::Trace => (self.debug, self.quiet) = (2, false),
            Is::Quiet => (self.debug, self.quiet) = (0, true),
            Is::Foreground => self.foreground = true,
            Is::Nothing | Is::Help | Is::Version => {}
            // Addresses come from pasta alone then.
            Is::ConfigNet => {
                self.config_net = true;
                self.without.push(Part::Ra);
            }
            Is::Ipv4 => self.family = Some("-4"),
            Is::Ipv6 => self.family = Some("-6"),
            Is::Address => {
                let parsed = address_with_prefix(value)?;
                self.addresses.retain(|(earlier, _)| earlier.is_ipv4() != parsed.0.is_ipv4());
                self.addresses.push(parsed);
            }
            Is::Netmask => self.netmask = Some(netmask(value)?),
            Is::Gateway => replace(&mut self.gateways, address(value, "gateway")?),
            Is::RouterMac => self.option("--router-mac", value),
            Is::GuestMac => self.option("--mac", value),
            Is::Mtu => self.mtu = Some(self.mtu(value)?),
            Is::Interface => self.interface = Some(value.to_owned()),
            Is::Ifname => self.option("--ifname", value),
            Is::Dns => self.take_dns(value)?,
            Is::DnsForward if value == "none" => self.dns_forward.clear(),
            Is::DnsForward => replace(&mut self.dns_forward, address(value, "DNS forwarding")?),
            Is::DnsHost => replace(&mut self.dns_host, address(value, "host nameserver")?),
            Is::Search => self.take_search(value),
            Is::OfferDns => self.offers_dns = true,
            Is::OfferSearch => self.offers_search = true,
            Is::NoMapGateway => self.map_gateway = false,
            Is::HostLoopback if value == "none" => {
                self.host_loopback.clear();
                self.map_gateway = false;
            }
            Is::HostLoopback => replace(&mut self.host_loopback, address(value, "map")?),
            Is::GuestAddress if value == "none" => self.guest_address.clear(),
            Is::GuestAddress => replace(&mut self.guest_address, address(value, "map")?),
            Is::Ports(kind) => self.ports[kind].push(value.to_owned()),
            Is::LocalToLocal => self.local_to_local = true,
            Is::NoSplice => self.no_splice = true,
            Is::Netns => self.netns = Some(value.to_owned()),
            Is::Userns => self.userns = Some(value.to_owned()),
            Is::Outlive => self.outlives = true,
            Is::Pid => self.option("--pid-file", value),
            Is::Pcap => self.option("--pcap", value),
            Is::PestoSocket => self.option("--pesto-socket", value),
            Is::Runas => self.runas = Some(user(value)?),
            Is::HostName => self.host_name = Some(value.to_owned()),
            Is::Fqdn => self.fqdn = Some(value.to_owned()),
            Is::NoPidns => self.no_pidns = true,
            Is::SpliceOnly => self.splice_only = true,
            Is::Outbound if value == "none" => self.outbound.clear(),
            Is::Outbound => replace(&mut self.outbound, address(value, "outbound")?),
            Is::OutboundIf(family) => {
                self.outbound_interfaces.retain(|(other, _)| *other != family);
                self.outbound_interfaces.push((family, value.to_owned()));
            }
            Is::Without(Part::Ping) => self.without.extend([Part::Ping, Part::Ndp]),
            Is::Without(part) => self.without.push(part),
            Is::Freebind => {
                self.words.retain(|word| word != "--freebind");
                self.words.push("--freebind".to_owned());
            }
            Is::LogFile => {
                self.option("--log-file", value);
                if !self.words.iter().any(|word| word == "--log-file-new") {
                    self.words.push("--log-file-new".to_owned());
                }
            }
            Is::LogSize => {
                let size: u64 = value.parse().map_err(|_| format!("Invalid --log-size: {value}"))?;
                self.option("--log-file-size", &size.max(LOG_MIN).to_string());
            }
            Is::Stats if !self.foreground => {
                return Err("Can't display statistics if not running in foreground".to_owned());
            }
            Is::Stats => match value.parse() {
                Ok(seconds @ 1..=3600u32) => self.option("--stats", &seconds.to_string()),
                _ => return Err(format!("Invalid --stats: {value}")),
            },
            Is::TapFd => match value.parse::<u16>() {
                Ok(number) => self.tap_fd = Some(number),
                Err(_) => return Err(format!("Invalid --fd: {value}")),
            },
        }
        Ok(())
    }

    fn take_dns(&mut self, value: &str) -> Result<(), String> {
        self.no_dns = value == "none";
        if self.no_dns {
            self.dns.clear();
        } else {
            self.dns.push(address(value, "DNS")?);
        }
        Ok(())
    }

    fn take_search(&mut self, value: &str) {
        self.no_search = value == "none";
        if self.no_search {
            self.search.clear();
        } else {
            self.search.extend(value.split_whitespace().map(str::to_owned));
        }
    }

    /// A number of bytes; 0 leaves the kernel's default, that of Ethernet.
    fn mtu(&mut self, value: &str) -> Result<u32, String> {
        match value.parse() {
            Ok(0) => Ok(1500),
            Ok(mtu) if mtu > MTU_MAX => Err(format!("MTU {mtu} too large (max {MTU_MAX})")),
            Ok(mtu) if mtu < MTU_MIN => {
                self.notes.push(format!("MTU {mtu} is less than brodo's link has: it is {MTU_MIN}"));
                Ok(MTU_MIN)
            }
            Ok(mtu) => Ok(mtu),
            Err(_) => Err(format!("Invalid MTU: {value}")),
        }
    }

    /// Notes an option with its value, in the place of an earlier one.
    fn option(&mut self, option: &str, value: &str) {
        let before = format!("{option}=");
        self.words.retain(|word| !word.starts_with(&before));
        self.words.push(before + value);
    }

    /// The words of brodo's command line up to the target.
    fn line(mut self, target: &Target) -> Result<Vec<OsString>, String> {
        self.check()?;
        let network = self.network_words();
        let mut line = vec![target.command().to_owned(), self.copy_word()];
        if let Some(number) = self.tap_fd {
            line.push(format!("--tap-fd={number}"));
        } else if !self.config_net || self.splice_only {
            line.push("--no-configure".to_owned());
        }
        if self.splice_only {
            // The guest may bring the interface up, and then it leads nowhere.
            line.extend(["--deny=0.0.0.0/0", "--deny=::/0"].map(str::to_owned));
        }
        if !target.is_existing() {
            line.extend(self.isolation_words());
        }
        line.extend(network);
        line.extend(self.port_words(target)?);
        line.extend(self.common_words());
        if target.is_existing() && !self.foreground {
            line.push("--daemon".to_owned());
        }
        if target.is_existing() && self.outlives {
            line.push("--outlive-target".to_owned());
        }
        line.append(&mut self.words);
        Ok(line.into_iter().map(OsString::from).collect())
    }

    /// The word about the network to copy: that of the outbound interface, if there is one.
    fn copy_word(&self) -> String {
        let mut outbound = self.outbound_interfaces.iter().map(|(_, name)| name);
        let only = outbound.next().filter(|first| outbound.all(|other| other == *first));
        match self.interface.as_ref().or(only) {
            Some(interface) => format!("--copy-host={interface}"),
            None => "--copy-host".to_owned(),
        }
    }

    /// Words about a command's further namespaces.
    fn isolation_words(&self) -> [String; 2] {
        let name = self.host_name.clone().unwrap_or_else(|| {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let mut name = format!("pasta-{}", host.trim_end());
            name.truncate(HOST_NAME_MAX);
            name
        });
        let isolate = if self.no_pidns { "--isolate=no-pid" } else { "--isolate" };
        [isolate.to_owned(), format!("--hostname={name}")]
    }

    /// Words about addresses, MTU, DNS and mappings.
    fn network_words(&mut self) -> Vec<String> {
        let is_small = self.mtu.is_some_and(|mtu| mtu < MTU_MIN_V6);
        if self.family.is_none() && (is_small || !self.has_ipv6) {
            // A caller's addresses of IPv6 are no error then.
            self.family = Some("-4");
        }
        let mut line: Vec<String> = self.family.map(str::to_owned).into_iter().collect();
        self.drop_switched_off();
        line.extend(self.gateways.iter().map(|gateway| format!("--gateway={gateway}")));
        line.extend(self.addresses.iter().map(|&(address, prefix_len)| {
            let prefix_len = prefix_len.unwrap_or_else(|| self.prefix_len(address));
            format!("--address={address}/{prefix_len}")
        }));
        line.push(format!("--mtu={}", self.mtu.unwrap_or(65_520)));
        line.extend(self.dns_words());
        line.extend(self.name_words());
        line.extend(self.map_words());
        let without = Part::ALL.into_iter().filter(|part| self.without.contains(part));
        line.extend(without.map(|part| format!("--without={part}")));
        line.extend(self.outbound.iter().map(|address| format!("--outbound={address}")));
        let interfaces = self.outbound_interfaces.iter();
        line.extend(interfaces.map(|(family, name)| format!("--outbound={family}%{name}")));
        line
    }

    /// Words that every line has, and the log's.
    fn common_words(&self) -> Vec<String> {
        let mut line = Vec::new();
        if std::env::var_os(FLOOR).is_none_or(|value| value.is_empty() || value == "0") {
            line.push("--allow-link-local".to_owned());
        }
        line.extend(["--busy-poll=0", "--bulk=tap"].map(str::to_owned));
        let has_file = self.words.iter().any(|word| word.starts_with("--log-file="));
        if self.debug == 0 && !has_file {
            line.push("--syslog".to_owned());
        }
        line.extend(vec!["-v".to_owned(); self.debug.into()]);
        line
    }

    /// Words about the user, which root does not stay.
    fn user_words(&mut self) -> Result<Option<String>, String> {
        let user = match (&self.runas, run_as::is_root_of_the_system()) {
            (Some(user), _) => user.clone(),
            (None, true) => user(NOBODY)?,
            (None, false) => return Ok(None),
        };
        if self.runas.is_none() && !self.quiet {
            self.notes.push(format!("Started as root, will change to {NOBODY}."));
        }
        Ok(Some(format!("--run-as={user}")))
    }

    /// Forgets addresses of a family that is switched off: callers add theirs to a user's options.
    fn drop_switched_off(&mut self) {
        let Some(family) = self.family else { return };
        let stays = |address: &IpAddr| address.is_ipv4() == (family == "-4");
        self.addresses.retain(|(address, _)| stays(address));
        self.outbound_interfaces.retain(|(any, _)| (*any == "::") == (family == "-6"));
        for addresses in [
            &mut self.gateways,
            &mut self.dns_forward,
            &mut self.host_loopback,
            &mut self.guest_address,
            &mut self.outbound,
        ] {
            addresses.retain(stays);
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.netmask.is_some() && self.addresses.iter().any(|(_, prefix_len)| prefix_len.is_some()) {
            return Err("--netmask and an address with a prefix length are given together".to_owned());
        }
        if self.local_to_local && self.no_splice {
            return Err("--host-lo-to-ns-lo is incompatible with --no-splice".to_owned());
        }
        if self.splice_only && self.no_splice {
            return Err("--splice-only is incompatible with --no-splice".to_owned());
        }
        Ok(())
    }

    /// Length of the prefix of an address that is given without.
    fn prefix_len(&self, address: IpAddr) -> u8 {
        let IpAddr::V4(v4) = address else { return 64 };
        // Without a netmask the class of the address decides, as before CIDR.
        self.netmask.unwrap_or(match v4.octets()[0] {
            0..128 => 8,
            128..192 => 16,
            192..224 => 24,
            _ => 32,
        })
    }

    fn dns_words(&self) -> Vec<String> {
        let mut words: Vec<String> =
            self.dns_forward.iter().map(|address| format!("--dns={address}")).collect();
        let offers_dns = self.offers_dns && !self.no_dns;
        if !(offers_dns && self.dns.is_empty() && self.dns_forward.is_empty()) {
            // Otherwise pasta offers the host's resolvers, and brodo its own server, which asks them.
            words.push("--dns=none".to_owned());
        }
        words.extend(self.hidden_resolver_word());
        words.extend(self.dns_host.iter().map(|resolver| format!("--resolver={resolver}")));
        match (offers_dns, self.dns.is_empty()) {
            (false, _) => words.push("--offer-dns=none".to_owned()),
            (true, true) => {}
            (true, false) => words.extend(self.dns.iter().map(|server| format!("--offer-dns={server}"))),
        }
        match (self.offers_search && !self.no_search, self.search.is_empty()) {
            (false, _) => words.push("--search=.".to_owned()),
            (true, true) => {}
            (true, false) => words.extend(self.search.iter().map(|name| format!("--search={name}"))),
        }
        words
    }

    /// The word for families in which the address for the host's loopback answers DNS if it hides the host's
    /// resolver: those without another DNS server that is given.
    fn hidden_resolver_word(&self) -> Option<String> {
        let given = |addresses: &[IpAddr], ipv6: bool| addresses.iter().any(|it| it.is_ipv6() == ipv6);
        let is_open = |ipv6| {
            let is_wanted = self.family.is_none_or(|family| (family == "-6") == ipv6);
            let is_mapped = self.map_gateway || given(&self.host_loopback, ipv6);
            is_wanted && is_mapped && !given(&self.dns_forward, ipv6) && !given(&self.dns, ipv6)
        };
        let families = [(false, "ipv4"), (true, "ipv6")].into_iter().filter(|&(ipv6, _)| is_open(ipv6));
        let names: Vec<_> = families.map(|(_, name)| name).collect();
        let wanted = !(names.is_empty() || self.no_dns || self.splice_only);
        wanted.then(|| format!("--dns-at-loopback={}", names.join(",")))
    }

    /// Words about the guest's names. A host name that is none in DNS is for the UTS namespace alone.
    fn name_words(&self) -> Vec<String> {
        let host_name = self.host_name.as_ref().filter(|name| offered_name(name).is_ok());
        let host_name = host_name.map(|name| format!("--offer-hostname={name}"));
        host_name.into_iter().chain(self.fqdn.as_ref().map(|name| format!("--offer-fqdn={name}"))).collect()
    }

    fn map_words(&self) -> Vec<String> {
        let loopbacks = self.host_loopback.iter().map(|address| format!("--map-host-loopback={address}"));
        let mut words: Vec<String> = loopbacks.collect();
        if self.map_gateway {
            words.push("--map-host-loopback=gateway".to_owned());
        }
        // An address of both kinds leads to the loopback: podman adds one of its own to a user's.
        let addresses = self.guest_address.iter().filter(|address| !self.host_loopback.contains(address));
        words.extend(addresses.map(|address| format!("--map-host-address={address}")));
        words
    }

    /// Whether ports of a kind can be published: callers add theirs to a user's `--no-tcp`.
    fn is_carried(&self, kind: usize) -> bool {
        !self.without.contains(if kind.is_multiple_of(2) { &Part::Tcp } else { &Part::Udp })
    }

    /// Words of the ports of a kind, a number of [`LETTERS`]. A `none` before others, or another `none`,
    /// changes nothing, and behind others it is refused.
    fn words_of_kind(&self, kind: usize) -> Result<Vec<String>, String> {
        let letter = LETTERS[kind];
        let others = || self.ports[kind].iter().skip_while(|spec| *spec == "none");
        if others().any(|spec| spec == "none") {
            return Err(format!("-{letter} none conflicts with previous options"));
        }
        let none = self.ports[kind].first().filter(|_| others().next().is_none());
        Ok(none.into_iter().chain(others()).map(|spec| format!("-{letter}{spec}")).collect())
    }

    fn port_words(&self, target: &Target) -> Result<Vec<String>, String> {
        let mut words = Vec::new();
        for (kind, letter) in LETTERS.into_iter().enumerate() {
            let given = self.words_of_kind(kind)?;
            if !self.is_carried(kind) {
                continue;
            }
            if given.is_empty() && *target != Target::Tap {
                words.push(format!("-{letter}auto"));
            }
            words.extend(given);
        }
        let to = match (self.no_splice, self.local_to_local) {
            (true, _) => "link",
            (false, _) if self.splice_only => "loopback",
            (false, true) => "loopback",
            (false, false) => "address",
        };
        words.push(format!("--local-peers={to}"));
        Ok(words)
    }
}

/// A user that is known here, as it was given.
fn user(value: &str) -> Result<String, String> {
    value.parse::<RunAs>().map(|_| value.to_owned()).map_err(|_| format!("Invalid --runas option: {value}"))
}

/// Adds an address in the place of an earlier one of its family.
fn replace(addresses: &mut Vec<IpAddr>, address: IpAddr) {
    addresses.retain(|earlier| earlier.is_ipv4() != address.is_ipv4());
    addresses.push(address);
}

fn address(value: &str, what: &str) -> Result<IpAddr, String> {
    value.parse().map_err(|_| format!("Invalid {what} address: {value}"))
}

/// An address with the length of its prefix, if one is given: `ADDRESS[/LENGTH]`.
fn address_with_prefix(value: &str) -> Result<(IpAddr, Option<u8>), String> {
    let invalid = || format!("Invalid address: {value}");
    let (text, length) = match value.split_once('/') {
        Some((text, length)) => (text, Some(length)),
        None => (value, None),
    };
    let address: IpAddr = text.parse().map_err(|_| invalid())?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let length = length.map(|text| text.parse().ok().filter(|&length| length <= longest).ok_or_else(invalid));
    Ok((address, length.transpose()?))
}

/// A length in bits, or dotted: 24, 255.255.255.0.
fn netmask(value: &str) -> Result<u8, String> {
    let invalid = || format!("Invalid netmask: {value}");
    if let Ok(length) = value.parse::<u8>() {
        return if length <= 32 { Ok(length) } else { Err(invalid()) };
    }
    let mask: std::net::Ipv4Addr = value.parse().map_err(|_| invalid())?;
    let ones = mask.to_bits().leading_ones();
    if mask.to_bits().count_ones() == ones { Ok(ones as u8) } else { Err(invalid()) }
}

#[cfg(test)]
mod tests;
