//! A command at a terminal: typed characters reach it, its size is the terminal's, and job control works
//! through brodo.
//!
//! `script` makes the terminal; its standard input is typed.

use crate::attach::target;
use crate::support::{Folder, Running, User, eventually, kill, lives, program_str, users};
use rustix::termios::{Action, tcflow};
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

/// Ctrl-C, Ctrl-\, Ctrl-Z.
const INTERRUPT: &str = "\x03";
const QUIT: &str = "\x1c";
const SUSPEND: &str = "\x1a";

/// The number of write(2), as /proc/PID/syscall has it.
const WRITE: &str = if cfg!(target_arch = "x86_64") { "1" } else { "64" };
/// Opening a terminal is not to make it this process's.
const NOCTTY: i32 = rustix::fs::OFlags::NOCTTY.bits() as i32;

/// A command line at a terminal of its own, with `$B` as brodo.
fn at_terminal(user: User, line: &str) -> Running {
    let mut command = user.command(&["script", "--quiet", "--return", "--command", line, "/dev/null"]);
    command.env("B", program_str()).env("SHELL", "/bin/sh").env("TERM", "dumb").stdin(Stdio::piped());
    Running::start(&mut command)
}

fn type_in(terminal: &mut Running, keys: &str) {
    terminal.stdin().write_all(keys.as_bytes()).expect("typed");
}

#[test]
fn typed_characters_reach_the_command_once() {
    for &user in users() {
        for (key, signal, status) in [(INTERRUPT, "INT", 2), (QUIT, "QUIT", 3)] {
            let script = format!(
                "exec $B run -- sh -c 'n=0; trap \"n=\\$((n+1)); echo got $n {signal}\" {signal}; echo up; \
                                  while [ $n = 0 ]; do sleep 0.05; done; \
                                  i=0; while [ $i -lt 10 ]; do i=$((i+1)); sleep 0.05; done; echo n=$n'"
            );
            let mut terminal = at_terminal(user, &script);
            terminal.line_with("up");
            type_in(&mut terminal, key);
            assert_eq!(terminal.line_with("n=").trim(), "n=1", "{user:?} {signal}");
            assert_eq!(terminal.status(), Some(0));

            let mut terminal =
                at_terminal(user, "exec $B run -- sh -c 'ulimit -c 0; echo up; exec sleep 1000'");
            terminal.line_with("up");
            type_in(&mut terminal, key);
            assert_eq!(terminal.status(), Some(128 + status), "{user:?} {signal}");
        }
    }
}

#[test]
fn typed_characters_are_not_repeated_in_a_container() {
    // As under `docker run --interactive --tty`: the leader of the group, which is `script`'s child here, is
    // outside of brodo's PID namespace. Root may make one without a user namespace.
    if !users().contains(&User::Root) {
        return;
    }
    let script = "exec unshare --pid --fork --mount-proc $B run -- \
                  sh -c 'trap \"n=\\$((n+1))\" INT; echo up; i=0; \
                         while [ $i -lt 20 ]; do i=$((i+1)); sleep 0.05; done; echo; echo n=$n'";
    let mut terminal = at_terminal(User::Root, script);
    terminal.line_with("up");
    type_in(&mut terminal, INTERRUPT);
    assert_eq!(terminal.line_with("n=").trim(), "n=1");
    assert_eq!(terminal.status(), Some(0));
}

#[test]
fn the_window_s_size_is_the_terminal_s() {
    for &user in users() {
        let mut terminal = at_terminal(user, "stty rows 41 cols 123; $B run -- stty size");
        assert_eq!(terminal.line().trim(), "41 123");
        assert_eq!(terminal.status(), Some(0));
        // A change reaches the command too. stty sets rows and columns one after the other, with a signal
        // each, and bash forgets a signal that arrives while its trap runs.
        let mut terminal = at_terminal(
            user,
            "$B run -- bash -c 'trap changed=1 WINCH; echo up; \
             until [ \"$changed $(stty size </dev/tty)\" = \"1 17 71\" ]; do sleep 0.05; done; echo changed' & \
             read a; stty rows 17 cols 71; wait $!",
        );
        terminal.line_with("up");
        type_in(&mut terminal, "\n");
        terminal.line_with("changed");
    }
}

