//! Descriptor store: `brodo attach` as a service that is killed and started again by its manager.
//!
//! systemd does not run in tests. Its stand-in is a program that takes the messages of sd_notify(3), keeps
//! descriptors by name as `FileDescriptorStoreMax=` has systemd do, and passes them to the brodo that it
//! starts.

use crate::support::{
    Folder, Running, User, echo, eventually, free_port, json, lives, program_str, serve, users,
};
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::Stdio;

/// `manager.py SOCKET BRODO...`: starts brodo, and again as lines ask for it: `kill`, `stop`.
const MANAGER: &str = r#"
import os, signal, socket, sys, threading
path, words = sys.argv[1], sys.argv[2:]
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind(path)
store, changed = {}, threading.Condition()
ready = 0

def listen():
    global ready
    while True:
        data, fds, _, _ = socket.recv_fds(notify, 65536, 16)
        lines = data.decode().split("\n")
        name = next((line[7:] for line in lines if line.startswith("FDNAME=")), "stored")
        with changed:
            if "FDSTORE=1" in lines:
                # As systemd: a file that is there already keeps its name.
                for fd in fds:
                    store.setdefault(name, fd)
            if "FDSTOREREMOVE=1" in lines and name in store:
                os.close(store.pop(name))
            ready += "READY=1" in lines
            changed.notify_all()

def start():
    kept = list(store.items())
    pid = os.fork()
    if pid:
        return pid
    high = [os.dup2(fd, 500 + i) for i, (_, fd) in enumerate(kept)]
    for i, fd in enumerate(high):
        os.dup2(fd, 3 + i)
        os.close(fd)
    os.closerange(3 + len(high), 500)
    os.environ.update(NOTIFY_SOCKET=path, FDSTORE="64", LISTEN_PID=str(os.getpid()),
                      LISTEN_FDS=str(len(kept)), LISTEN_FDNAMES=":".join(name for name, _ in kept))
    os.execv(words[0], words)

def started(count):
    with changed:
        pid = start()
    with changed:
        # A state is stored behind the readiness.
        changed.wait_for(lambda: ready >= count and any(name.startswith("state-") for name in store))
        print("serves", pid, flush=True)
    return pid

threading.Thread(target=listen, daemon=True).start()
count, pid = 1, started(1)
for line in sys.stdin:
    if line == "state\n":
        with changed:
            changed.wait_for(lambda: "state-1" not in store)
        print("changed", flush=True)
        continue
    os.kill(pid, signal.SIGKILL if line == "kill\n" else signal.SIGTERM)
    status = os.waitpid(pid, 0)[1]
    if line == "kill\n":
        count += 1
        pid = started(count)
    elif line == "drop\n":
        print("ended", status, flush=True)
        with changed:
            changed.wait_for(lambda: not store)
        print("empty", flush=True)
"#;

/// An interpreter of root's own is out of reach for other users.
const SYSTEM_PATH: &str = "PATH=/usr/local/bin:/usr/bin:/bin";

/// A namespace with a process in it, which has a connection of its own.
fn guest(user: User, script: &str) -> Running {
    let flags = if user == User::Root { "-mn" } else { "-mrn" };
    Running::start(user.command(&["unshare", flags, "bash", "-c", script]).stdin(Stdio::piped()))
}

/// Processes of brodo's in the list of all, by name and by a word of their parent's command line.
fn processes_of(keeper: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).chain([keeper]).collect()
}

/// The keeper that is a child of a brodo.
pub(crate) fn keeper_of(brodo: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{brodo}/task/{brodo}/children")).expect("a process");
    let children = children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
    let is_keeper = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "brodo-keeper\n")
    };
    children.into_iter().find(is_keeper).expect("a keeper")
}

#[test]
fn connections_and_forwards_outlive_a_brodo_that_is_killed() {
    for &user in users() {
        let folder = Folder::new(&format!("store-{user:?}"));
        let (socket, notify) = (folder.path("socket"), folder.path("notify"));
        let port = serve(echo);
        let script = format!(
            "echo up; read -r; exec 3<>/dev/tcp/10.0.2.2/{port}; echo connected; \
             while read -r line; do echo $line >&3 && read -r answer <&3 && echo $answer || echo broken; done"
        );
        let mut guest = guest(user, &script);
        assert_eq!(guest.line(), "up");
        let words = ["env", SYSTEM_PATH, "python3", "-c", MANAGER, &notify, program_str(), "attach"];
        let process = guest.id().to_string();
        let words =
            [&words[..], &[&process, "--control", &socket, "--map-host-loopback", "10.0.2.2"]].concat();
        let mut manager = Running::start(user.command(&words).stdin(Stdio::piped()));
        let serving = |manager: &mut Running| -> u32 {
            let line = manager.line_with("serves ");
            line["serves ".len()..].parse().expect("a number")
        };
        let brodo = serving(&mut manager);
        let keeper = keeper_of(brodo);
        let own = processes_of(keeper);
        assert_eq!(own.len(), 2, "keeper and engine");
        writeln!(guest.stdin(), "go").expect("it reads");
        assert_eq!(guest.line(), "connected");
        let mut echoes = |text: &str| {
            writeln!(guest.stdin(), "{text}").expect("it reads");
            assert_eq!(guest.line(), text, "{user:?}");
        };
        echoes("one");
        // A forward that was asked for meanwhile is in the state.
        let free = free_port();
        json(user, &socket, &["forward", "add", "-t", &format!("127.0.0.1/{free}")]);
        let forwards = json(user, &socket, &["forward"]);
        writeln!(manager.stdin(), "state").expect("it reads");
        manager.line_with("changed");
        for text in ["two", "three"] {
            writeln!(manager.stdin(), "kill").expect("it reads");
            let again = serving(&mut manager);
            assert_ne!(brodo, again);
            echoes(text);
            assert_eq!(processes_of(keeper), own, "the same engine");
            assert_eq!(json(user, &socket, &["forward"]), forwards);
            let status = json(user, &socket, &["status"]).remove(0);
            assert_eq!((&status["pid"], &status["flows"]), (&again.into(), &1.into()), "{status}");
        }
        // An engine that crashes under another brodo than its own.
        super::support::kill(*own.first().expect("an engine"), "KILL");
        eventually("another engine serves", || super::support::crashes(user, &socket) == 1);
        echoes("four");
        // The conversation with the one before is over for the warden, although the manager has copies of it.
        let free = free_port();
        json(user, &socket, &["forward", "add", "-t", &format!("127.0.0.1/{free}")]);
        // An orderly end leaves nothing behind.
        writeln!(manager.stdin(), "drop").expect("it reads");
        assert_eq!(manager.line_with("ended"), "ended 0");
        manager.line_with("empty");
        eventually("keeper and engine have ended", || !lives(keeper));
        assert!(!fs::exists(&socket).expect("a folder"), "the control socket is removed");
    }
}

