//! The configuration of a network as the runtime passes it, and the result of ADD.
//!
//! Keys of the specification, and of the capabilities that a runtime fills in (`runtimeConfig`), have their
//! meaning; `subnet` is a network whose number 15 is the guest; every other key is an option of `brodo
//! attach`. Published ports lead to the guest's address, also from the host's loopback, as those of the
//! plugin `portmap` do.
//!
//! Runtimes and their plugins are written in Go, whose decoder ignores the case of keys and takes null for an
//! empty list; some runtimes (go-cni: containerd, nerdctl, Nomad) rely on both.

use super::ipam::Lease;
use super::words::{self, PortMapping};
use super::{Code, Described, Error};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::net::IpAddr;

/// Keys that are not options.
const KNOWN: [&str; 14] = [
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
    "capabilities",
    "args",
    "ipMasq",
    "runtimeConfig",
    "prevResult",
    "ipam",
    "dns",
];

/// Options that say themselves of which families the guest has addresses.
const FAMILIES: [&str; 4] = ["ipv4-only", "ipv6-only", "address", "copy-host"];

/// A network.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Network {
    pub(super) version: String,
    pub(super) name: String,
    /// The plugin that leases addresses.
    pub(super) ipam: Option<String>,
    /// Attachments that a collection of garbage keeps.
    pub(super) valid_attachments: Value,
    previous: Option<Value>,
    /// Keys about the link, which are decoded for it alone: none of them keeps DEL from ending a daemon.
    keys: Map<String, Value>,
}

/// The link that a network has for a container.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Link {
    runtime: Runtime,
    dns: Dns,
    subnets: Vec<String>,
    options: Map<String, Value>,
}

/// Values of a runtime for one container, by capability. Its keys are folded.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Runtime {
    #[serde(rename = "portmappings")]
    port_mappings: Vec<PortMapping>,
    mac: String,
    ips: Vec<String>,
    dns: RuntimeDns,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RuntimeDns {
    servers: Vec<IpAddr>,
    searches: Vec<String>,
    options: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Dns {
    nameservers: Vec<IpAddr>,
    search: Vec<String>,
    domain: Option<String>,
    options: Vec<String>,
}

impl Network {
    /// The configuration of these bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let mut keys: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|error| undecoded("the configuration", &error))?;
        let text =
            |keys: &Map<String, Value>, key: &str| keys.get(key).and_then(Value::as_str).map(str::to_owned);
        let name = text(&keys, "name").filter(|name| super::super::attachment::is_name(name));
        let name = name.ok_or_else(|| Code::InvalidConfiguration.of("`name` is missing, or not a name"))?;
        // Without a version it is the oldest one that has this form.
        let version = text(&keys, "cniVersion").unwrap_or_else(|| "0.3.1".to_owned());
        let mut take = |key: &str| keys.remove(key).unwrap_or_default();
        let previous = Some(take("prevResult")).filter(|previous| !previous.is_null());
        let ipam = take("ipam")["type"].as_str().map(str::to_owned).filter(|plugin| !plugin.is_empty());
        let valid_attachments = take("cni.dev/valid-attachments");
        Ok(Self { version, name, ipam, valid_attachments, previous, keys })
    }

    /// The link that it has for a container.
    pub(super) fn link(&self) -> Result<Link, Error> {
        let mut options = self.keys.clone();
        let mut take = |key: &str| options.remove(key).unwrap_or_default();
        let runtime: Option<Runtime> = serde_json::from_value(folded(take("runtimeConfig")))
            .map_err(|error| undecoded("runtimeConfig", &error))?;
        let dns: Option<Dns> =
            serde_json::from_value(folded(take("dns"))).map_err(|error| undecoded("dns", &error))?;
        let subnets = match take("subnet") {
            Value::Null => Vec::new(),
            Value::String(subnet) => vec![subnet],
            list => serde_json::from_value(list).map_err(|error| undecoded("subnet", &error))?,
        };
        options.retain(|key, _| !KNOWN.contains(&key.as_str()) && !key.starts_with("cni.dev/"));
        let (runtime, dns) = (runtime.unwrap_or_default(), dns.unwrap_or_default());
        Ok(Link { runtime, dns, subnets, options })
    }

    /// Addresses of the interface in the result of an earlier ADD, with the lengths of their prefixes.
    pub(super) fn previous_addresses(&self, interface: &str) -> Option<Vec<String>> {
        let previous = self.previous.as_ref()?;
        let interfaces = previous["interfaces"].as_array()?;
        let is_ours = |index: &Value| {
            let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
            index.and_then(|index| interfaces.get(index)).is_some_and(|it| it["name"] == interface)
        };
        let ips = previous["ips"].as_array()?.iter().filter(|ip| is_ours(&ip["interface"]));
        Some(ips.filter_map(|ip| ip["address"].as_str().map(str::to_owned)).collect())
    }
}

