//! Files against the equivalent command lines, and refusals with their texts; also for options of a later
//! version.

use super::*;
use crate::args;
use std::sync::atomic::{AtomicU32, Ordering};

/// A file with this content, gone with its test.
struct Written(PathBuf);

impl Written {
    fn new(text: &[u8]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("brodo-{}-{number}.toml", std::process::id()));
        std::fs::write(&path, text).expect("a file in the temporary directory");
        Self(path)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `brodo WORDS` with @ for the file.
fn line(file: &Written, words: &str) -> Vec<OsString> {
    let path = file.0.to_str().expect("a path in UTF-8");
    let words = words.split_whitespace().map(|word| word.replace('@', path).into());
    [OsString::from("brodo")].into_iter().chain(words).collect()
}

/// All options, as text.
fn options(words: &[OsString]) -> String {
    let cli = parse(words).unwrap_or_else(|refusal| panic!("{words:?}: {refusal:?}")).cli;
    let mut command = cli.command;
    if let args::Command::Run(args::Run { network, .. })
    | args::Command::Attach(args::Attach { network, .. }) = &mut command
    {
        network.config = None;
    }
    format!("{command:?}")
}

/// Asserts that the file gives the same options as these words on the command line.
fn same(text: &str, words: &str, alone: &str) {
    let file = Written::new(text.as_bytes());
    assert_eq!(options(&line(&file, words)), options(&line(&file, alone)), "{text}\n{words}");
}

/// Error text about the file, without its path.
fn refusal(text: &[u8], words: &str) -> String {
    let file = Written::new(text);
    let path = file.0.to_str().expect("a path in UTF-8");
    match parse(&line(&file, words)) {
        Err(Refusal::File(failure)) => failure.to_string().replace(path, "FILE"),
        other => panic!("not refused for the file: {other:?}"),
    }
}

#[test]
fn keys_are_the_long_names_of_the_options() {
    same("", "run --config @", "run");
    same("mtu = 1500", "run --config @", "run --mtu 1500");
    same("mtu = '1500'", "run --config=@ -- true", "run --mtu 1500 -- true");
    same("mtu = 0x5dc\nmemory = 1_048_576", "run --config @", "run --mtu 1500 --memory 1048576");
    same("no-offload = true\nipv4-only = false", "run --config @", "run --no-offload");
    same("verbose = true", "run --config @", "run -v");
    same("verbose = 2", "run --config @", "run -vv");
    same(
        "memory = '64M'\ntcp-rx-buffer = '16K..1M'",
        "run --config @",
        "run --memory 64M --tcp-rx-buffer 16K..1M",
    );
    same(
        "resolver = ['9.9.9.9', '[::1]:54']",
        "run --config @",
        "run --resolver 9.9.9.9 --resolver [::1]:54",
    );
    same("resolver = '9.9.9.9'", "run --config @", "run --resolver 9.9.9.9");
    same("search = []", "run --config @", "run");
    same("# only\n\n# comments\n", "run --config @ -v -- echo --mtu 9000", "run -v -- echo --mtu 9000");
}

#[test]
fn a_table_is_for_its_command() {
    let text =
        "mtu = 1500\nmemory = '2M'\n[run]\nmtu = 9000\nkeep-user = true\n[attach]\nno-offload = true\n";
    same(text, "run --config @", "run --mtu 9000 --memory 2M --keep-user");
    same(text, "attach --config @ 1", "attach --mtu 1500 --memory 2M --no-offload 1");
    same("run.mtu = 9000", "run --config @", "run --mtu 9000");
    same("[attach]\nnetns = '/run/netns/blue'", "attach --config @", "attach --netns /run/netns/blue");
    same("[attach]\nnetns = '/run/netns/blue'", "run --config @", "run");
}

#[test]
fn the_command_line_goes_before() {
    same("mtu = 1500\nmemory = '2M'", "run --mtu 9000 --config @", "run --mtu 9000 --memory 2M");
    // Also with its default value.
    same("ifname = 'up0'", "run --config @ --ifname eth0", "run --ifname eth0");
    // All values of a repeatable option.
    same("search = ['a', 'b']", "run --config @ --search c", "run --search c");
    // Conflicting options, whichever of the two declares the conflict.
    same("ipv6-only = true", "run --config @ -4", "run -4");
    same("ipv4-only = true", "run --config @ -6", "run -6");
    same("verbose = 2", "run --config @ -q", "run -q");
    let blue = "[attach]\nnetns = '/run/netns/blue'\nuserns = '/proc/1/ns/user'";
    same(blue, "attach --config @ 7", "attach 7");
    same(blue, "attach --config @ --netns /x", "attach --netns /x --userns /proc/1/ns/user");
}

#[test]
fn unknown_keys_are_refused_with_a_suggestion() {
    for (text, words, expected) in [
        ("mtu = 1500\n\nmemroy = '2M'", "run", "unknown key `memroy` in FILE line 3: did you mean `memory`?"),
        (
            "tcp_rx_buffer = 1",
            "run",
            "unknown key `tcp_rx_buffer` in FILE line 1: did you mean `tcp-rx-buffer`?",
        ),
        ("v = true", "run", "unknown key `v` in FILE line 1: did you mean `verbose`?"),
        ("zzzz = 1", "run", "unknown key `zzzz` in FILE line 1"),
        ("help = true", "run", "unknown key `help` in FILE line 1"),
        ("pid = 1", "attach 1", "unknown key `pid` in FILE line 1"),
        ("[run]\nmtuu = 1", "attach 1", "unknown key `mtuu` in FILE line 2: did you mean `mtu`?"),
        (
            "[attach]\nkeep-user = true",
            "run",
            "FILE line 2: `keep-user` is an option of run alone: write it below [run]",
        ),
        (
            "[run]\nrun-as = 'nobody'",
            "run",
            "FILE line 2: `run-as` is an option of attach and vm: write it below [attach] or [vm]",
        ),
        ("b = 1\na = 1", "run", "unknown key `b` in FILE line 1"),
        (
            "keep-user = true",
            "attach 1",
            "FILE line 1: `keep-user` is an option of run alone: write it below [run]",
        ),
        ("\n[network]\nmtu = 1", "run", "FILE line 2: unknown table [network], there may be [run], [attach]"),
        ("run = 1", "run", "FILE line 1: `run` is a table: write [run] and its keys below"),
        ("config = 'x'", "run", "FILE line 1: a configuration file cannot name another"),
    ] {
        let said = refusal(text.as_bytes(), &format!("{words} --config @"));
        assert!(said.starts_with(expected), "{text}: {said}");
        assert!(!said.contains('\n'), "{said}");
    }
}

#[test]
fn a_bad_value_has_the_error_of_its_option_and_its_line() {
    for (text, option) in [
        ("mtu = 60", "--mtu=60"),
        ("mtu = true", "--mtu=true"),
        ("mtu = 1500.5", "--mtu=1500.5"),
        ("memory = '64MB'", "--memory=64MB"),
        ("mac = 'ff:ff:ff:ff:ff:ff'", "--mac=ff:ff:ff:ff:ff:ff"),
        ("address = ['10.0.0.5/24', '']", "--address="),
        ("log = 'jsn'", "--log=jsn"),
    ] {
        let said = refusal(format!("# first\n{text}").as_bytes(), "run --config @");
        let flag = Cli::command().try_get_matches_from(["brodo", "run", option]).expect_err(text);
        assert_eq!(said, format!("FILE line 2: {}", sentence(&flag)));
        assert!(said.contains("invalid value") || said.contains("a value is required"), "{said}");
    }
    let several_lines = refusal(b"resolver = [\n  '9.9.9.9',\n  'nobody',\n]\n", "run --config @");
    assert!(
        several_lines.starts_with("FILE line 3: invalid value 'nobody' for '--resolver"),
        "{several_lines}"
    );
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    for (text, expected) in [
        (&b"mtu = [1500]"[..], "FILE line 1: `mtu` takes one value, not several"),
        (b"mtu = {a = 1}", "FILE line 1: a value of `mtu` is a string or a number"),
        (b"\nquiet = 'yes'", "FILE line 2: `quiet` is true or false"),
        (b"verbose = 'very'", "FILE line 1: `verbose` is true, false or a number"),
        (b"verbose = 1000", "FILE line 1: `verbose` is true, false or a number"),
        (b"resolver = [['9.9.9.9']]", "FILE line 1: a value of `resolver` is a string or a number"),
        (b"mtu = 1\nmtu = 2", "FILE line 2: duplicate key"),
        (b"mtu 1500", "FILE line 1: "),
        (b"a = [[[[[[", "FILE line 1: "),
        (b"\xff\xfe", "FILE is not text in UTF-8"),
        (b"ipv4-only = true\nipv6-only = true", "FILE: the argument '--ipv"),
        (b"userns = '/x'", "FILE line 1: `userns` is an option of attach alone"),
    ] {
        let said = refusal(text, "run --config @");
        assert!(
            said.starts_with(expected) && !said.contains('\n'),
            "{}: {said}",
            String::from_utf8_lossy(text)
        );
    }
    let deep = format!("a = {}", "[".repeat(100_000));
    assert!(refusal(deep.as_bytes(), "run --config @").starts_with("FILE line 1: "));
    let long = vec![b'\n'; FILE_MAX as usize + 1];
    assert_eq!(refusal(&long, "run --config @"), "FILE has more than 1048576 bytes");
}

#[test]
fn unreadable_files_and_invalid_command_lines_are_errors() {
    let words = ["brodo", "run", "--config", "/no-such-file"].map(OsString::from);
    let Err(Refusal::File(failure)) = parse(&words) else { panic!("there is none") };
    assert_eq!(
        failure.to_string(),
        "cannot read the configuration /no-such-file: open: No such file or directory"
    );
    let file = Written::new(b"mtu = 1500");
    for words in
        ["run --config @ --no-such-option", "attach --config @", "run --config @ -4 -6", "run --config @ -h"]
    {
        assert!(matches!(parse(&line(&file, words)), Err(Refusal::Line(_))), "{words}");
    }
    assert!(matches!(parse(&["brodo", "run", "--config"].map(OsString::from)), Err(Refusal::Line(_))));
}

#[test]
fn options_to_come_need_nothing_here() {
    let config = || Arg::new("config").long("config").value_parser(clap::value_parser!(PathBuf));
    let several = Arg::new("tcp").short('t').long("tcp-ports").action(ArgAction::Append);
    let optional = Arg::new("flow").long("flow-log").num_args(0..=1).default_missing_value("stderr");
    let subcommand = Command::new("vm").arg(config()).arg(several).arg(optional);
    let definition = Command::new("brodo").subcommand(subcommand).subcommand(Command::new("top"));
    let values = |text: &str, words: &str| {
        let file = Written::new(text.as_bytes());
        let merged = merge(&definition, &line(&file, words)).map_err(|refusal| format!("{refusal:?}"))?;
        let found = merged.matches.subcommand_matches("vm").cloned().ok_or("not vm")?;
        let several = found.get_many::<String>("tcp").unwrap_or_default().cloned().collect::<Vec<_>>();
        Ok((several.join("+"), found.get_one::<String>("flow").cloned().unwrap_or_default()))
    };
    let ok = |tcp: &str, flow: &str| Ok::<_, String>((tcp.to_owned(), flow.to_owned()));
    assert_eq!(values("tcp-ports = [8080, '-1', '~9']", "vm --config @"), ok("8080+-1+~9", ""));
    assert_eq!(values("flow-log = true", "vm --config @"), ok("", "stderr"));
    assert_eq!(values("[vm]\nflow-log = '/x'", "vm --config @ -t 7"), ok("7", "/x"));
    let short = values("t = 80", "vm --config @").expect_err("no such key");
    assert!(short.contains("did you mean `tcp-ports`?"), "{short}");
    let table = values("[top]\nx = 1", "vm --config @").expect_err("it takes no file");
    assert!(table.contains("unknown table [top], there may be [vm]"), "{table}");
}

#[test]
fn the_example_of_the_documentation_works() {
    let page = include_str!("../../../../docs/src/configuration.md");
    let examples: Vec<_> =
        page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or("")).collect();
    assert!(!examples.is_empty());
    for example in &examples {
        let file = Written::new(example.as_bytes());
        for words in ["run --config @ -- true", "attach --config @ 1"] {
            parse(&line(&file, words)).unwrap_or_else(|refusal| panic!("{example}\n{refusal:?}"));
        }
    }
    // The first example is complete: it has every option that can be in a file, perhaps commented out.
    let definition = Cli::command();
    for command in definition.get_subcommands().filter(|command| option(command, CONFIG).is_some()) {
        for name in super::options(command).filter_map(Arg::get_long).filter(|name| *name != CONFIG) {
            let given = |line: &str| {
                line.trim_start_matches(['#', ' ']).strip_prefix(name).is_some_and(|r| r.starts_with(" ="))
            };
            assert!(
                examples[0].lines().any(given),
                "`{name}` is not in the example of docs/src/configuration.md"
            );
        }
    }
}
