//! `brodo attach`: to a process and to a path, until the end of either or a request to end, and targets that
//! it refuses.

use crate::support::{Folder, Running, User, eventually, is_root, kill, lives, program_str, text, users};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A process in namespaces of its own, made by `user` without brodo. Mounts too: in the caller's namespace
/// other tests and programs make some at any time.
pub(crate) fn target(user: User) -> Running {
    let flags = if user == User::Root { "-mn" } else { "-mrn" };
    let mut target = Running::start(
        user.command(&["unshare", flags, "sh", "-c", "echo up; exec sleep 1000"]).stdin(Stdio::null()),
    );
    assert_eq!(target.line(), "up");
    target
}

/// `brodo attach WORDS`, once it has reported readiness.
fn attached(user: User, words: &[&str]) -> Running {
    ready(&mut attaching(user, words))
}

/// `brodo attach WORDS`, which prints an empty line when it is ready.
pub(crate) fn attaching(user: User, words: &[&str]) -> Command {
    let script = r#"b=$1; shift; exec "$b" attach "$@" --ready-fd 3 3>&1 >&2"#;
    let mut command = user.command(&[&["sh", "-c", script, "sh", program_str()], words].concat());
    command.stdin(Stdio::null());
    command
}

/// Starts that, and waits for the line.
pub(crate) fn ready(command: &mut Command) -> Running {
    let mut brodo = Running::start(command);
    assert_eq!(brodo.line(), "", "one empty line says that it is ready");
    brodo
}

/// A command in the target's namespaces.
pub(crate) fn entering(user: User, target: u32, words: &[&str]) -> Command {
    let process = target.to_string();
    let flags: &[&str] = if user == User::Root { &["-n"] } else { &["-U", "--preserve-credentials", "-n"] };
    user.command(&[&["nsenter", "-t", &process], flags, words].concat())
}

/// Output of a script in the target's namespaces.
fn inside(user: User, target: u32, script: &str) -> String {
    let output = entering(user, target, &["sh", "-c", script]).output().expect("nsenter runs");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    text(&output)
}

#[test]
fn a_process_gets_a_network_for_as_long_as_it_lives() {
    for &user in users() {
        let target = target(user);
        let mut brodo = attached(user, &[&target.id().to_string(), "--ifname", "up0"]);
        let addresses = inside(user, target.id(), "ip -o addr");
        for part in ["up0    inet 10.0.2.15/24", "up0    inet6 fd00::15/64", "lo    inet 127.0.0.1/8"] {
            assert!(addresses.contains(part), "{part} is not in\n{addresses}");
        }
        assert!(inside(user, target.id(), "ip route").contains("default via 10.0.2.2 dev up0"));
        target.kill("KILL");
        // This test, the target's parent, reaps it only later; its end counts all the same.
        assert_eq!(brodo.status(), Some(0), "{user:?}");
    }
}

#[test]
fn a_path_gets_a_network_for_as_long_as_it_leads_there() {
    for &user in users() {
        let mut target = target(user);
        let path = format!("/proc/{}/ns/net", target.id());
        let mut brodo = attached(user, &["--netns", &path]);
        assert!(inside(user, target.id(), "ip -o addr").contains("eth0    inet 10.0.2.15/24"));
        target.kill("KILL");
        target.status();
        assert_eq!(brodo.status(), Some(0), "{user:?}");
    }
}

#[test]
fn a_user_namespace_can_be_named() {
    for &user in users() {
        if user == User::Root {
            continue;
        }
        let target = target(user);
        let [net, own] = ["net", "user"].map(|kind| format!("/proc/{}/ns/{kind}", target.id()));
        let brodo = attached(user, &["--netns", &net, "--userns", &own]);
        assert!(inside(user, target.id(), "ip -o addr").contains("eth0    inet 10.0.2.15/24"));
        drop(brodo);
    }
}

#[test]
fn a_named_namespace_ends_when_its_mount_does() {
    if !is_root() || users().is_empty() {
        return;
    }
    // As `ip netns` makes one, in a mount namespace of its own so that nothing is left behind.
    let script = r"mount -t tmpfs none /mnt; : >/mnt/blue; unshare --net=/mnt/blue true
        mkfifo /mnt/ready; $1 attach --netns /mnt/blue --ready-fd 3 3>/mnt/ready & brodo=$!; cat /mnt/ready
        nsenter --net=/mnt/blue ip -o -4 addr show dev eth0; umount /mnt/blue; wait $brodo; echo status $?";
    let output =
        Command::new("unshare").args(["-m", "sh", "-c", script, "sh", program_str()]).output().expect("runs");
    let lines = text(&output);
    assert!(lines.contains("inet 10.0.2.15/24") && lines.ends_with("status 0\n"), "{lines}");
}