impl Link {
    /// The words of `brodo attach` for a container, up to the target.
    pub(super) fn words(&self, container: &str, lease: Option<&Lease>) -> Result<Vec<OsString>, Error> {
        let invalid = |why: String| Code::InvalidConfiguration.of(why);
        let leased = lease.map(Lease::gateways).unwrap_or_default();
        let given = lease.map_or_else(|| self.runtime.ips.clone(), Lease::addresses);
        let addresses = self.addresses(&given, &leased).map_err(invalid)?;
        let mut line: Vec<OsString> = Vec::new();
        line.extend(addresses.iter().map(|address| OsString::from(format!("--address={address}"))));
        line.extend(leased.iter().map(|gateway| OsString::from(format!("--gateway={gateway}"))));
        let has_network = lease.is_some() || !self.subnets.is_empty();
        let only = self.only_family(&addresses).filter(|_| has_network);
        line.extend(only.map(OsString::from));
        if !self.runtime.mac.is_empty() {
            line.push(format!("--mac={}", self.runtime.mac).into());
        }
        // One without an address to lead to is left out: brodo would refuse it, and with it the container.
        let leads = |host: &str| host.is_empty() || only != Some(if is_v6(host) { "-4" } else { "-6" });
        for mapping in self.runtime.port_mappings.iter().filter(|mapping| leads(&mapping.host_ip)) {
            line.extend(words::published(mapping).map_err(invalid)?);
        }
        if !self.options.contains_key("local-peers") {
            line.push("--local-peers=address".into());
        }
        for (key, value) in &self.options {
            line.extend(words::option(key, value, container).map_err(invalid)?);
        }
        Ok(line)
    }

    /// The guest's addresses with their prefixes: of each family the given ones, or that of its subnet.
    fn addresses(&self, given: &[String], leased: &[IpAddr]) -> Result<Vec<String>, String> {
        let mut gateways = leased.to_vec();
        gateways.extend(self.options.get("gateway").into_iter().flat_map(addresses));
        let mut all: Vec<String> = given.iter().map(|address| self.with_prefix(address)).collect();
        let is_left = |subnet: &&String| given.iter().all(|address| is_v6(address) != is_v6(subnet));
        for subnet in self.subnets.iter().filter(is_left) {
            let gateway = gateways.iter().copied().find(|gateway| gateway.is_ipv6() == is_v6(subnet));
            all.push(words::address_in(subnet, gateway)?);
        }
        Ok(all)
    }

    /// The word for the one family of these addresses, if options name no other.
    fn only_family(&self, addresses: &[String]) -> Option<&'static str> {
        let routers = self.options.get("gateway").into_iter().flat_map(self::addresses);
        let v6 = addresses.iter().map(|it| is_v6(it)).chain(routers.map(|router| router.is_ipv6()));
        let v6: Vec<bool> = v6.collect();
        match (v6.contains(&false), v6.contains(&true)) {
            _ if FAMILIES.iter().any(|key| self.options.contains_key(*key)) => None,
            (true, false) => Some("-4"),
            (false, true) => Some("-6"),
            _ => None,
        }
    }

    /// An address that has no prefix with that of the subnet around it, or with one of its own.
    fn with_prefix(&self, text: &str) -> String {
        // Of a text that is no address clap says so.
        let Ok(address) = text.parse::<IpAddr>() else { return text.to_owned() };
        let subnets = self.subnets.iter().map(String::as_str).chain(words::SUBNETS);
        let around = subnets.filter_map(|subnet| words::network(subnet).ok()).find(|it| it.contains(address));
        let own = if address.is_ipv4() { 32 } else { 128 };
        format!("{address}/{}", around.map_or(own, |subnet| subnet.prefix_len()))
    }
}

