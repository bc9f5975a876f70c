//! passt: pasta's other name, for virtual machines, as words of `brodo vm`.
//!
//! Options are pasta's, without those about a namespace and with those about the monitor's socket. Defaults
//! differ from pasta's: no ports, DNS and search names offered. It goes to the background once its socket is
//! there, unless `-f`, and ends with its first machine if `-1` or `--fd` is given, otherwise by a signal.
//! With `--vhost-user` the socket speaks that protocol, as QEMU and libvirt ask for it by
//! `--print-capabilities`.

use super::super::getopt::{Opt, Order, Read, read, switch, valued};
use super::super::{Personality, Refused, Translated, complain};
use super::Given;
use super::table::{Is, TABLE};
use crate::option_values::{PASST, PASST_QUIET};
use crate::vm::CAPABILITIES;
use brodo_netns::setup;
use std::ffi::OsString;

/// pasta's options that passt does not have, or has with another meaning.
const PASTAS: &[&str] = &[
    "tcp-ports",
    "udp-ports",
    "dns",
    "search",
    "tcp-ns",
    "udp-ns",
    "host-lo-to-ns-lo",
    "no-splice",
    "splice-only",
    "ns-ifname",
    "userns",
    "netns",
    "netns-only",
    "no-netns-quit",
    "config-net",
    "ns-mac-addr",
    "no-pidns",
    "no-copy-routes",
    "no-copy-addrs",
    "dhcp-dns",
    "dhcp-search",
    "fd",
];

/// Meaning of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::personality) enum Meaning {
    Pastas(Is),
    Socket,
    Descriptor,
    OneOff,
    OfferNoDns,
    OfferNoSearch,
    VhostUser,
    Capabilities,
    /// Without effect here.
    Nothing,
}

/// Options beside pasta's.
const OWN: &[Opt<Meaning>] = &[
    valued(
        "socket",
        Some('s'),
        "PATH",
        Meaning::Socket,
        "Socket for the machine's monitor [default: the first free /tmp/passt_N.socket]",
    ),
    valued("socket-path", None, "PATH", Meaning::Socket, "Socket for the machine's monitor, as --socket"),
    valued("fd", Some('F'), "N", Meaning::Descriptor, "Connected socket that passt is started with"),
    switch("one-off", Some('1'), Meaning::OneOff, "End with the first machine"),
    valued(
        "tcp-ports",
        Some('t'),
        "SPEC",
        Meaning::Pastas(Is::Ports(0)),
        "TCP ports of the guest to publish on the host [default: none]",
    ),
    valued(
        "udp-ports",
        Some('u'),
        "SPEC",
        Meaning::Pastas(Is::Ports(1)),
        "UDP ports of the guest to publish on the host [default: none]",
    ),
    valued(
        "dns",
        Some('D'),
        "IP",
        Meaning::Pastas(Is::Dns),
        "DNS server to offer, or none [default: brodo's, if any]",
    ),
    valued("search", Some('S'), "NAMES", Meaning::Pastas(Is::Search), "Search domains to offer, or none"),
    switch("no-dhcp-dns", None, Meaning::OfferNoDns, "Offer no DNS server"),
    switch("no-dhcp-search", None, Meaning::OfferNoSearch, "Offer no search domain"),
    switch("vhost-user", None, Meaning::VhostUser, "Frames in rings of the machine's memory"),
    switch("print-capabilities", None, Meaning::Capabilities, "Print what a manager of machines asks for"),
    valued("repair-path", None, "PATH", Meaning::Nothing, "No effect: connections do not migrate"),
    switch("migrate-exit", None, Meaning::Nothing, "No effect, as connections do not migrate"),
    switch("migrate-no-linger", None, Meaning::Nothing, "No effect, as connections do not migrate"),
];

/// Forms of a command line.
pub(in crate::personality) const USAGE: &str = "passt [OPTION]...";

/// The socket for the monitor.
#[derive(Debug, Default)]
struct Monitor {
    socket: Option<String>,
    one_off: bool,
    vhost_user: bool,
}

