//! Upgrades in place of a real brodo: to its own program, and to programs that cannot go on.

use crate::store::keeper_of;
use crate::support::{
    Folder, Running, User, asked, echo, eventually, free_port, json, kill, lives, program_str, serve, users,
};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

/// A guest with one connection, used for each line of its input; its exit status is 9.
const SCRIPT: &str = "exec 3<>/dev/tcp/10.0.2.2/PORT; echo up; \
    while read -r line; do echo $line >&3 && read -r answer <&3 && echo $answer || echo broken; done; exit 9";

/// A guest that listens at a hundred ports and counts the round trips on one connection until its input ends:
/// the longest time between two in milliseconds.
const PING_PONG: &str = r#"
import select, socket, sys, time
ports = [socket.create_server(("", port)) for port in range(1, 101)]
peer = socket.create_connection(("10.0.2.2", int(sys.argv[1])))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print("up", flush=True)
longest, long, last = 0, 0, time.monotonic()
while not select.select([0], [], [], 0)[0]:
    peer.sendall(b"x\n")
    assert peer.recv(2) == b"x\n"
    now = time.monotonic()
    longest, long, last = max(longest, now - last), long + (now - last > 1.5), now
print(int(longest * 1000), long)
"#;

/// Upgrades while ports are refused, and the time from one to the next, after which the scans of the engines
/// (every 400 ms) have another phase.
const UPGRADES: usize = 20;
const INTERVAL: Duration = Duration::from_millis(90);

struct Bed {
    folder: Folder,
    socket: String,
    user: User,
    brodo: Running,
}

fn bed(user: User, name: &str, options: &[&str]) -> Bed {
    bed_by(user, name, options, &[])
}

/// The same with the words of a program that executes brodo.
fn bed_by(user: User, name: &str, options: &[&str], wrapper: &[&str]) -> Bed {
    let folder = Folder::new(&format!("upgrade-{name}-{user:?}"));
    let (socket, errors) = (folder.path("socket"), folder.path("errors"));
    let script = SCRIPT.replace("PORT", &serve(echo).to_string());
    let first = [program_str(), "run", "--control", &socket, "--map-host-loopback", "10.0.2.2"];
    let words: Vec<_> = [wrapper, &first, options, &["--", "bash", "-c", &script]].concat();
    let errors = fs::File::create(errors).expect("a file");
    let mut brodo = Running::start(user.command(&words).stdin(Stdio::piped()).stderr(errors));
    assert_eq!(brodo.line(), "up");
    Bed { folder, socket, user, brodo }
}

impl Bed {
    /// The connection still carries a line each way.
    fn echoes(&mut self, text: &str) {
        writeln!(self.brodo.stdin(), "{text}").expect("it reads");
        assert_eq!(self.brodo.line(), text);
    }

    fn status(&self) -> Value {
        json(self.user, &self.socket, &["status"]).remove(0)
    }

    fn upgrade(&self) {
        let (status, out, errors) = asked(self.user, &self.socket, &["upgrade"]);
        assert!(status == Some(0) && out.contains("pause"), "{out}{errors}");
    }

    fn end(&mut self) {
        drop(self.brodo.take_stdin());
        assert_eq!(self.brodo.status(), Some(9), "exit status of the command");
        assert!(!fs::exists(&self.socket).expect("a folder"), "the control socket is removed");
    }
}

#[test]
fn the_command_and_all_that_was_asked_for_go_on() {
    for &user in users() {
        let log = std::env::temp_dir().join(format!("brodo-upgrade-flows-{user:?}-{}", std::process::id()));
        let _ = fs::remove_file(&log);
        let metrics = "127.0.0.1:0";
        let mut bed = bed(user, "same", &["--metrics", metrics, "--flow-log", log.to_str().expect("UTF-8")]);
        let capture = bed.folder.path("capture");
        let free = free_port();
        json(user, &bed.socket, &["forward", "add", "-t", &format!("127.0.0.1/{free}")]);
        json(user, &bed.socket, &["capture", "start", &capture]);
        let forwards = json(user, &bed.socket, &["forward"]);
        let before = bed.status();
        bed.echoes("one");
        bed.upgrade();
        bed.echoes("two");
        bed.upgrade();
        bed.echoes("three");
        let after = bed.status();
        for same in ["pid", "target", "interface", "flows", "confinement", "crashes"] {
            assert_eq!(before[same], after[same], "{same}");
        }
        assert_eq!((&before["upgrades"], &after["upgrades"]["count"]), (&Value::Null, &2.into()));
        assert_eq!(json(user, &bed.socket, &["forward"]), forwards);
        assert!(TcpListener::bind(("127.0.0.1", free)).is_err(), "the port is published");
        let size = || fs::metadata(&capture).expect("a capture").len();
        let earlier = size();
        bed.echoes("four");
        eventually("the capture goes on", || size() > earlier);
        let stopped = json(user, &bed.socket, &["capture", "stop"]).remove(0);
        assert!(stopped["frames"].as_u64() > Some(8), "frames before the upgrades count: {stopped}");
        bed.end();
        let lines = fs::read_to_string(&log).expect("a flow log");
        assert_eq!(lines.lines().count(), 1, "one connection: {lines}");
        let _ = fs::remove_file(&log);
    }
}

