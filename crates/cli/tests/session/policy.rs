//! A policy that is changed while brodo runs: open connections, the seal, a lockdown, engines that follow;
//! and its results at the end: exit status, audit log, a policy that was learnt.

use crate::support::{
    Folder, Running, User, asked, crashes, eventually, is_root, json, json_lines, program_str, serve, text,
    users,
};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

/// A guest that holds one connection, says when it is over, and then tries to connect at each line of its
/// input.
const SCRIPT: &str = "exec 3<>/dev/tcp/10.0.2.2/PORT && echo up; read -r answer <&3; echo over; \
    while read -r line; do (: </dev/tcp/10.0.2.2/PORT) 2>/dev/null && echo open || echo refused; done";

struct Bed {
    folder: Folder,
    socket: String,
    user: User,
    brodo: Running,
    rule: String,
}

/// A server, each of whose connections stays open until the guest's side ends; its port.
fn serve_until_end() -> u16 {
    serve(|stream| BufReader::new(stream).lines().map_while(Result::ok).for_each(drop))
}

/// Kills the engine of a brodo.
fn kill_engine(user: User, brodo: &Running) {
    signal_engine(user, brodo, "-KILL");
}

fn signal_engine(user: User, brodo: &Running, signal: &str) {
    let engine = engine_of(brodo.id()).to_string();
    let sent = user.command(&["kill", signal, &engine]).status();
    assert!(sent.is_ok_and(|status| status.success()), "{user:?}");
}

fn bed(user: User, name: &str) -> Bed {
    let folder = Folder::new(&format!("policy-{name}-{user:?}"));
    let socket = folder.path("socket");
    let port = serve_until_end();
    let rule = format!("10.0.2.2:{port}");
    let script = SCRIPT.replace("PORT", &port.to_string());
    let words = ["run", "--control", &socket, "--map-host-loopback", "10.0.2.2", "--allow", &rule];
    let words: Vec<_> = [&words[..], &["--", "bash", "-c", &script]].concat();
    let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
    assert_eq!(brodo.line(), "up");
    Bed { folder, socket, user, brodo, rule }
}

impl Bed {
    fn policy(&self, words: &[&str]) -> Value {
        json(self.user, &self.socket, &[&["policy"], words].concat()).remove(0)
    }

    /// The exit status and errors of a change that is refused.
    fn refused(&self, words: &[&str]) -> String {
        let (status, _, errors) = asked(self.user, &self.socket, &[&["policy"], words].concat());
        assert_ne!(status, Some(0), "{words:?}");
        errors
    }

    fn file(&self, text: &str) -> String {
        let path = self.folder.path("policy.toml");
        fs::write(&path, text).expect("a file");
        path
    }

    /// Kills the engine, and waits for the next one.
    fn replace_engine(&self) {
        kill_engine(self.user, &self.brodo);
        eventually("another engine serves", || {
            crashes(self.user, &self.socket) > 0 && asked(self.user, &self.socket, &["counters"]).0 == Some(0)
        });
    }

    fn connects(&mut self) -> String {
        writeln!(self.brodo.stdin(), "try").expect("it reads");
        self.brodo.line()
    }
}