/// Its requests would have the state kept too, so none is made until brodo is killed.
#[test]
fn a_lockdown_for_want_of_the_audit_log_outlives_a_brodo_that_is_killed() {
    let Some(&user) = users().last() else { return };
    let folder = Folder::new(&format!("store-audit-{user:?}"));
    let (socket, notify) = (folder.path("socket"), folder.path("notify"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let script = format!("echo up; read -r; exec 3<>/dev/tcp/10.0.2.2/{port}; cat <&3; echo over; read -r");
    let mut guest = guest(user, &script);
    assert_eq!(guest.line(), "up");
    let (process, rule) = (guest.id().to_string(), format!("10.0.2.2:{port}"));
    let words = ["env", SYSTEM_PATH, "python3", "-c", MANAGER, &notify, program_str(), "attach", &process];
    let options = ["--control", &socket, "--map-host-loopback", "10.0.2.2", "--allow", &rule];
    let words = [&words[..], &options, &["--audit", "/dev/full", "--audit-required"]].concat();
    let mut manager = Running::start(user.command(&words).stdin(Stdio::piped()));
    manager.line_with("serves ");
    writeln!(guest.stdin(), "go").expect("it reads");
    // The first decision cannot be written, and the lockdown ends the connection that it is about.
    assert_eq!(guest.line(), "over");
    writeln!(manager.stdin(), "state").expect("it reads");
    manager.line_with("changed");
    writeln!(manager.stdin(), "kill").expect("it reads");
    manager.line_with("serves ");
    let shown = &json(user, &socket, &["policy", "show"])[0];
    assert_eq!(shown["lockdown"], true, "{shown}");
}

/// A process of the manager's has all rights again: those of the one that was killed, which are left alone in
/// an upgrade.
#[test]
fn rights_that_brodo_gives_up_are_given_up_by_the_next_too() {
    if !users().contains(&User::Root) {
        return;
    }
    let folder = Folder::new("renounced");
    let (socket, notify) = (folder.path("socket"), folder.path("notify"));
    let mut guest = guest(User::Root, "echo up; read -r");
    assert_eq!(guest.line(), "up");
    let process = guest.id().to_string();
    // The socket of systemd is open to all.
    let words = ["sh", "-c", r#"umask 0; exec "$@""#, "sh", "env", SYSTEM_PATH, "python3", "-c", MANAGER];
    let brodo = [&notify, program_str(), "attach", &process, "--control", &socket];
    let words = [&words[..], &brodo, &["--sandbox", "--run-as", "1:1"]].concat();
    let mut manager = Running::start(User::Root.command(&words).stdin(Stdio::piped()));
    let mut rights = || {
        let line = manager.line_with("serves ");
        let process = &line["serves ".len()..];
        let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
        let user = status.lines().find(|line| line.starts_with("Uid:")).expect("a user").to_owned();
        let home = fs::exists(format!("/proc/{process}/root/home")).expect("a folder");
        writeln!(manager.stdin(), "kill").expect("it reads");
        (user, home)
    };
    let first = rights();
    assert_eq!(first, ("Uid:\t1\t1\t1\t1".to_owned(), false));
    assert_eq!(rights(), first);
}

#[test]
fn a_manager_that_drops_the_store_ends_what_is_left() {
    let Some(&user) = users().last() else { return };
    let folder = Folder::new(&format!("dropped-{user:?}"));
    let (socket, notify) = (folder.path("socket"), folder.path("notify"));
    let mut guest = guest(user, "echo up; read -r");
    assert_eq!(guest.line(), "up");
    let process = guest.id().to_string();
    let words = ["env", SYSTEM_PATH, "python3", "-c", MANAGER, &notify, program_str(), "attach", &process];
    let words = [&words[..], &["--control", &socket]].concat();
    let mut manager = Running::start(user.command(&words).stdin(Stdio::piped()));
    let line = manager.line_with("serves ");
    let brodo: u32 = line["serves ".len()..].parse().expect("a number");
    let own = processes_of(keeper_of(brodo));
    super::support::kill(brodo, "KILL");
    eventually("brodo has ended", || !lives(brodo));
    assert!(own.iter().all(|&pid| lives(pid)), "they outlive it");
    // Its descriptors are closed with it.
    drop(manager);
    eventually("they end too", || !own.iter().any(|&pid| lives(pid)));
}
