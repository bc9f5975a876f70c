//! pesto: its options as steps for a running pasta, or brodo ([`crate::pesto::client`]).
//!
//! Options are commands, in order: `-A` and `-D` say whether the specifications behind them are added or
//! removed; without either the first one for a table replaces its content.

use super::getopt::{Opt, Order, Read, read, switch, valued};
use super::{Personality, Refused};
use crate::pesto::client::{Request, Step};
use crate::pesto::rules::of_spec;
use crate::pesto::wire::TableId;
use brodo_control::flow::Protocol;
use brodo_net::ephemeral_ports::ephemeral_ports;
use brodo_net::forward::spec::Spec;
use std::ffi::OsString;

/// Meaning of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Is {
    Add,
    Delete,
    Clear,
    Ports(TableId, Protocol),
    Show,
    /// Without effect here.
    Nothing,
    Help,
    Version,
}

/// All options.
pub(super) const TABLE: &[Opt<Is>] = &[
    switch("add", Some('A'), Is::Add, "Add the ports of the options behind this one"),
    switch("delete", Some('D'), Is::Delete, "Remove the ports of the options behind this one"),
    valued("clear", Some('C'), "TABLE", Is::Clear, "Remove all ports of a table, HOST or SPLICE"),
    valued("tcp-ports", Some('t'), "SPEC", Is::Ports(TableId::Host, Protocol::Tcp), "TCP ports of the host"),
    valued("udp-ports", Some('u'), "SPEC", Is::Ports(TableId::Host, Protocol::Udp), "UDP ports of the host"),
    valued(
        "tcp-ns",
        Some('T'),
        "SPEC",
        Is::Ports(TableId::Splice, Protocol::Tcp),
        "TCP ports of the guest's loopback",
    ),
    valued(
        "udp-ns",
        Some('U'),
        "SPEC",
        Is::Ports(TableId::Splice, Protocol::Udp),
        "UDP ports of the guest's loopback",
    ),
    switch("show", Some('s'), Is::Show, "List the ports before and after a change"),
    switch("debug", Some('d'), Is::Nothing, "No effect"),
    switch("help", Some('h'), Is::Help, "Print help"),
    switch("version", None, Is::Version, "Print the version"),
];

/// Form of a command line.
pub(super) const USAGE: &str = "pesto [OPTION]... PATH";

/// A command line, read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A text for standard output.
    Text(String),
    /// Work for a running server.
    Request(Request),
}

/// Reads a command line that begins with the program's name.
pub(super) fn wanted(words: &[OsString]) -> Result<Wanted, Refused> {
    let name = words.first().map_or("pesto".into(), |word| word.to_string_lossy().into_owned());
    let words = words.get(1..).unwrap_or_default();
    let usage = || format!("Usage: {USAGE}");
    // Options of brodo's own have no meaning for a client of one moment.
    let Read { given, rest, .. } =
        read(TABLE, Order::Anywhere, words).map_err(|why| Refused(format!("{name}: {why}\n{}", usage())))?;
    let (mut steps, mut show, mut mode) = (Vec::new(), false, None);
    let mut replaced: Vec<TableId> = Vec::new();
    for (is, value) in given {
        let value = value.to_str().ok_or_else(|| Refused("an option's value is not UTF-8".to_owned()))?;
        match is {
            Is::Help => return Ok(Wanted::Text(Personality::Pesto.help())),
            Is::Version => return Ok(Wanted::Text(version())),
            Is::Nothing => {}
            Is::Show => show = true,
            Is::Add | Is::Delete => mode = Some(is),
            Is::Clear => steps.push(Step::Clear(table(value).map_err(Refused)?)),
            Is::Ports(table, protocol) => {
                let spec = value.parse::<Spec>();
                let spec = spec.map_err(|why| Refused(format!("Invalid port specifier '{value}': {why}")))?;
                let rules = of_spec(&spec, table, protocol, &ephemeral_ports());
                if mode.is_none() && !replaced.contains(&table) {
                    replaced.push(table);
                    steps.push(Step::Clear(table));
                }
                let is_removal = mode == Some(Is::Delete);
                steps.push(if is_removal { Step::Delete(table, rules) } else { Step::Add(table, rules) });
            }
        }
    }
    match rest.as_slice() {
        [path] => Ok(Wanted::Request(Request { path: path.into(), show, steps })),
        _ => Err(Refused(usage())),
    }
}

fn table(name: &str) -> Result<TableId, String> {
    match name {
        "HOST" => Ok(TableId::Host),
        "SPLICE" => Ok(TableId::Splice),
        _ => Err(format!("Unsupported pif name {name}")),
    }
}

/// Text of `--version`: it names brodo, so that no report about it reaches the authors of pesto.
fn version() -> String {
    format!("pesto {} (brodo)\n", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests;
