//! Options whose value must be joined by `=`: the word behind one that lacks it is no value, but the command.

use super::Cli;
use clap::{Arg, CommandFactory};
use std::ffi::{OsStr, OsString};

/// Advice for `words`, of which the last are `command`, if the command follows such an option: its first word
/// may have been meant as the value.
pub(crate) fn advice(words: &[OsString], command: &[OsString]) -> Option<String> {
    let first = command.first()?;
    // `--` behind the first word is none of the command's.
    let near = words.len().checked_sub(command.len() + 1)?;
    let place = (near.saturating_sub(1)..=near + 1).rev().find(|&at| words.get(at) == Some(first))?;
    let before = words.get(place.checked_sub(1)?)?.to_str()?;
    let long = before.strip_prefix("--")?;
    let definition = Cli::command();
    let run = definition.find_subcommand("run")?;
    let takes = |arg: &Arg| arg.is_require_equals_set() && arg.get_long() == Some(long);
    let value = AsRef::<OsStr>::as_ref(first).to_string_lossy();
    run.get_arguments().any(takes).then(|| format!("a value of {before} is written {before}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;
    use clap::Parser;

    #[test]
    fn a_command_behind_an_option_that_may_have_a_value_may_be_that_value() {
        for (line, advised) in [
            ("brodo run --allow a --policy-fail 3 -- true", Some("--policy-fail=3")),
            ("brodo run --isolate all true", Some("--isolate=all")),
            ("brodo run --copy-host eth0", Some("--copy-host=eth0")),
            ("brodo run --policy-fail -- 3", None),
            ("brodo run --policy-fail=3 true", None),
            ("brodo run -4 true --isolate all", None),
            ("brodo run -- --isolate x", None),
            ("brodo run", None),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let Command::Run(run) = Cli::try_parse_from(&words).expect(line).command else {
                panic!("{line}")
            };
            let advice = advice(&words, &run.command);
            assert_eq!(advice.is_some(), advised.is_some(), "{line}: {advice:?}");
            assert!(
                advice.as_ref().zip(advised).is_none_or(|(text, part)| text.ends_with(part)),
                "{advice:?}"
            );
        }
    }
}