/// The engine before has ended with its keeper, and no process has waited for it.
#[test]
fn processor_time_never_falls() {
    for &user in users() {
        let mut bed = bed(user, "time", &[]);
        let used_us = |bed: &Bed| {
            let status = bed.status();
            ["cpu_user_us", "cpu_system_us"].map(|time| status[time].as_u64().expect("a number")).iter().sum()
        };
        let first: u64 = used_us(&bed);
        let mut last = first;
        // More than the next engine uses until it is asked.
        while last < first + 300_000 {
            for _ in 0..500 {
                bed.echoes("x");
            }
            last = used_us(&bed);
        }
        for _ in 0..2 {
            bed.upgrade();
            let now = used_us(&bed);
            assert!(now >= last, "{user:?}: {last} us, and {now} us after an upgrade");
            last = now;
        }
        bed.end();
    }
}

#[test]
fn twenty_upgrades_and_a_signal_leave_no_process_and_no_descriptor_behind() {
    let Some(&user) = users().last() else { return };
    let mut bed = bed(user, "many", &[]);
    let pid = bed.brodo.id();
    let held = || {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("a process");
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").count();
        [text.split_whitespace().count(), descriptors]
    };
    bed.upgrade();
    let first = held();
    for round in 2..=20 {
        bed.upgrade();
        bed.echoes(&round.to_string());
    }
    assert_eq!(bed.status()["upgrades"]["count"].as_u64(), Some(20));
    // A client's connection is closed a moment after it.
    eventually("nothing more is held", || {
        let now = held();
        now[0] == first[0] && now[1] <= first[1]
    });
    // It goes to brodo alone, not to the command.
    bed.brodo.kill("USR2");
    eventually("the signal upgrades", || {
        let (status, out, _) = asked(user, &bed.socket, &["status", "--json"]);
        status == Some(0) && out.contains("\"count\":21")
    });
    bed.echoes("last");
    bed.end();
}

/// Both engines ask for listening sockets while the warden waits for a word of theirs: the one before, whose
/// scan falls between, and the one after, whose first turn scans.
#[test]
fn ports_that_the_host_refuses_hold_no_upgrade_up() {
    if users().is_empty() {
        return;
    }
    // The guest's root may listen at low ports, the user who has started brodo may not.
    let user = User::Ordinary;
    let folder = Folder::new("upgrade-refused");
    let (socket, errors) = (folder.path("socket"), fs::File::create(folder.path("errors")).expect("a file"));
    let port = serve(echo).to_string();
    let options = ["--control", &socket, "--map-host-loopback", "10.0.2.2", "-t", "auto"];
    let words = [&["run"], &options[..], &["--", "/usr/bin/python3", "-c", PING_PONG, &port]].concat();
    let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()).stderr(errors));
    assert_eq!(brodo.line(), "up");
    for _ in 0..UPGRADES {
        let (status, out, errors) = asked(user, &socket, &["upgrade"]);
        assert_eq!(status, Some(0), "{out}{errors}");
        thread::sleep(INTERVAL);
    }
    drop(brodo.take_stdin());
    let line = brodo.line();
    let (longest, long) = line.split_once(' ').expect("two numbers");
    eprintln!("the longest pause took {longest} ms");
    // An engine that waits for the warden waits for two seconds, in each upgrade; a busy machine makes single
    // pauses long.
    let long: usize = long.parse().expect("a number");
    assert!(long < UPGRADES / 2, "{long} pauses of more than a second and a half");
    assert_eq!(brodo.status(), Some(0));
}

