//! Command lines as `getopt_long(3)` reads them, by a table of options.
//!
//! Callers of other programs rely on its habits, which clap does not have: an option may be repeated (the
//! last value counts, or all of them: that is the table's user's choice), a long name may be abbreviated as
//! long as it is unambiguous, short options may be joined (`-4q`) and have their value at once (`-t8080`).
//! Options end at `--`, and for some programs at the first word that is none ([`Order`]). The error texts are
//! those of glibc.
//!
//! Options of brodo's own stand among them, and end where they end.
//!
//! Libraries weighed: `lexopt` and `pico-args` know no table, hence neither abbreviations nor the errors.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Beginning of brodo's own options among those of another program.
const PREFIX: &[u8] = b"--brodo-";

/// An option.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opt<T> {
    /// Long name, without its dashes.
    pub(crate) long: &'static str,
    /// Short name.
    pub(crate) short: Option<char>,
    /// Name of its value in help, if it has one.
    pub(crate) value: Option<&'static str>,
    /// Its meaning.
    pub(crate) is: T,
    /// Its help, one line.
    pub(crate) help: &'static str,
}

/// An option without a value.
pub(crate) const fn switch<T>(long: &'static str, short: Option<char>, is: T, help: &'static str) -> Opt<T> {
    Opt { long, short, value: None, is, help }
}

/// An option with a value.
pub(crate) const fn valued<T>(
    long: &'static str,
    short: Option<char>,
    value: &'static str,
    is: T,
    help: &'static str,
) -> Opt<T> {
    Opt { long, short, value: Some(value), is, help }
}

/// The table as clap's definition, for help, manual pages and completions; the line itself is not clap's to
/// parse.
pub(crate) fn definition<T>(name: &'static str, table: &[Opt<T>]) -> clap::Command {
    let arg = |option: &Opt<T>| {
        let arg = clap::Arg::new(option.long).long(option.long).help(option.help);
        let arg = match option.value {
            Some(value) => arg.value_name(value),
            None => arg.action(clap::ArgAction::SetTrue),
        };
        match option.short {
            Some(short) => arg.short(short),
            None => arg,
        }
    };
    let command = clap::Command::new(name).version(env!("CARGO_PKG_VERSION"));
    let command = command.disable_help_flag(true).disable_version_flag(true).max_term_width(110);
    command.args(table.iter().map(arg))
}

/// Place of options among the other words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// In front of them: a command follows, which has options of its own.
    InFront,
    /// Anywhere, which is the C library's default.
    Anywhere,
}

/// A command line, read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Read<T> {
    /// Options with their values, in order.
    pub(crate) given: Vec<(T, OsString)>,
    /// Options of brodo's own, as words of its command line.
    pub(crate) own: Vec<OsString>,
    /// The words behind them.
    pub(crate) rest: Vec<OsString>,
}

/// Reads the words behind a program's name; the error has no name in front.
pub(crate) fn read<T: Copy>(table: &[Opt<T>], order: Order, words: &[OsString]) -> Result<Read<T>, String> {
    let (mut given, mut own, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        if bytes == b"--" {
            break;
        }
        if let Some(option) = bytes.strip_prefix(PREFIX) {
            own.push(OsString::from_vec([b"--", option].concat()));
        } else if let Some(long) = bytes.strip_prefix(b"--") {
            given.push(read_long(table, long, || words.next().cloned())?);
        } else if bytes.len() > 1 && bytes[0] == b'-' {
            read_short(table, &bytes[1..], || words.next().cloned(), &mut given)?;
        } else {
            rest.push(word.clone());
            if order == Order::InFront {
                break;
            }
        }
    }
    rest.extend(words.cloned());
    Ok(Read { given, own, rest })
}

fn read_long<T: Copy>(
    table: &[Opt<T>],
    word: &[u8],
    next: impl FnOnce() -> Option<OsString>,
) -> Result<(T, OsString), String> {
    let (name, value) = match word.iter().position(|&byte| byte == b'=') {
        Some(at) => (&word[..at], Some(&word[at + 1..])),
        None => (word, None),
    };
    let shown = String::from_utf8_lossy(name);
    let exact = table.iter().find(|option| option.long.as_bytes() == name);
    let alike: Vec<_> = table.iter().filter(|option| option.long.as_bytes().starts_with(name)).collect();
    let option = match (exact, alike.as_slice()) {
        (Some(option), _) => option,
        (None, [one]) => one,
        (None, []) => return Err(format!("unrecognized option '--{shown}'")),
        (None, several) => {
            let names: Vec<_> = several.iter().map(|option| format!("'--{}'", option.long)).collect();
            return Err(format!("option '--{shown}' is ambiguous; possibilities: {}", names.join(" ")));
        }
    };
    let long = option.long;
    match (option.value.is_some(), value) {
        (false, None) => Ok((option.is, OsString::new())),
        (false, Some(_)) => Err(format!("option '--{long}' doesn't allow an argument")),
        (true, Some(value)) => Ok((option.is, OsString::from_vec(value.to_vec()))),
        (true, None) => {
            let value = next().ok_or_else(|| format!("option '--{long}' requires an argument"))?;
            Ok((option.is, value))
        }
    }
}

