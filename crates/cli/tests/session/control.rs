//! The control socket of a real brodo, from another process: answers, the flow log, refusals, a guest's among
//! them.

use crate::support::{
    Folder, Running, User, asked, eventually, is_root, json, json_lines, kill, program_str, text, users,
};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;

/// A guest with three connections to `port` of the host: one open, one ended, one refused. At the word
/// `close` the open one ends, at any other one more is refused; an empty line ends the guest.
fn script(port: u16) -> String {
    format!(
        "exec 3<>/dev/tcp/10.0.2.2/{port}; echo held >&3; read -r answer <&3; \
         exec 4<>/dev/tcp/10.0.2.2/{port}; echo over >&4; read -r answer <&4; exec 4>&-; \
         refused() {{ (: </dev/tcp/169.254.169.254/80) 2>/dev/null; }}; refused; \
         echo up; while read -r word && [ -n \"$word\" ]; do \
         [ $word = close ] && exec 3>&- || refused; done; exit 0"
    )
}

/// Answers each line with `answer`, connection after connection; keeps the first, so that it stays open.
fn answer(listener: &TcpListener) -> Vec<TcpStream> {
    let streams = (0..2).map(|_| {
        let (mut stream, _) = listener.accept().expect("the guest connects");
        let mut byte = [0];
        while stream.read(&mut byte).expect("bytes") == 1 && byte != *b"\n" {}
        stream.write_all(b"answer\n").expect("it listens");
        stream
    });
    let mut streams: Vec<_> = streams.collect();
    streams.truncate(1);
    streams
}

struct Bed {
    folder: Folder,
    socket: String,
    log: String,
    brodo: Running,
    _held: Vec<TcpStream>,
    port: u16,
}

