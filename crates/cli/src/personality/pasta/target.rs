//! The target of pasta: a namespace by path, name or process, or a command in namespaces of its own.

use super::Given;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Folder of named network namespaces.
const NAMED: &str = "/run/netns";

/// Receiver of the network: a command, or a namespace.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The namespace at a path, and a user namespace to join first.
    Path { netns: String, userns: Option<String> },
    /// The namespace of a process.
    Process(String),
    /// A TAP, of a namespace that is not named.
    Tap,
    /// A command; without words the user's shell.
    Command(Vec<OsString>),
}

/// The target that options and the words behind them name.
pub(super) fn target(given: &Given, rest: Vec<OsString>) -> Result<Target, String> {
    let number = match rest.as_slice() {
        [word] => word.to_str().filter(|text| text.parse::<u32>().is_ok()).map(str::to_owned),
        _ => None,
    };
    match (&given.netns, number) {
        (Some(_), _) if !rest.is_empty() => Err("Both --netns and PID or command given".to_owned()),
        (Some(netns), _) => {
            let path = if netns.contains('/') { netns.clone() } else { format!("{NAMED}/{netns}") };
            Ok(Target::Path { netns: path, userns: given.userns.clone() })
        }
        (None, Some(process)) if given.userns.is_some() => {
            Ok(Target::Path { netns: format!("/proc/{process}/ns/net"), userns: given.userns.clone() })
        }
        (None, Some(process)) => Ok(Target::Process(process)),
        (None, None) if given.userns.is_some() => Err("--userns requires --netns or PID".to_owned()),
        (None, None) if given.tap_fd.is_none() => Ok(Target::Command(rest)),
        (None, None) if rest.is_empty() => Ok(Target::Tap),
        (None, None) => {
            Err("--fd is given together with a command, whose namespace would be another one".to_owned())
        }
    }
}

impl Target {
    /// The command of brodo.
    pub(super) fn command(&self) -> &'static str {
        if self.is_existing() { "attach" } else { "run" }
    }

    /// Whether its namespace exists already.
    pub(super) fn is_existing(&self) -> bool {
        !matches!(self, Self::Command(_))
    }

    /// Its words at the end of brodo's line.
    pub(super) fn words(self) -> Vec<OsString> {
        match self {
            Self::Path { netns, userns } => {
                let netns = format!("--netns={netns}");
                std::iter::once(netns)
                    .chain(userns.map(|path| format!("--userns={path}")))
                    .map(OsString::from)
                    .collect()
            }
            Self::Process(process) => vec![process.into()],
            Self::Tap => Vec::new(),
            Self::Command(mut command) => {
                if command.is_empty() {
                    command.push(login_shell(std::env::var_os("SHELL")));
                }
                std::iter::once("--".into()).chain(command).collect()
            }
        }
    }
}

/// The word by which brodo starts the user's `shell` as a login shell; by its name alone, without a path, it
/// is started as it is.
fn login_shell(shell: Option<OsString>) -> OsString {
    let shell = shell.filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
    if !shell.as_bytes().starts_with(b"/") {
        return shell;
    }
    let mut word = OsString::from("-");
    word.push(shell);
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_with_a_path_is_a_login_shell() {
        for (shell, word) in [
            (None, "-/bin/sh"),
            (Some(""), "-/bin/sh"),
            (Some("/usr/bin/zsh"), "-/usr/bin/zsh"),
            (Some("bash"), "bash"),
        ] {
            assert_eq!(login_shell(shell.map(OsString::from)), word);
        }
    }
}