/// Readers that end with the last writer, as `cat` does, would not be there for the next program.
#[test]
fn logs_that_are_pipes_go_on() {
    for &user in users() {
        let folder = Folder::new(&format!("pipes-{user:?}"));
        let script =
            "for n in flows log; do mkfifo $n; (cat $n >$n.read; : >$n.over) & done; echo ready; wait";
        let mut readers = Running::start(
            user.command(&["sh", "-c", script]).current_dir(folder.path("")).stdin(Stdio::null()),
        );
        assert_eq!(readers.line(), "ready");
        let (flows, log) = (folder.path("flows"), folder.path("log"));
        let mut bed = bed(user, "pipes", &["-v", "--flow-log", &flows, "--log-file", &log]);
        for n in 0..3 {
            bed.upgrade();
            bed.echoes(&n.to_string());
        }
        bed.end();
        assert_eq!(readers.status(), Some(0));
        let read = |name: &str| fs::read_to_string(folder.path(name)).expect("its reader has ended");
        assert!(read("flows.read").contains("10.0.2.2"), "{}", read("flows.read"));
        assert!(read("log.read").contains("tcp_opened 1"), "{}", read("log.read"));
    }
}

#[test]
fn a_program_that_cannot_go_on_changes_nothing() {
    let Some(&user) = users().last() else { return };
    let mut bed = bed(user, "wrong", &[]);
    let (place, pid) = (bed.folder.path(""), bed.brodo.id());
    let script = |name: &str, text: &str| {
        let path = format!("{place}{name}");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its own file");
        path
    };
    // Processes that a wrong program leaves behind have the TAP and all sockets of brodo's.
    let left = |name: &str| place.clone() + name;
    let leaves = |name: &str| format!("sleep 1000 & echo $! > {}", left(name));
    let wrong = [
        (script("fails", "exit 3"), "it ended (exit status: 3)"),
        (script("forks", &format!("{}; wait", leaves("forked"))), "did not answer in time"),
        (script("ends", &format!("{}; exit 3", leaves("orphan"))), "it ended (exit status: 3)"),
        (script("babbles", &format!("{}; echo garbage >&0; wait", leaves("child"))), "says something else"),
        (script("hangs", "exec sleep 100"), "did not answer in time"),
        (script("lies", "echo garbage >&0; sleep 100"), "says something else"),
        (
            script("steals", &format!("echo '{{\"version\":\"1\",\"keeper\":{pid}}}' >&0")),
            "says something else",
        ),
        ("/nothing/there".to_owned(), "No such file or directory"),
        ("/etc/passwd".to_owned(), "no executable file"),
    ];
    for (program, why) in wrong {
        let (status, _, errors) = asked(user, &bed.socket, &["upgrade", "--to", &program]);
        assert!(status == Some(1) && errors.contains(why), "{program}: {errors}");
        bed.echoes(&program);
        let upgrades = bed.status()["upgrades"].clone();
        assert_eq!(upgrades["count"], 0, "{upgrades}");
        assert!(upgrades["failure"]["reason"].as_str().is_some_and(|text| text.contains(why)), "{upgrades}");
    }
    for name in ["forked", "orphan", "child"] {
        let process = fs::read_to_string(left(name)).expect("its number").trim().parse().expect("a number");
        eventually("the child of a wrong program has ended", || !lives(process));
    }
    // A program that only stands before brodo is brodo.
    let wrapper = script("wrapper", &format!("exec {} \"$@\"", program_str()));
    let (status, _, errors) = asked(user, &bed.socket, &["upgrade", "--to", &wrapper]);
    assert_eq!(status, Some(0), "{errors}");
    assert_eq!(bed.status()["upgrades"]["failure"], Value::Null);
    bed.echoes("right");
    bed.end();
}

#[test]
fn a_failure_after_an_upgrade_leaves_no_pid_file() {
    let Some(&user) = users().last() else { return };
    let folder = Folder::new("upgrade-pid-file");
    let path = folder.path("pid");
    let mut bed = bed(user, "pid", &["--pid-file", &path]);
    bed.upgrade();
    assert_eq!(fs::read_to_string(&path).expect("it stays"), format!("{}\n", bed.brodo.id()));
    kill(keeper_of(bed.brodo.id()), "KILL");
    assert_eq!(bed.brodo.status(), Some(125));
    assert!(!fs::exists(&path).expect("a folder"), "it is removed");
}

/// Root without CAP_KILL may not end the engine, which is an ordinary user's: an upgrade could not be undone.
#[test]
fn without_the_right_to_end_the_engine_no_upgrade_begins() {
    if !users().iter().any(|user| matches!(user, User::Root)) {
        return;
    }
    let wrapper = ["setpriv", "--bounding-set", "-kill", "--inh-caps", "-kill"];
    let mut bed = bed_by(User::Root, "kill", &[], &wrapper);
    let (status, _, errors) = asked(bed.user, &bed.socket, &["upgrade"]);
    assert!(status == Some(1) && errors.contains("CAP_KILL"), "{errors}");
    bed.echoes("goes on");
    bed.end();
}