#[test]
fn job_control_works_through_brodo() {
    for &user in users() {
        let mut terminal = at_terminal(user, "bash --norc --noprofile -i");
        type_in(&mut terminal, "PS1= ; $B run -- sh -c 'echo u\"\"p; read a; echo got-$a; exit 6'\n");
        terminal.line_with("up");
        type_in(&mut terminal, SUSPEND);
        terminal.line_with("Stopped");
        type_in(&mut terminal, "echo back-\"\"here\n");
        terminal.line_with("back-here");
        type_in(&mut terminal, "fg\n");
        type_in(&mut terminal, "word\n");
        terminal.line_with("got-word");
        type_in(&mut terminal, "echo status-\"\"$?\n");
        terminal.line_with("status-6");
        type_in(&mut terminal, "exit 0\n");
        assert_eq!(terminal.status(), Some(0), "{user:?}");
    }
}

#[test]
fn a_network_for_a_process_is_suspended_where_a_shell_can_continue_it() {
    for &user in users() {
        let target = target(user);
        let attach = format!("$B attach {}", target.id());
        // As by `ssh -t host brodo attach`: there is no such shell.
        let mut terminal = at_terminal(user, &format!("exec {attach} --ready-fd 1"));
        terminal.line();
        type_in(&mut terminal, SUSPEND);
        type_in(&mut terminal, INTERRUPT);
        assert_eq!(terminal.status(), Some(0), "{user:?}");

        let mut terminal = at_terminal(user, "bash --norc --noprofile -i");
        type_in(&mut terminal, &format!("PS1= ; {attach} --ready-fd 1:is-\"\"up'\n'\n"));
        terminal.line_with("is-up");
        type_in(&mut terminal, SUSPEND);
        terminal.line_with("Stopped");
        type_in(&mut terminal, "kill %1; kill -s CONT %1; wait %1; echo status-\"\"$?\n");
        terminal.line_with("status-0");
        type_in(&mut terminal, "exit 0\n");
        assert_eq!(terminal.status(), Some(0), "{user:?}");
    }
}

#[test]
fn a_shell_with_its_own_job_control_runs_inside() {
    for &user in users() {
        let mut terminal = at_terminal(user, "SHELL=/bin/bash $B run");
        type_in(&mut terminal, "PS1= ; sh -c 'echo u\"\"p; exec sleep 1000'\n");
        terminal.line_with("up");
        type_in(&mut terminal, SUSPEND);
        terminal.line_with("Stopped");
        // The shell does not exit while it has a job, which may end later than `ip` answers.
        type_in(
            &mut terminal,
            "kill %1; while kill -0 %1; do sleep 0.02; done 2>/dev/null; ip -o -4 addr show dev eth0\n",
        );
        terminal.line_with("inet 10.0.2.15/24");
        type_in(&mut terminal, "exit 9\n");
        assert_eq!(terminal.status(), Some(9), "{user:?}");
    }
}

#[test]
fn input_before_a_question_is_no_answer_to_it() {
    for &user in users() {
        let folder = Folder::new(&format!("terminal-ask-{user:?}"));
        let [socket, policy, begin] = ["socket", "policy.toml", "begin"].map(|name| folder.path(name));
        fs::write(&policy, "version = 1\ndefault = \"ask\"\n").expect("a file");
        // One question: another one, for AAAA, could come just when the end of input is typed.
        let guest = format!(
            "until [ -e {begin} ]; do sleep 0.05; done; getent ahostsv4 one.example; exec sleep 1000"
        );
        let line = format!(
            "$B run --control {socket} --policy {policy} -- sh -c '{guest}' & p=$!; \
             until $B status --instance {socket} >/dev/null 2>&1; do sleep 0.05; done; echo ready; \
             $B policy ask --instance {socket}; echo status=$?; $B policy show --instance {socket}; kill $p"
        );
        let mut terminal = at_terminal(user, &line);
        terminal.line_with("ready");
        // Once for the program, and once for the terminal before it reads.
        type_in(&mut terminal, "y\ny\n");
        terminal.line_with("y");
        fs::write(&begin, "").expect("a file");
        // A word that is none of the answers is asked again.
        for answer in ["q\n", "No\n"] {
            terminal.line_with("one.example: no rule names it");
            type_in(&mut terminal, answer);
        }
        terminal.line_with("No");
        type_in(&mut terminal, "\x04");
        assert_eq!(terminal.line_with("status=").trim(), "status=0", "{user:?}");
        assert!(terminal.line_with("generation").starts_with("generation 1"), "{user:?}: nothing was added");
    }
}

