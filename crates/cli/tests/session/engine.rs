//! The engine of a real brodo: crashes, confinement, and the recipe for a command without files.

use crate::support::{
    Folder, Running, User, asked, crashes, eventually, free_port, is_root, json, program_str, serve, text,
    users,
};
use brodo_bench::procfs;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

/// A guest that connects and then, for each line of its input, uses that connection and makes another one.
const SCRIPT: &str = "connect() { exec 3<>/dev/tcp/10.0.2.2/$1 && echo hello >&3 && read -r answer <&3 && echo $answer; }; \
    connect PORT; \
    while read -r line; do \
        if echo again >&3 && read -r answer <&3; then echo $answer; else echo broken; fi; \
        connect PORT; \
    done";

/// Answers each line of a connection.
fn answer(stream: TcpStream) {
    let mut lines = BufReader::new(stream);
    while lines.read_line(&mut String::new()).is_ok_and(|count| count > 0) {
        if lines.get_mut().write_all(b"answer\n").is_err() {
            return;
        }
    }
}

struct Bed {
    folder: Folder,
    socket: String,
    brodo: Running,
}

fn bed(user: User, name: &str) -> Bed {
    bed_by(user, name, "", &[])
}

/// With options, by a shell that runs the words `before`.
fn bed_by(user: User, name: &str, before: &str, options: &[&str]) -> Bed {
    let folder = Folder::new(&format!("{name}-{user:?}"));
    let (socket, errors) = (folder.path("socket"), folder.path("errors"));
    let script = SCRIPT.replace("PORT", &serve(answer).to_string());
    let first = ["run", "--control", &socket, "--map-host-loopback", "10.0.2.2"];
    let words = [&first, options, &["--", "bash", "-c", &script]].concat();
    let shell = ["sh", "-c", &format!("{before} exec \"$@\""), "sh", program_str()];
    let errors = fs::File::create(errors).expect("a file");
    let mut command = user.command(&[&shell[..], &words].concat());
    let mut brodo = Running::start(command.stdin(Stdio::piped()).stderr(errors));
    assert_eq!(brodo.line(), "answer");
    Bed { folder, socket, brodo }
}

impl Bed {
    /// Process id of the engine that runs now: child of the keeper, child of brodo.
    fn engine(&self) -> Option<u32> {
        let children = |pid: u32| -> Vec<u32> {
            let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
        };
        let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let keeper = children(self.brodo.id()).into_iter().find(|pid| name(pid) == "brodo-keeper\n")?;
        children(keeper).into_iter().find(|pid| name(pid) == "brodo-engine\n")
    }

    fn kill_engine(&self, user: User, signal: &str) {
        let engine = self.engine().expect("an engine").to_string();
        let killed = user.command(&["kill", signal, &engine]).status();
        // An engine of root's belongs to the user `nobody`, and root may kill it.
        assert!(killed.is_ok_and(|status| status.success()), "{user:?}");
    }

    fn crashes(&self, user: User) -> u64 {
        crashes(user, &self.socket)
    }
}

/// It may have ended within a block, behind which nothing can be read.
#[test]
fn a_capture_that_an_error_has_ended_is_not_begun_again() {
    for &user in users() {
        // 2 KiB for each file (sh counts 512 bytes).
        let mut bed = bed_by(user, "full", "ulimit -f 4;", &[]);
        json(user, &bed.socket, &["capture", "start", &bed.folder.path("capture")]);
        eventually("the file is full", || {
            bed.brodo.stdin().write_all(b"go\n").expect("it reads");
            fs::read_to_string(bed.folder.path("errors")).is_ok_and(|it| it.contains("ended early"))
        });
        bed.kill_engine(user, "-KILL");
        eventually("another engine serves", || bed.crashes(user) == 1);
        assert_eq!(json(user, &bed.socket, &["capture"]), [Value::Null]);
    }
}

