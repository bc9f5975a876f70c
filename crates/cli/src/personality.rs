//! Personalities: the command lines of other programs, taken by brodo in their place (`brodo as pasta`, or
//! brodo under the name `pasta`).
//!
//! A personality is a table of options ([`getopt`]) and a translation into brodo's own words, which are then
//! parsed as any command line is; pesto, a client, is done at once. So each option of another program is one
//! of brodo too, in brodo's words, and the network behind it does not know by which name it was started; an
//! upgrade in place, which derives the settings anew from the words, needs nothing of its own.
//!
//! Features that the other program lacks come by `--brodo-OPTION[=VALUE]` among its options, and by the
//! words of the environment variable `BRODO_ARGS`.
//!
//! The exit status of a failure is the other program's.

pub(crate) mod getopt;
pub(crate) mod pasta;
pub(crate) mod pesto;
pub(crate) mod slirp4netns;

use crate::config_file::{self, Refusal};
use crate::failure::Failure;
use crate::pesto::client;
use crate::standard_output::print;
use clap::Command;
use pesto::Wanted;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;

/// Environment variable with further words of brodo's own.
const VARIABLE: &str = "BRODO_ARGS";

/// Text below the options of pasta and slirp4netns.
const AFTER: &str = "Options of brodo's own come by --brodo-OPTION[=VALUE], and by the environment variable BRODO_ARGS; brodo \
                     attach --help lists them. The guide says in what brodo differs from the original.";

/// Text below the options of passt.
const AFTER_PASST: &str = "Options of brodo's own come by --brodo-OPTION[=VALUE], and by the environment variable BRODO_ARGS; brodo \
                           vm --help lists them. The guide says in what brodo differs from the original.";

/// Text below the options of pesto, a client, for which brodo has no further ones.
const AFTER_PESTO: &str = "The guide says in what brodo differs from the original.";

/// A program in whose place brodo runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Personality {
    /// pasta, of passt.
    Pasta,
    /// pesto, of passt: a client of pasta's.
    Pesto,
    /// slirp4netns, of rootlesskit and podman up to version 5.
    Slirp4netns,
    /// passt itself, for virtual machines.
    Passt,
}

/// Result of a translation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Translated {
    /// A text for standard output.
    Text(String),
    /// Words of brodo's command line, without its name.
    Words(Vec<OsString>),
}

/// A command line that the other program would refuse: lines for standard error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

impl Personality {
    /// The program of this name.
    pub(crate) fn named(name: &OsStr) -> Option<Self> {
        match name.to_str()? {
            "pasta" => Some(Self::Pasta),
            "passt" => Some(Self::Passt),
            "pesto" => Some(Self::Pesto),
            "slirp4netns" => Some(Self::Slirp4netns),
            _ => None,
        }
    }

    /// The personality of a command line, and its words from the name on: by `brodo as NAME`, or by the name
    /// of the program.
    pub(crate) fn of(words: &[OsString]) -> Option<(Self, &[OsString])> {
        let file = Path::new(words.first()?).file_name()?;
        if let Some(personality) = Self::named(file) {
            return Some((personality, words));
        }
        let named = words.get(1).filter(|word| *word == "as").and(words.get(2))?;
        Some((Self::named(named)?, &words[2..]))
    }

    /// Exit status of every failure.
    pub(crate) fn exit_status(self) -> u8 {
        match self {
            Self::Pasta | Self::Passt | Self::Pesto | Self::Slirp4netns => 1,
        }
    }

    /// Its options as clap's definition, under the name `pasta` or `brodo-pasta`.
    pub(crate) fn definition(self) -> Command {
        let (command, usage, about, after) = match self {
            Self::Pasta => {
                let about = "brodo in the place of pasta: a network for a namespace or a command";
                (getopt::definition("pasta", pasta::TABLE), pasta::USAGE, about, AFTER)
            }
            Self::Passt => {
                let about = "brodo in the place of passt: a network for a virtual machine";
                (getopt::definition("passt", &pasta::passt::table()), pasta::passt::USAGE, about, AFTER_PASST)
            }
            Self::Pesto => {
                let about = "brodo in the place of pesto: ports of a running pasta or brodo";
                (getopt::definition("pesto", pesto::TABLE), pesto::USAGE, about, AFTER_PESTO)
            }
            Self::Slirp4netns => {
                let about = "brodo in the place of slirp4netns: a network for a namespace";
                (getopt::definition("slirp4netns", slirp4netns::TABLE), slirp4netns::USAGE, about, AFTER)
            }
        };
        command.override_usage(usage).about(about).after_help(after)
    }