/// A guest that connects to a server on each of these ports of the host's loopback, one after the other, and
/// a person who is asked about each at the same terminal.
fn asked_about(user: User, folder: &Folder, servers: &[TcpListener]) -> Running {
    let [socket, policy, begin] = ["socket", "policy.toml", "begin"].map(|name| folder.path(name));
    fs::write(&policy, "version = 1\ndefault = \"ask\"\n").expect("a file");
    let ports: Vec<String> = servers.iter().map(|server| port_of(server).to_string()).collect();
    let guest = format!(
        "until [ -e {begin} ]; do sleep 0.05; done; for port in {}; do \
         (: </dev/tcp/10.0.2.2/$port) 2>/dev/null && echo open-$port || echo refused-$port; done; \
         exec sleep 1000",
        ports.join(" ")
    );
    let line = format!(
        "$B run --control {socket} --policy {policy} --map-host-loopback 10.0.2.2 -- bash -c '{guest}' & p=$!; \
         until $B status --instance {socket} >/dev/null 2>&1; do sleep 0.05; done; echo >{begin}; \
         $B policy ask --instance {socket}; echo status=$?; $B policy show --instance {socket}; kill $p"
    );
    at_terminal(user, &line)
}

fn server() -> TcpListener {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    server.set_nonblocking(true).expect("a socket");
    server
}

fn port_of(server: &TcpListener) -> u16 {
    server.local_addr().expect("its number").port()
}

fn is_connected(server: &TcpListener) -> bool {
    server.accept().is_ok()
}

#[test]
fn a_connection_waits_until_a_person_has_answered() {
    for &user in users() {
        let folder = Folder::new(&format!("terminal-answers-{user:?}"));
        let servers = [server(), server()];
        let [allowed, refused] = [&servers[0], &servers[1]].map(port_of);
        let mut terminal = asked_about(user, &folder, &servers);
        terminal.line_with(&format!("tcp 10.0.2.2:{allowed}: no rule fits"));
        assert!(!is_connected(&servers[0]), "it waits");
        type_in(&mut terminal, "y\n");
        terminal.line_with(&format!("open-{allowed}"));
        assert!(is_connected(&servers[0]));
        terminal.line_with(&format!("tcp 10.0.2.2:{refused}: no rule fits"));
        type_in(&mut terminal, "n\n");
        terminal.line_with(&format!("refused-{refused}"));
        assert!(!is_connected(&servers[1]));
        type_in(&mut terminal, "\x04");
        assert_eq!(terminal.line_with("status=").trim(), "status=0", "{user:?}");
        let added = terminal.line_with("added as");
        assert!(added.contains(&format!("allow tcp://10.0.2.2:{allowed}  added as 1")), "{user:?} {added}");
    }
}

