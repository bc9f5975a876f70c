//! slirp4netns: its options as words of `brodo attach`, or of `brodo vm`.
//!
//! Defaults that differ from brodo's own are written out: MTU 1500, IPv4 alone, the guest at number 100 of
//! its network, the router standing for the host's loopback, link-local addresses reachable, published ports
//! leading to the guest's interface, no busy polling. It stays in the foreground; readiness is the text `1`.
//!
//! Without `--configure` the guest configures its interface itself, by DHCP, which offers number 15, or with
//! number 100, which callers write into it: both addresses are the guest's then.
//!
//! With `--target-type=bess` it is `brodo vm`, for User-Mode Linux, whose user configures the interface.
//!
//! The engine, which parses what the guest and the network send, is confined in any case, hence
//! `--enable-seccomp` changes nothing; `--enable-sandbox` confines the process that the caller knows too.

mod table;

use super::getopt::{Order, Read, read};
use super::{Personality, Refused, Translated};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use table::Is;
pub(super) use table::{TABLE, USAGE};

/// Network by default, and number of the guest in every network.
const CIDR: &str = "10.0.2.0/24";
const GUEST: u32 = 100;
/// Number that DHCP offers.
const DHCP: u32 = 15;
/// Largest and default MTU, the smallest of brodo's link and of IPv6 (RFC 8200), in bytes.
const MTU_MAX: u32 = 65_521;
const MTU: u32 = 1500;
const MTU_MIN: u32 = 88;
const MTU_MIN_V6: u32 = 1280;

/// Options as given so far.
#[derive(Debug, Default)]
struct Given {
    configure: bool,
    ipv6: bool,
    mtu: Option<u32>,
    cidr: Option<String>,
    netns_type: Option<String>,
    userns: Option<String>,
    no_loopback: bool,
    no_dns: bool,
    sandbox: bool,
    has_mac: bool,
    /// The target is a machine on a socket for packets, in the form of BESS.
    bess: bool,
    /// Sources of IPv4 and IPv6.
    outbound: [Option<String>; 2],
    /// Words of options with a counterpart of the same meaning.
    words: Vec<String>,
}

/// Translates a command line that begins with the program's name. `extra` are words of brodo's own.
pub(super) fn translate(words: &[OsString], extra: Vec<OsString>) -> Result<Translated, Refused> {
    let name = words.first().map_or("slirp4netns".into(), |word| word.to_string_lossy().into_owned());
    let words = words.get(1..).unwrap_or_default();
    // The error and the usage below it, as the original has them.
    let with_usage = |why: String| Refused(format!("{why}\nUsage: {USAGE}"));
    let read = read(TABLE, Order::Anywhere, words);
    let Read { given: options, own, rest } = read.map_err(|why| with_usage(format!("{name}: {why}")))?;
    let mut given = Given::default();
    for (is, value) in options {
        let value = value.to_str().ok_or_else(|| Refused("an option's value is not UTF-8".to_owned()))?;
        match is {
            Is::Help => return Ok(Translated::Text(Personality::Slirp4netns.help())),
            Is::Version => return Ok(Translated::Text(table::version())),
            is => given.take(is, value).map_err(with_usage)?,
        }
    }
    let mut line = given.line().map_err(Refused)?;
    line.extend(own);
    line.extend(extra);
    line.extend(given.target(&rest).map_err(with_usage)?.into_iter().map(OsString::from));
    Ok(Translated::Words(line))
}

impl Given {
    /// Takes one option.
    fn take(&mut self, is: Is, value: &str) -> Result<(), String> {
        match is {
            Is::Help | Is::Version | Is::Nothing => {}
            Is::Configure => self.configure = true,
            Is::Ipv6 => self.ipv6 = true,
            Is::Mtu => self.mtu = Some(mtu(value)?),
            Is::Cidr => self.cidr = Some(value.to_owned()),
            Is::NoLoopback => self.no_loopback = true,
            Is::NoDns => self.no_dns = true,
            Is::Sandbox => self.sandbox = true,
            Is::NetnsType => self.netns_type = Some(value.to_owned()),
            Is::Userns => self.userns = Some(value.to_owned()),
            Is::ExitFd => self.option("--exit-fd", &number(value, "exit-fd")?),
            Is::ReadyFd => self.option("--ready-fd", &(number(value, "ready-fd")? + ":1")),
            Is::ApiSocket => self.option("--slirp-socket", value),
            Is::Mac => {
                self.has_mac = true;
                self.option("--mac", value);
            }
            Is::Outbound => self.outbound[0] = Some(outbound(value, "0.0.0.0")),
            Is::Outbound6 => self.outbound[1] = Some(outbound(value, "::")),
            Is::TargetType if value == "netns" => self.bess = false,
            Is::TargetType if value == "bess" => self.bess = true,
            Is::TargetType => return Err("--target-type must be either \"netns\" or \"bess\"".to_owned()),
        }
        Ok(())
    }

    /// Whether the target is the descriptor of a TAP.
    fn is_tapfd(&self) -> bool {
        self.netns_type.as_deref() == Some("tapfd")
    }

    /// Whether the guest has IPv6: not on a link too small for it.
    fn has_ipv6(&self) -> bool {
        self.ipv6 && self.mtu.is_none_or(|mtu| mtu >= MTU_MIN_V6)
    }

    /// Notes an option with its value, in the place of an earlier one.
    fn option(&mut self, option: &str, value: &str) {
        let before = format!("{option}=");
        self.words.retain(|word| !word.starts_with(&before));
        self.words.push(before + value);
    }

