//! A destination tried against a policy, without traffic: the verdict and the steps to it.

use brodo_core::policy::{Effect, Ruleset, Scheme, Tried};
use std::net::IpAddr;

/// Verdict on a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trial {
    pub(crate) effect: Effect,
    /// The rule or reason.
    pub(crate) by: String,
}

/// Tries `url`, such as `https://example.com/path`, `tcp://10.0.0.1:22` or `ping://example.com`.
///
/// # Errors
/// The form to write instead.
pub(crate) fn trial(rules: &Ruleset, url: &str) -> Result<Trial, String> {
    let expected = "expected a destination such as https://example.com/path or tcp://10.0.0.1:22";
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (host, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, behind)) => (address, Some(behind.strip_prefix(':').ok_or(expected)?)),
        None => host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))),
    };
    let port =
        port.map(|port| port.parse::<u16>().map_err(|_| format!("{port:?} is no port"))).transpose()?;
    let default = match scheme {
        "https" | "wss" | "quic" => Some(443),
        "http" | "ws" => Some(80),
        "ssh" => Some(22),
        "ping" => Some(0),
        "tcp" | "udp" | "tls" => None,
        other => return Err(format!("unknown scheme {other}: {expected}")),
    };
    let port = port.or(default).ok_or_else(|| format!("there is no port: {expected}"))?;
    let scheme = match scheme {
        "https" | "wss" | "tls" => Scheme::Tls,
        "http" | "ws" => Scheme::Http,
        "quic" => Scheme::Quic,
        "udp" => Scheme::Udp,
        "ping" => Scheme::Ping,
        _ => Scheme::Tcp,
    };
    let tried = if let Ok(address) = host.parse::<IpAddr>() {
        rules.try_address(scheme, address, port)
    } else {
        let none = || format!("{host:?} is not a name: {expected}");
        let name = idna::domain_to_ascii(host).map_err(|_| none())?;
        rules.try_name(scheme, &name, port).ok_or_else(none)?
    };
    let Tried { effect, by } = tried;
    Ok(Trial { effect, by })
}
