//! Words of `brodo attach` made of a runtime's JSON.
//!
//! A key is the long name of an option, as in the configuration file, and clap checks its value: no option is
//! named here but those that are the plugin's own, which a configuration may not set.

use crate::args::Cli;
use brodo_core::cidr::Cidr;
use clap::{Arg, ArgAction, CommandFactory};
use serde::Deserialize;
use serde_json::Value;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Options that belong to the plugin, or that serve one process at a terminal.
const RESERVED: [&str; 14] = [
    "config",
    "control",
    "daemon",
    "exit-fd",
    "ifname",
    "log",
    "netns",
    "outlive-target",
    "pid-file",
    "quiet",
    "ready-fd",
    "userns",
    "no-configure",
    "verbose",
];

/// Networks without another one, as brodo's own.
pub(super) const SUBNETS: [&str; 2] = ["10.0.2.0/24", "fd00::/64"];

/// Text that stands for the container's ID in a value, for files of each container.
const CONTAINER: &str = "{container}";

/// A published port, in the terms of netavark, and those of CNI in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct PortMapping {
    #[serde(alias = "hostport")]
    pub(super) host_port: u16,
    #[serde(alias = "containerport")]
    pub(super) container_port: u16,
    #[serde(default)]
    pub(super) protocol: String,
    #[serde(default, alias = "hostip")]
    pub(super) host_ip: String,
    #[serde(default)]
    pub(super) range: u16,
}

/// Words for an option and its value: text, a number, a switch, or a list.
///
/// # Errors
/// It is no option of brodo's, one of the plugin's own, or takes no such value.
pub(super) fn option(key: &str, value: &Value, container: &str) -> Result<Vec<OsString>, String> {
    let definition = Cli::command();
    let attach = definition.find_subcommand("attach");
    let found = attach.and_then(|attach| attach.get_arguments().find(|arg| arg.get_long() == Some(key)));
    let Some(found) = found else { return Err(format!("`{key}` is not an option of brodo attach")) };
    if RESERVED.contains(&key) {
        return Err(format!(
            "`{key}` is not for a container: the plugin sets it, or it serves one at a terminal"
        ));
    }
    let word = |value: &Value| {
        let text = match value {
            Value::String(text) => text.replace(CONTAINER, container),
            Value::Number(number) => number.to_string(),
            _ => return Err(format!("`{key}` takes no such value: {value}")),
        };
        Ok(OsString::from(format!("--{key}={text}")))
    };
    match value {
        Value::Bool(false) => Ok(Vec::new()),
        Value::Bool(true) if is_switch(found) => Ok(vec![format!("--{key}").into()]),
        Value::Array(values) => values.iter().map(word).collect(),
        value => Ok(vec![word(value)?]),
    }
}

/// Whether an option may stand alone.
fn is_switch(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::SetTrue)
        || option.get_num_args().is_some_and(|number| number.min_values() == 0)
}

/// The words that publish a port; none for one without a port of the host.
///
/// # Errors
/// Neither TCP nor UDP, or a range beyond 65535.
pub(super) fn published(mapping: &PortMapping) -> Result<Vec<OsString>, String> {
    let PortMapping { host_port, container_port, protocol, host_ip, range } = mapping;
    if *host_port == 0 {
        return Ok(Vec::new());
    }
    let last = |first: u16| first.checked_add(range.saturating_sub(1));
    let (Some(host_last), Some(container_last)) = (last(*host_port), last(*container_port)) else {
        return Err(format!("ports from {host_port}: {range} of them go beyond 65535"));
    };
    let ports = match range {
        0 | 1 => format!("{host_port}:{container_port}"),
        _ => format!("{host_port}-{host_last}:{container_port}-{container_last}"),
    };
    let address = if host_ip.is_empty() { String::new() } else { format!("{host_ip}/") };
    let protocols = if protocol.is_empty() { "tcp" } else { protocol };
    let word = |protocol: &str| match protocol.trim().to_ascii_lowercase().as_str() {
        "tcp" => Ok(format!("--tcp-ports={address}{ports}").into()),
        "udp" => Ok(format!("--udp-ports={address}{ports}").into()),
        other => Err(format!("port {host_port}: brodo publishes ports of tcp and udp, not of {other}")),
    };
    protocols.split(',').map(word).collect()
}