#[test]
fn a_crashed_engine_is_replaced_and_the_guest_goes_on() {
    for &user in users() {
        let mut bed = bed(user, "crash");
        let status = &json(user, &bed.socket, &["status"])[0];
        assert_eq!((&status["confinement"], &status["crashes"]), (&"full".into(), &0.into()), "{status}");
        let capture = bed.folder.path("capture");
        let free = free_port();
        let spec = format!("127.0.0.1/{free}");
        json(user, &bed.socket, &["forward", "add", "-t", &spec]);
        json(user, &bed.socket, &["capture", "start", &capture]);
        let forwards = json(user, &bed.socket, &["forward"]);
        let before = fs::metadata(&capture).expect("a capture").len();

        bed.kill_engine(user, "-KILL");
        eventually("another engine serves", || bed.crashes(user) == 1);
        assert_eq!(json(user, &bed.socket, &["forward"]), forwards);
        assert!(TcpListener::bind(("127.0.0.1", free)).is_err(), "the port is published");
        bed.brodo.stdin().write_all(b"go\n").expect("it reads");
        assert_eq!(bed.brodo.line(), "answer", "the old connection goes on");
        assert_eq!(bed.brodo.line(), "answer", "a new one is made");
        eventually("the capture goes on", || {
            fs::metadata(&capture).is_ok_and(|file| file.len() > 2 * before)
        });
        drop(bed.brodo.take_stdin());
        assert_eq!(bed.brodo.status(), Some(0), "exit status of the command");
        let errors = fs::read_to_string(bed.folder.path("errors")).expect("standard error");
        assert!(
            errors
                .contains("the engine crashed (by signal 9 (SIGKILL)) and was started again: 1 flow goes on"),
            "{errors}"
        );
    }
}