/// Whether an address or a network is one of IPv6.
fn is_v6(text: &str) -> bool {
    text.contains(':')
}

fn undecoded(what: &str, error: &dyn std::fmt::Display) -> Error {
    Code::Decoding.of(format!("{what}: {error}"))
}

/// The value with keys in lower case, and without those that are null.
fn folded(value: Value) -> Value {
    match value {
        Value::Object(keys) => {
            let given = keys.into_iter().filter(|(_, value)| !value.is_null());
            given.map(|(key, value)| (key.to_ascii_lowercase(), folded(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(folded).collect(),
        other => other,
    }
}

/// The addresses of a text or of a list of texts.
fn addresses(value: &Value) -> Vec<IpAddr> {
    let one = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
    match value {
        Value::Array(values) => values.iter().filter_map(one).collect(),
        value => one(value).into_iter().collect(),
    }
}

/// An interface that has been made.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Attachment {
    pub(super) interface: String,
    /// The namespace as the runtime names it.
    pub(super) sandbox: String,
    pub(super) described: Described,
    pub(super) leased: Option<Lease>,
}

impl Attachment {
    /// The result of ADD, behind that of an earlier plugin of the chain.
    pub(super) fn result(&self, network: &Network, link: &Link) -> Value {
        let mut result = network.previous.clone().unwrap_or_else(|| json!({}));
        let Described { mac, mtu, .. } = &self.described;
        let mut interface = json!({ "name": self.interface, "mac": mac, "sandbox": self.sandbox });
        if network.version == "1.1.0" {
            interface["mtu"] = json!(mtu);
        }
        let index = appended(&mut result, "interfaces", vec![interface]);
        let is_old = network.version.starts_with("0.");
        let ips = self.described.addresses.iter().map(|it| {
            let mut ip =
                json!({ "address": format!("{}/{}", it.address, it.prefix_len), "interface": index });
            if let Some(gateway) = self.described.gateway_of(it.address) {
                ip["gateway"] = json!(gateway);
            }
            if is_old {
                ip["version"] = json!(if it.address.is_ipv4() { "4" } else { "6" });
            }
            ip
        });
        appended(&mut result, "ips", ips.collect());
        let routes = self.described.gateways.iter().map(|gateway| {
            let destination = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            json!({ "dst": destination, "gw": gateway })
        });
        appended(&mut result, "routes", routes.collect());
        result["cniVersion"] = json!(network.version);
        result["dns"] = self.dns(link);
        result
    }

    /// Servers and search names: the runtime's, the configuration's, those of a lease, or brodo's.
    fn dns(&self, link: &Link) -> Value {
        let RuntimeDns { servers, searches, options: asked } = &link.runtime.dns;
        let Dns { nameservers, search, domain, options } = &link.dns;
        let first =
            |lists: &[&Vec<IpAddr>]| lists.iter().find(|list| !list.is_empty()).map(|list| (*list).clone());
        let leased = self.leased.as_ref().map(Lease::nameservers).unwrap_or_default();
        let servers = first(&[servers, nameservers, &leased, &self.described.dns]).unwrap_or_default();
        let names = [searches, search, &self.described.search].into_iter().find(|list| !list.is_empty());
        let mut dns = json!({ "nameservers": servers, "search": names.cloned().unwrap_or_default() });
        if let Some(domain) = domain {
            dns["domain"] = json!(domain);
        }
        if let Some(options) = [asked, options].into_iter().find(|list| !list.is_empty()) {
            dns["options"] = json!(options);
        }
        dns
    }
}

/// Adds values to a list of `result`, which it may lack; the index of the first.
fn appended(result: &mut Value, key: &str, values: Vec<Value>) -> usize {
    if !result[key].is_array() {
        result[key] = json!([]);
    }
    // An array since the line above.
    let list = result[key].as_array_mut();
    list.map_or(0, |list| {
        let index = list.len();
        list.extend(values);
        index
    })
}