#[test]
fn rules_come_and_go_and_open_connections_with_them() {
    for &user in users() {
        let mut bed = bed(user, "rules");
        let shown = bed.policy(&["show"]);
        assert_eq!((&shown["generation"], &shown["allow"][0]), (&1.into(), &bed.rule.clone().into()));
        // A file with an error, or for another generation, changes nothing.
        let wrong = bed.file("version = 1\nalow = []");
        assert!(bed.refused(&["set", &wrong]).contains("policy.toml"), "the place of the error");
        let empty = bed.file("version = 1");
        assert!(bed.refused(&["set", &empty, "--expect", "7"]).contains("generation 1"));
        assert_eq!(bed.policy(&["show"]), shown);
        // A rule more changes nothing for the open connection; a policy without its rule ends it.
        assert_eq!(bed.policy(&["allow", "a.example", "--for", "1h"])["generation"], 2);
        let set = bed.policy(&["set", &empty, "--expect", "2"]);
        assert_eq!((&set["generation"], set["added"].as_array().map(Vec::len)), (&3.into(), Some(0)));
        assert_eq!(bed.brodo.line(), "over");
        assert_eq!(bed.connects(), "refused");
        let explained = bed.policy(&["explain"]);
        assert_eq!((&explained["stage"], &explained["reason"]), (&"open".into(), &"policy default".into()));
        assert_eq!(explained["allow"], format!("tcp://{}", bed.rule));
        // Rules for a time.
        let rule = bed.rule.clone();
        let added = bed.policy(&["allow", &rule, "--for", "1h"]);
        assert_eq!(bed.connects(), "open");
        let id = added["added"][0]["id"].to_string();
        bed.policy(&["remove", &id]);
        assert_eq!(bed.connects(), "refused");
        bed.policy(&["allow", &rule, "--for", "1s"]);
        eventually("the rule expires", || {
            bed.policy(&["show"])["added"].as_array().is_some_and(Vec::is_empty)
        });
        assert_eq!(bed.connects(), "refused");
    }
}

/// As many rules as there may be, in as much text: while brodo runs, and behind an upgrade and a crash.
#[test]
fn the_longest_policy_is_set_while_brodo_runs() {
    const RULES: usize = 16_384;
    const TEXT_MAX: usize = 1 << 20;
    let Some(&user) = users().last() else { return };
    let mut bed = bed(user, "longest");
    let empty = bed.file("version = 1");
    bed.policy(&["set", &empty]);
    assert_eq!(bed.brodo.line(), "over");
    let padding = "x".repeat(38);
    let names = (1..RULES).map(|n| format!("\"n{n:05}.{padding}.example\",\n"));
    let names = [format!("\"{}\",\n", bed.rule)].into_iter().chain(names).collect::<String>();
    let rules = format!("version = 1\nallow = [\n{names}]\n");
    let longest = format!("{rules}#{}", "x".repeat(TEXT_MAX - rules.len() - 1));
    let too_long = bed.file(&format!("{longest}x"));
    assert!(bed.refused(&["set", &too_long]).contains("more than 1048576 bytes"));
    let file = bed.file(&longest);
    let set = bed.policy(&["set", &file, "--expect", "2"]);
    assert_eq!((&set["generation"], set["allow"].as_array().map(Vec::len)), (&3.into(), Some(RULES)));
    assert_eq!(bed.connects(), "open");
    let (status, out, errors) = asked(user, &bed.socket, &["upgrade"]);
    assert!(status == Some(0), "{out}{errors}");
    assert_eq!(bed.policy(&["show"]), set);
    bed.replace_engine();
    assert_eq!(bed.policy(&["show"]), set);
    assert_eq!(bed.connects(), "open");
}

#[test]
fn a_policy_outlives_its_engine_and_its_program() {
    for &user in users() {
        let mut bed = bed(user, "outlives");
        let rule = bed.rule.clone();
        bed.policy(&["deny", &rule]);
        assert_eq!(bed.brodo.line(), "over");
        let shown = bed.policy(&["show"]);
        let (status, out, errors) = asked(user, &bed.socket, &["upgrade"]);
        assert!(status == Some(0), "{out}{errors}");
        assert_eq!(bed.policy(&["show"]), shown);
        assert_eq!(bed.connects(), "refused");
        bed.replace_engine();
        assert_eq!(bed.policy(&["show"]), shown);
        assert_eq!(bed.connects(), "refused");
        bed.policy(&["remove", "1"]);
        assert_eq!(bed.connects(), "open");
    }
}

/// A server that answers the n-th request of a connection with n, on a line; its port.
fn count_requests() -> u16 {
    serve(|stream| {
        let heads = BufReader::new(&stream).lines().map_while(Result::ok).filter(String::is_empty);
        let _ = heads.zip(1..).try_for_each(|(_, n)| writeln!(&stream, "{n}"));
    })
}