/// Whether a process has this text anywhere in its memory.
fn has_in_memory(process: u32, text: &str) -> bool {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("a map of its memory");
    let memory = fs::File::open(format!("/proc/{process}/mem")).expect("root may");
    maps.lines().filter(|line| !line.ends_with("[vvar]") && line.contains(" r")).any(|line| {
        let (range, _) = line.split_once(' ').expect("a range");
        let (start, end) = range.split_once('-').expect("two addresses");
        let [start, end] = [start, end].map(|it| u64::from_str_radix(it, 16).expect("an address"));
        let mut bytes = vec![0; usize::try_from(end - start).expect("a length")];
        // The kernel's own pages and memory of devices are not to be read.
        let read = memory.read_at(&mut bytes, start).unwrap_or_default();
        bytes[..read].windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[test]
fn confined_processes_have_no_environment_and_no_command_line() {
    // Their memory is root's to read.
    if !is_root() {
        return;
    }
    for &user in users() {
        let secret = format!("a-secret-of-{user:?}-{}", std::process::id());
        let mut command = user.brodo(&["run", "--", "sh", "-c", "echo up; read -r line"]);
        let mut brodo = Running::start(command.env("BRODO_TEST_TOKEN", &secret).stdin(Stdio::piped()));
        assert_eq!(brodo.line(), "up");
        assert!(has_in_memory(brodo.id(), &secret), "a process that is not confined");
        let descendants = procfs::descendants(brodo.id());
        for name in ["brodo-keeper", "brodo-engine", "brodo-broker", "brodo-agent"] {
            let process = descendants.iter().copied().find(|&process| procfs::name(process) == name);
            // A kernel may lack what the agent needs.
            let Some(process) = process else {
                assert_eq!(name, "brodo-agent", "{user:?}");
                continue;
            };
            for file in ["environ", "cmdline"] {
                let words = fs::read(format!("/proc/{process}/{file}")).expect("root may");
                assert!(words.iter().all(|&byte| byte == 0), "{name}: {file}");
            }
            assert!(!has_in_memory(process, &secret), "{user:?} {name}");
        }
        drop(brodo.take_stdin());
        assert_eq!(brodo.status(), Some(1), "of the command, at the end of its input");
    }
}

/// The end that it was asked for has come.
#[test]
fn an_engine_that_dies_at_its_end_is_not_started_again() {
    // Refusals of its last second are not known: a doubt.
    let fails = &["--policy-fail=77", "--allow", "10.0.2.2/32"][..];
    let cases = users().iter().flat_map(|&user| [(user, &[][..], 0), (user, fails, 77)]);
    for (user, options, status) in cases {
        let mut bed = bed_by(user, "end", "", options);
        bed.kill_engine(user, "-STOP");
        drop(bed.brodo.take_stdin());
        eventually("brodo ends its parts", || !fs::exists(&bed.socket).expect("a folder"));
        bed.kill_engine(user, "-KILL");
        assert_eq!(bed.brodo.status(), Some(status), "{user:?} {options:?}");
        let errors = fs::read_to_string(bed.folder.path("errors")).expect("standard error");
        let said = "brodo: the engine crashed at its end (by signal 9 (SIGKILL))";
        assert!(errors.starts_with(said) && !errors.contains("started again"), "{user:?}: {errors}");
    }
}

#[test]
fn many_crashes_end_brodo_with_the_reason() {
    let Some(&user) = users().last() else { return };
    let mut bed = bed(user, "crashes");
    for crash in 1..=6 {
        bed.kill_engine(user, "-SEGV");
        if crash < 6 {
            eventually("another engine serves", || bed.crashes(user) == crash && bed.engine().is_some());
            let (old, new) = if crash < 3 { ("answer", "answer") } else { ("broken", "answer") };
            bed.brodo.stdin().write_all(b"go\n").expect("it reads");
            assert_eq!((bed.brodo.line(), bed.brodo.line()), (old.to_owned(), new.to_owned()), "{crash}");
        }
    }
    assert_eq!(bed.brodo.status(), Some(125));
    let errors = fs::read_to_string(bed.folder.path("errors")).expect("standard error");
    assert!(errors.contains("the engine has crashed 6 times in 60 s, last by signal 11"), "{errors}");
    assert!(errors.contains("by signal 11 (SIGSEGV)) and was started again: 1 flow goes on\n"), "{errors}");
    assert!(errors.contains("and was started again; flows that it carried were reset\n"), "{errors}");
}

#[test]
fn confinement_can_be_required_and_switched_off() {
    for &user in users() {
        for (mode, expected) in [("required", "full"), ("off", "off")] {
            let folder = Folder::new(&format!("confine-{mode}-{user:?}"));
            let socket = folder.path("socket");
            let words =
                ["run", "--control", &socket, "--confine", mode, "--", "sh", "-c", "echo up; read end"];
            let mut brodo = Running::start(user.brodo(&words).stdin(Stdio::piped()));
            assert_eq!(brodo.line(), "up");
            let (_, text, _) = asked(user, &socket, &["status"]);
            assert!(text.contains(&format!("  confined   {expected}\n")), "{text}");
            drop(brodo.take_stdin());
        }
    }
}

/// The command line of the guide's recipe for a command without the user's files, up to its last word.
fn recipe() -> String {
    let page = include_str!("../../../../docs/src/confinement.md");
    let (_, section) = page.split_once("\n## A command without your files\n").expect("the section");
    let block = section.split("```").nth(1).expect("a block").trim_start_matches("sh");
    let line = block.replace("\\\n", " ");
    line.trim()
        .strip_prefix("brodo ")
        .and_then(|line| line.strip_suffix(" sh"))
        .expect("brodo ... sh")
        .to_owned()
}

#[test]
fn the_guide_s_recipe_hides_the_user_s_files_and_processes() {
    let script = "test ! -e /home && test ! -e /root && test ! -e /var && \
                  test $(ls -d /proc/[0-9]* | wc -l) -lt 10 && \
                  grep -q 10.0.2.3 /etc/resolv.conf && grep -q eth0 /proc/net/dev && echo inside";
    let has_bwrap = Command::new("bwrap").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has_bwrap {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no bubblewrap: make setup");
        eprintln!("*** SKIPPED: no bubblewrap (make setup)");
        return;
    }
    for &user in users() {
        let line = format!("{} {} sh -c '{script}'", program_str(), recipe());
        let output = user.command(&["sh", "-c", &line]).output().expect("a shell");
        assert_eq!(
            text(&output),
            "inside\n",
            "{user:?}: {line}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