fn bed(user: User, name: &str) -> Bed {
    let folder = Folder::new(&format!("{name}-{user:?}"));
    let (socket, log) = (folder.path("socket"), folder.path("log"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its number").port();
    let script = script(port);
    let words = [
        "run",
        "--control",
        &socket,
        "--flow-log",
        &log,
        "--map-host-loopback",
        "10.0.2.2",
        "--",
        "bash",
        "-c",
        &script,
    ];
    let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
    let held = answer(&listener);
    assert_eq!(brodo.line(), "up");
    Bed { folder, socket, log, brodo, _held: held, port }
}

#[test]
fn an_instance_reports_its_status_and_flows() {
    for &user in users() {
        let Bed { folder: _folder, socket, log, mut brodo, port, _held } = bed(user, "tells");
        eventually("the second is over", || json(user, &socket, &["status"])[0]["flows"] == 1);
        let status = &json(user, &socket, &["status"])[0];
        assert_eq!(status["command"], "run", "{status}");
        assert_eq!(status["networks"][0]["address"], "10.0.2.15");
        assert!(status["target"].as_str().is_some_and(|target| target.starts_with("bash -c")));
        let flows = json(user, &socket, &["flows", "--protocol", "tcp"]);
        assert_eq!(flows.len(), 1, "{flows:?}");
        let flow = &flows[0];
        assert_eq!(flow["remote"], format!("10.0.2.2:{port}"));
        assert_eq!((&flow["from_guest"]["bytes"], &flow["to_guest"]["bytes"]), (&5.into(), &7.into()));
        assert_eq!((&flow["state"], &flow["direction"]), (&"established".into(), &"outbound".into()));
        assert_eq!(flow["tcp"]["to_guest"]["limited_by"], "application");
        assert!(flow["remote_rtt_us"].as_u64().is_some_and(|us| us > 0), "{flow}");
        let id = flow["id"].as_str().expect("a handle");
        assert_eq!(&json(user, &socket, &["flows", id])[0]["flow"]["id"], id);
        assert!(json(user, &socket, &["flows", "--port", "9"]).is_empty());
        let counters = &json(user, &socket, &["counters"])[0];
        assert_eq!(counters["counters"]["tcp_opened"], 2, "{counters}");
        assert_eq!(counters["rules"]["floor link-local"], 1, "{counters}");
        let (_, table, _) = asked(user, &socket, &["flows"]);
        assert!(table.contains("LIMITED BY") && table.contains(&format!("10.0.2.2:{port}")), "{table}");

        brodo.stdin().write_all(b"\n").expect("it reads");
        assert_eq!(brodo.status(), Some(0));
        let lines = fs::read_to_string(&log).expect("a flow log");
        let ends = json_lines(&lines);
        let causes: Vec<_> = ends.iter().map(|end| end["cause"].as_str().expect("a cause")).collect();
        let denied = ends.iter().find(|end| end["cause"] == "denied").expect("the refused one");
        assert_eq!(denied["remote"], "169.254.169.254:80");
        assert_eq!(denied["rule"], "floor link-local");
        for end in ends.iter().filter(|end| end["cause"] != "denied") {
            assert_eq!(
                (&end["from_guest"]["bytes"], &end["to_guest"]["bytes"]),
                (&5.into(), &7.into()),
                "{end}"
            );
        }
        assert_eq!(causes.len(), 3, "{lines}");
        assert!(causes.contains(&"finished"), "{lines}");
        assert!(!fs::exists(&socket).expect("a folder"), "the socket is gone");
    }
}

#[test]
fn a_capture_can_be_started_and_stopped_and_events_are_reported() {
    for &user in users() {
        let Bed { folder, socket, mut brodo, _held: held, port, .. } = bed(user, "changes");
        eventually("the second is over", || json(user, &socket, &["status"])[0]["flows"] == 1);
        let file = folder.path("capture");
        let started =
            &json(user, &socket, &["capture", "start", &file, "tcp", "and", "not", "port", "22"])[0];
        assert_eq!(started["file"].as_str(), Some(file.as_str()));
        let (status, _, errors) = asked(user, &socket, &["capture", "start", &file]);
        assert_eq!(status, Some(1));
        assert!(errors.contains("is under way: stop it first"), "{errors}");
        let reported = folder.path("events");
        let words = ["events", "--json", "--instance", &socket, "flow_ended"];
        let into_file = ["sh", "-c", "exec \"$@\" > \"$0\"", &reported, program_str()];
        let mut events = Running::start(&mut user.command(&[&into_file[..], &words].concat()));
        // Nothing is reported of what ended before the subscription: something ends again and again.
        eventually("an end is reported", || {
            brodo.stdin().write_all(b"again\n").expect("it reads");
            fs::read_to_string(&reported).is_ok_and(|reported| reported.contains("169.254.169.254"))
        });
        let stopped = &json(user, &socket, &["capture", "stop"])[0];
        assert_eq!(stopped["file"].as_str(), Some(file.as_str()));
        assert!(stopped["frames"].as_u64() > Some(0), "those of the refused: {stopped}");
        assert_eq!(json(user, &socket, &["capture"]), [Value::Null]);
        brodo.stdin().write_all(b"close\n").expect("it reads");
        drop(held);
        // Not with brodo: its clients leave before its last flows end.
        let remote = format!("10.0.2.2:{port}");
        eventually("the end of the open one is reported", || {
            fs::read_to_string(&reported).is_ok_and(|reported| reported.contains(&remote))
        });
        brodo.stdin().write_all(b"\n").expect("it reads");
        assert_eq!((brodo.status(), events.status()), (Some(0), Some(0)));
        let reported = json_lines(&fs::read_to_string(&reported).expect("events"));
        assert!(reported.iter().all(|event| event["event"] == "flow_ended"), "{reported:?}");
        let flows = reported.iter().map(|event| &event["flow"]);
        let held: Vec<_> = flows.filter(|flow| flow["remote"] == remote).collect();
        let [held] = held[..] else { panic!("not one end of the held connection: {reported:?}") };
        let bytes = (&held["from_guest"]["bytes"], &held["to_guest"]["bytes"]);
        assert_eq!((bytes, &held["cause"]), ((&5.into(), &7.into()), &"finished".into()), "{held}");
        let written = fs::read(&file).expect("a capture");
        assert_eq!(written[..4], 0x0a0d_0d0a_u32.to_ne_bytes());
    }
}

#[test]
fn following_events_ends_when_their_reader_has_gone() {
    for &user in users() {
        let Bed { folder: _folder, socket, brodo: _brodo, _held, .. } = bed(user, "reader");
        let mut command = user.brodo(&["events", "--instance", &socket, "notice"]);
        let mut events = command.stdout(Stdio::piped()).spawn().expect("starts");
        // No event is due: the end of the pipe alone has to be noticed.
        drop(events.stdout.take());
        let mut status = None;
        eventually("it has ended", || {
            status = events.try_wait().expect("a child");
            status.is_some()
        });
        assert_eq!(status.and_then(|status| status.code()), Some(0));
    }
}

#[test]
fn a_missing_instance_is_named_in_a_sentence() {
    for &user in users() {
        let folder = Folder::new(&format!("none-{user:?}"));
        let (status, _, errors) = asked(user, &folder.path("nowhere"), &["status"]);
        assert_eq!(status, Some(1));
        assert!(
            errors.starts_with("brodo: cannot reach brodo at ")
                && errors.ends_with("No such file or directory\n")
        );
        let output = user.brodo(&["status", "--instance", "1"]).output().expect("brodo starts");
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "brodo: no brodo of this user with process id 1 is running\n"
        );
        let taken = folder.path("taken");
        fs::write(&taken, "text").expect("a file");
        let output = user.brodo(&["run", "--control", &taken, "--", "true"]).output().expect("brodo starts");
        assert_eq!(output.status.code(), Some(125));
        assert!(String::from_utf8_lossy(&output.stderr).contains("a file other than a socket is there"));
    }
}

#[test]
fn a_guest_is_kept_out() {
    for &user in users() {
        let folder = Folder::new(&format!("guest-{user:?}"));
        let socket = folder.path("socket");
        let script = format!("{} status --instance {socket}; echo $?", program_str());
        let words = ["run", "--control", &socket, "--", "sh", "-c", &script];
        let output = user.brodo(&words).output().expect("brodo starts");
        assert_eq!(text(&output), "1\n", "{user:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("another user namespace may not control this brodo"), "{user:?}: {errors}");
    }
}

#[test]
fn a_client_outside_of_the_pid_namespace_is_kept_out() {
    // Root may make a PID namespace without a user namespace.
    if !is_root() {
        return;
    }
    let folder = Folder::new("outside");
    let socket = folder.path("socket");
    let words = ["unshare", "--pid", "--fork", "--mount-proc", program_str(), "run", "--control", &socket];
    let command = ["--", "sh", "-c", "echo up; read -r end"];
    let mut line = User::Root.command(&[words.as_slice(), &command].concat());
    let mut brodo = Running::start(line.stdin(Stdio::piped()));
    assert_eq!(brodo.line(), "up");
    let (status, _, errors) = asked(User::Root, &socket, &["status"]);
    assert_eq!(status, Some(1));
    assert!(errors.contains("outside of brodo's PID namespace"), "{errors}");
    brodo.stdin().write_all(b"\n").expect("it reads");
    assert_eq!(brodo.status(), Some(0));
}

/// The socket is in the user's folder, under the instance's number, and clients find it there.
#[test]
fn an_instance_is_found_by_its_number() {
    for &user in users() {
        let folder = Folder::new(&format!("found-{user:?}"));
        let runtime = folder.path("runtime");
        let made = user.command(&["mkdir", "-m", "0700", &runtime]).status().expect("mkdir runs");
        assert!(made.success());
        let mut first = Running::start(
            user.brodo(&["run", "--", "sh", "-c", "echo up; read -r end"])
                .env("XDG_RUNTIME_DIR", &runtime)
                .stdin(Stdio::piped()),
        );
        assert_eq!(first.line(), "up");
        let pid = first.id().to_string();
        let words = ["status", "--json", "--instance", &pid];
        let output = user.brodo(&words).env("XDG_RUNTIME_DIR", &runtime).output().expect("brodo starts");
        let status: Value = serde_json::from_str(&text(&output)).expect("a status");
        assert_eq!(status["pid"], first.id());
        // A killed instance leaves its socket behind, and the next search removes it.
        first.kill("KILL");
        first.status();
        let dead = format!("{runtime}/brodo/{pid}.sock");
        assert!(fs::exists(&dead).expect("a folder"));
        let output = user.brodo(&words).env("XDG_RUNTIME_DIR", &runtime).output().expect("brodo starts");
        assert_eq!(output.status.code(), Some(1));
        assert!(!fs::exists(&dead).expect("a folder"));
    }
}

#[test]
fn a_choice_among_several_instances_is_one_sentence() {
    for &user in users() {
        let words = ["run", "--", "sh", "-c", "echo up; exec sleep 1000"];
        let start = || Running::start(&mut user.brodo(&words));
        let mut instances = [start(), start()];
        for instance in &mut instances {
            assert_eq!(instance.line(), "up");
        }
        for words in [&["flows"][..], &["upgrade"]] {
            let output = user.brodo(words).output().expect("brodo starts");
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            let start = "brodo: several brodos are running: choose one with --instance: ";
            assert!(errors.starts_with(start) && !errors.contains("\\n"), "{errors}");
            for instance in &instances {
                let named = format!("{} (run sh -c", instance.id());
                assert_eq!(errors.matches(&named).count(), 1, "{errors}");
            }
        }
        // One that does not answer is named, and hides no other.
        let [silent, other] = instances.each_ref().map(Running::id);
        kill(silent, "STOP");
        // Each of its threads stops when it next runs.
        let threads = || fs::read_dir(format!("/proc/{silent}/task")).into_iter().flatten().flatten();
        let state =
            |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        eventually("it has stopped", || threads().all(|thread| state(thread).contains("State:\tT")));
        let states = user.brodo(&["status"]).output().expect("brodo starts");
        let objects = user.brodo(&["status", "--json"]).output().expect("brodo starts");
        kill(silent, "CONT");
        let text = String::from_utf8_lossy(&states.stdout);
        assert!(text.lines().any(|line| line == format!("brodo {silent}: does not answer")), "{text}");
        assert!(text.contains(&format!("brodo {other}: run sh -c")), "{text}");
        let found = json_lines(&String::from_utf8_lossy(&objects.stdout));
        let of_silent = serde_json::json!({"pid": silent, "error": "does not answer"});
        assert!(found.contains(&of_silent) && found.iter().any(|it| it["pid"] == other), "{found:?}");
        assert_eq!((states.status.code(), objects.status.code()), (Some(1), Some(1)));
    }
}

/// Nothing was forwarded at the start, yet ports can be added, those of the guest's loopback among them.
#[test]
fn ports_are_added_to_an_instance_that_had_none() {
    for &user in users() {
        let folder = Folder::new(&format!("added-{user:?}"));
        let socket = folder.path("socket");
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = server.local_addr().expect("its number").port();
        let script =
            format!("echo up; read -r go; exec 3<>/dev/tcp/127.0.0.1/{port}; echo \"$go\" >&3; read -r end");
        let words = ["run", "--control", &socket, "--", "bash", "-c", &script];
        let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
        assert_eq!(brodo.line(), "up");
        let added = json(user, &socket, &["forward", "add", "-T", &port.to_string()]);
        assert_eq!(added.len(), 1, "{added:?}");
        brodo.stdin().write_all(b"through\n").expect("it reads");
        let (guest, _) = server.accept().expect("the guest connects");
        let mut line = String::new();
        BufReader::new(&guest).read_line(&mut line).expect("a line");
        assert_eq!(line, "through\n");
        brodo.stdin().write_all(b"\n").expect("it reads");
        assert_eq!(brodo.status(), Some(0));
    }
}

/// Flows that are open at the end are in the log whichever worker they belong to.
#[test]
fn the_flow_log_has_the_last_flows_of_every_worker() {
    const FLOWS: usize = 16;
    for &user in users() {
        let folder = Folder::new(&format!("last-{user:?}"));
        let (log, server) = (folder.path("log"), TcpListener::bind("127.0.0.1:0").expect("a port"));
        let port = server.local_addr().expect("its number").port();
        let script = format!(
            "for i in $(seq {FLOWS}); do exec {{fd}}<>/dev/tcp/10.0.2.2/{port}; done; echo up; read -r end"
        );
        let options = ["--workers", "2", "--flow-log", &log, "--map-host-loopback", "10.0.2.2"];
        let words = [&["run"], &options[..], &["--", "bash", "-c", &script]].concat();
        let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
        let _held: Vec<_> = (0..FLOWS).map(|_| server.accept().expect("the guest connects")).collect();
        assert_eq!(brodo.line(), "up");
        brodo.stdin().write_all(b"\n").expect("it reads");
        assert_eq!(brodo.status(), Some(0));
        let lines = fs::read_to_string(&log).expect("a flow log");
        assert_eq!(lines.lines().count(), FLOWS, "{lines}");
        for worker in ["\"0:", "\"1:"] {
            assert!(lines.contains(worker), "all connections belong to one worker: {lines}");
        }
    }
}

/// Listeners of brodo itself are not offered to the guest.
#[test]
fn auto_leaves_out_the_listener_of_metrics() {
    for &user in users() {
        let folder = Folder::new(&format!("own-{user:?}"));
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = server.local_addr().expect("its number").port();
        let script = format!(
            "until exec 3<>/dev/tcp/127.0.0.1/{port}; do sleep 0.1; done 2>/dev/null; echo up; read -r metrics; \
             if (: </dev/tcp/127.0.0.1/$metrics) 2>/dev/null; then echo reached; else echo refused; fi"
        );
        let words = ["run", "-v", "--metrics", "127.0.0.1:0", "-T", "auto", "--", "bash", "-c", &script];
        let errors = folder.path("errors");
        let file = fs::File::create(&errors).expect("a file");
        let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()).stderr(file));
        assert_eq!(brodo.line(), "up");
        // Its listener is older than the guest: the scan that found the server above has seen both.
        let mut metrics = None;
        eventually("the port of the metrics is printed", || {
            let said = fs::read_to_string(&errors).expect("a file");
            let at = said.split("http://127.0.0.1:").nth(1).and_then(|rest| rest.split_once('/'));
            metrics = at.map(|(port, _)| port.to_owned());
            metrics.is_some()
        });
        let metrics = metrics.unwrap_or_default();
        writeln!(brodo.stdin(), "{metrics}").expect("it reads");
        assert_eq!(brodo.line(), "refused");
        assert_eq!(brodo.status(), Some(0));
    }
}

