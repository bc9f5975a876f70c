//! Bulk flows of a real brodo: promoted by default, taken back for each cause that a user has, and the
//! reason where they cannot be.

use crate::attach::{attaching, entering, ready, target};
use crate::support::{Folder, Running, User, asked, eventually, is_ci, json, kill, program_str, users};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// One line of a transfer.
const LINE: usize = 4096;
/// Counts equal lines that follow one another: all of them, if none is lost, sent twice or damaged.
const DOWNLOAD: &str = "exec 3<>/dev/tcp/10.0.2.2/PORT; echo up; cat <&3 | uniq -c | cut -c 1-32";

/// A server that sends lines until it is stopped.
struct Server {
    port: u16,
    lines: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (lines, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (sent, stopped) = (lines.clone(), stop.clone());
        thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            send(stream, &sent, &stopped);
        });
        Self { port, lines, stop }
    }
}

fn send(mut stream: TcpStream, sent: &AtomicU64, stopped: &AtomicBool) {
    let mut block = vec![b'x'; 16 * LINE];
    block.iter_mut().skip(LINE - 1).step_by(LINE).for_each(|byte| *byte = b'\n');
    while !stopped.load(Ordering::Relaxed) && stream.write_all(&block).is_ok() {
        sent.fetch_add(16, Ordering::Relaxed);
    }
}

/// A process whose namespaces brodo is attached to, and the program in them.
struct Elsewhere {
    target: Running,
    program: Running,
}

struct Bed {
    folder: Folder,
    socket: String,
    user: User,
    brodo: Running,
    /// Unless brodo runs the program.
    attached: Option<Elsewhere>,
    server: Server,
}

/// Options of the network, with these files.
fn network<'a>(socket: &'a str, log: &'a str) -> [&'a str; 6] {
    ["--control", socket, "--flow-log", log, "--map-host-loopback", "10.0.2.2"]
}

fn bed(user: User, name: &str, before: &str) -> Bed {
    let folder = Folder::new(&format!("bulk-{name}-{user:?}"));
    let (socket, errors) = (folder.path("socket"), folder.path("errors"));
    let server = Server::start();
    let script = DOWNLOAD.replace("PORT", &server.port.to_string());
    let errors = fs::File::create(errors).expect("a file");
    // The default, and the one that says at the start why there are none.
    let bulk: &[&str] = if before.is_empty() { &[] } else { &["--bulk", "kernel"] };
    let log = folder.path("log");
    let words = [&["run"], bulk, &network(&socket, &log), &["--", "bash", "-c", &script]].concat();
    let mut command = if before.is_empty() {
        user.brodo(&words)
    } else {
        let words: Vec<_> = [&["unshare", "-Ur", "sh", "-c", before, program_str()], &words[..]].concat();
        user.command(&words)
    };
    // Independent of the machine's speed.
    command.env("BRODO_BULK_RATE", "0");
    let mut brodo = Running::start(command.stdin(Stdio::null()).stderr(errors));
    assert_eq!(brodo.line(), "up");
    Bed { folder, socket, user, brodo, attached: None, server }
}

/// The same of a brodo that is attached to namespaces which the user has made without it.
fn attached_bed(user: User, name: &str) -> Bed {
    let folder = Folder::new(&format!("bulk-{name}-{user:?}"));
    let (socket, log) = (folder.path("socket"), folder.path("log"));
    let errors = fs::File::create(folder.path("errors")).expect("a file");
    let (server, target) = (Server::start(), target(user));
    let process = target.id().to_string();
    let mut brodo = attaching(user, &[&[process.as_str()], &network(&socket, &log)[..]].concat());
    // Independent of the machine's speed.
    let brodo = ready(brodo.env("BRODO_BULK_RATE", "0").stderr(errors));
    let script = DOWNLOAD.replace("PORT", &server.port.to_string());
    let mut program = Running::start(&mut entering(user, target.id(), &["bash", "-c", &script]));
    assert_eq!(program.line(), "up");
    Bed { folder, socket, user, brodo, attached: Some(Elsewhere { target, program }), server }
}