/// The guest's address in a network `ADDRESS/LENGTH`: number 15, or the first free one of a small network.
///
/// # Errors
/// It is no network, or too small.
pub(super) fn address_in(subnet: &str, gateway: Option<IpAddr>) -> Result<String, String> {
    let network = network(subnet)?;
    let width = if network.address().is_ipv4() { 32 } else { 128 };
    let hosts = width - network.prefix_len();
    let number = |number: u8| match network.address() {
        IpAddr::V4(v4) => IpAddr::from(Ipv4Addr::from_bits(v4.to_bits() | u32::from(number))),
        IpAddr::V6(v6) => IpAddr::from(Ipv6Addr::from_bits(v6.to_bits() | u128::from(number))),
    };
    // The last number of a network of IPv4 is its broadcast address.
    let inside = |number: &u8| hosts >= 8 || *number < (1 << hosts) - 1;
    let mut free = [15, 5, 4, 3, 2, 1].into_iter().filter(inside).map(number);
    let free = free.find(|&address| Some(address) != gateway);
    let free = free.ok_or_else(|| format!("`{subnet}` is too small: a router and a guest need addresses"))?;
    Ok(format!("{free}/{}", network.prefix_len()))
}

/// A network `ADDRESS/LENGTH`.
///
/// # Errors
/// It is none.
pub(super) fn network(subnet: &str) -> Result<Cidr, String> {
    let parsed = subnet
        .split_once('/')
        .and_then(|(address, length)| Cidr::new(address.parse().ok()?, length.parse().ok()?));
    parsed.ok_or_else(|| format!("`{subnet}` is not a network such as 10.0.2.0/24"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_options_and_values_of_every_kind_become_words() {
        for (key, value, words) in [
            ("mtu", json!(1500), &["--mtu=1500"][..]),
            ("deny", json!(["10.0.0.0/8", "host"]), &["--deny=10.0.0.0/8", "--deny=host"]),
            ("copy-host", json!(true), &["--copy-host"]),
            ("copy-host", json!("eth1"), &["--copy-host=eth1"]),
            ("no-offload", json!(false), &[]),
            ("flow-log", json!("/var/log/{container}.log"), &["--flow-log=/var/log/c1.log"]),
        ] {
            assert_eq!(option(key, &value, "c1").expect(key), words, "{key}");
        }
        for (key, value, part) in [
            ("frobnicate", json!(1), "not an option"),
            ("netns", json!("/x"), "the plugin sets it"),
            ("mtu", json!({"a": 1}), "takes no such value"),
            ("mtu", json!(true), "takes no such value"),
        ] {
            assert!(option(key, &value, "c1").expect_err(key).contains(part), "{key}");
        }
    }

    #[test]
    fn every_reserved_option_is_one() {
        let definition = Cli::command();
        let attach = definition.find_subcommand("attach").expect("attach");
        for key in RESERVED {
            assert!(attach.get_arguments().any(|arg| arg.get_long() == Some(key)), "{key}");
        }
    }

    #[test]
    fn ports_are_published_in_both_spellings() {
        let words = |json: Value| published(&serde_json::from_value(json).expect("a mapping"));
        for (mapping, expected) in [
            (json!({"hostport": 8080, "containerport": 80, "protocol": "tcp"}), &["--tcp-ports=8080:80"][..]),
            (
                json!({"hostport": 53, "containerport": 53, "protocol": "UDP", "hostip": "::1"}),
                &["--udp-ports=::1/53:53"],
            ),
            (json!({"hostport": 0, "containerport": 80}), &[]),
            (
                json!({"host_port": 80, "container_port": 90, "protocol": "tcp,udp", "host_ip": "10.0.0.1", "range": 3}),
                &["--tcp-ports=10.0.0.1/80-82:90-92", "--udp-ports=10.0.0.1/80-82:90-92"],
            ),
        ] {
            assert_eq!(words(mapping).expect("published"), expected);
        }
        let sctp = words(json!({"hostport": 1, "containerport": 1, "protocol": "sctp"}));
        assert!(sctp.expect_err("refused").contains("not of sctp"));
        let beyond = words(json!({"host_port": 65535, "container_port": 1, "range": 2}));
        assert!(beyond.expect_err("refused").contains("beyond 65535"));
    }

    #[test]
    fn a_network_gives_the_guest_s_address() {
        let gateway = |text: &str| Some(text.parse().expect("an address"));
        for (subnet, router, address) in [
            ("10.0.2.0/24", None, "10.0.2.15/24"),
            ("10.0.2.0/24", gateway("10.0.2.15"), "10.0.2.5/24"),
            ("10.0.2.8/29", None, "10.0.2.13/29"),
            ("10.0.2.8/30", gateway("10.0.2.10"), "10.0.2.9/30"),
            ("fd12::/64", None, "fd12::f/64"),
            ("0.0.0.0/0", None, "0.0.0.15/0"),
        ] {
            assert_eq!(address_in(subnet, router).expect(subnet), address);
        }
        for subnet in ["10.0.2.0", "x/24", "10.0.2.0/33", "10.0.2.0/32", "10.0.2.0/31"] {
            assert!(address_in(subnet, None).is_err(), "{subnet}");
        }
    }
}