/// As one user alone, because an answer is awaited for half a minute.
#[test]
fn a_connection_without_an_answer_is_refused() {
    let Some(&user) = users().last() else { return };
    let folder = Folder::new("terminal-no-answer");
    let servers = [server()];
    let port = port_of(&servers[0]);
    let mut terminal = asked_about(user, &folder, &servers);
    terminal.line_with(&format!("tcp 10.0.2.2:{port}: no rule fits"));
    let refused = terminal.line_with(&format!("-{port}"));
    assert!(refused.contains(&format!("refused-{port}")), "{refused}");
    // An answer that comes too late is said to be.
    type_in(&mut terminal, "n\n");
    terminal.line_with("nothing waits");
    type_in(&mut terminal, "\x04");
    assert_eq!(terminal.line_with("status=").trim(), "status=0");
    assert!(terminal.line_with("generation").starts_with("generation 1"), "nothing was added");
    assert!(!is_connected(&servers[0]));
}

#[test]
fn a_live_view_gives_the_terminal_back() {
    // The view ends by a key, and by a signal.
    let start = "sh -c 'echo top=$$; exec $B top --instance $1' sh $p; echo status=$?; \
                 stty -a | grep -wo -e '-*icanon'; kill $p";
    for &user in users() {
        let by_key = |_, terminal: &mut Running| type_in(terminal, "q");
        let by_signal = |view, _: &mut Running| kill(view, "TERM");
        for end in [by_key as fn(u32, &mut Running), by_signal] {
            let (view, mut terminal) = live_view(user, start);
            end(view, &mut terminal);
            let last = terminal.line_with("status=");
            assert!(
                last.contains("\x1b[?1049l") && last.trim_end().ends_with("status=0"),
                "{user:?} {last:?}"
            );
            assert_eq!(terminal.line_with("icanon").trim(), "icanon");
        }
    }
}

/// A live view of an instance, which draws; its process, and the terminal's.
fn live_view(user: User, start: &str) -> (u32, Running) {
    let line = format!(
        "$B run -- sleep 1000 & p=$!; n=0; until why=$($B status --instance $p 2>&1 >/dev/null); do \
         n=$((n + 1)); [ $n = 200 ] && echo \"$why\"; sleep 0.05; done; stty rows 24 cols 80; {start}"
    );
    let mut terminal = at_terminal(user, &line);
    let word = terminal.line_with("top=");
    let process = word.trim().trim_start_matches("top=").parse().expect("a number");
    // Its threads start when the terminal is its own.
    let threads = || fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let name = |thread: &fs::DirEntry| fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
    eventually("the view watches", || threads().any(|thread| name(&thread) == "watch\n"));
    (process, terminal)
}

#[test]
fn a_live_view_ends_with_its_terminal() {
    // The second has no controlling terminal and ignores SIGHUP, so it learns of the end from the descriptor
    // alone.
    let in_session = "sh -c 'echo top=$$; exec $B top --instance $1' sh $p";
    let outside = "setsid --wait sh -c 'echo top=$$; exec $B top --instance $1' sh $p";
    for &user in users() {
        for start in [in_session, outside] {
            let folder = Folder::new("hang-up");
            let status = folder.path("status");
            let (view, mut terminal) = live_view(user, &format!("trap '' HUP; {start}; echo $? >{status}"));
            terminal.kill("KILL");
            terminal.status();
            eventually("the view has ended", || !lives(view));
            eventually("its status is known", || fs::read_to_string(&status).is_ok_and(|it| it == "0\n"));
        }
    }
}

#[test]
fn a_live_view_ends_at_a_signal_while_its_terminal_takes_nothing() {
    for &user in users() {
        for signal in ["TERM", "HUP", "INT"] {
            let (view, _terminal) = live_view(user, "echo top=$$; exec $B top --interval 0.1 --instance $p");
            // Flow control as by Ctrl-S: output waits.
            let terminal = fs::read_link(format!("/proc/{view}/fd/1")).expect("a terminal");
            let terminal = fs::File::options().write(true).custom_flags(NOCTTY).open(terminal);
            tcflow(terminal.expect("ours"), Action::OOff).expect("it is a terminal");
            eventually("the view waits inside write", || {
                let call = fs::read_to_string(format!("/proc/{view}/syscall")).unwrap_or_default();
                call.split(' ').next() == Some(WRITE)
            });
            kill(view, signal);
            eventually("the view has ended", || !lives(view));
        }
    }
}