impl Bed {
    /// Whether there can be no kernel sockets, for a reason of this kernel's.
    fn is_unavailable(&self) -> bool {
        let status = self.client(&["status"]);
        let Some(why) = status["bulk"]["unavailable"].as_str() else { return false };
        assert!(is_of_the_kernel(why) && !is_ci(), "no kernel sockets for bulk flows: {why}");
        eprintln!("*** SKIPPED: no kernel sockets for bulk flows here: {why}");
        true
    }

    fn client(&self, words: &[&str]) -> Value {
        json(self.user, &self.socket, words).remove(0)
    }

    fn counter(&self, name: &str) -> u64 {
        self.client(&["counters"])["counters"][name].as_u64().expect("a counter")
    }

    fn is_promoted(&self) -> bool {
        let flows = json(self.user, &self.socket, &["flows", "--carrier", "kernel"]);
        flows.len() == 1 && flows[0]["state"] == "established"
    }

    /// Waits until a kernel socket moves the flow. One on trial may come back by itself, beside load.
    fn wait_promoted(&self) {
        let moved = self.counter("promoted_bytes");
        eventually("a kernel socket moves the flow", || {
            self.is_promoted() && self.counter("promoted_bytes") > moved
        });
    }

    /// Waits until the stack has the flow, for as long as it is not promoted again.
    fn wait_returned(&self) {
        let carried = || json(self.user, &self.socket, &["flows", "--carrier", "kernel"]).len();
        eventually("the flow is back", || carried() == 0);
    }

    /// Number of returns for these causes.
    fn recalled(&self, causes: &[&str]) -> u64 {
        causes.iter().map(|cause| self.counter(&format!("promotions_recalled_{cause}"))).sum()
    }

    /// Waits until the server has sent more than all buffers on the way hold.
    fn wait_transfer(&self) {
        let sent = || self.server.lines.load(Ordering::Relaxed);
        let before = sent();
        eventually("the transfer goes on", || sent() > before + 10_000);
    }

    /// Ends the transfer; every line has arrived once, and undamaged, by this carrier in the end. brodo
    /// reports `crash` alone.
    fn end(mut self, carrier: &str, crash: &str) {
        self.server.stop.store(true, Ordering::Relaxed);
        let program = self.attached.as_mut().map_or(&mut self.brodo, |attached| &mut attached.program);
        let counted = program.line();
        let (count, line) = counted.trim_start().split_once(' ').expect("a count");
        assert!(line.bytes().all(|byte| byte == b'x'), "{counted}");
        let lines = self.server.lines.load(Ordering::Relaxed);
        assert_eq!(count.parse(), Ok(lines));
        assert_eq!(program.status(), Some(0), "one kind of lines: nothing else is printed");
        if let Some(Elsewhere { target, .. }) = &self.attached {
            target.kill("KILL");
        }
        assert_eq!(self.brodo.status(), Some(0));
        let log = fs::read_to_string(self.folder.path("log")).expect("a flow log");
        let flow: Value = serde_json::from_str(log.trim()).expect("one flow");
        let moved = (flow["carrier"].as_str(), flow["to_guest"]["bytes"].as_u64());
        assert_eq!(moved, (Some(carrier), Some(lines * LINE as u64)), "{log}");
        let errors = fs::read_to_string(self.folder.path("errors")).expect("a file");
        let crashes: Vec<_> = errors.lines().filter(|line| line.contains("crashed")).collect();
        assert_eq!(crashes.join("\n"), crash, "{errors}");
    }
}

/// Whether a reason against kernel sockets is that this kernel lacks what they take, or a limit for
/// namespaces: any other one is brodo's.
fn is_of_the_kernel(why: &str) -> bool {
    let steps = ["netfilter socket", "network namespace", "veth pair", "clsact", "egress hook"];
    let errors = ["not supported", "No such file or directory", "No space left on device"];
    [&steps[..], &errors].iter().all(|some| some.iter().any(|part| why.contains(part)))
}

