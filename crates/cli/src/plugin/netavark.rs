//! netavark: podman's networks by the driver `brodo`.
//!
//! `create` checks and completes a network that an administrator asks for, `setup NETNS` and `teardown NETNS`
//! begin and end the attachment of a container, `info` names the versions. Input and output are JSON; a
//! failure is an object with the key `error`.
//!
//! Options of the network (`podman network create --opt KEY=VALUE`) are options of `brodo attach`. Each
//! container has a link of its own, so all containers of a network have the same address, unless the network
//! or the container names another.

use super::attachment::{Attachments, Key, is_name};
use super::described::Described;
use super::words::{self, PortMapping};
use super::{answer, input};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::net::IpAddr;
use std::process::ExitCode;

/// Network by default, with its router; and that of IPv6.
const SUBNET: (&str, &str) = (words::SUBNETS[0], "10.0.2.2");
const SUBNET_V6: (&str, &str) = (words::SUBNETS[1], "fd00::2");

/// Input of `setup` and `teardown`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Container {
    #[serde(rename = "container_id")]
    id: String,
    #[serde(default)]
    port_mappings: Option<Vec<PortMapping>>,
    network: Network,
    #[serde(rename = "network_options")]
    own: Own,
}

/// A network, as far as the driver reads it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Network {
    name: String,
    #[serde(default)]
    subnets: Option<Vec<Subnet>>,
    #[serde(default)]
    ipv6_enabled: bool,
    #[serde(default)]
    internal: bool,
    #[serde(default)]
    options: Option<Map<String, Value>>,
    #[serde(default, rename = "network_dns_servers")]
    dns_servers: Option<Vec<IpAddr>>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Subnet {
    subnet: String,
    #[serde(default)]
    gateway: Option<IpAddr>,
}

/// The container's part.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Own {
    interface_name: String,
    #[serde(default)]
    static_ips: Option<Vec<IpAddr>>,
    #[serde(default)]
    static_mac: Option<String>,
}

/// Does one operation.
pub(super) fn execute(words: &[OsString]) -> ExitCode {
    match done(words) {
        Ok(Value::Null) => ExitCode::SUCCESS,
        Ok(output) => answer(&format!("{output}\n"), ExitCode::SUCCESS),
        Err(error) => answer(&format!("{}\n", json!({ "error": error })), ExitCode::FAILURE),
    }
}

fn done(words: &[OsString]) -> Result<Value, String> {
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    let words = words.ok_or("a word is not UTF-8")?;
    let read = || input().map_err(|error| format!("read the input: {error}"));

    match words.as_slice() {
        [] | ["info", ..] => Ok(json!({ "version": env!("CARGO_PKG_VERSION"), "api_version": "1.0.0" })),
        ["create", ..] => {
            let network = serde_json::from_slice(&read()?).map_err(|error| format!("the input: {error}"))?;
            create(network)
        }
        ["setup", netns, ..] => setup(&decode(&read()?)?, netns),
        ["teardown", _, ..] => teardown(&decode(&read()?)?),
        ["setup" | "teardown"] => Err("the path of the network namespace is missing".to_owned()),
        [other, ..] => Err(format!("{other} is none of create, setup, teardown and info")),
    }
}

fn decode(bytes: &[u8]) -> Result<Container, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("the input: {error}"))
}

/// The network, completed: its subnets, and no addresses of podman's own.
fn create(mut network: Value) -> Result<Value, String> {
    let wanted: Network =
        serde_json::from_value(network.clone()).map_err(|error| format!("the network: {error}"))?;
    if wanted.subnets.as_ref().is_none_or(Vec::is_empty) {
        let v6 = wanted.ipv6_enabled.then_some(SUBNET_V6);
        let all = std::iter::once(SUBNET).chain(v6);
        network["subnets"] =
            all.map(|(subnet, gateway)| json!({ "subnet": subnet, "gateway": gateway })).collect();
    }
    network["dns_enabled"] = json!(false);
    network["ipam_options"] = json!({ "driver": "none" });
    // Every option is tried, so that an error is the administrator's and not the first container's.
    let trial: Network =
        serde_json::from_value(network.clone()).map_err(|error| format!("the network: {error}"))?;
    let own = Own { interface_name: "eth0".to_owned(), static_ips: None, static_mac: None };
    let container = Container { id: "create".to_owned(), port_mappings: None, network: trial, own };
    Described::of(&line(&container, "/proc/self/ns/net")?)?;
    Ok(network)
}

