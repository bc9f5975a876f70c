//! The API of slirp4netns: one request of JSON for each connection, and one reply.
//!
//! ```text
//! {"execute":"add_hostfwd","arguments":{"proto":"tcp","host_addr":"0.0.0.0","host_port":8080,
//!  "guest_addr":"10.0.2.100","guest_port":80}}                        {"return":{"id":1}}
//! {"execute":"list_hostfwd"}                                          {"return":{"entries":[...]}}
//! {"execute":"remove_hostfwd","arguments":{"id":1}}                   {"return":{}}
//! anything else                                                       {"error":{"desc":"bad request: ..."}}
//! ```
//!
//! Where the original differs from its manual both are served: the entries stand also beside `return`. Beyond
//! it an IPv6 `host_addr` is accepted, a failure has its reason behind the original's words, and the list has
//! the ports of all forwards, by whatever way they came; those of one forward have one number.

use crate::option_values::bracketed;
use crate::warden::forwarding::Forwards;
use brodo_control::flow::Protocol;
use brodo_control::method::{AddForward, Forward, Side};
use brodo_net::forward::spec::Spec;
use serde_json::{Value, json};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest request, in bytes.
const REQUEST_MAX: usize = 4095;
/// Most entries of a list: a forward may be of tens of thousands of ports.
const ENTRIES_MAX: usize = 4096;

/// Reads a request: up to the client's end, or up to a complete value from clients that wait for the reply
/// before they end. One more byte than the longest request has shows that it is longer.
pub(super) fn read(client: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut bytes = [0; REQUEST_MAX + 1];
    while request.len() <= REQUEST_MAX {
        let room = REQUEST_MAX + 1 - request.len();
        let count = client.read(&mut bytes[..room])?;
        if count == 0 {
            break;
        }
        request.extend_from_slice(&bytes[..count]);
        if serde_json::from_slice::<serde_json::Map<String, Value>>(&request).is_ok() {
            break;
        }
    }
    Ok(request)
}

/// A reply that is an error.
pub(super) fn error(why: &str) -> Vec<u8> {
    json!({ "error": { "desc": why } }).to_string().into_bytes()
}

/// Executes a request. Without an address of its own a port leads to `guest`.
pub(super) fn answer(forwards: &impl Forwards, guest: Option<Ipv4Addr>, request: &[u8]) -> Vec<u8> {
    match execute(forwards, guest, request) {
        Ok(reply) => reply.to_string().into_bytes(),
        Err(why) => error(&format!("bad request: {why}")),
    }
}

fn execute(forwards: &impl Forwards, guest: Option<Ipv4Addr>, request: &[u8]) -> Result<Value, String> {
    if request.len() > REQUEST_MAX {
        return Err("too large message".to_owned());
    }
    let request: Value = serde_json::from_slice(request).map_err(|_| "cannot parse JSON")?;
    let Some(method) = request.get("execute").and_then(Value::as_str) else {
        return Err("no execute found".to_owned());
    };
    let arguments = request.get("arguments").unwrap_or(&Value::Null);
    match method {
        "add_hostfwd" => {
            let wanted = wanted(arguments).map_err(|name| format!("{method}: bad arguments.{name}"))?;
            let added = forwards.add(&wanted);
            let added = added.map_err(|e| format!("{method}: slirp_add_hostfwd failed: {}", e.message))?;
            Ok(json!({ "return": { "id": added.id } }))
        }
        "remove_hostfwd" => {
            let bad = || format!("{method}: bad arguments.id");
            let id = arguments.get("id").and_then(Value::as_u64).ok_or_else(bad)?;
            forwards.remove(id).map_err(|_| bad())?;
            Ok(json!({ "return": {} }))
        }
        "list_hostfwd" => {
            let listed = forwards.list().map_err(|e| format!("{method}: {}", e.message))?;
            let entries = listed.iter().filter(|forward| forward.side == Side::Host);
            let entries = entries.flat_map(|forward| entries_of(forward, guest)).take(ENTRIES_MAX);
            let entries: Vec<_> = entries.collect();
            Ok(json!({ "return": { "entries": entries }, "entries": entries }))
        }
        _ => Err("unknown execute".to_owned()),
    }
}

/// The forward that arguments ask for; the error is the name of one.
fn wanted(arguments: &Value) -> Result<AddForward, &'static str> {
    let protocol = match arguments.get("proto").and_then(Value::as_str) {
        Some("tcp") => Protocol::Tcp,
        Some("udp") => Protocol::Udp,
        _ => return Err("proto"),
    };
    let host = address(arguments, "host_addr")?.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let host_port = port(arguments, "host_port")?;
    // The unspecified address stands for the guest's, as to libslirp.
    let guest = address(arguments, "guest_addr")?.filter(|address| !address.is_unspecified());
    let guest_port = port(arguments, "guest_port")?;
    let guest = guest.map(|guest| bracketed(guest) + "/").unwrap_or_default();
    let spec = format!("{}/{host_port}:{guest}{guest_port}", bracketed(host));
    Ok(AddForward { side: Side::Host, protocol, spec })
}

/// An address, if one is given: podman writes an empty text where it has none.
fn address(arguments: &Value, name: &'static str) -> Result<Option<IpAddr>, &'static str> {
    let parse = |value: &Value| value.as_str().and_then(|text| text.parse().ok()).ok_or(name);
    arguments.get(name).filter(|value| !value.is_null() && *value != "").map(parse).transpose()
}

fn port(arguments: &Value, name: &'static str) -> Result<u16, &'static str> {
    let port = arguments.get(name).and_then(Value::as_u64).and_then(|number| number.try_into().ok());
    port.filter(|&port| port > 0).ok_or(name)
}

/// Entries of a forward, one for each port; a forward that follows listening sockets has none of its own.
fn entries_of(forward: &Forward, guest: Option<Ipv4Addr>) -> Vec<Value> {
    let Ok(spec) = forward.spec.parse::<Spec>() else { return Vec::new() };
    let host = spec.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let usual = match host {
        IpAddr::V4(_) => guest.map_or(Ipv4Addr::UNSPECIFIED.into(), IpAddr::from),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let proto = if forward.protocol == Protocol::Udp { "udp" } else { "tcp" };
    spec.named_rules()
        .into_iter()
        .map(|rule| {
            json!({
                "id": forward.id,
                "proto": proto,
                "host_addr": host.to_string(),
                "host_port": rule.port,
                "guest_addr": rule.to_address.unwrap_or(usual).to_string(),
                "guest_port": rule.to,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