#[test]
fn a_service_manager_is_notified_of_readiness_and_of_the_end() {
    for &user in users() {
        let folder = Folder::new("notify");
        let path = folder.path("socket");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        manager.set_read_timeout(Some(Duration::from_mins(1))).expect("a time-out");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("a mode");
        let message = || {
            let mut bytes = [0; 512];
            let length = manager.recv(&mut bytes).expect("a message");
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        let target = target(user);
        let (variable, id) = (format!("NOTIFY_SOCKET={path}"), target.id().to_string());
        let mut brodo = Running::start(&mut user.command(&["env", &variable, program_str(), "attach", &id]));
        assert_eq!(message().trim_end(), format!("READY=1\nSTATUS=Serving eth0 of process {id}"));
        assert!(inside(user, target.id(), "ip -o link").contains("eth0"));
        brodo.kill("TERM");
        assert_eq!(message().trim_end(), "STOPPING=1");
        assert_eq!(brodo.status(), Some(0), "{user:?}");
    }
}

#[test]
fn a_request_to_end_is_followed() {
    for &user in users() {
        for signal in ["TERM", "INT", "HUP"] {
            let target = target(user);
            let mut brodo = attached(user, &[&target.id().to_string()]);
            brodo.kill(signal);
            assert_eq!(brodo.status(), Some(0), "{user:?} {signal}");
            assert!(lives(target.id()), "the target is left alone");
            eventually("the interface goes with brodo", || {
                !inside(user, target.id(), "ip -o link").contains("eth0")
            });
        }
    }
}

/// As under nohup(1), or in the background of a script.
#[test]
fn signals_that_brodo_was_started_to_ignore_do_not_end_it() {
    let Some(&user) = users().last() else { return };
    let target = target(user);
    let script = r#"trap '' HUP INT; exec "$@" --ready-fd 3 3>&1 >&2"#;
    let id = target.id().to_string();
    let words = ["sh", "-c", script, "sh", program_str(), "attach", &id];
    let mut brodo = Running::start(user.command(&words).stdin(Stdio::null()));
    assert_eq!(brodo.line(), "");
    brodo.kill("HUP");
    brodo.kill("INT");
    eventually("brodo has taken both", || {
        let status = fs::read_to_string(format!("/proc/{}/status", brodo.id())).unwrap_or_default();
        !status.lines().any(|line| line.starts_with("ShdPnd:") && line.ends_with(['1', '2', '3']))
    });
    // A brodo that has been asked to end takes its interface along within milliseconds.
    for _ in 0..10 {
        assert!(inside(user, target.id(), "sleep 0.01; ip -o link").contains("eth0"));
    }
    brodo.kill("QUIT");
    assert_eq!(brodo.status(), Some(0));
}

#[test]
fn the_target_s_files_and_settings_are_left_alone() {
    for &user in users() {
        let target = target(user);
        let state = || {
            let settings = inside(
                user,
                target.id(),
                "cat /proc/sys/net/ipv4/ping_group_range /proc/sys/net/ipv4/ip_forward",
            );
            let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", target.id())).expect("readable");
            (settings, mounts)
        };
        let before = state();
        let _brodo = attached(user, &[&target.id().to_string()]);
        assert_eq!(state(), before);
    }
}

#[test]
fn an_obstacle_is_named() {
    for &user in users() {
        let target = target(user);
        let process = target.id().to_string();
        let refusal = |words: &[&str]| {
            let output = user.brodo(&[&["attach", &process], words].concat()).output().expect("brodo starts");
            assert_eq!(output.status.code(), Some(125));
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let taken =
            "ip link add eth0 type veth peer name way; ip addr add 192.0.2.1/24 dev way; ip link set way up";
        inside(user, target.id(), taken);
        let text = refusal(&[]);
        assert!(text.contains("eth0") && text.contains("--ifname"), "{text}");
        inside(user, target.id(), "ip route add default via 192.0.2.2");
        let text = refusal(&["--ifname", "up0"]);
        assert!(text.contains("has a default route already"), "{text}");
        eventually("nothing is left of it", || !inside(user, target.id(), "ip -o link").contains("up0"));
    }
}

#[test]
fn another_user_s_process_is_refused() {
    if !is_root() || users().is_empty() {
        return;
    }
    let target = target(User::Root);
    let output = User::Ordinary.brodo(&["attach", &target.id().to_string()]).output().expect("brodo starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        errors.contains("Permission denied") && errors.contains("as the same user, or as root"),
        "{errors}"
    );
    kill(target.id(), "KILL");
}