/// Connections by splice and datagrams by relay, past the link: ids, traffic and ends as of any flow.
#[test]
fn spliced_and_relayed_traffic_are_flows() {
    for &user in users() {
        let folder = Folder::new(&format!("carried-{user:?}"));
        let (socket, log) = (folder.path("socket"), folder.path("log"));
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let names = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let [tcp, udp] = [server.local_addr(), names.local_addr()].map(|at| at.expect("its number").port());
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{tcp}; echo held >&3; read -r answer <&3; \
             exec 4<>/dev/udp/127.0.0.1/{udp}; echo question >&4; head -n 1 <&4; echo up; \
             read -r go; exec 3>&-; echo closed; read -r end"
        );
        let (tcp, udp) = (tcp.to_string(), udp.to_string());
        let options = ["--control", &socket, "--flow-log", &log, "-T", &tcp, "-U", &udp];
        let words = [&["run"], &options[..], &["--", "bash", "-c", &script]].concat();
        let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
        let (mut guest, _) = server.accept().expect("the guest connects");
        guest.read_exact(&mut [0; 5]).expect("a line");
        guest.write_all(b"answer\n").expect("it listens");
        let mut question = [0; 16];
        let (length, from) = names.recv_from(&mut question).expect("a datagram");
        names.send_to(&question[..length], from).expect("it listens");
        assert_eq!([brodo.line(), brodo.line()], ["question", "up"]);

        let flow = |protocol: &str| {
            let mut flows = json(user, &socket, &["flows", "--protocol", protocol]);
            assert_eq!(flows.len(), 1, "{flows:?}");
            flows.remove(0)
        };
        let bytes = |flow: &Value| {
            ["from_guest", "to_guest"].map(|way| flow[way]["bytes"].as_u64().expect("a number"))
        };
        // Progress is reported after the turn that moved the bytes.
        eventually("both ways of the splice are counted", || bytes(&flow("tcp")) == [5, 7]);
        let (splice, relay) = (flow("tcp"), flow("udp"));
        for (carrier, expected) in [("splice", vec![&splice["id"]]), ("stack", Vec::new())] {
            let flows = json(user, &socket, &["flows", "--protocol", "tcp", "--carrier", carrier]);
            assert_eq!(flows.iter().map(|flow| &flow["id"]).collect::<Vec<_>>(), expected, "{carrier}");
        }
        assert_eq!((&splice["carrier"], &splice["state"]), (&"splice".into(), &"established".into()));
        assert_eq!(splice["remote"], format!("127.0.0.1:{tcp}"), "{splice}");
        assert_eq!((&splice["direction"], &relay["direction"]), (&"outbound".into(), &"outbound".into()));
        assert_eq!((&relay["carrier"], &relay["state"]), (&"relay".into(), &"active".into()), "{relay}");
        assert_eq!(bytes(&relay), [9, 9], "{relay}");
        let id = splice["id"].as_str().expect("a handle");
        assert_eq!(json(user, &socket, &["flows", id])[0]["flow"]["id"], id);
        let (_, table, _) = asked(user, &socket, &["flows"]);
        assert!(table.contains("CARRIER") && table.contains("splice") && table.contains("relay"), "{table}");
        let counters = &json(user, &socket, &["counters"])[0]["counters"];
        assert_eq!((&counters["splice_opened"], &counters["splice_bytes"]), (&1.into(), &12.into()));
        assert_eq!((&counters["relay_opened"], &counters["relay_bytes"]), (&1.into(), &18.into()));

        brodo.stdin().write_all(b"\n").expect("it reads");
        assert_eq!(brodo.line(), "closed");
        eventually("the splice is half-closed", || flow("tcp")["state"] == "close-wait");
        drop(guest);
        eventually("the splice is over", || json(user, &socket, &["status"])[0]["flows"] == 1);
        brodo.stdin().write_all(b"\n").expect("it reads");
        assert_eq!(brodo.status(), Some(0));
        let lines = fs::read_to_string(&log).expect("a flow log");
        let ends = json_lines(&lines);
        let shown: Vec<_> = ends.iter().map(|end| (end["carrier"].as_str(), bytes(end))).collect();
        assert_eq!(shown, [(Some("splice"), [5, 7]), (Some("relay"), [9, 9])], "{lines}");
        assert_eq!((&ends[0]["id"], &ends[0]["cause"]), (&splice["id"], &"finished".into()), "{lines}");
    }
}

