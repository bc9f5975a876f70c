//! Bypass attempts against a whole brodo: changes over the control socket, several workers, QUIC. Numbers are
//! those of the guide's page on policies.

use crate::support::{Folder, Running, eventually, json, json_lines, serve, users};
use brodo_sim::hello::client_hello;
use brodo_sim::quic::{Client, crypto};
use serde_json::{Value, json as value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One request over the control socket: the code of its error, or 0.
fn code_of(response: &str) -> i64 {
    let response: Value = serde_json::from_str(response).unwrap_or_else(|e| panic!("{response}: {e}"));
    assert_ne!(response.get("result").is_some(), response.get("error").is_some(), "{response}");
    response["error"]["code"].as_i64().unwrap_or_default()
}

/// Sends a line to a socket, which may not wait for it, and prints the first one of its own.
const SENDS: &str = "
import socket, sys
stream = socket.socket(socket.AF_UNIX)
stream.connect(sys.argv[1])
try: stream.sendall((sys.argv[2] + \"\\n\").encode())
except BrokenPipeError: pass
print(stream.makefile().readline().strip())
";

fn request(method: &str, params: &Value) -> String {
    value!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
}

/// | 51 | `policy.set`: malformed, for another generation, under a seal, from the guest's user namespace |
/// the old policy stands; errors -32602, 1, 6, 5 |
#[test]
fn attempt_51_changes_that_are_refused_have_their_codes() {
    for &user in users() {
        let folder = Folder::new(&format!("attempt-codes-{user:?}"));
        let socket = folder.path("socket");
        // The guest sends each of its lines to the socket.
        let script = format!("echo up; while read -r line; do python3 -c '{SENDS}' {socket} \"$line\"; done");
        let words = ["run", "--control", &socket, "--allow", "a.example", "--", "bash", "-c", &script];
        let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
        assert_eq!(brodo.line(), "up");
        let code = |method: &str, params: &Value| {
            let mut stream = UnixStream::connect(&socket).expect("it listens");
            writeln!(stream, "{}", request(method, params)).expect("it reads");
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).expect("an answer");
            code_of(&line)
        };
        let set = |text: &str| value!({"files": [{"path": "p.toml", "text": text}]});
        let file = value!({"path": "p.toml", "text": "version = 1"});
        let expecting = |generation: u64| value!({"files": [file], "expect": generation});
        let shown = || json(user, &socket, &["policy", "show"]).remove(0);
        let before = shown();
        for malformed in [
            set("version = 1\nalow = []"),
            set("version = 1\nallow = ["),
            set("version = 1\nallow = [\"*.com\", \"a b\"]"),
            set("version = 2"),
            set("\u{feff}version = 1"),
            value!({"files": []}),
            value!({"files": "version = 1"}),
            value!({"text": "version = 1"}),
            value!({}),
        ] {
            assert_eq!(code("policy.set", &malformed), -32602, "{malformed}");
        }
        for generation in [0, 2, u64::MAX] {
            assert_eq!(code("policy.set", &expecting(generation)), 1, "{generation}");
        }
        let changes = [
            ("policy.set", expecting(1)),
            ("policy.add", value!({"verdict": "allow", "rule": "b.example"})),
            ("policy.lockdown", value!({"on": false})),
            ("policy.seal", value!({})),
            ("policy.get", value!({})),
        ];
        for (method, params) in &changes {
            writeln!(brodo.stdin(), "{}", request(method, params)).expect("it reads");
            assert_eq!(code_of(&brodo.line()), 5, "{method}");
        }
        assert_eq!(shown(), before);
        assert_eq!(code("policy.seal", &value!({})), 0);
        let sealed = shown();
        for (method, params) in &changes[..3] {
            assert_eq!(code(method, params), 6, "{method}");
        }
        assert_eq!(code("policy.set", &expecting(7)), 6, "for any generation");
        assert_eq!(shown(), sealed);
        let mut expected = before;
        (expected["sealed"], expected["generation"]) = (true.into(), 2.into());
        assert_eq!(sealed, expected);
    }
}

/// Connections to each of two servers.
const DOWNLOADS: usize = 16;

/// Workers that have flows to this port. A flow that was refused has no id.
fn workers_of(flows: &[Value], port: u16) -> BTreeSet<String> {
    let to = format!(":{port}");
    let of_port = flows.iter().filter(|flow| flow["remote"].as_str().is_some_and(|it| it.ends_with(&to)));
    let worker = |flow: &Value| flow["id"].as_str()?.split(':').next().map(str::to_owned);
    of_port.filter_map(worker).collect()
}

/// | 52 | a rule that is removed, and a deny rule added, while two workers have downloads open | all of them
/// are reset before the change is answered, `policy-changed` |
#[test]
fn attempt_52_downloads_of_every_worker_end() {
    for &user in users() {
        let folder = Folder::new(&format!("attempt-downloads-{user:?}"));
        let (socket, log) = (folder.path("socket"), folder.path("flows"));
        let endless = |mut stream: TcpStream| while stream.write_all(&[7; 8192]).is_ok() {};
        let ports = [serve(endless), serve(endless)];
        let rules = ports.map(|port| format!("10.0.2.2:{port}"));
        let script = format!(
            "echo up; for port in {} {}; do for n in $(seq {DOWNLOADS}); do \
             (exec 3<>/dev/tcp/10.0.2.2/$port; cat <&3 >/dev/null 2>&1; echo over $port) & done; done; \
             wait; echo all; read -r line; exit 0",
            ports[0], ports[1]
        );
        let words = ["run", "--workers", "2", "--control", &socket, "--flow-log", &log];
        let rest = ["--map-host-loopback", "10.0.2.2", "--allow", &rules[0], "--allow", &rules[1]];
        let words = [&words[..], &rest, &["--", "bash", "-c", &script]].concat();
        let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
        assert_eq!(brodo.line(), "up");
        let flows = || json(user, &socket, &["flows"]);
        let both = BTreeSet::from(["0".to_owned(), "1".to_owned()]);
        eventually("every download runs, on both workers", || {
            let flows = flows();
            let runs = |flow: &&Value| flow["to_guest"]["bytes"].as_u64().is_some_and(|bytes| bytes > 0);
            flows.iter().filter(runs).count() == 2 * DOWNLOADS
                && ports.iter().all(|port| workers_of(&flows, *port) == both)
        });
        let kept = folder.path("kept.toml");
        fs::write(&kept, format!("version = 1\nallow = [\"{}\"]", rules[1])).expect("a file");
        json(user, &socket, &["policy", "set", &kept]);
        // They have ended before the command has.
        assert_eq!(workers_of(&flows(), ports[0]), BTreeSet::new());
        assert_eq!(flows().len(), DOWNLOADS);
        for _ in 0..DOWNLOADS {
            assert_eq!(brodo.line(), format!("over {}", ports[0]));
        }
        json(user, &socket, &["policy", "deny", &rules[1]]);
        assert_eq!(flows(), [] as [Value; 0]);
        for _ in 0..DOWNLOADS {
            assert_eq!(brodo.line(), format!("over {}", ports[1]));
        }
        assert_eq!(brodo.line(), "all");
        drop(brodo.take_stdin());
        assert_eq!(brodo.status(), Some(0));
        let text = fs::read_to_string(&log).expect("a log");
        let ended = json_lines(&text);
        let changed: Vec<Value> =
            ended.into_iter().filter(|flow| flow["cause"] == "policy-changed").collect();
        assert_eq!(changed.len(), 2 * DOWNLOADS, "{text}");
        for port in ports {
            assert_eq!(workers_of(&changed, port), both, "{text}");
        }
    }
}

/// | 54 | a quota of 50M from 64 connections on four workers | at most 50 MiB, and 64 KiB for each worker,
/// leave; all of them end, new ones are refused |
#[test]
fn attempt_54_a_quota_holds_for_all_workers_together() {
    const CONNECTIONS: usize = 64;
    const QUOTA: u64 = 50 << 20;
    const MOST: u64 = QUOTA + 4 * (64 << 10);
    for &user in users() {
        let folder = Folder::new(&format!("attempt-quota-{user:?}"));
        let (socket, log, policy) = (folder.path("socket"), folder.path("flows"), folder.path("policy.toml"));
        let arrived = Arc::new(AtomicU64::new(0));
        let counter = arrived.clone();
        let port = serve(move |mut stream| {
            let mut buffer = vec![0; 65_536];
            while let Ok(len @ 1..) = stream.read(&mut buffer) {
                counter.fetch_add(len as u64, Ordering::Relaxed);
            }
        });
        let rule = format!("version = 1\n[[rule]]\nto = [\"10.0.2.2:{port}\"]\nup = \"50M\"\n");
        fs::write(&policy, rule).expect("a file");
        let begin = folder.path("begin");
        let script = format!(
            "for n in $(seq {CONNECTIONS}); do (exec 3<>/dev/tcp/10.0.2.2/{port}; echo open; \
             until [ -e {begin} ]; do sleep 0.02; done; cat /dev/zero >&3 2>/dev/null; echo over) & done; \
             wait; \
             (: </dev/tcp/10.0.2.2/{port}) 2>/dev/null && echo open || echo refused; read -r line; exit 0"
        );
        let words = ["run", "--workers", "4", "--control", &socket, "--flow-log", &log, "--policy", &policy];
        let rest = ["--map-host-loopback", "10.0.2.2", "--", "bash", "-c", &script];
        let mut brodo = Running::start(user.brodo(&[&words[..], &rest].concat()).stdin(Stdio::piped()));
        for _ in 0..CONNECTIONS {
            assert_eq!(brodo.line(), "open");
        }
        fs::write(&begin, "").expect("a file");
        for _ in 0..CONNECTIONS {
            assert_eq!(brodo.line(), "over");
        }
        assert_eq!(brodo.line(), "refused");
        let used = json(user, &socket, &["policy", "show"])[0]["limits"][0]["used_up"].as_u64();
        let used = used.expect("a number");
        assert!((QUOTA..=MOST).contains(&used), "{used} bytes were counted, {} too many", used - QUOTA);
        drop(brodo.take_stdin());
        assert_eq!(brodo.status(), Some(0));
        let text = fs::read_to_string(&log).expect("a log");
        let ended = json_lines(&text);
        let cause = |cause: &str| ended.iter().filter(|flow| flow["cause"] == cause).count();
        assert_eq!(
            (cause("quota"), cause("denied"), ended.len()),
            (CONNECTIONS, 1, CONNECTIONS + 1),
            "{text}"
        );
        let left: u64 = ended.iter().filter_map(|flow| flow["from_guest"]["bytes"].as_u64()).sum();
        assert!((QUOTA..=MOST).contains(&left), "{left}");
        assert_eq!(workers_of(&ended, port).len(), 4, "{text}");
        let arrived = arrived.load(Ordering::Relaxed);
        assert!(arrived <= left && arrived > 0, "{arrived} of {left}");
    }
}

/// A client's first datagram of QUIC.
fn initial(name: &str) -> Vec<u8> {
    let hello = client_hello(name.as_bytes(), &[]);
    Client::new(&[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08])
        .datagram(1, &crypto(&hello, 0, hello.len()))
}

#[test]
fn names_of_quic_are_in_the_audit_log_as_such() {
    for &user in users() {
        let folder = Folder::new(&format!("attempt-quic-{user:?}"));
        let audit = folder.path("audit");
        let server = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let port = server.local_addr().expect("its number").port();
        for (file, name) in [("good", "db.example"), ("evil", "evil.example")] {
            fs::write(folder.path(file), initial(name)).expect("a file");
        }
        // Each from a port of its own.
        let send = |file: &str| format!("cat {} >/dev/udp/10.0.2.2/{port}", folder.path(file));
        let script = format!("{}; {}; read -r line; exit 0", send("good"), send("evil"));
        let rule = format!("quic://db.example:{port}");
        let words = ["run", "--map-host-loopback", "10.0.2.2", "--host-name", "db.example=10.0.2.2"];
        let rest = ["--allow", &rule, "--audit", &audit, "--", "bash", "-c", &script];
        let mut brodo = Running::start(user.brodo(&[&words[..], &rest].concat()).stdin(Stdio::piped()));
        let mut buffer = [0; 2000];
        let len = server.recv(&mut buffer).expect("the datagram that is allowed");
        assert_eq!(buffer[..len], initial("db.example"), "as the guest has sent it");
        let said = || fs::read_to_string(&audit).unwrap_or_default().matches("\"gate\"").count();
        eventually("both names are judged", || said() == 2);
        drop(brodo.take_stdin());
        assert_eq!(brodo.status(), Some(0));
        let text = fs::read_to_string(&audit).expect("an audit log");
        let lines = json_lines(&text);
        let gates = lines.iter().filter(|line| line["stage"] == "gate");
        let said: BTreeMap<_, _> = gates.map(|line| (line["name"].to_string(), line)).collect();
        assert_eq!(said.len(), 2, "{text}");
        for (name, verdict, reason) in [
            ("\"db.example\"", "allow", format!("allow {rule}")),
            ("\"evil.example\"", "deny", "policy name".to_owned()),
        ] {
            let line = &said[name];
            let found =
                [&line["verdict"], &line["reason"], &line["name_from"], &line["protocol"], &line["count"]];
            let expected = [verdict.into(), reason.into(), "quic".into(), "udp".into(), Value::from(1)];
            assert_eq!(found, expected.each_ref(), "{text}");
        }
        server.set_nonblocking(true).expect("a socket");
        assert!(server.recv(&mut buffer).is_err(), "nothing of the other has left");
    }
}
