//! The configuration file (`--config FILE`, TOML): the command line's options in a file, under their own
//! names.
//!
//! No option is named here. The file is read against clap's definition of the command: a key is the long name
//! of an option, and its value becomes a word of the command line, which clap parses before the actual ones.
//! So an option has one definition, one set of limits and one error text, wherever it is written, and a new
//! one needs nothing here.
//!
//! 1. The command line is parsed leniently, to find the command and `--config`. Without it that is all.
//! 2. The file is parsed. Keys outside a table hold for every command; those in `[run]` or `[attach]` for
//!    that command, and take precedence. An unknown key is an error with a suggestion; so is one outside a
//!    table that this command does not have.
//! 3. Options given on the command line are dropped from the file, and so are those that conflict with it
//!    (`-4` against `ipv6-only = true`).
//! 4. Each word is parsed alone, so that the error about a bad value has its line. Then all are, in front of
//!    the command line's own.
//!
//! There is no default file: the effect of a command must not depend on files that others may place in a
//! directory.

use crate::alike::most_alike;
use crate::args::Cli;
use crate::failure::Failure;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The option for the file, in every command that can have one.
const CONFIG: &str = "config";

/// Longest file, in bytes: far more than all options in all spellings.
const FILE_MAX: u64 = 1 << 20;

/// An invalid command line or file.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// An error of the command line alone, or a request for help; clap prints it.
    Line(clap::Error),
    /// An error of the file, or of its combination with the command line.
    File(Failure),
}

impl From<clap::Error> for Refusal {
    fn from(error: clap::Error) -> Self {
        Self::Line(error)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::File(failure)
    }
}

/// A command line, parsed.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) cli: Cli,
    /// Its words with the options of the file: parsed without the file, they give the same.
    pub(crate) words: Vec<OsString>,
}

/// The command line, merged with its configuration file if it has one.
pub(crate) fn parse(words: &[OsString]) -> Result<Parsed, Refusal> {
    let Merged { matches, words } = merge(&Cli::command(), words)?;
    let cli = Cli::from_arg_matches(&matches)?;
    Ok(Parsed { cli: Cli { command: cli.command.settled() }, words })
}

/// The command line and the file together.
struct Merged {
    matches: ArgMatches,
    words: Vec<OsString>,
}

/// [`parse`] for any definition of a command line.
fn merge(definition: &Command, words: &[OsString]) -> Result<Merged, Refusal> {
    let alone = || -> Result<Merged, Refusal> {
        let matches = definition.clone().try_get_matches_from(words)?;
        Ok(Merged { matches, words: words.to_vec() })
    };
    let lenient = definition.clone().ignore_errors(true).try_get_matches_from(words);
    let Ok(Some((name, given, path))) = lenient.as_ref().map(named_file) else { return alone() };
    let Some(command) = definition.find_subcommand(name) else { return alone() };
    let file = File { path, text: read(path)? };
    let mut entries = file.entries(definition, command)?;
    entries.retain(|entry| !is_overruled(command, entry.option, given));
    let mut from_file = Vec::new();
    for (word, at) in entries.into_iter().flat_map(|entry| entry.words) {
        file.check(definition, name, &word, at)?;
        from_file.push(OsString::from(word));
    }
    // Behind the command's name: the words behind the options may be anything.
    let place = words.iter().position(|word| *word == *name).map_or(words.len(), |index| index + 1);
    let together: Vec<_> = words[..place].iter().chain(&from_file).chain(&words[place..]).cloned().collect();
    let matches = definition.clone().try_get_matches_from(&together).map_err(|error| {
        // Errors of the command line alone: clap's text is best.
        match definition.clone().try_get_matches_from(words) {
            Err(alone) if alone.kind() == error.kind() || !error.use_stderr() => Refusal::Line(alone),
            _ => Failure::Usage(format!("{}: {}", path.display(), sentence(&error))).into(),
        }
    })?;
    Ok(Merged { matches, words: together })
}

/// The command, its matches and the path of its file.
fn named_file(matches: &ArgMatches) -> Option<(&str, &ArgMatches, &Path)> {
    let (name, given) = matches.subcommand()?;
    let path = given.try_get_one::<PathBuf>(CONFIG).ok()??;
    Some((name, given, path))
}