/// A forward to the host's loopback is a permission past the floor, not past a rule of the user's.
#[test]
fn a_deny_rule_holds_for_ports_of_the_host() {
    for &user in users() {
        let folder = Folder::new(&format!("denied-{user:?}"));
        let (log, server) = (folder.path("log"), TcpListener::bind("127.0.0.1:0").expect("a port"));
        let port = server.local_addr().expect("its number").port().to_string();
        let script = format!("(exec 3<>/dev/tcp/127.0.0.1/{port}; read -r line <&3) 2>&-; echo status=$?");
        let options = ["--flow-log", &log, "--deny", "127.0.0.0/8", "-T", &port];
        let words = [&["run"], &options[..], &["--", "bash", "-c", &script]].concat();
        let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
        assert_eq!(brodo.line(), "status=1");
        assert_eq!(brodo.status(), Some(0));
        server.set_nonblocking(true).expect("an option");
        let reached = server.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(reached, Err(ErrorKind::WouldBlock), "the server was reached");
        let line: Value =
            serde_json::from_str(fs::read_to_string(&log).expect("a flow log").trim()).expect("one line");
        assert_eq!((&line["cause"], &line["carrier"]), (&"denied".into(), &"splice".into()), "{line}");
        assert_eq!(line["rule"], "deny 127.0.0.0/8", "{line}");
    }
}