/// Translates a command line that begins with passt's name. `extra` are words of brodo's own.
pub(in crate::personality) fn translate(
    words: &[OsString],
    extra: Vec<OsString>,
) -> Result<Translated, Refused> {
    let name = words.first().map_or("passt".into(), |word| word.to_string_lossy().into_owned());
    let words = words.get(1..).unwrap_or_default();
    let table = table();
    let Read { given: options, own, rest } = read(&table, Order::Anywhere, words)
        .map_err(|why| Refused(format!("{name}: {why}\nUsage: {USAGE}")))?;
    if let Some(word) = rest.first() {
        return Err(Refused(format!("{name}: unexpected argument '{}'\nUsage: {USAGE}", word.display())));
    }
    let mut given = Given {
        map_gateway: true,
        offers_dns: true,
        offers_search: true,
        has_ipv6: setup::ipv6_available(),
        ..Given::default()
    };
    let mut monitor = Monitor::default();
    for (meaning, value) in options {
        let value = value.to_str().ok_or_else(|| Refused("an option's value is not UTF-8".to_owned()))?;
        match meaning {
            Meaning::Pastas(Is::Help) => return Ok(Translated::Text(Personality::Passt.help())),
            Meaning::Pastas(Is::Version) => return Ok(Translated::Text(version())),
            Meaning::Pastas(is) => given.take(is, value).map_err(Refused)?,
            Meaning::Socket => monitor.socket = Some(value.to_owned()),
            Meaning::Descriptor => {
                (monitor.socket, monitor.one_off) = (Some(format!("fd:{value}")), true);
            }
            Meaning::OneOff => monitor.one_off = true,
            Meaning::OfferNoDns => given.offers_dns = false,
            Meaning::OfferNoSearch => given.offers_search = false,
            Meaning::VhostUser => monitor.vhost_user = true,
            Meaning::Capabilities => return Ok(Translated::Text(CAPABILITIES.to_owned())),
            Meaning::Nothing => {}
        }
    }
    let user = given.user_words().map_err(Refused)?;
    for note in std::mem::take(&mut given.notes) {
        complain(&format!("{name}: {note}"));
    }
    let quiet = given.quiet;
    let mut line = given.machine_line().map_err(Refused)?;
    line.extend(user.map(OsString::from));
    line.extend(own);
    line.extend(extra);
    let option = if monitor.vhost_user { "--vhost-user" } else { "--socket" };
    let chosen = if quiet { PASST_QUIET } else { PASST };
    line.push(format!("{option}={}", monitor.socket.unwrap_or_else(|| chosen.to_owned())).into());
    line.extend(monitor.vhost_user.then(|| "--no-backend-channel".into()));
    line.extend(monitor.one_off.then(|| "--one-off".into()));
    Ok(Translated::Words(line))
}

impl Given {
    /// The words of `brodo vm` up to the socket.
    fn machine_line(mut self) -> Result<Vec<OsString>, String> {
        self.check()?;
        let network = self.network_words();
        let mut line = vec!["vm".to_owned(), self.copy_word()];
        line.extend(network);
        // A machine has the first two kinds, those of the guest's ports.
        for kind in 0..2 {
            let given = self.words_of_kind(kind)?;
            line.extend(given.into_iter().filter(|_| self.is_carried(kind)));
        }
        line.extend(self.common_words());
        if !self.foreground {
            line.push("--daemon".to_owned());
        }
        line.append(&mut self.words);
        Ok(line.into_iter().map(OsString::from).collect())
    }
}

/// All options.
pub(in crate::personality) fn table() -> Vec<Opt<Meaning>> {
    let pastas = TABLE.iter().filter(|option| !PASTAS.contains(&option.long));
    let pastas = pastas.map(|&Opt { long, short, value, is, help }| Opt {
        long,
        short,
        value,
        is: Meaning::Pastas(is),
        help,
    });
    pastas.chain(OWN.iter().copied()).collect()
}

/// Text of `--version`: it names brodo, so that no report about it reaches the authors of passt.
fn version() -> String {
    format!(
        "passt {0} (brodo)\nbrodo {0} in the place of passt; its own options: brodo --help\n",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests;