/// Whether `option` is given on the command line, or conflicts with an option there.
fn is_overruled(command: &Command, option: &Arg, given: &ArgMatches) -> bool {
    let on_line = |arg: &Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let conflict =
        |a: &Arg, b: &Arg| command.get_arg_conflicts_with(a).iter().any(|c| c.get_id() == b.get_id());
    let exclusive = |other: &Arg| {
        command.get_groups().any(|group| {
            let both = [option, other].iter().all(|arg| group.get_args().any(|id| id == arg.get_id()));
            both && !group.clone().is_multiple()
        })
    };
    command.get_arguments().filter(|arg| on_line(arg)).any(|other| {
        other.get_id() == option.get_id()
            || conflict(option, other)
            || conflict(other, option)
            || exclusive(other)
    })
}

/// The file's content.
fn read(path: &Path) -> Result<String, Failure> {
    let cannot = |call: &str| Failure::io(format!("read the configuration {}: {call}", path.display()));
    let file = std::fs::File::open(path).map_err(cannot("open"))?;
    let mut text = String::new();
    match file.take(FILE_MAX + 1).read_to_string(&mut text) {
        Ok(length) if length as u64 <= FILE_MAX => Ok(text),
        Ok(_) => Err(Failure::Usage(format!("{} has more than {FILE_MAX} bytes", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Failure::Usage(format!("{} is not text in UTF-8", path.display())))
        }
        Err(error) => Err(cannot("read")(error)),
    }
}

/// A file under examination.
struct File<'a> {
    path: &'a Path,
    text: String,
}

/// An option in the file.
struct Entry<'a> {
    option: &'a Arg,
    /// Words for the command line, each with the position of its value.
    words: Vec<(String, Range<usize>)>,
}