    /// Text of `--help`.
    fn help(self) -> String {
        self.definition().render_help().to_string()
    }

    /// Translates a command line, which begins with the program's name.
    fn translate(self, words: &[OsString], extra: Vec<OsString>) -> Result<Translated, Refused> {
        match self {
            Self::Pasta => pasta::translate(words, extra),
            Self::Pesto => match pesto::wanted(words)? {
                Wanted::Text(text) => Ok(Translated::Text(text)),
                // A client is done at once.
                Wanted::Request(request) => client::execute(&request).map(Translated::Text).map_err(Refused),
            },
            Self::Slirp4netns => slirp4netns::translate(words, extra),
            Self::Passt => pasta::passt::translate(words, extra),
        }
    }
}

/// A command line of another program, as one of brodo's.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is done.
    Done,
    /// To be executed.
    Parsed(Box<config_file::Parsed>),
}

/// Parses the command line of another program.
///
/// # Errors
/// It is not one; the text says why in that program's words, or in brodo's for an option of brodo.
pub(crate) fn parse(personality: Personality, words: &[OsString]) -> Result<Outcome, Failure> {
    let extra = split(&std::env::var_os(VARIABLE).unwrap_or_default());
    match personality.translate(words, extra.clone()) {
        Ok(Translated::Text(text)) => print(&text).map(|_| Outcome::Done),
        Ok(Translated::Words(own)) => match config_file::parse(&in_own_name(own)) {
            Ok(parsed) => Ok(Outcome::Parsed(Box::new(parsed))),
            Err(Refusal::File(failure)) => Err(failure),
            Err(Refusal::Line(error)) => {
                let why = config_file::sentence(&error);
                let blamed = !extra.is_empty() && is_valid(personality, words);
                Err(Failure::Usage(if blamed { format!("{VARIABLE}: {why}") } else { why }))
            }
        },
        Err(Refused(text)) => Err(Failure::Foreign(text)),
    }
}

/// A line on standard error, in the words of the other program. No place is left for an error about it.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn in_own_name(words: Vec<OsString>) -> Vec<OsString> {
    std::iter::once(OsString::from("brodo")).chain(words).collect()
}

/// Whether a command line is valid without the words of the environment variable.
fn is_valid(personality: Personality, words: &[OsString]) -> bool {
    match personality.translate(words, Vec::new()) {
        Ok(Translated::Words(own)) => config_file::parse(&in_own_name(own)).is_ok(),
        _ => false,
    }
}

/// Words of a text, separated by white space; quotation marks of either kind keep it.
fn split(text: &OsStr) -> Vec<OsString> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in text.to_string_lossy().chars() {
        match (character, quote) {
            (_, Some(open)) if character == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (_, None) if character.is_whitespace() => words.extend(word.take().map(OsString::from)),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word.map(OsString::from));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_at_white_space_outside_of_quotation_marks() {
        for (text, words) in [
            ("", &[] as &[&str]),
            ("  --deny 10.0.0.0/8\t-v\n", &["--deny", "10.0.0.0/8", "-v"]),
            ("--flow-log 'a b' \"c'd\"e ''", &["--flow-log", "a b", "c'de", ""]),
        ] {
            assert_eq!(split(OsStr::new(text)), words, "{text}");
        }
    }

    #[test]
    fn the_name_or_the_first_words_say_in_whose_place_brodo_runs() {
        let of = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            Personality::of(&words).map(|(it, rest)| (it, rest.len()))
        };
        assert_eq!(of("/usr/libexec/podman/pasta -4 12"), Some((Personality::Pasta, 3)));
        assert_eq!(of("brodo as pasta -4 12"), Some((Personality::Pasta, 3)));
        assert_eq!(of("brodo as slirp4netns 12 tap0"), Some((Personality::Slirp4netns, 3)));
        assert_eq!(of("/usr/bin/passt -f"), Some((Personality::Passt, 2)));
        for line in ["brodo", "brodo as", "brodo as other", "brodo run -- pasta", "pasta2 1"] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