#[test]
fn a_download_is_promoted_and_taken_back_for_every_cause() {
    for &user in users() {
        let bed = bed(user, "causes", "");
        if bed.is_unavailable() {
            return bed.end("stack", "");
        }
        bed.wait_promoted();
        assert_eq!(bed.client(&["bulk"])["promoted"].as_u64(), Some(1));

        assert_eq!(bed.client(&["bulk", "tap"])["carrier"], "tap");
        bed.wait_returned();
        assert_eq!(bed.client(&["bulk", "kernel"])["carrier"], "kernel");
        bed.wait_promoted();

        let capture = bed.folder.path("capture");
        bed.client(&["capture", "start", &capture, "port", &bed.server.port.to_string()]);
        bed.wait_returned();
        eventually("frames are captured", || {
            bed.client(&["status"])["capture"]["frames"].as_u64() > Some(100)
        });
        bed.client(&["capture", "stop"]);
        bed.wait_promoted();

        let (ended, out, errors) = asked(user, &bed.socket, &["upgrade"]);
        assert!(ended == Some(0) && out.contains("pause"), "{out}{errors}");
        bed.wait_promoted();
        // Beside load the flow may have come back by itself just before a cause.
        let (caused, own) =
            (bed.recalled(&["settings", "capture", "hand_over"]), bed.recalled(&["stray", "silent"]));
        assert!(caused + own >= 3, "{caused} returns for a cause, {own} without");

        let agent = agent_of(bed.brodo.id());
        kill(agent, "KILL");
        let why = "the promotion agent has ended";
        eventually("the end is seen", || bed.client(&["status"])["bulk"]["unavailable"] == why);
        bed.wait_transfer();
        assert_eq!(bed.counter("promotions_broken"), 0);
        // Beside load it may have come back just before, for good.
        let carrier = if bed.is_promoted() { "kernel" } else { "stack" };
        bed.end(carrier, "brodo: the promotion agent crashed (by signal 9 (SIGKILL))");
    }
}

/// The agent enters namespaces that the user has made: by their owner's rights alone, if that is no root.
#[test]
fn a_download_of_a_namespace_that_brodo_is_attached_to_is_promoted() {
    for &user in users() {
        let bed = attached_bed(user, "attached");
        if bed.is_unavailable() {
            return bed.end("stack", "");
        }
        bed.wait_promoted();
        assert_eq!(bed.client(&["status"])["bulk"]["carrier"], "kernel");
        bed.wait_transfer();
        assert_eq!(bed.client(&["bulk", "tap"])["carrier"], "tap");
        bed.wait_returned();
        bed.wait_transfer();
        assert_eq!(bed.counter("promotions_broken"), 0);
        bed.end("stack", "");
    }
}

/// The agent among the children of a brodo.
fn agent_of(brodo: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{brodo}/task/{brodo}/children")).expect("a process");
    let name = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let agent = children.split_whitespace().find(|pid| name(pid).trim_end() == "brodo-agent");
    agent.and_then(|pid| pid.parse().ok()).expect("an agent")
}

/// No further network namespace may be made: the flow stays with the interface. (Clients in another user
/// namespace are refused, so the log has to do.)
#[test]
fn where_no_kernel_socket_can_be_had_the_log_has_the_reason() {
    let Some(&user) = users().last() else { return };
    let bed = bed(user, "reason", "echo 1 > /proc/sys/user/max_net_namespaces; exec \"$0\" \"$@\"");
    let errors = fs::read_to_string(bed.folder.path("errors")).expect("a file");
    assert!(errors.contains("bulk flows stay with the interface") && errors.contains("unshare"), "{errors}");
    bed.wait_transfer();
    bed.end("stack", "");
}