fn setup(container: &Container, netns: &str) -> Result<Value, String> {
    let (attachments, key) = attachment(container)?;
    let line = line(container, netns)?;
    let described = Described::of(&line)?;
    attachments.start(&key, &line)?;
    let subnets = described.addresses.iter().map(|it| {
        let mut subnet = json!({ "ipnet": format!("{}/{}", it.address, it.prefix_len) });
        if let Some(gateway) = described.gateway_of(it.address) {
            subnet["gateway"] = json!(gateway);
        }
        subnet
    });
    let interface = json!({ "mac_address": described.mac, "subnets": subnets.collect::<Vec<_>>() });
    let servers = container.network.dns_servers.clone().filter(|servers| !servers.is_empty());
    Ok(json!({
        "dns_search_domains": described.search,
        "dns_server_ips": servers.unwrap_or_else(|| described.dns.clone()),
        "interfaces": { key.interface: interface },
    }))
}

fn teardown(container: &Container) -> Result<Value, String> {
    let (attachments, key) = attachment(container)?;
    attachments.end(&key);
    Ok(Value::Null)
}

fn attachment(container: &Container) -> Result<(Attachments, Key), String> {
    let name = &container.network.name;
    let key = Key { container: container.id.clone(), interface: container.own.interface_name.clone() };
    if !is_name(name) || !key.is_valid() {
        return Err(format!(
            "network {name:?}, container {:?} or interface {:?}",
            key.container, key.interface
        ));
    }
    let attachments =
        Attachments::of("netavark", name).map_err(|error| format!("make a folder for PID files: {error}"))?;
    Ok((attachments, key))
}

/// The words of `brodo attach`.
fn line(container: &Container, netns: &str) -> Result<Vec<OsString>, String> {
    let Container { id, port_mappings, network, own } = container;
    let empty = Map::new();
    let options = network.options.as_ref().unwrap_or(&empty);
    let mut line: Vec<OsString> = vec![format!("--ifname={}", own.interface_name).into()];
    line.push(format!("--netns={netns}").into());
    let statics = own.static_ips.as_deref().unwrap_or_default();
    let subnets = network.subnets.as_deref().unwrap_or_default();
    for Subnet { subnet, gateway } in subnets {
        line.extend(addresses(subnet, *gateway, statics)?);
        line.extend(gateway.map(|gateway| OsString::from(format!("--gateway={gateway}"))));
    }
    if !subnets.is_empty() {
        let has = |ipv6: bool| subnets.iter().any(|it| it.subnet.contains(':') == ipv6);
        let only = if has(true) { (!has(false)).then_some("-6") } else { Some("-4") };
        line.extend(only.map(OsString::from));
    }
    line.extend(own.static_mac.iter().map(|mac| OsString::from(format!("--mac={mac}"))));
    for mapping in port_mappings.iter().flatten() {
        line.extend(words::published(mapping)?);
    }
    if network.internal {
        line.extend(["--deny=0.0.0.0/0", "--deny=::/0"].map(OsString::from));
    }
    if !options.contains_key("local-peers") {
        line.push("--local-peers=address".into());
    }
    for (key, value) in options {
        for value in values(value) {
            line.extend(words::option(key, &value, id)?);
        }
    }
    Ok(line)
}

/// The words for the addresses in a subnet: the given ones, or the guest's usual one.
fn addresses(subnet: &str, gateway: Option<IpAddr>, statics: &[IpAddr]) -> Result<Vec<OsString>, String> {
    let usual = words::address_in(subnet, gateway)?;
    let network = words::network(subnet)?;
    let word = |address: &IpAddr| OsString::from(format!("--address={address}/{}", network.prefix_len()));
    let inside: Vec<_> = statics.iter().filter(|address| network.contains(**address)).map(word).collect();
    Ok(if inside.is_empty() { vec![format!("--address={usual}").into()] } else { inside })
}

/// The values of an option, which podman has as text: several are separated by spaces, a switch is `true`.
fn values(value: &Value) -> Vec<Value> {
    match value.as_str() {
        Some("true") => vec![json!(true)],
        Some("false") => vec![json!(false)],
        Some(text) => text.split_whitespace().map(|part| json!(part)).collect(),
        None => vec![value.clone()],
    }
}

#[cfg(test)]
mod tests;