impl File<'_> {
    /// Entries of the file for `command`.
    fn entries<'a>(&self, definition: &'a Command, command: &'a Command) -> Result<Vec<Entry<'a>>, Failure> {
        let root = DeTable::parse(&self.text).map_err(|error| {
            let at = error.span().unwrap_or_default();
            Failure::Usage(format!("{}: {}", self.place(&at), error.message().replace('\n', ", ")))
        })?;
        let commands: Vec<_> =
            definition.get_subcommands().filter(|command| option(command, CONFIG).is_some()).collect();
        let named = |name: &str| commands.iter().copied().find(|command| command.get_name() == name);
        let mut general = Vec::new();
        let mut own = Vec::new();
        for (key, value) in in_order(root.get_ref()) {
            let (name, at) = (key.get_ref().as_ref(), key.span());
            match (value.get_ref(), named(name)) {
                (DeValue::Table(table), Some(other)) => {
                    for (key, value) in in_order(table) {
                        let name = key.get_ref().as_ref();
                        let found = option(other, name)
                            .ok_or_else(|| self.misplaced(name, &key.span(), &commands, &[other]))?;
                        if other.get_name() == command.get_name() {
                            own.push(self.entry(found, name, value)?);
                        }
                    }
                }
                (_, Some(_)) => {
                    return Err(
                        self.wrong(&at, &format!("`{name}` is a table: write [{name}] and its keys below"))
                    );
                }
                (DeValue::Table(_), None) if option(command, name).is_none() => {
                    let tables: Vec<_> = commands.iter().map(|c| format!("[{}]", c.get_name())).collect();
                    let what = format!("unknown table [{name}], there may be {}", tables.join(", "));
                    return Err(self.wrong(&at, &what));
                }
                (_, None) => match option(command, name) {
                    Some(option) => general.push(self.entry(option, name, value)?),
                    None => return Err(self.misplaced(name, &at, &commands, &commands)),
                },
            }
        }
        general.retain(|entry: &Entry<'_>| {
            own.iter().all(|o: &Entry<'_>| o.option.get_id() != entry.option.get_id())
        });
        general.append(&mut own);
        Ok(general)
    }

    /// One key with its value.
    fn entry<'a>(
        &self,
        option: &'a Arg,
        name: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Entry<'a>, Failure> {
        let at = value.span();
        if name == CONFIG {
            return Err(self.wrong(&at, "a configuration file cannot name another"));
        }
        let flag = || (format!("--{name}"), at.clone());
        let words = match (option.get_action(), value.get_ref()) {
            (ArgAction::SetTrue | ArgAction::Count, DeValue::Boolean(on)) => {
                if *on {
                    vec![flag()]
                } else {
                    vec![]
                }
            }
            (ArgAction::SetTrue, _) => return Err(self.wrong(&at, &format!("`{name}` is true or false"))),
            (ArgAction::Count, value) => match scalar(value).and_then(|digits| digits.parse::<u8>().ok()) {
                Some(count) => vec![flag(); count.into()],
                None => return Err(self.wrong(&at, &format!("`{name}` is true, false or a number"))),
            },
            (_, DeValue::Boolean(on)) if may_lack_value(option) => {
                if *on {
                    vec![flag()]
                } else {
                    vec![]
                }
            }
            (ArgAction::Append, DeValue::Array(values)) => {
                values.iter().map(|value| self.word(name, value)).collect::<Result<_, _>>()?
            }
            (_, DeValue::Array(_)) => {
                return Err(self.wrong(&at, &format!("`{name}` takes one value, not several")));
            }
            _ => vec![self.word(name, value)?],
        };
        Ok(Entry { option, words })
    }

    /// An option with one value, as on the command line.
    fn word(&self, name: &str, value: &Spanned<DeValue<'_>>) -> Result<(String, Range<usize>), Failure> {
        match scalar(value.get_ref()) {
            Some(text) => Ok((format!("--{name}={text}"), value.span())),
            None => Err(self.wrong(&value.span(), &format!("a value of `{name}` is a string or a number"))),
        }
    }

    /// Checks a word with clap alone. Conflicts between options are found later.
    fn check(&self, definition: &Command, name: &str, word: &str, at: Range<usize>) -> Result<(), Failure> {
        let alone = definition.clone().try_get_matches_from([definition.get_name(), name, word]);
        match alone {
            Err(error) if matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) => {
                Err(Failure::Usage(format!("{}: {}", self.place(&at), sentence(&error))))
            }
            _ => Ok(()),
        }
    }

    /// A key at a place for options of `here`, which do not have it. `commands` are all with a file.
    fn misplaced(&self, name: &str, at: &Range<usize>, commands: &[&Command], here: &[&Command]) -> Failure {
        let owners = commands.iter().filter(|command| option(command, name).is_some());
        let owners: Vec<_> = owners.map(|command| command.get_name()).collect();
        match owners.as_slice() {
            [] => self.unknown(name, at, here),
            [one] => self.wrong(at, &format!("`{name}` is an option of {one} alone: write it below [{one}]")),
            several => {
                let tables: Vec<_> = several.iter().map(|name| format!("[{name}]")).collect();
                let (owners, tables) = (several.join(" and "), tables.join(" or "));
                self.wrong(at, &format!("`{name}` is an option of {owners}: write it below {tables}"))
            }
        }
    }

    /// A key that is not an option of these commands.
    fn unknown(&self, name: &str, at: &Range<usize>, commands: &[&Command]) -> Failure {
        let options = || commands.iter().flat_map(|command| options(command));
        let short = options().find(|option| {
            let mut letters = name.chars();
            option.get_short() == letters.next() && letters.next().is_none()
        });
        let alike = || most_alike(name, options().filter_map(Arg::get_long));
        let question = short.and_then(Arg::get_long).or_else(alike);
        let question = question.map(|long| format!(": did you mean `{long}`?")).unwrap_or_default();
        Failure::Usage(format!("unknown key `{name}` in {}{question}", self.place(at)))
    }

    fn wrong(&self, at: &Range<usize>, what: &str) -> Failure {
        Failure::Usage(format!("{}: {what}", self.place(at)))
    }

    /// File and line of a position.
    fn place(&self, at: &Range<usize>) -> String {
        let line = 1 + self.text.get(..at.start).unwrap_or(&self.text).matches('\n').count();
        format!("{} line {line}", self.path.display())
    }
}

/// Options of a command that the file may contain.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| {
        arg.get_long().is_some()
            && matches!(
                arg.get_action(),
                ArgAction::Set | ArgAction::Append | ArgAction::SetTrue | ArgAction::Count
            )
    })
}

/// The option with this long name.
fn option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    options(command).find(|arg| arg.get_long() == Some(name))
}

/// Whether the option may stand alone, as a switch.
fn may_lack_value(option: &Arg) -> bool {
    option.get_num_args().is_some_and(|number| number.min_values() == 0)
}

/// A value as a word of the command line.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => {
            let decimal = i64::from_str_radix(number.as_str(), number.radix());
            Some(decimal.map_or_else(|_| number.to_string(), |decimal| decimal.to_string()))
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(on) => Some(on.to_string()),
        DeValue::Datetime(time) => Some(time.to_string()),
        DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// Keys in the order of the file, so that of several errors the first is reported.
fn in_order<'a, 'i>(
    table: &'a DeTable<'i>,
) -> Vec<(&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// Clap's error text, without its label, its usage and its hints.
pub(crate) fn sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.strip_prefix("error: ").unwrap_or(&text).lines().map(str::trim);
    first.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