/// A connection behind a gate, which reads each request, outlives the program with its gate.
#[test]
fn a_connection_behind_a_gate_outlives_its_program() {
    const REQUESTS: &str = "exec 3<>/dev/tcp/db.example/PORT; \
        ask() { printf \"GET / HTTP/1.1\\r\\nHost: $1\\r\\n\\r\\n\" >&3; \
        read -r answer <&3 2>/dev/null || answer=over; echo $answer; }; \
        ask db.example; while read -r host; do ask $host; done";
    for &user in users() {
        let folder = Folder::new(&format!("policy-gate-{user:?}"));
        let (socket, port) = (folder.path("socket"), count_requests().to_string());
        let rule = format!("http://db.example:{port}");
        let network = ["--map-host-loopback", "10.0.2.2", "--host-name", "db.example=10.0.2.2"];
        let policy = ["--control", &socket, "--allow", &rule];
        let script = REQUESTS.replace("PORT", &port);
        let words = [&["run"][..], &network, &policy, &["--", "bash", "-c", &script]].concat();
        let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
        assert_eq!(brodo.line(), "1");
        for (host, answer) in [("db.example", "2"), ("db.example", "3"), ("evil.example", "over")] {
            let (status, out, errors) = asked(user, &socket, &["upgrade"]);
            assert!(status == Some(0), "{out}{errors}");
            writeln!(brodo.stdin(), "{host}").expect("it reads");
            assert_eq!(brodo.line(), answer, "{user:?}");
        }
        let explained = json(user, &socket, &["policy", "explain"]);
        assert_eq!(explained[0]["reason"], "policy name-changed", "{explained:?}");
    }
}

#[test]
fn a_lockdown_ends_everything_and_a_seal_keeps_it() {
    for &user in users() {
        let mut bed = bed(user, "sealed");
        bed.policy(&["lockdown"]);
        assert_eq!(bed.brodo.line(), "over");
        assert_eq!(bed.connects(), "refused");
        bed.policy(&["lockdown", "--off"]);
        assert_eq!(bed.connects(), "open");
        assert_eq!(bed.policy(&["seal"])["sealed"], true);
        assert!(bed.refused(&["allow", "a.example"]).contains("sealed"));
        bed.policy(&["lockdown"]);
        assert!(bed.refused(&["lockdown", "--off"]).contains("sealed"));
        assert_eq!(bed.connects(), "refused");
    }
}

/// The engine does not confirm the change, and crashes: the next one has its flows, and judges them.
#[test]
fn a_lockdown_that_no_engine_has_confirmed_ends_what_a_crash_survives() {
    for &user in users() {
        let mut bed = bed(user, "unconfirmed");
        signal_engine(user, &bed.brodo, "-STOP");
        assert!(bed.refused(&["lockdown"]).contains("busy"));
        kill_engine(user, &bed.brodo);
        assert_eq!(bed.brodo.line(), "over");
        assert_eq!(bed.connects(), "refused");
        assert_eq!(crashes(user, &bed.socket), 1);
    }
}

#[test]
fn an_observed_guest_reaches_everything_and_the_audit_log_has_it() {
    for &user in users() {
        let folder = Folder::new(&format!("policy-audit-{user:?}"));
        let audit = folder.path("audit");
        let to = format!("10.0.2.2:{}", serve(drop));
        let options = [
            "--map-host-loopback",
            "10.0.2.2",
            "--allow",
            "a.example",
            "--policy-mode",
            "observe",
            "--audit",
            &audit,
        ];
        let script = format!("exec bash -c 'exec 3<>/dev/tcp/{} && echo open'", to.replace(':', "/"));
        assert_eq!(user.inside(&options, &script), "open\n");
        let text = fs::read_to_string(&audit).expect("an audit log");
        let lines = json_lines(&text);
        let opened = lines.iter().find(|line| line["remote"] == to.as_str());
        let opened = opened.unwrap_or_else(|| panic!("no decision about {to}: {text}"));
        assert_eq!((&opened["stage"], &opened["verdict"]), (&"open".into(), &"would-deny".into()), "{text}");
    }
}