    /// The words of brodo's command line up to the target.
    fn line(&self) -> Result<Vec<OsString>, String> {
        if self.has_mac && !self.configure {
            return Err("--macaddr cannot be specified when --configure or -c is not specified".to_owned());
        }
        self.check_bess()?;
        let (network, length) = cidr(self.cidr.as_deref().unwrap_or(CIDR))?;
        let address =
            |number| format!("--address={}/{length}", Ipv4Addr::from_bits(network.to_bits() + number));
        let mut line = vec![if self.bess { "vm" } else { "attach" }.to_owned()];
        if self.configure {
            line.push(address(GUEST));
        } else {
            line.extend([address(DHCP), address(GUEST)]);
            if !self.is_tapfd() && !self.bess {
                line.push("--no-configure".to_owned());
            }
        }
        if !self.has_ipv6() {
            line.push("-4".to_owned());
        }
        line.push(format!("--mtu={}", self.mtu.unwrap_or(MTU)));
        if !self.no_loopback {
            line.push("--map-host-loopback=gateway".to_owned());
        }
        if self.no_dns {
            line.extend(["--without=dns", "--offer-dns=none"].map(str::to_owned));
        }
        line.push("--closed-ports=unreachable".to_owned());
        if self.sandbox {
            line.push("--sandbox".to_owned());
        }
        line.extend(
            ["--local-peers=link", "--allow-link-local", "--multicast=on", "--busy-poll=0", "--bulk=tap"]
                .map(str::to_owned),
        );
        let [v4, v6] = &self.outbound;
        line.extend(v4.iter().chain(v6.iter().filter(|_| self.has_ipv6())).cloned());
        line.extend(self.words.iter().cloned());
        Ok(line.into_iter().map(OsString::from).collect())
    }

    /// Refuses options for a namespace, if the target is none.
    fn check_bess(&self) -> Result<(), String> {
        let given = [
            ("--configure", self.configure),
            ("--netns-type", self.netns_type.is_some()),
            ("--userns-path", self.userns.is_some()),
        ];
        match given.into_iter().find(|(_, given)| self.bess && *given) {
            Some((option, _)) => Err(format!("{option} conflicts with --target-type=bess")),
            None => Ok(()),
        }
    }

    /// The words that name the target and its interface.
    fn target(&self, rest: &[OsString]) -> Result<Vec<String>, String> {
        let rest: Option<Vec<&str>> = rest.iter().map(|word| word.to_str()).collect();
        if self.bess {
            return match rest.as_deref() {
                Some([path]) => Ok(vec![format!("--seqpacket={path}")]),
                Some([]) => Err("the path of a socket is needed".to_owned()),
                _ => Err("too many arguments".to_owned()),
            };
        }
        if self.is_tapfd() {
            let number = rest.as_deref().and_then(<[_]>::first).copied().unwrap_or_default();
            let number = number.parse::<u32>().map_err(|_| "TAPFD must be a file descriptor".to_owned())?;
            return Ok(vec![format!("--tap-fd={number}")]);
        }
        let (target, interface) = match rest.as_deref() {
            Some([target, interface, ..]) => (*target, *interface),
            Some(_) => return Err("a PID or PATH and a TAPNAME are needed".to_owned()),
            None => return Err("a target or an interface that is not UTF-8".to_owned()),
        };
        let is_process = target.parse::<i32>().is_ok_and(|number| number > 0);
        let netns = match self.netns_type.as_deref().unwrap_or("pid") {
            "pid" if !is_process => return Err("PID must be a positive integer".to_owned()),
            "pid" if self.userns.is_none() => None,
            "pid" => Some(format!("/proc/{target}/ns/net")),
            "path" => Some(target.to_owned()),
            other => return Err(format!("--netns-type={other}: expected path, pid or tapfd")),
        };
        let mut words = vec![format!("--ifname={interface}")];
        words.push(netns.map_or_else(|| target.to_owned(), |path| format!("--netns={path}")));
        words.extend(self.userns.as_ref().map(|path| format!("--userns={path}")));
        Ok(words)
    }
}

/// The number of a descriptor, as text.
fn number(value: &str, option: &str) -> Result<String, String> {
    match value.parse::<u32>() {
        Ok(number) => Ok(number.to_string()),
        Err(_) => Err(format!("{option} must be a non-negative integer")),
    }
}

/// The word for a source: an address, or an interface with the unspecified address `any` of its family.
fn outbound(value: &str, any: &str) -> String {
    match value.parse::<IpAddr>() {
        Ok(address) => format!("--outbound={address}"),
        Err(_) => format!("--outbound={any}%{value}"),
    }
}

fn mtu(value: &str) -> Result<u32, String> {
    match value.parse() {
        Ok(mtu) if (MTU_MIN..=MTU_MAX).contains(&mtu) => Ok(mtu),
        // The smallest of brodo's link carries what a smaller one does.
        Ok(1..MTU_MIN) => Ok(MTU_MIN),
        _ => Err(format!("MTU must be a positive integer (< {})", MTU_MAX + 1)),
    }
}

/// A network of IPv4, `ADDRESS/LENGTH`.
fn cidr(value: &str) -> Result<(Ipv4Addr, u8), String> {
    let invalid = || format!("invalid CIDR: {value}");
    let (address, length) = value.split_once('/').ok_or_else(invalid)?;
    let address: Ipv4Addr = address.parse().map_err(|_| invalid())?;
    let length: u8 = length.parse().map_err(|_| invalid())?;
    // Number 100 has to be inside.
    if !(1..=25).contains(&length) {
        return Err("prefix length needs to be 1-25".to_owned());
    }
    let network = Ipv4Addr::from_bits(address.to_bits() & u32::MAX << (32 - length));
    if network != address {
        let like = format!("{network}/{length}");
        return Err(format!("CIDR needs to be a network address like {like}, not like {value}"));
    }
    Ok((address, length))
}

#[cfg(test)]
mod tests;
