//! `brodo vm` and passt's command line on their sockets: their start, their end, and what is left behind.
//! Traffic is tested end to end elsewhere.

use crate::support::{Folder, Running, User, eventually, json, kill, lives, program_str, users};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

/// `brodo vm WORDS`, once it has reported readiness.
fn served(user: User, words: &[&str]) -> Running {
    let script = r#"b=$1; shift; exec "$b" vm "$@" --ready-fd 3 3>&1 >&2"#;
    let words = [&["sh", "-c", script, "sh", program_str()], words].concat();
    let mut brodo = Running::start(user.command(&words).stdin(Stdio::null()));
    assert_eq!(brodo.line(), "", "one empty line says that it is ready");
    brodo
}

#[test]
fn a_machine_has_a_private_socket_as_long_as_brodo_runs() {
    for &user in users() {
        let folder = Folder::new("vm");
        let (path, control) = (folder.path("vm.sock"), folder.path("control"));
        for option in ["--socket", "--dgram", "--seqpacket"] {
            let mut brodo = served(user, &[option, &path, "--control", &control]);
            assert_eq!(fs::metadata(&path).expect("a socket").permissions().mode() & 0o777, 0o600);
            let status = &json(user, &control, &["status"])[0];
            assert_eq!((&status["command"], &status["target"]), (&"vm".into(), &path.as_str().into()));
            assert_eq!(status["confinement"], "full", "{status}");
            brodo.kill("TERM");
            assert_eq!(brodo.status(), Some(0), "{user:?} {option}");
            assert!(!Path::new(&path).exists(), "the path goes with brodo");
        }
    }
}

/// Without `-s` the first free of passt's paths is taken, and its line on standard error names it.
#[test]
fn passt_names_the_path_that_it_has_chosen() {
    for &user in users() {
        let folder = Folder::new("passt-chosen");
        for (options, is_named) in [(&[][..], true), (&["-q"][..], false)] {
            let pid_file = folder.path(if is_named { "pid" } else { "quiet-pid" });
            let line = [&["as", "passt", "-1", "--pid", &pid_file], options].concat();
            let output = user.brodo(&line).output().expect("brodo starts");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{user:?} {errors}");
            let pid: u32 = fs::read_to_string(&pid_file).expect("written").trim().parse().expect("a number");
            let named = errors.lines().find_map(|line| Some(line.split_once("socket bound at ")?.1));
            assert_eq!(named.is_some(), is_named, "{user:?} {errors}");
            if let Some(path) = named {
                assert!(path.starts_with("/tmp/passt_") && Path::new(path).exists(), "{path}");
            }
            kill(pid, "TERM");
            eventually("it has ended", || !lives(pid));
            if let Some(path) = named {
                // Root's has become another user, and keeps no right to remove root's file in /tmp.
                assert!(user == User::Root || !Path::new(path).exists(), "the path goes with brodo");
                let _ = fs::remove_file(path);
            }
        }
    }
}

#[test]
fn passt_goes_to_the_background_and_ends_with_its_only_machine() {
    for &user in users() {
        let folder = Folder::new("passt");
        let (path, pid_file) = (folder.path("vm.sock"), folder.path("pid"));
        let line = ["as", "passt", "--one-off", "--socket", &path, "--pid", &pid_file];
        let output = user.brodo(&line).output().expect("brodo starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let pid: u32 = fs::read_to_string(&pid_file).expect("written").trim().parse().expect("a number");
        let machine = UnixStream::connect(&path).expect("the socket is there at once");
        assert!(lives(pid), "it serves its machine");
        drop(machine);
        eventually("it has ended with its machine", || !lives(pid));
        assert!(!Path::new(&path).exists());
    }
}
