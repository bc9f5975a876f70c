//! Network plugins: brodo as the network of containers of a runtime that executes a program for each
//! operation: CNI (containerd, CRI-O, Nomad, nerdctl) and netavark (podman).
//!
//! An attachment of a container is a daemon, `brodo attach --daemon`, which the plugin starts with words made
//! of the runtime's JSON ([`words`]) and ends again ([`attachment`]). No state is kept but a PID file for
//! each: the daemon's command line has the rest. Results name addresses that are derived from the same words
//! ([`described`]), so plugin and daemon cannot differ.
//!
//! A plugin is chosen by `brodo as cni`, `brodo as netavark`, or a copy of brodo or a link to it that is
//! called `brodo-cni` or `brodo-netavark`.

mod attachment;
mod cni;
mod described;
mod netavark;
mod words;

use crate::{log, standard_output};
use clap::Command;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

/// Longest input of a runtime, in bytes.
const INPUT_MAX: u64 = 16 << 20;

/// Text of the plugins' manual pages.
const CNI: &str = "containerd, CRI-O, Nomad and nerdctl execute it for each container, with the operation in CNI_COMMAND and \
                   the network's configuration, of type brodo, on standard input. Keys of the configuration are options of \
                   brodo attach by their long names, and subnet. The program is also called as brodo-cni. The guide's \
                   chapter about Kubernetes, Nomad and nerdctl has examples.";
const NETAVARK: &str = "podman executes it for networks of the driver brodo: podman network create --driver brodo NAME. Options \
                        (--opt KEY=VALUE) are those of brodo attach by their long names. The program is also called as \
                        brodo-netavark. The guide's chapter about networks of podman has examples.";

/// A plugin's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plugin {
    /// Container Network Interface, 0.3.1 to 1.1.0.
    Cni,
    /// netavark's plugin API, 1.0.0.
    Netavark,
}

impl Plugin {
    /// The plugin of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "cni" => Some(Self::Cni),
            "netavark" => Some(Self::Netavark),
            _ => None,
        }
    }

    /// Its command line as clap's definition, for the manual.
    pub(crate) fn definition(self) -> Command {
        let (name, about, usage, more) = match self {
            Self::Cni => ("brodo-cni", "brodo as a network plugin of CNI", "brodo as cni", CNI),
            Self::Netavark => {
                let usage = "brodo as netavark info\n       brodo as netavark create\n       brodo as netavark \
                             setup|teardown NAMESPACE";
                ("brodo-netavark", "brodo as a network plugin of netavark, for podman", usage, NETAVARK)
            }
        };
        Command::new(name).about(about).override_usage(usage).after_help(more).disable_help_flag(true)
    }

    /// The plugin of a command line and the words behind its name: by `brodo as NAME`, or by the name of the
    /// program.
    pub(crate) fn of(words: &[OsString]) -> Option<(Self, &[OsString])> {
        let file = Path::new(words.first()?).file_name()?.to_str();
        if let Some(plugin) = file.and_then(|file| file.strip_prefix("brodo-")).and_then(Self::named) {
            return Some((plugin, &words[1..]));
        }
        let name = words.get(1).filter(|word| *word == "as").and(words.get(2))?;
        Some((Self::named(name.to_str()?)?, &words[3..]))
    }

    /// Does one operation of the runtime's.
    pub(crate) fn execute(self, words: &[OsString]) -> ExitCode {
        match self {
            Self::Cni => cni::execute(),
            Self::Netavark => netavark::execute(words),
        }
    }
}

/// The end of an operation: its output, and the status for the runtime.
fn answer(text: &str, status: ExitCode) -> ExitCode {
    match standard_output::print(text) {
        Ok(_) => status,
        Err(failure) => {
            log::error(&failure.to_string());
            ExitCode::FAILURE
        }
    }
}

/// The runtime's input, to its end.
fn input() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(INPUT_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_or_the_first_words_choose_a_plugin() {
        let of = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            Plugin::of(&words).map(|(plugin, rest)| (plugin, rest.len()))
        };
        assert_eq!(of("/opt/cni/bin/brodo-cni"), Some((Plugin::Cni, 0)));
        assert_eq!(of("/usr/bin/brodo as cni"), Some((Plugin::Cni, 0)));
        assert_eq!(of("brodo-netavark setup /run/netns/a"), Some((Plugin::Netavark, 2)));
        assert_eq!(of("brodo as netavark info"), Some((Plugin::Netavark, 1)));
        for line in ["brodo", "brodo as", "brodo as pasta", "brodo-other", "brodo run cni"] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