/// Standard error and exit status of `brodo run OPTIONS -- bash -c SCRIPT`.
fn run(user: User, options: &[&str], script: &str) -> (Option<i32>, String) {
    let words: Vec<_> = [&["run"], options, &["--", "bash", "-c", script]].concat();
    let output = user.brodo(&words).output().expect("brodo starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_exit_status_tells_of_what_no_rule_is_about() {
    for &user in users() {
        let port = serve(drop).to_string();
        let rule = format!("10.0.2.2:{port}");
        let connect = format!("(: </dev/tcp/10.0.2.2/{port}) 2>/dev/null");
        let policy = ["--map-host-loopback", "10.0.2.2", "--policy-fail"];
        let with = |more: &[&str], script: &str| run(user, &[&policy[..], more].concat(), script);
        // Destinations of rules, allowed or denied, change nothing.
        assert_eq!(with(&["--allow", &rule], &format!("{connect} && exit 3")), (Some(3), String::new()));
        let denied = ["--allow", "a.example", "--deny", &format!("tcp://{rule}")];
        assert_eq!(with(&denied, &format!("{connect} || exit 4")), (Some(4), String::new()));
        // Anything else does, and so does the floor.
        let (status, errors) = with(&["--allow", "a.example"], &format!("{connect}; exit 5"));
        assert_eq!(status, Some(122), "{errors}");
        let line = format!(
            "brodo: the policy has refused tcp {rule}: count 1, reason policy default, allow tcp://{rule}"
        );
        assert!(errors.lines().any(|found| found == line), "{line} not in {errors}");
        assert!(errors.ends_with("exit status 122 instead of 5\n"), "{errors}");
        let observed =
            ["--allow", "a.example", "--policy-mode", "observe", "--policy-fail=9", "--log", "json"];
        let (status, errors) =
            run(user, &[&policy[..2], &observed].concat(), &format!("{connect} && exit 6"));
        assert!(status == Some(9) && errors.contains("\"message\":\"the policy would refuse"), "{errors}");
        let floor = "(: </dev/tcp/169.254.169.254/80) 2>/dev/null; true";
        let (status, errors) = with(&["--allow", "a.example"], floor);
        assert!(status == Some(122) && errors.contains("reason floor link-local"), "{errors}");
        let (status, errors) = with(&[], "true");
        assert!(status == Some(2) && errors.contains("--policy-fail needs a policy"), "{errors}");
    }
}

#[test]
fn an_address_that_dns_gave_is_suggested_by_its_name() {
    for &user in users() {
        let folder = Folder::new(&format!("policy-named-{user:?}"));
        let socket = folder.path("socket");
        let script = "(: </dev/tcp/db.example/7) 2>/dev/null; echo refused; read -r line";
        let network = ["--map-host-loopback", "10.0.2.2", "--host-name", "db.example=10.0.2.2"];
        let policy = ["--control", &socket, "--allow", "db.example", "--policy-fail"];
        let words = [&["run"][..], &network, &policy, &["--", "bash", "-c", script]].concat();
        let mut brodo = user.brodo(&words);
        let mut brodo = Running::start(brodo.stdin(Stdio::piped()).stderr(Stdio::piped()));
        assert_eq!(brodo.line(), "refused");
        let explained = json(user, &socket, &["policy", "explain"]);
        let refused = explained.iter().find(|refusal| refusal["remote"] == "10.0.2.2:7");
        assert_eq!(refused.map(|it| &it["allow"]), Some(&"tcp://db.example:7".into()), "{explained:?}");
        drop(brodo.take_stdin());
        assert_eq!(brodo.status(), Some(122));
        let errors = run(user, &[&network[..], &policy[2..]].concat(), "(: </dev/tcp/db.example/7)").1;
        assert!(errors.contains(", allow tcp://db.example:7\n"), "{errors}");
    }
}

#[test]
fn a_person_is_asked_only_by_a_policy_that_asks_and_until_the_end_of_input() {
    for &user in users() {
        let folder = Folder::new(&format!("policy-ask-{user:?}"));
        let asking = folder.path("asking.toml");
        fs::write(&asking, "version = 1\ndefault = \"ask\"\n").expect("a file");
        for (options, status, error) in [
            (&["--deny", "192.0.2.1"][..], 1, "there is no policy: "),
            (&["--allow", "a.example"], 1, "the policy asks nothing: its default is not \"ask\"\n"),
            (
                &["--policy", &asking, "--policy-mode", "observe"],
                1,
                "the policy asks nothing: it only observes\n",
            ),
            (&["--policy", &asking], 0, ""),
        ] {
            let socket = folder.path("socket");
            let run = ["run", "--control", &socket];
            let words = [&run[..], options, &["--", "sh", "-c", "echo up; read -r line; exit 0"]].concat();
            let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
            assert_eq!(brodo.line(), "up");
            // Standard input has ended, and no question comes.
            let (ended, _, errors) = asked(user, &socket, &["policy", "ask"]);
            assert!(ended == Some(status) && errors.contains(error), "{options:?}: {ended:?} {errors}");
            drop(brodo.take_stdin());
            assert_eq!(brodo.status(), Some(0));
        }
    }
}

#[test]
fn refusals_before_an_upgrade_or_a_crash_count() {
    for &user in users() {
        for crash in [false, true] {
            let folder = Folder::new(&format!("policy-fail-{user:?}"));
            let socket = folder.path("socket");
            let script = "(: </dev/tcp/192.0.2.1/7) 2>/dev/null; echo refused; read -r line; exit 0";
            let words =
                ["run", "--control", &socket, "--policy-fail=77", "--allow", "a.example", "--", "bash", "-c"];
            let mut brodo =
                Running::start(user.brodo(&[&words[..], &[script]].concat()).stdin(Stdio::piped()));
            assert_eq!(brodo.line(), "refused");
            if crash {
                kill_engine(user, &brodo);
                eventually("another engine serves", || crashes(user, &socket) > 0);
            } else {
                let (status, out, errors) = asked(user, &socket, &["upgrade"]);
                assert!(status == Some(0), "{out}{errors}");
            }
            drop(brodo.take_stdin());
            assert_eq!(brodo.status(), Some(77), "{user:?} {crash}");
        }
    }
}

#[test]
fn a_policy_is_learnt_from_what_the_guest_reaches_and_allows_just_that() {
    for &user in users() {
        let folder = Folder::new(&format!("policy-learn-{user:?}"));
        let (socket, learnt) = (folder.path("socket"), folder.path("learnt.toml"));
        let port = serve(drop);
        let connect = format!("(: </dev/tcp/db.example/{port})");
        let network = ["--map-host-loopback", "10.0.2.2", "--host-name", "db.example=10.0.2.2"];
        let script = format!("{connect} && echo open; read -r line; {connect} && exit 0");
        let words = ["run", "--control", &socket, "--learn", &learnt];
        let words: Vec<_> = [&words[..], &network, &["--", "bash", "-c", &script]].concat();
        let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
        assert_eq!(brodo.line(), "open");
        // A flow is learnt when it has ended, which the engine reports in its own time.
        let rule = format!("\"tcp://db.example:{port}\", # 1 flow,");
        eventually("the policy has the first flow", || {
            let (status, text, errors) = asked(user, &socket, &["policy", "learn", "--wildcards", "3"]);
            assert_eq!(status, Some(0), "{errors}");
            text.contains(&rule)
        });
        // The learnt rules go on to another program.
        let (status, out, errors) = asked(user, &socket, &["upgrade"]);
        assert!(status == Some(0), "{out}{errors}");
        drop(brodo.take_stdin());
        assert_eq!(brodo.status(), Some(0));
        let text = fs::read_to_string(&learnt).expect("a policy");
        assert!(text.contains(&format!("\"tcp://db.example:{port}\", # 2 flows")), "{text}");
        let enforced = [&network[..], &["--policy", &learnt, "--policy-fail"]].concat();
        assert_eq!(run(user, &enforced, &format!("{connect} && exit 0")), (Some(0), String::new()));
        let elsewhere = format!("(: </dev/tcp/192.0.2.1/{port}) 2>/dev/null");
        assert_eq!(run(user, &enforced, &elsewhere).0, Some(122));
        // The policy in force is not replaced by what is learnt under it.
        let (status, errors) = run(user, &[&enforced[..], &["--learn", &learnt]].concat(), "true");
        assert!(status == Some(2) && errors.contains("would replace the policy"), "{errors}");
    }
}

/// | 53 | a full disk beneath the audit log | with `--audit-required` new flows are refused and open ones
/// end; with and without, the log has the number of lost decisions once there is room |
#[test]
fn attempt_53_a_log_goes_on_when_the_disk_has_room() {
    for &user in users() {
        for required in [true, false] {
            let folder = Folder::new(&format!("policy-room-{user:?}"));
            let (disk, log) = (folder.path("disk"), folder.path("log"));
            fs::create_dir(&disk).expect("a folder");
            let port = serve_until_end();
            let rule = format!("10.0.2.2:{port}");
            // A disk of five pages in a mount namespace: the guest fills all of them but those that the log
            // has, and is refused as often as gives lines of 25 KiB.
            let guest = format!(
                "exec 3<>/dev/tcp/10.0.2.2/{port}; head -c 100000 /dev/zero >{disk}/filler 2>/dev/null; \
                 for n in $(seq 100 199); do (: </dev/tcp/10.0.2.2/$n) 2>/dev/null; done; \
                 until grep -q 'lacks records from now on' {log}; do sleep 0.05; done; \
                 (: </dev/tcp/10.0.2.2/{port}) 2>/dev/null && echo open || echo refused; \
                 rm {disk}/filler; (: </dev/tcp/10.0.2.2/200) 2>/dev/null; sleep 1.5; \
                 (: </dev/tcp/10.0.2.2/{port}) 2>/dev/null && echo open || echo refused"
            );
            let audit = if required { "--audit-required" } else { "" };
            let script = format!(
                "mount -t tmpfs -o size=20k none {disk} && {} run --log-file {log} --audit {disk}/audit {audit} \
                 --map-host-loopback 10.0.2.2 --allow {rule} -- bash -c \"$0\"; echo status $?; cat {disk}/audit",
                program_str()
            );
            let own = if user == User::Root { "-m" } else { "-rm" };
            let output = user.command(&["unshare", own, "bash", "-c", &script, &guest]).output();
            let output = output.expect("unshare runs");
            let (out, log) = (text(&output), fs::read_to_string(&log).unwrap_or_default());
            let verdict = if required { "refused" } else { "open" };
            let rest = out.strip_prefix(&format!("{verdict}\n{verdict}\nstatus 0\n"));
            let rest = rest.unwrap_or_else(|| panic!("{user:?} {required} {out} {log} {output:?}"));
            let lines = json_lines(rest);
            let sum = |key: &str| lines.iter().filter_map(|line| line[key].as_u64()).sum::<u64>();
            // The one that was open, a hundred that were not, three later ones; with a lockdown its line, and
            // the end of the open one.
            let decisions = 104 + if required { 2 } else { 0 };
            let changes = lines.iter().filter(|line| line["stage"] == "policy").count() as u64;
            assert_eq!(sum("count") + sum("lost") + changes, decisions, "{rest}");
            assert!(sum("lost") > 50, "{rest}");
            assert!(log.contains("audit goes on: it lacks "), "{log}");
        }
    }
}

#[test]
fn attempt_53_an_audit_log_that_cannot_be_written() {
    for &user in users() {
        for required in [true, false] {
            let folder = Folder::new(&format!("policy-full-{user:?}"));
            let socket = folder.path("socket");
            let port = serve_until_end();
            let script = SCRIPT.replace("PORT", &port.to_string());
            let script = if required { script } else { script.replace("read -r answer <&3; echo over;", "") };
            let (rule, log) = (format!("10.0.2.2:{port}"), folder.path("log"));
            let words = ["run", "--control", &socket, "--map-host-loopback", "10.0.2.2", "--allow", &rule];
            let audit: &[&str] = &["--log-file", &log, "--audit", "/dev/full", "--audit-required"];
            let audit = &audit[..if required { 5 } else { 4 }];
            let words = [&words[..], audit, &["--", "bash", "-c", &script]].concat();
            let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()).stderr(Stdio::null()));
            assert_eq!(brodo.line(), "up");
            // The first decision is written within a second, and ends the connection that it is about.
            if required {
                assert_eq!(brodo.line(), "over");
            }
            let logged = || fs::read_to_string(&log).unwrap_or_default();
            eventually("a warning", || logged().contains("audit log /dev/full lacks records from now on"));
            let shown = &json(user, &socket, &["policy", "show"])[0];
            assert_eq!(shown["lockdown"], required);
            writeln!(brodo.stdin(), "try").expect("it reads");
            assert_eq!(brodo.line(), if required { "refused" } else { "open" });
            let (status, _, errors) = asked(user, &socket, &["policy", "lockdown", "--off"]);
            assert_eq!(status != Some(0), required, "{errors}");
            assert!(!required || errors.contains("audit log is required"), "{errors}");
        }
    }
}