fn read_short<T: Copy>(
    table: &[Opt<T>],
    letters: &[u8],
    mut next: impl FnMut() -> Option<OsString>,
    given: &mut Vec<(T, OsString)>,
) -> Result<(), String> {
    for (at, &letter) in letters.iter().enumerate() {
        let shown = char::from(letter);
        let option = table.iter().find(|option| option.short == Some(shown));
        let option = option.ok_or_else(|| format!("invalid option -- '{shown}'"))?;
        if option.value.is_none() {
            given.push((option.is, OsString::new()));
            continue;
        }
        let joined = &letters[at + 1..];
        let value = if joined.is_empty() { next() } else { Some(OsStr::from_bytes(joined).to_owned()) };
        let value = value.ok_or_else(|| format!("option requires an argument -- '{shown}'"))?;
        given.push((option.is, value));
        return Ok(());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [Opt<u8>; 5] = [
        valued("tcp-ports", Some('t'), "SPEC", 1, ""),
        valued("tcp-ns", Some('T'), "SPEC", 2, ""),
        switch("quiet", Some('q'), 3, ""),
        switch("ipv4-only", Some('4'), 4, ""),
        switch("no-map-gw", None, 5, ""),
    ];

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn given(line: &str) -> (Vec<(u8, String)>, usize) {
        let read = read(&TABLE, Order::InFront, &words(line)).expect(line);
        let text = |value: OsString| value.into_string().expect("UTF-8");
        (read.given.into_iter().map(|(is, value)| (is, text(value))).collect(), read.rest.len())
    }

    #[test]
    fn options_come_long_short_joined_and_abbreviated() {
        let one = |is, value: &str| (is, value.to_owned());
        for (line, expected, rest) in [
            ("", vec![], 0),
            ("--tcp-ports 80 -t 81 -t82 --tcp-p=83", ["80", "81", "82", "83"].map(|v| one(1, v)).to_vec(), 0),
            ("-4qt 5 77", vec![one(4, ""), one(3, ""), one(1, "5")], 1),
            ("--no-m --tcp-ports= -- -q", vec![one(5, ""), one(1, "")], 1),
            ("-q sh -c -4", vec![one(3, "")], 3),
            ("- -q", vec![], 2),
        ] {
            assert_eq!(given(line), (expected, rest), "{line}");
        }
    }

    #[test]
    fn options_stand_anywhere_where_no_command_follows() {
        let read = read(&TABLE, Order::Anywhere, &words("77 -q eth0 -t 5 -- -4")).expect("a line");
        assert_eq!(read.given, [(3, "".into()), (1, "5".into())]);
        assert_eq!(read.rest, ["77", "eth0", "-4"]);
    }

    #[test]
    fn options_of_brodo_s_own_end_with_the_others() {
        for (order, line, own, rest) in [
            (Order::InFront, "--brodo-a=1 -q --brodo-b sh --brodo-c", &["--a=1", "--b"][..], 2),
            (Order::InFront, "-t --brodo-a 77", &[], 1),
            (Order::Anywhere, "77 --brodo-a -- --brodo-b", &["--a"], 2),
        ] {
            let read = read(&TABLE, order, &words(line)).expect(line);
            assert_eq!((read.own.as_slice(), read.rest.len()), (&words(&own.join(" "))[..], rest), "{line}");
        }
    }

    #[test]
    fn errors_have_the_texts_of_the_c_library() {
        for (line, text) in [
            ("--other", "unrecognized option '--other'"),
            ("--other=5", "unrecognized option '--other'"),
            ("--tcp", "option '--tcp' is ambiguous; possibilities: '--tcp-ports' '--tcp-ns'"),
            ("--quiet=5", "option '--quiet' doesn't allow an argument"),
            ("--tcp-ns", "option '--tcp-ns' requires an argument"),
            ("-x", "invalid option -- 'x'"),
            ("-qt", "option requires an argument -- 't'"),
        ] {
            assert_eq!(read(&TABLE, Order::InFront, &words(line)), Err(text.to_owned()), "{line}");
        }
    }
}
