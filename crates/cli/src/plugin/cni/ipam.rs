//! IPAM: the plugin that leases addresses, if the configuration names one.
//!
//! It is looked up in CNI_PATH and executed with the environment and the input of this plugin. brodo uses the
//! addresses, the first router of each family and the DNS servers; routes are brodo's own, because every
//! destination is behind its router.

use super::{Code, Error};
use serde::Deserialize;
use serde_json::Value;
use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Result of ADD.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Lease {
    ips: Vec<Leased>,
    dns: Names,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Leased {
    address: String,
    #[serde(default)]
    gateway: Option<IpAddr>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Names {
    nameservers: Vec<IpAddr>,
}

impl Lease {
    /// Addresses with the lengths of their prefixes.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.ips.iter().map(|leased| leased.address.clone()).collect()
    }

    /// The first router of each family.
    pub(super) fn gateways(&self) -> Vec<IpAddr> {
        let all = self.ips.iter().filter_map(|leased| leased.gateway);
        all.fold(Vec::new(), |mut found: Vec<IpAddr>, gateway| {
            if found.iter().all(|other| other.is_ipv4() != gateway.is_ipv4()) {
                found.push(gateway);
            }
            found
        })
    }

    /// DNS servers.
    pub(super) fn nameservers(&self) -> Vec<IpAddr> {
        self.dns.nameservers.clone()
    }
}

/// Leases addresses.
pub(super) fn add(plugin: &str, input: &[u8]) -> Result<Lease, Error> {
    let output = execute(plugin, "ADD", input)?;
    let lease: Lease = serde_json::from_slice(&output)
        .map_err(|error| Code::Decoding.of(format!("the result of the IPAM plugin {plugin}: {error}")))?;
    if lease.ips.is_empty() {
        return Err(Code::Failed.of(format!("the IPAM plugin {plugin} has leased no address")));
    }
    Ok(lease)
}

/// Executes a verb of the plugin; its output.
pub(super) fn execute(plugin: &str, verb: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
    let program = find(plugin)?;
    let failed = |error: std::io::Error| Code::Io.of(format!("execute {}: {error}", program.display()));
    let mut child = Command::new(&program)
        .env("CNI_COMMAND", verb)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut pipe) = child.stdin.take() {
        // A plugin that does not read its input says why in its output.
        let _ = pipe.write_all(input);
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let error: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let text = |key: &str| error[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let parts: Vec<_> = [text("msg"), text("details")].into_iter().flatten().collect();
    let why = if parts.is_empty() { output.status.to_string() } else { parts.join(", ") };
    Err(Code::Failed.of(format!("the IPAM plugin {plugin}: {verb}: {why}")))
}

fn find(plugin: &str) -> Result<PathBuf, Error> {
    if plugin.contains('/') {
        return Err(Code::InvalidConfiguration.of(format!("ipam type {plugin:?} is not the name of a file")));
    }
    let path = std::env::var_os("CNI_PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(plugin)).find(|file| file.is_file());
    found.ok_or_else(|| Code::InvalidConfiguration.of(format!("CNI_PATH has no IPAM plugin {plugin}")))
}