/// | 56 | brodo killed; an empty policy file; an unknown key, an unknown preset, a missing file | nothing
/// leaves; everything is refused; the start fails |
#[test]
fn attempt_56_without_brodo_or_rules_nothing_leaves() {
    for &user in users() {
        let folder = Folder::new(&format!("policy-none-{user:?}"));
        let file = |name: &str, text: &str| {
            let path = folder.path(name);
            fs::write(&path, text).expect("a file");
            path
        };
        let (empty, wrong) = (file("empty.toml", ""), file("wrong.toml", "version = 1\nalow = []"));
        let connect =
            "(: </dev/tcp/10.0.2.2/9) 2>/dev/null; (: </dev/tcp/192.0.2.1/80) 2>/dev/null || exit 3";
        let (status, errors) = run(user, &["--map-host-loopback", "10.0.2.2", "--policy", &empty], connect);
        assert_eq!((status, errors.as_str()), (Some(3), ""));
        let uses = file("uses.toml", "version = 1\nuse = [\"no-such.toml\"]");
        for policy in [wrong.as_str(), "@no-such-preset", "/no/such/file", uses.as_str()] {
            let (status, errors) = run(user, &["--policy", policy], "echo started >&2");
            assert_eq!(status, Some(2), "{policy}: {errors}");
            assert!(!errors.contains("started") && !errors.is_empty(), "{policy}: {errors}");
        }
        // The namespace outlives brodo, and has no way out.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let script = format!(
            "sleep 1000 & ip -o link | wc -l; (: </dev/tcp/10.0.2.2/{port}) && echo open; echo $!; wait"
        );
        let words = ["run", "--map-host-loopback", "10.0.2.2", "--", "bash", "-c", &script];
        let mut brodo = Running::start(&mut user.brodo(&words));
        // lo, eth0, and the way beside it.
        assert_eq!([brodo.line(), brodo.line()], ["3", "open"]);
        let inside = brodo.line();
        brodo.kill("KILL");
        let links = || {
            let own: &[&str] = if is_root() { &[] } else { &["--preserve-credentials", "-U"] };
            let words = [&["nsenter"], own, &["-n", "-t", &inside, "ip", "-o", "link"]].concat();
            text(&Command::new(words[0]).args(&words[1..]).output().expect("it starts")).lines().count()
        };
        eventually("the interfaces are gone", || links() == 1);
        let _ = Command::new("kill").arg(&inside).status();
    }
}

/// The engine: the child of the keeper, which is a child of brodo's.
fn engine_of(brodo: u32) -> u32 {
    let children = |of: u32| -> Vec<u32> {
        let list = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
        list.split_whitespace().filter_map(|id| id.parse().ok()).collect()
    };
    let name = |of: u32| fs::read_to_string(format!("/proc/{of}/comm")).unwrap_or_default();
    let all: Vec<_> = children(brodo).into_iter().flat_map(children).collect();
    all.into_iter().find(|&id| name(id).trim() == "brodo-engine").expect("an engine")
}
