//! The audit log against the flow log of the same guest: every decision about a flow stands in both, with the
//! same number, and lines are numbered without a gap.

use crate::support::{Folder, Running, User, json, json_lines, users};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::process::Stdio;
use std::thread;

/// Connections that no rule allows.
const REFUSED: u64 = 300;

fn lines(path: &str) -> Vec<Value> {
    json_lines(&fs::read_to_string(path).expect("a log"))
}

/// Verdict, reason and destination.
type Key = (String, String, String);
/// Number of decisions, and the guest's sides that they are said to be about.
type Decisions = BTreeMap<Key, (u64, BTreeSet<String>)>;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Decisions about openings, as the audit log has them.
fn audited(lines: &[Value]) -> Decisions {
    let mut decisions = Decisions::new();
    for line in lines.iter().filter(|line| line["stage"] == "open" && line["protocol"] == "tcp") {
        let reason = text(&line["reason"]).trim_start_matches("allow ").to_owned();
        let reason = if line["verdict"] == "allow" { String::new() } else { reason };
        let entry = decisions.entry((text(&line["verdict"]), reason, text(&line["remote"]))).or_default();
        entry.0 += line["count"].as_u64().expect("a number");
        entry.1.insert(text(&line["guest"]));
    }
    decisions
}

/// The same, as they follow from the flow log.
fn flowed(lines: &[Value]) -> Decisions {
    let mut decisions = Decisions::new();
    for line in lines.iter().filter(|line| line["protocol"] == "tcp") {
        let verdict = if line["cause"] == "denied" { "deny" } else { "allow" };
        let entry =
            decisions.entry((verdict.to_owned(), text(&line["rule"]), text(&line["remote"]))).or_default();
        entry.0 += 1;
        entry.1.insert(text(&line["guest"]));
    }
    decisions
}

struct Logs {
    audit: Vec<Value>,
    /// Lines of changes of the policy, which are among the former in the file.
    changes: Vec<Value>,
    /// Hash of the policy in force at the end.
    hash: Value,
    flows: Vec<Value>,
}

/// A guest that connects by name, is refused elsewhere, and loses an open connection to a change.
fn logs_of(user: User) -> Logs {
    let folder = Folder::new(&format!("audit-{user:?}"));
    let (socket, audit, flows) = (folder.path("socket"), folder.path("audit"), folder.path("flows"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its number").port();
    // Connections are held.
    thread::spawn(move || listener.incoming().flatten().collect::<Vec<_>>());
    let rule = format!("tcp://db.example:{port}");
    let script = format!(
        "for n in 1 2 3; do (: </dev/tcp/db.example/{port}); done; \
         for ((n = 0; n < {REFUSED}; n++)); do (: </dev/tcp/10.0.2.2/$((n % 3 + 9))) 2>/dev/null; done; \
         exec 3<>/dev/tcp/db.example/{port}; echo up; read -r line; read -r answer <&3; echo over"
    );
    let names = ["--map-host-loopback", "10.0.2.2", "--host-name", "db.example=10.0.2.2"];
    let logs = ["--control", &socket, "--allow", &rule, "--audit", &audit, "--flow-log", &flows];
    let words = [&["run"][..], &names, &logs, &["--", "bash", "-c", &script]].concat();
    let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
    assert_eq!(brodo.line(), "up");
    let empty = folder.path("empty.toml");
    fs::write(&empty, "version = 1").expect("a file");
    let set = json(user, &socket, &["policy", "set", &empty]);
    assert_eq!(set[0]["generation"], 2);
    writeln!(brodo.stdin(), "go on").expect("it reads");
    assert_eq!(brodo.line(), "over");
    assert_eq!(brodo.status(), Some(0));
    let all = lines(&audit);
    let numbers: Vec<u64> = all.iter().filter_map(|line| line["seq"].as_u64()).collect();
    assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>(), "no gap, and nothing lost");
    let (changes, audit) = all.into_iter().partition(|line| line["stage"] == "policy");
    Logs { audit, changes, hash: set[0]["hash"].clone(), flows: lines(&flows) }
}

#[test]
fn every_line_of_the_audit_log_is_true_and_none_is_missing() {
    for &user in users() {
        let Logs { audit, changes, hash, flows } = logs_of(user);
        let [change] = &changes[..] else { panic!("one change: {changes:?}") };
        assert_eq!((&change["change"], &change["gen"]), (&"replaced".into(), &2.into()));
        assert_eq!(change["after"], hash);
        assert!(change["before"] != hash && change["before"].is_string(), "{change}");
        assert!(change["pid"].is_u64() && change["uid"].is_u64(), "{change}");
        let (said, happened) = (audited(&audit), flowed(&flows));
        let counts =
            |of: &Decisions| of.iter().map(|(key, value)| (key.clone(), value.0)).collect::<Vec<_>>();
        assert_eq!(counts(&said), counts(&happened));
        for (key, (_, guests)) in &said {
            assert!(guests.is_subset(&happened[key].1), "{key:?}: a flow that was");
        }
        let refused = said.iter().filter(|((verdict, ..), _)| verdict == "deny").map(|(_, (count, _))| count);
        assert_eq!(refused.sum::<u64>(), REFUSED);
        for line in &audit {
            let has_ended = line["stage"] == "end";
            assert_eq!(line["gen"], if has_ended { 2 } else { 1 }, "{line}");
            // The second policy names nothing, so no address holds for a name under it.
            let pinned = if has_ended { Value::Null } else { serde_json::json!(["db.example"]) };
            assert_eq!(line["pinned"], pinned, "{line}");
            let rule = text(&line["reason"]).strip_prefix("allow ").map_or(Value::Null, Value::from);
            assert_eq!(line["rule"], rule, "{line}");
        }
        let ends: Vec<_> = audit.iter().filter(|line| line["stage"] == "end").collect();
        let [end] = ends[..] else { panic!("equal ends are one line: {ends:?}") };
        let changed: Vec<_> = flows.iter().filter(|line| line["cause"] == "policy-changed").collect();
        assert_eq!(end["count"], changed.len(), "the server holds the earlier connections too");
        assert!(changed.iter().all(|flow| flow["remote"] == end["remote"]));
        assert!(changed.iter().any(|flow| flow["guest"] == end["guest"]));
        assert_eq!((&end["verdict"], &end["reason"]), (&"deny".into(), &"policy default".into()));
    }
}
