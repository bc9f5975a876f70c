//! CNI, the Container Network Interface: versions 0.3.1 to 1.1.0, all verbs.
//!
//! The runtime gives a verb and the container in the environment, and the configuration on standard input;
//! the result, or an error with its code, is JSON on standard output. Keys of the configuration that the
//! specification does not know are options of `brodo attach` ([`config`]). With `ipam`, addresses come from
//! that plugin ([`ipam`]), which hears of every verb; otherwise all guests have the same, because each has a
//! link of its own.
//!
//! DEL and GC end daemons and succeed however often they are called; CHECK looks for the daemon and for the
//! addresses in the namespace.

mod config;
mod ipam;

use super::attachment::{Attachments, Key};
use super::described::Described;
use super::{answer, input, words};
use brodo_net::netlink::Netlink;
use brodo_netns::namespace::Target;
use brodo_sandbox::Forked;
use config::{Attachment, Link, Network};
use rustix::process::{WaitOptions, waitpid};
use serde::Deserialize;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Versions of the specification, the newest last.
const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// Version of an error about an unreadable configuration.
const NEWEST: &str = "1.1.0";
/// Exit status of a child that has found an interface.
const EXISTS: i32 = 9;

/// A failed verb.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Error {
    code: Code,
    details: String,
}

/// Code of an error, as the specification numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    IncompatibleVersion = 1,
    InvalidEnvironment = 4,
    Io = 5,
    Decoding = 6,
    InvalidConfiguration = 7,
    Unavailable = 50,
    /// The first one that is the plugin's own: the network could not be made, or is not as it should be.
    Failed = 100,
}

impl Code {
    fn message(self) -> &'static str {
        match self {
            Self::IncompatibleVersion => "incompatible CNI version",
            Self::InvalidEnvironment => "invalid environment variables",
            Self::Io => "I/O failure",
            Self::Decoding => "failed to decode content",
            Self::InvalidConfiguration => "invalid network configuration",
            Self::Unavailable => "the plugin is not available",
            Self::Failed => "the network is not available",
        }
    }

    fn of(self, details: impl Into<String>) -> Error {
        Error { code: self, details: details.into() }
    }
}

/// Does the verb of the environment.
pub(super) fn execute() -> ExitCode {
    let mut version = NEWEST.to_owned();
    match done(&mut version) {
        Ok(output) => answer(&output, ExitCode::SUCCESS),
        Err(Error { code, details }) => {
            let error = json!({
                "cniVersion": version, "code": code as u32, "msg": code.message(), "details": details,
            });
            answer(&format!("{error}\n"), ExitCode::FAILURE)
        }
    }
}

/// The output of the verb; `version` becomes that of the configuration once it is known.
fn done(version: &mut String) -> Result<String, Error> {
    let Some(verb) = std::env::var("CNI_COMMAND").ok().filter(|verb| !verb.is_empty()) else {
        return Err(Code::InvalidEnvironment.of("CNI_COMMAND is not set: a container runtime executes this"));
    };
    let bytes = input().map_err(|error| Code::Io.of(format!("read the configuration: {error}")))?;
    if verb == "VERSION" {
        return Ok(supported(&bytes));
    }
    let network = Network::parse(&bytes)?;
    version.clone_from(&network.version);
    if !VERSIONS.contains(&network.version.as_str()) {
        return Err(Code::IncompatibleVersion.of(format!(
            "{} is not among {}",
            network.version,
            VERSIONS.join(", ")
        )));
    }
    let attachments = Attachments::of("cni", &network.name)
        .map_err(|error| Code::Io.of(format!("make a folder for PID files: {error}")))?;
    match verb.as_str() {
        "ADD" => add(&network, &attachments, &bytes),
        "DEL" => delete(&network, &attachments, &bytes),
        "CHECK" => check(&network, &attachments, &bytes),
        "GC" => collect(&network, &attachments, &bytes),
        "STATUS" => status(&network, &bytes),
        other => Err(Code::InvalidEnvironment.of(format!("CNI_COMMAND is {other}: no such verb"))),
    }
}

/// The answer to VERSION.
fn supported(bytes: &[u8]) -> String {
    let asked: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let version = asked["cniVersion"].as_str().unwrap_or(NEWEST);
    format!("{}\n", json!({ "cniVersion": version, "supportedVersions": VERSIONS }))
}

/// The container's interface, of the environment.
fn key() -> Result<Key, Error> {
    let key = Key { container: variable("CNI_CONTAINERID")?, interface: variable("CNI_IFNAME")? };
    if key.is_valid() {
        Ok(key)
    } else {
        Err(Code::InvalidEnvironment
            .of(format!("CNI_CONTAINERID {:?} or CNI_IFNAME {:?} is invalid", key.container, key.interface)))
    }
}

fn variable(name: &str) -> Result<String, Error> {
    let value = std::env::var(name).unwrap_or_default();
    if value.is_empty() { Err(Code::InvalidEnvironment.of(format!("{name} is not set"))) } else { Ok(value) }
}

fn netns() -> Result<PathBuf, Error> {
    variable("CNI_NETNS").map(PathBuf::from)
}

