//! The command line from outside: help, usage errors and their status, completions, manual pages. Nothing
//! here makes a namespace.

use std::process::{Command, Output};

fn brodo(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_brodo")).args(words).output().expect("brodo starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn help_has_examples_units_and_defaults() {
    let general = brodo(&["--help"]);
    assert!(general.status.success());
    for part in ["run", "attach", "Examples:", "brodo run -- curl https://example.org", "10.0.2.15"] {
        assert!(stdout(&general).contains(part), "{part} is not in\n{}", stdout(&general));
    }
    let run = brodo(&["run", "--help"]);
    for part in
        ["Examples:", "Exit status", "126", "127", "125", "[default: 65520]", "88 to 65521", "--keep-user"]
    {
        assert!(stdout(&run).contains(part), "{part} is not in\n{}", stdout(&run));
    }
    let attach = brodo(&["attach", "--help"]);
    for part in ["--netns", "--userns", "--ready-fd", "--tcp-rx-buffer", "resolv.conf", "Exit status"] {
        assert!(stdout(&attach).contains(part), "{part} is not in\n{}", stdout(&attach));
    }
}

/// Whether a line of help begins an option, as opposed to a text that mentions one.
fn is_option(line: &str) -> bool {
    line.starts_with("  -") || line.starts_with("      --")
}

#[test]
fn every_option_has_a_help_text() {
    for command in ["run", "attach", "vm"] {
        let help = stdout(&brodo(&[command, "-h"]));
        let options: Vec<_> = help.lines().filter(|line| is_option(line)).collect();
        assert!(options.len() > 20, "{help}");
        for line in options {
            let words = line.split("  ").filter(|part| !part.trim().is_empty()).count();
            let wrapped = help.lines().skip_while(|other| *other != line).nth(1).unwrap_or_default();
            assert!(words >= 2 || wrapped.starts_with("          "), "no text for {line}");
        }
    }
}

#[test]
fn a_line_that_makes_no_sense_ends_with_status_2_and_starts_nothing() {
    let refused = [
        (&["run", "--mtu", "87"][..], "88..=65521"),
        (&["run", "--mtu", "65522"], "65522"),
        (&["run", "-6", "--mtu", "1279", "true"], "IPv6 needs an MTU of 1280"),
        (&["run", "--without", "icmp"], "possible values: tcp, udp, dns, ping"),
        (&["run", "--no-such-option"], "--no-such-option"),
        (&["run", "-4", "-6", "true"], "cannot be used with"),
        (&["run", "-v", "-q", "true"], "cannot be used with"),
        (&["run", "--address", "10.0.0.1"], "ADDRESS/LENGTH"),
        (&["run", "--mac", "ff:ff:ff:ff:ff:ff"], "not a unicast MAC address"),
        (&["run", "--ifname", "lo"], "not lo"),
        (&["run", "--tcp-rx-buffer", "4M..64K"], "above the maximum"),
        (&["run", "--tcp-rx-buffer", "0"], "4K to 1048560K"),
        (&["run", "--tcp-tx-buffer", "64K..1G"], "4K to 1048560K"),
        (&["run", "--tcp-tx-buffer", "64KB"], "such as 65536, 64K, 4M or 1G"),
        (&["run", "--memory", "0"], "at least 1M"),
        (&["run", "--memory", "1M", "--tcp-rx-buffer", "2M", "true"], "initial buffer"),
        (&["run", "--ready-fd=-1"], "the number of an open descriptor"),
        (&["run", "--ready-fd", "4095", "true"], "was started with"),
        (&["run", "--gateway", "10.0.2.15", "touch", "/tmp/brodo-was-started"], "guest's own address"),
        (&["run", "-4", "--address", "fd01::5/64", "true"], "which -4 switches off"),
        (&["run", "--dns", "10.0.2.15", "true"], "the guest's own address"),
        (&["run", "--metrics", "9100", "true"], "IP:PORT, :PORT for 127.0.0.1, or unix:PATH"),
        (&["top"], "needs a terminal"),
        (&["top", "--interval", "0"], "0.1 to 3600"),
        (&["attach"], "<PID|--netns"),
        (&["attach", "--tap-fd", "9", "-t", "auto"], "-t auto needs the guest's network namespace"),
        (&["attach", "--tap-fd", "9", "--ifname", "eth1"], "--tap-fd is one that is there already"),
        (&["attach", "--tap-fd", "9", "--workers", "2", "1"], "one queue"),
        (&["attach", "--tap-fd", "999"], "was started with"),
        (&["run", "--stats", "0", "true"], "0.1 to 3600"),
        (&["vm"], "--socket"),
        (&["vm", "--socket", "/x", "--dgram", "/y"], "cannot be used with"),
        (&["vm", "--dgram", "/x", "--connect"], "cannot be used with"),
        (&["vm", "--socket", "fd:1"], "above 2"),
        (&["vm", "--socket", "/x", "--ifname", "eth1"], "a virtual machine has its own"),
        (&["attach", "0"], "0"),
        (&["attach", "1", "--netns", "/x"], "cannot be used with"),
        (&["attach", "1", "--userns", "/x"], "cannot be used with"),
        (&["attach", "--userns", "/x"], "--netns"),
        (&["nonsense"], "nonsense"),
        (
            &["run", "--audit", "/x", "--deny", "192.0.2.1", "true"],
            "--deny RULE (a --deny of addresses alone is none)",
        ),
        (&["run", "--policy-mode", "observe", "true"], "--policy-mode observe needs a policy"),
        (&["policy", "learn", "/bin/true"], "/bin/true is no flow log"),
        (&["report", "/bin/true", "-o", "/dev/null"], "/bin/true is no flow log or audit log"),
        (&["policy", "check", "/x", "--instance", "1"], "--instance has no meaning for brodo policy check"),
        (&["policy", "learn", "/x", "--instance", "1"], "--instance has no meaning"),
        (&["policy", "learn", "/x", "--json"], "--json has no meaning for brodo policy learn"),
        (&["policy", "--json", "presets"], "--json has no meaning"),
    ];
    for (words, about) in refused {
        let output = brodo(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(about), "{words:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    assert!(!std::path::Path::new("/tmp/brodo-was-started").exists());
}

#[test]
fn mistakes_in_the_variable_for_other_programs_name_it() {
    for (extra, own, about) in [
        ("--nonsense", "-4", "brodo: BRODO_ARGS: unexpected argument '--nonsense'"),
        ("-v", "--brodo-nonsense", "brodo: unexpected argument '--nonsense'"),
    ] {
        let words = ["as", "pasta", own, "--", "true"];
        let output = Command::new(env!("CARGO_BIN_EXE_brodo")).args(words).env("BRODO_ARGS", extra).output();
        let text = stderr(&output.expect("brodo runs"));
        assert!(text.starts_with(about), "{text}");
    }
}

#[test]
fn checks_and_trials_of_a_policy_are_lines_of_json_too() {
    let path = std::env::temp_dir().join(format!("brodo-checked-{}.toml", std::process::id()));
    let text = "version = 1\nallow = [\"a.example\"]\n[tests]\nallow = [\"https://b.example\"]\n";
    std::fs::write(&path, text).expect("a file");
    let file = path.to_str().expect("UTF-8");
    let lines = |words: &[&str]| -> Vec<serde_json::Value> {
        let text = stdout(&brodo(words));
        let parsed = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        text.lines().map(parsed).collect()
    };
    let tried = lines(&["policy", "test", "--json", file, "https://a.example", "tcp://192.0.2.1:22"]);
    let checked = lines(&["policy", "--json", "check", file]);
    let text = stdout(&brodo(&["policy", "check", file]));
    std::fs::remove_file(&path).expect("it is there");
    let of = |verdict, by| serde_json::json!({"url": "https://a.example", "verdict": verdict, "by": by});
    assert_eq!(tried.first(), Some(&of("allow", "allow a.example")));
    assert_eq!((tried.len(), &tried[1]["verdict"]), (2, &"deny".into()));
    assert_eq!((checked.len(), &checked[0]["url"]), (2, &"https://b.example".into()));
    assert_eq!(checked[1], serde_json::json!({"allow": 1, "deny": 0, "tests": 1, "failed": 1}));
    assert!(text.ends_with("\n1 allow rule, 0 deny rules; 1 test, 1 failed\n"), "{text}");
}

#[test]
fn contradictions_are_named_in_one_sentence() {
    for words in [&["run", "--gateway", "10.0.2.15"][..], &["attach", "--dns", "10.0.2.15", "1"]] {
        let text = stderr(&brodo(words));
        assert!(text.starts_with("brodo: ") && text.trim_end().lines().count() == 1, "{text}");
    }
}

#[test]
fn errors_are_json_for_programs() {
    for words in
        [&["run", "--log", "json", "--mtu", "1"][..], &["run", "--gateway", "10.0.2.15", "--log=json"]]
    {
        let output = brodo(words);
        assert_eq!(output.status.code(), Some(2));
        let said: serde_json::Value = serde_json::from_slice(&output.stderr).expect("one line of JSON");
        assert_eq!(said["level"], "error");
        assert!(
            said["message"]
                .as_str()
                .is_some_and(|text| text.contains(words[words.len() - 1]) || text.contains("own address")),
            "{said}"
        );
    }
    assert!(stderr(&brodo(&["run", "--log", "xml"])).contains("text, json"));
}

#[test]
fn a_configuration_that_makes_no_sense_starts_nothing() {
    let path = std::env::temp_dir().join(format!("brodo-cli-{}.toml", std::process::id()));
    let path = path.to_str().expect("UTF-8");
    for (text, about) in [
        ("memroy = '2M'", format!("brodo: unknown key `memroy` in {path} line 1: did you mean `memory`?\n")),
        (
            "\nmtu = 60",
            format!(
                "brodo: {path} line 2: invalid value '60' for '--mtu <BYTES>': 60 is not in 88..=65521\n"
            ),
        ),
    ] {
        std::fs::write(path, text).expect("a temporary file");
        let output = brodo(&["run", "--config", path, "touch", "/tmp/brodo-was-started"]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(2), about));
    }
    std::fs::remove_file(path).expect("ours");
}

#[test]
fn a_failure_of_brodo_itself_ends_with_status_125() {
    for (words, about) in [
        (&["run", "--pcap", "/no-such-directory/x", "true"][..], "/no-such-directory/x: open: No such file"),
        (
            &["run", "--config", "/no-such-file", "true"],
            "the configuration /no-such-file: open: No such file",
        ),
        (&["attach", "2147483647"], "no process has this id"),
        (&["attach", "--netns", "/dev/null"], "as a namespace"),
        (&["attach", "--netns", "/proc/self/ns/net"], "brodo itself runs in"),
    ] {
        let output = brodo(words);
        assert_eq!(output.status.code(), Some(125), "{words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(about), "{words:?}: {}", stderr(&output));
        assert_eq!(stderr(&output).trim_end().lines().count(), 1, "{}", stderr(&output));
    }
}

#[test]
fn completions_and_manual_pages_know_the_options() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = brodo(&["completions", shell]);
        assert!(script.status.success() && stdout(&script).contains("tcp-rx-buffer"), "{shell}");
    }
    assert!(stdout(&brodo(&["man"])).contains(".TH brodo 1"));
    for (page, part) in [
        ("run", "tcp\\-rx\\-buffer"),
        ("attach", "netns"),
        ("cni", "CNI_COMMAND"),
        ("netavark", "brodo as netavark info"),
        ("policy", "\\fB\\-\\-for\\fR"),
        ("policy", ".SH \"BRODO POLICY CHECK\"\n"),
        ("forward", "\\-\\-tcp\\-ns"),
        ("capture", "Examples:"),
    ] {
        let text = stdout(&brodo(&["man", page]));
        assert!(text.contains(&format!(".TH brodo-{page} 1")) && text.contains(part), "{page}: {text}");
        // A page is named only where there is one.
        assert!(!text.contains(&format!("brodo\\-{page}\\-")), "{page}: {text}");
        assert_eq!(text.matches(".ie ").count(), 1, "{page}: {text}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let status = Command::new("sh")
        .args([
            "-c",
            "\"$1\" completions zsh | head -c1 >/dev/null; exit $?",
            "sh",
            env!("CARGO_BIN_EXE_brodo"),
        ])
        .status();
    assert!(status.expect("sh runs").success());
}

/// The end of a command line of the shell, in which `$b` is brodo.
fn shell(line: &str) -> Output {
    let line = format!("set -o pipefail; {line}");
    Command::new("bash")
        .args(["-c", &line])
        .env("b", env!("CARGO_BIN_EXE_brodo"))
        .env_remove("CNI_COMMAND")
        .output()
        .expect("a shell")
}

/// A policy file of `lines` in a folder of temporary files.
fn policy_file(name: &str, lines: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("brodo-cli-{name}-{}.toml", std::process::id()));
    std::fs::write(&path, format!("version = 1\n{lines}\n")).expect("a file");
    path
}

#[test]
fn standard_output_without_reader_or_room_ends_nothing_by_a_signal() {
    let file = policy_file("output", "allow = [\"a.example\"]");
    let check = format!("\"$b\" policy check {}", file.display());
    let test = format!("\"$b\" policy test {} https://a.example", file.display());
    let denied = format!("\"$b\" policy test {} https://b.example", file.display());
    let commands = [
        ("\"$b\" as pasta --help", 0, 1),
        ("\"$b\" as slirp4netns --help", 0, 1),
        ("\"$b\" as netavark info", 0, 1),
        ("\"$b\" as cni </dev/null", 1, 1),
        ("\"$b\" vm --print-capabilities", 0, 125),
        ("\"$b\" man run", 0, 125),
        ("\"$b\" policy presets", 0, 125),
        (check.as_str(), 0, 125),
        (test.as_str(), 0, 125),
        (denied.as_str(), 1, 125),
    ];
    for (command, without_reader, without_room) in commands {
        // The reader has gone before anything is written.
        let piped = shell(&format!("{{ sleep 0.2; {command}; }} | true"));
        assert_eq!(piped.status.code(), Some(without_reader), "{command}: {}", stderr(&piped));
        let full = shell(&format!("{command} >/dev/full"));
        assert_eq!(full.status.code(), Some(without_room), "{command}: {}", stderr(&full));
        assert!(stderr(&full).contains("cannot write to standard output"), "{command}: {}", stderr(&full));
        assert!(!stderr(&full).contains("panicked"), "{command}: {}", stderr(&full));
    }
    std::fs::remove_file(&file).expect("it is there");
}

#[test]
fn options_that_are_refused_are_not_offered() {
    let script = stdout(&brodo(&["completions", "bash"]));
    let options = |command: &str| {
        let (_, rest) = script.split_once(&format!("        brodo__subcmd__{command})\n")).expect(command);
        let (_, rest) = rest.split_once("opts=\"").expect(command);
        rest.split('"').next().expect("a word").split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    for (command, json, instance) in [
        ("policy__subcmd__presets", false, false),
        ("policy__subcmd__check", true, false),
        ("policy__subcmd__test", true, false),
        ("policy__subcmd__learn", false, true),
        ("policy__subcmd__show", true, true),
        ("forward__subcmd__list", true, true),
        ("status", true, true),
    ] {
        let options = options(command);
        let has = |option: &str| options.iter().any(|known| known == option);
        assert_eq!((has("--json"), has("--instance")), (json, instance), "{command}: {options:?}");
        let words: Vec<_> = command.split("__subcmd__").chain(["--help"]).collect();
        let help = stdout(&brodo(&words));
        let has =
            |option: &str| help.lines().filter(|line| is_option(line)).any(|line| line.contains(option));
        assert_eq!((has("--json"), has("--instance")), (json, instance), "{command}: {help}");
        assert!(options.iter().any(|known| known == "--help"), "{command}: {options:?}");
    }
    for values in
        ["tcp udp echo", "flow_opened flow_ended decision", "dns ping dhcp", "slirp4netns cni netavark"]
    {
        assert!(script.contains(values), "{values}");
    }
}