fn add(network: &Network, attachments: &Attachments, bytes: &[u8]) -> Result<String, Error> {
    let (key, netns, link) = (key()?, netns()?, network.link()?);
    let leased = network.ipam.as_deref().map(|plugin| ipam::add(plugin, bytes)).transpose()?;
    let attached = attach(&link, attachments, &key, &netns, leased.as_ref());
    if attached.is_err()
        && let Some(plugin) = &network.ipam
    {
        // The leased addresses are free again. The error to report is the first one.
        let _ = ipam::execute(plugin, "DEL", bytes);
    }
    let described = attached?;
    let (interface, sandbox) = (key.interface, netns.to_string_lossy().into_owned());
    let attachment = Attachment { interface, sandbox, described, leased };
    Ok(format!("{}\n", attachment.result(network, &link)))
}

fn attach(
    link: &Link,
    attachments: &Attachments,
    key: &Key,
    netns: &Path,
    leased: Option<&ipam::Lease>,
) -> Result<Described, Error> {
    let mut line = link.words(&key.container, leased)?;
    line.push(format!("--ifname={}", key.interface).into());
    let mut target = OsString::from("--netns=");
    target.push(netns);
    line.push(target);
    let described = Described::of(&line).map_err(|why| Code::InvalidConfiguration.of(why))?;
    if interface_exists(netns, &key.interface) {
        let why = format!("{} has an interface {} already", netns.display(), key.interface);
        return Err(Code::Failed.of(why));
    }
    attachments.start(key, &line).map_err(|why| Code::Failed.of(why))?;
    Ok(described)
}

/// Whether the namespace has an interface of this name; no, if that cannot be found out.
fn interface_exists(netns: &Path, name: &str) -> bool {
    // In a child, which alone enters the namespace.
    match brodo_sandbox::fork() {
        Ok(Forked::Child) => brodo_sandbox::end_with(|| {
            let entered = Target::path(netns, None).and_then(|target| target.enter());
            let found = Netlink::open().and_then(|netlink| netlink.index_of(name));
            if entered.is_ok() && found.is_ok() { EXISTS } else { 0 }
        }),
        Ok(Forked::Parent(child)) => {
            let status = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
            let status = status.ok().flatten().and_then(|(_, status)| status.exit_status());
            status == Some(EXISTS)
        }
        Err(_) => false,
    }
}

fn delete(network: &Network, attachments: &Attachments, bytes: &[u8]) -> Result<String, Error> {
    attachments.end(&key()?);
    if let Some(plugin) = &network.ipam {
        ipam::execute(plugin, "DEL", bytes)?;
    }
    Ok(String::new())
}

fn check(network: &Network, attachments: &Attachments, bytes: &[u8]) -> Result<String, Error> {
    let (key, netns) = (key()?, netns()?);
    if let Some(plugin) = &network.ipam {
        ipam::execute(plugin, "CHECK", bytes)?;
    }
    let Some(expected) = network.previous_addresses(&key.interface) else {
        return Err(Code::InvalidConfiguration.of("prevResult has no addresses of this interface"));
    };
    if !attachments.is_running(&key) {
        let why = format!("brodo does not run for {} of {}", key.interface, key.container);
        return Err(Code::Failed.of(why));
    }
    let cannot = |why: String| Code::Failed.of(format!("look into {}: {why}", netns.display()));
    Target::path(&netns, None)
        .and_then(|target| target.enter())
        .map_err(|error| cannot(error.to_string()))?;
    let found = Netlink::open().and_then(|netlink| netlink.template(Some(&key.interface)));
    let found = found.map_err(|errno| cannot(format!("{}: {errno}", key.interface)))?;
    let missing = expected.iter().find(|wanted| {
        !found.addresses.iter().any(|it| format!("{}/{}", it.address, it.prefix_len) == **wanted)
    });
    match missing {
        Some(address) => Err(Code::Failed.of(format!("{} lacks {address}", key.interface))),
        None => Ok(String::new()),
    }
}

/// An attachment that the runtime still has.
#[derive(Debug, Deserialize)]
struct Valid {
    #[serde(rename = "containerID")]
    container: String,
    #[serde(rename = "ifname")]
    interface: String,
}

fn collect(network: &Network, attachments: &Attachments, bytes: &[u8]) -> Result<String, Error> {
    // Null is an empty list of Go's.
    let valid: Option<Vec<Valid>> = serde_json::from_value(network.valid_attachments.clone())
        .map_err(|error| Code::Decoding.of(format!("cni.dev/valid-attachments: {error}")))?;
    let valid = valid.unwrap_or_default();
    let stale = attachments.all().into_iter().filter(|key| {
        !valid.iter().any(|valid| valid.container == key.container && valid.interface == key.interface)
    });
    stale.for_each(|key| attachments.end(&key));
    if let Some(plugin) = &network.ipam {
        ipam::execute(plugin, "GC", bytes)?;
    }
    Ok(String::new())
}

fn status(network: &Network, bytes: &[u8]) -> Result<String, Error> {
    let tun = "/dev/net/tun";
    if let Err(error) = std::fs::File::options().read(true).write(true).open(tun) {
        return Err(Code::Unavailable.of(format!("{tun}: {error}")));
    }
    // Options that no ADD could use.
    let words = network.link()?.words("status", None)?;
    Described::of(&[words, vec!["--netns=/proc/self/ns/net".into()]].concat())
        .map_err(|why| Code::Unavailable.of(why))?;
    if let Some(plugin) = &network.ipam {
        ipam::execute(plugin, "STATUS", bytes)?;
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests;
