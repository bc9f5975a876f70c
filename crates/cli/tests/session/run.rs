//! `brodo run`: the exit status, the command's surroundings, signals, and that nothing is left on the
//! host.

use crate::support::{
    Folder, Running, User, asked, eventually, is_root, json_lines, lives, program_str, text, users,
};
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

fn status(user: User, words: &[&str]) -> Option<i32> {
    user.brodo(&[&["run", "--"], words].concat()).stderr(Stdio::null()).status().expect("brodo starts").code()
}

#[test]
fn the_exit_status_is_the_command_s() {
    for &user in users() {
        for (words, expected) in [
            (&["true"][..], 0),
            (&["sh", "-c", "exit 7"], 7),
            (&["sh", "-c", "exit 255"], 255),
            (&["sh", "-c", "kill -9 $$"], 128 + 9),
            (&["sh", "-c", "kill -TERM $$"], 128 + 15),
            (&["/etc/passwd"], 126),
            (&["/"], 126),
            (&["/no/such/command"], 127),
            (&["no-such-command-in-path"], 127),
        ] {
            assert_eq!(status(user, words), Some(expected), "{user:?} {words:?}");
        }
    }
}

#[test]
fn a_command_that_cannot_run_is_named() {
    for &user in users() {
        let output = user.brodo(&["run", "no-such-command"]).output().expect("brodo starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.starts_with("brodo: cannot run no-such-command: execve: No such file"), "{errors}");
    }
}

#[test]
fn without_a_command_the_user_s_shell_runs() {
    for &user in users() {
        let output =
            user.brodo(&["run"]).env("SHELL", "/bin/pwd").current_dir("/usr").output().expect("starts");
        assert_eq!(text(&output), "/usr\n");
    }
}

/// `ip -j WORDS` as JSON.
fn ip(user: User, options: &[&str], words: &str) -> serde_json::Value {
    let json = user.inside(options, &format!("ip -j {words}"));
    serde_json::from_str(&json).unwrap_or_else(|_| panic!("no JSON: {json}"))
}

/// The interface's addresses as `ADDRESS/LENGTH`, sorted.
fn addresses(link: &serde_json::Value) -> Vec<String> {
    let list = link["addr_info"].as_array().expect("addresses");
    let mut words: Vec<_> = list
        .iter()
        .map(|entry| format!("{}/{}", entry["local"].as_str().expect("an address"), entry["prefixlen"]))
        .collect();
    words.sort();
    words
}

#[test]
fn the_network_is_there_before_the_command_starts() {
    for &user in users() {
        let links = ip(user, &[], "addr");
        let [lo, eth0, beside] = links.as_array().expect("a list").as_slice() else {
            panic!("not three links: {links}")
        };
        assert_eq!([&lo["ifname"], &eth0["ifname"], &beside["ifname"]], ["lo", "eth0", "eth0-bulk"]);
        assert!(addresses(beside).is_empty(), "a way for segments alone: {beside}");
        assert_eq!(addresses(lo), ["127.0.0.1/8", "::1/128"]);
        assert_eq!(addresses(eth0), ["10.0.2.15/24", "fd00::15/64", "fe80::5055:aff:fe00:20f/64"]);
        assert_eq!(eth0["address"], "52:55:0a:00:02:0f");
        assert_eq!(eth0["mtu"], 65520);
        assert_eq!(eth0["txqlen"], 4096);
        for link in [lo, eth0, beside] {
            assert!(link["flags"].as_array().expect("flags").contains(&"UP".into()), "{link}");
        }
        let text = links.to_string();
        assert!(!text.contains("tentative") && !text.contains("dadfailed"), "{text}");
    }
}

#[test]
fn routes_lead_to_the_gateways() {
    for &user in users() {
        for (options, v4, v6) in [
            (&[][..], "10.0.2.2", "fd00::2"),
            (&["--address", "192.168.7.5/24", "--gateway", "fd00::99"], "192.168.7.2", "fd00::99"),
        ] {
            let script = "ip -4 route show default; ip -6 route show default";
            let routes = user.inside(options, script);
            let lines: Vec<_> = routes.lines().collect();
            assert_eq!(lines.len(), 2, "{routes}");
            assert!(lines[0].starts_with(&format!("default via {v4} dev eth0")), "{routes}");
            assert!(lines[1].starts_with(&format!("default via {v6} dev eth0")), "{routes}");
        }
    }
}

#[test]
fn options_change_the_interface() {
    for &user in users() {
        let options = [
            "-4",
            "--address",
            "172.30.0.9/20",
            "--ifname",
            "up0",
            "--mtu",
            "1500",
            "--mac",
            "02:00:00:00:00:07",
        ];
        let link = &ip(user, &options, "addr show dev up0")[0];
        assert_eq!(addresses(link), ["172.30.0.9/20"]);
        assert_eq!((&link["mtu"], &link["address"]), (&1500.into(), &"02:00:00:00:00:07".into()));
        assert_eq!(link["addr_info"][0]["broadcast"], "172.30.15.255");
        let v6 = &ip(user, &["-6", "--address", "fd01:2::9/48"], "addr show dev eth0")[0];
        assert_eq!(addresses(v6), ["fd01:2::9/48", "fe80::5055:ff:fe00:9/64"]);
    }
}

#[test]
fn resolv_conf_is_the_command_s_own() {
    let host = fs::read("/etc/resolv.conf").ok();
    for &user in users() {
        let script = "grep -v '^#' /etc/resolv.conf";
        let own = user.inside(&["--search", "a.example", "--search", "b.example"], script);
        assert_eq!(own, "nameserver 10.0.2.3\nnameserver fd00::3\nsearch a.example b.example\n");
        let none = user.inside(&["-4", "--dns", "169.254.1.1", "--search", "."], script);
        assert_eq!(none, "nameserver 169.254.1.1\n");
        // The guest may change its own resolv.conf.
        user.inside(
            &[],
            "echo 'nameserver 192.0.2.1' > /etc/resolv.conf && grep -q 192.0.2.1 /etc/resolv.conf",
        );
    }
    assert_eq!(fs::read("/etc/resolv.conf").ok(), host);
}

/// A shell in a mount namespace of its own, with root's rights there.
fn apart(user: User, script: &str) -> std::process::Output {
    let flags = if user == User::Root { "-m" } else { "-rm" };
    user.command(&["unshare", flags, "sh", "-ec", script, "sh", program_str()])
        .output()
        .expect("unshare runs")
}

#[test]
fn resolv_conf_is_found_where_the_host_keeps_it() {
    let layouts = [
        // A link, as systemd-resolved makes it.
        (
            "link",
            "mkdir -p run/resolve; echo host >run/resolve/stub; ln -s ../run/resolve/stub etc/resolv.conf",
        ),
        ("absolute link", "echo host >run/stub; ln -s /run/stub etc/resolv.conf"),
        ("dangling link", "ln -s ../run/systemd/resolve/stub-resolv.conf etc/resolv.conf"),
        ("missing", ":"),
    ];
    for &user in users() {
        for (name, make) in layouts {
            let script = format!(
                "mount -t tmpfs none /mnt; cd /mnt; mkdir etc run; echo kept >etc/kept; echo kept >run/kept; {make}
                 mount --bind etc /etc; mount --bind run /run
                 ls -lR /mnt >/dev/shm/before.$$
                 $1 run -- sh -c 'cat /etc/resolv.conf /etc/kept /run/kept'
                 ls -lR /mnt >/dev/shm/after.$$
                 cmp /dev/shm/before.$$ /dev/shm/after.$$; rm /dev/shm/before.$$ /dev/shm/after.$$"
            );
            let output = apart(user, &script);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{user:?} {name}: {errors}");
            let found: Vec<_> = text(&output).lines().skip(1).map(str::to_owned).collect();
            assert_eq!(
                found,
                ["nameserver 10.0.2.3", "nameserver fd00::3", "kept", "kept"],
                "{user:?} {name}"
            );
        }
    }
}

#[test]
fn a_resolv_conf_that_cannot_be_covered_is_named_with_the_remedy() {
    for &user in users() {
        let script = "mount -t tmpfs none /mnt; mkdir /mnt/etc; ln -s /no-such-place/x /mnt/etc/resolv.conf
             mount --bind /mnt/etc /etc; $1 run -- true";
        let output = apart(user, script);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{errors}");
        assert!(
            errors.contains("/etc/resolv.conf, of which the host has none") && errors.contains("create"),
            "{errors}"
        );
    }
}

#[test]
fn ids_are_root_s_unless_kept() {
    let script = "echo $(id -u) $(id -g) $(cat /proc/sys/net/ipv4/ping_group_range)";
    for &user in users() {
        let (inside, kept) = (user.inside(&[], script), user.inside(&["--keep-user"], script));
        if user == User::Root {
            // All ids are mapped, each to itself.
            assert_eq!((inside.as_str(), kept.as_str()), ("0 0 0 2147483647\n", "0 0 0 2147483647\n"));
            assert_eq!(user.inside(&[], "stat -c %u /proc/1"), "0\n");
        } else {
            let own = text(&user.command(&["sh", "-c", "echo $(id -u) $(id -g)"]).output().expect("id"));
            let gid = own.split_whitespace().nth(1).expect("two words").to_owned();
            assert_eq!(inside, "0 0 0 0\n");
            assert_eq!(kept, format!("{} {gid} {gid}\n", own.trim()));
        }
    }
}

#[test]
fn the_command_starts_as_it_would_without_brodo() {
    // Mask, dispositions, and what is open; the standard library ignores SIGPIPE, a command must not inherit
    // that.
    let script =
        "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | wc -l; pwd; echo $MARK; umask";
    for &user in users() {
        let outside = user
            .command(&["sh", "-c", script])
            .current_dir("/usr")
            .env("MARK", "here")
            .stdin(Stdio::null())
            .output();
        let inside =
            user.brodo(&["run", "--", "sh", "-c", script]).current_dir("/usr").env("MARK", "here").output();
        assert_eq!(text(&inside.expect("runs")), text(&outside.expect("runs")), "{user:?}");
    }
}

#[test]
fn signals_from_other_processes_are_forwarded() {
    for &user in users() {
        for signal in ["TERM", "HUP", "INT", "QUIT", "USR1", "WINCH"] {
            // A shell in the foreground that waits in `read` runs its trap at once.
            let script =
                format!("trap 'echo got {signal}; exit 3' {signal}; echo up; while :; do sleep 0.05; done");
            let mut brodo = Running::start(&mut user.brodo(&["run", "--", "sh", "-c", &script]));
            assert_eq!(brodo.line(), "up");
            brodo.kill(signal);
            assert_eq!(brodo.line(), format!("got {signal}"), "{user:?}");
            assert_eq!(brodo.status(), Some(3), "{user:?} {signal}");
        }
        let mut untrapped =
            Running::start(&mut user.brodo(&["run", "--", "sh", "-c", "echo up; exec sleep 1000"]));
        untrapped.line();
        untrapped.kill("TERM");
        assert_eq!(untrapped.status(), Some(128 + 15));
    }
}

#[test]
fn an_isolated_command_has_namespaces_of_its_own_and_ends_by_signals() {
    for &user in users() {
        let own = user.inside(
            &["--isolate", "--hostname", "inside"],
            r"cat /proc/sys/kernel/hostname; readlink /proc/self/ns/ipc /proc/self/ns/uts /proc/self/ns/pid; echo first $$",
        );
        let lines: Vec<_> = own.lines().collect();
        assert_eq!((lines[0], lines[4]), ("inside", "first 1"), "{own}");
        for (at, kind) in [(1, "ipc"), (2, "uts"), (3, "pid")] {
            let ours = fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace");
            assert_ne!(lines[at], ours.to_str().expect("UTF-8"), "{kind}");
        }
        let shared = user.inside(&["--isolate=no-pid"], "readlink /proc/self/ns/pid");
        assert_eq!(
            shared.trim_end(),
            fs::read_link("/proc/self/ns/pid").expect("one").to_str().expect("UTF-8")
        );
        // The first process of a PID namespace does not hear signals that it does not handle.
        for (script, expected) in [
            ("echo ready; exec sleep 1000", 128 + 15),
            ("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done", 7),
        ] {
            let words = ["run", "--isolate", "--", "sh", "-c", script];
            let mut running = Running::start(&mut user.brodo(&words));
            assert_eq!(running.line(), "ready");
            running.kill("TERM");
            assert_eq!(running.status(), Some(expected), "{user:?} {script}");
        }
    }
}

/// Records of two thousand flows are more than a socket holds, and more than one receipt takes.
#[test]
fn open_flows_at_the_end_are_no_crash() {
    const FLOWS: &str = "
import socket, sys
flows = []
for number in range(2000):
    flow = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    flow.sendto(b'?', ('10.0.2.2', int(sys.argv[1])))
    flow.recv(1)
    flows.append(flow)
";
    let Some(&user) = users().last() else { return };
    let server = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("bound").port().to_string();
    thread::spawn(move || {
        while let Ok((length, peer)) = server.recv_from(&mut [0]) {
            let _ = server.send_to(&[0][..length], peer);
        }
    });
    let words = ["bash", "-c", "ulimit -n 4096; exec \"$@\"", "bash", program_str(), "run", "-v"];
    let options = ["--map-host-loopback", "10.0.2.2", "--", "/usr/bin/python3", "-c", FLOWS, &port];
    let words = [&words[..], &options].concat();
    let ended = user.command(&words).output().expect("it starts");
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && !text.contains("crashed"), "{text}");
    assert!(text.contains("udp_opened 2000"), "{text}");
}

#[test]
fn a_stop_at_any_time_is_survived() {
    // Of the whole group, as by a terminal, from before brodo handles signals until after the command has
    // started. (No shell's job control: bash's `wait -f` now and then spins on a job that stopped, continued
    // and ended at once.)
    for &user in users() {
        for ms in (0..=10).chain([12, 14, 16, 18, 20, 25, 30, 40]) {
            let mut brodo = user.brodo(&["run", "--", "sleep", "0.02"]);
            let mut brodo = Running::start(brodo.process_group(0).stderr(Stdio::null()));
            thread::sleep(Duration::from_millis(ms));
            brodo.kill_group("TSTP");
            thread::sleep(Duration::from_millis(10));
            brodo.kill_group("CONT");
            assert_eq!(brodo.status(), Some(0), "{user:?} {ms} ms");
        }
    }
}

#[test]
fn the_command_dies_with_brodo() {
    for &user in users() {
        let mut brodo =
            Running::start(&mut user.brodo(&["run", "--", "sh", "-c", "echo $$; exec sleep 1000"]));
        let command: u32 = brodo.line().parse().expect("a number");
        assert!(lives(command));
        brodo.kill("KILL");
        eventually("the command is gone", || !lives(command));
    }
}

#[test]
fn a_command_that_deletes_its_interface_goes_on() {
    let script =
        "ip link delete eth0; echo deleted; read -r line; ip -o link show eth0 2>/dev/null | wc -l; exit 5";
    for &user in users() {
        let folder = Folder::new(&format!("deleted-{user:?}"));
        let socket = folder.path("socket");
        let mut brodo = user.brodo(&["run", "--control", &socket, "--", "sh", "-c", script]);
        let mut brodo = Running::start(brodo.stdin(Stdio::piped()));
        assert_eq!(brodo.line(), "deleted");
        // Its clients learn at once that there is no network, without waiting for an engine.
        let mut why = String::new();
        eventually("brodo has noticed", || {
            let (status, _, errors) = asked(user, &socket, &["status"]);
            why = errors;
            status != Some(0)
        });
        assert!(why.contains("serves no network"), "{user:?} {why}");
        for _ in 0..2 {
            let (status, out, why) = asked(user, &socket, &["upgrade"]);
            assert!(status == Some(1) && why.contains("serves no network"), "{user:?} {out} {why}");
        }
        brodo.kill("USR2");
        drop(brodo.take_stdin());
        assert_eq!((brodo.line().as_str(), brodo.status()), ("0", Some(5)));
    }
}

#[test]
fn the_host_is_left_as_it_was() {
    // A host of its own, so that nothing else changes it meanwhile; mounts are shared, so that one that
    // leaked would show.
    for &user in users() {
        let flags: &[&str] = if user == User::Root { &["-mn"] } else { &["-rmn"] };
        let script = "mount --make-rshared /
             state() { readlink /proc/self/ns/*; cat /proc/self/mountinfo /etc/resolv.conf; ip addr; ip route; }
             before=$(state); $1 run -- true; $1 run --keep-user -- sh -c 'mount -t tmpfs none /mnt || :' 2>/dev/null
             test \"$before\" = \"$(state)\" && echo same";
        let words =
            [&["unshare"], flags, &["--propagation", "private", "sh", "-c", script, "sh", program_str()]]
                .concat();
        let output = user.command(&words).output().expect("unshare runs");
        assert_eq!(text(&output), "same\n", "{user:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_closed_tun_device_is_named_with_the_remedy() {
    if !is_root() || users().is_empty() {
        return;
    }
    // In a mount namespace of its own the device is made inaccessible, and then is no device at all.
    for (hide, about) in [
        (
            "mknod /mnt/tun c 10 200; chmod 0600 /mnt/tun",
            "Permission denied: let users open it as root (chmod 0666",
        ),
        (": >/mnt/tun; chmod 0666 /mnt/tun", "TUNSETIFF"),
        ("mount -t tmpfs none /dev/net; exec $0", "No such file or directory: load the tun module"),
    ] {
        let script = format!("mount -t tmpfs none /mnt; H='{hide}'; case $H in *exec*) mount -t tmpfs none /dev/net;; *) eval \"$H\"; mount --bind /mnt/tun /dev/net/tun;; esac
             setpriv --reuid=65534 --regid=65534 --clear-groups -- $1 run -- true");
        let output = Command::new("unshare").args(["-m", "sh", "-ec", &script, "sh", program_str()]).output();
        let output = output.expect("unshare runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{errors}");
        assert!(errors.contains(about), "{errors}");
    }
}

#[test]
fn forbidden_user_namespaces_are_named_with_the_remedy() {
    for &user in users() {
        // The limit of a user namespace binds what is inside of it, and is its root's to set.
        let script = "echo 0 >/proc/sys/user/max_user_namespaces; $1 run -- true";
        let output =
            user.command(&["unshare", "-r", "sh", "-c", script, "sh", program_str()]).output().expect("runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{errors}");
        assert!(
            errors.contains("unshare: No space left on device")
                && errors.contains("sysctl user.max_user_namespaces"),
            "{errors}"
        );
    }
}

#[test]
fn the_report_comes_when_asked_for() {
    for &user in users() {
        let output = user.brodo(&["run", "-v", "--", "true"]).output().expect("brodo starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.lines().any(|line| line.starts_with("brodo: tcp_opened ")), "{errors}");
        assert!(errors.lines().all(|line| line.starts_with("brodo: ")), "{errors}");
    }
}

#[test]
fn verbose_progress_is_printed_also_as_json() {
    for &user in users() {
        let output = user
            .brodo(&["run", "-vv", "--log", "json", "--mtu", "9000", "--", "true"])
            .output()
            .expect("starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        let lines = json_lines(&errors);
        let said = |message: &str| {
            let found = lines.iter().find(|line| line["message"] == message);
            found.unwrap_or_else(|| panic!("{message} is not said: {errors}"))
        };
        assert_eq!(said("made the guest's interface")["fields"]["mtu"], 9000);
        assert_eq!(said("started the command")["fields"]["command"], "true");
        assert_eq!(said("the command has ended")["fields"]["status"], 0);
        assert_eq!(said("details of the set-up")["level"], "debug");
        assert_eq!(said("counters")["fields"]["tcp_opened"], 0);
        for line in &lines {
            let time = line["time"].as_str().unwrap_or_default();
            assert!(time.len() == 27 && time.starts_with("20") && time.ends_with('Z'), "{line}");
        }
    }
}

#[test]
fn a_limit_on_file_size_ends_capture_and_flow_log_but_not_the_command() {
    for &user in users() {
        let folder = std::env::temp_dir().join(format!("brodo-size-{}-{user:?}", std::process::id()));
        fs::create_dir(&folder).expect("a directory");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("ours");
        // 8 KiB for each file (sh counts 512 bytes, bash in its POSIX mode too): the command fills both with
        // refused connections and a large datagram.
        let script = "ulimit -f 16; exec $1 run --pcap $2/pcap --flow-log $2/log -- bash -c '
             for i in $(seq 200); do (: </dev/tcp/169.254.169.254/$i) 2>/dev/null; done; head -c 9000 /dev/zero >/dev/udp/10.0.2.2/9
             until [ $(stat -c %s $0/pcap) = 8192 ] && [ $(stat -c %s $0/log) -gt 7800 ]; do sleep 0.02; done
             (head -c 20000 /dev/zero >$0/own) 2>/dev/null; echo own=$?; exit 5' $2";
        let words = ["sh", "-c", script, "sh", program_str(), folder.to_str().expect("UTF-8")];
        let output = user.command(&words).output().expect("sh runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        // The command itself is ended by the signal as without brodo.
        assert_eq!(
            (output.status.code(), text(&output).as_str()),
            (Some(5), "own=153\n"),
            "{user:?} {errors}"
        );
        for (what, then) in [("capture", "ended early"), ("flow log", "lacks records from now on")] {
            let notices: Vec<_> = errors.lines().filter(|line| line.contains(&format!("{what} "))).collect();
            assert!(
                notices.len() == 1 && notices[0].ends_with(&format!("{then}: write: File too large")),
                "{user:?} {errors}"
            );
        }
        for file in ["pcap", "log"] {
            let found = fs::metadata(folder.join(file)).expect("it was made");
            assert_eq!(found.permissions().mode() & 0o777, 0o600, "{user:?} {file}");
            assert!((7801..=8192).contains(&found.len()), "{user:?} {file}");
        }
        let log = fs::read_to_string(folder.join("log")).expect("it was made");
        assert!(log.ends_with('\n') && log.lines().all(|line| line.ends_with('}')), "{user:?} {log}");
        fs::remove_dir_all(&folder).expect("ours");
    }
}

#[test]
fn a_low_limit_on_open_files_is_named_with_the_remedy() {
    for &user in users() {
        let run = |limit: &str, options: &str| {
            let script = format!("ulimit -n {limit}; exec $1 run {options} -- true");
            user.command(&["sh", "-c", &script, "sh", program_str()]).output().expect("sh runs")
        };
        let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let few = run("150", "");
        assert!(few.status.success(), "{}", said(&few));
        let text = said(&few);
        assert!(text.contains("limit on open files") && text.contains("flows at most 43"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        let asked = said(&run("1000", "--max-flows 2000"));
        assert!(asked.contains("flows at most 802"), "{asked}");
        assert_eq!(said(&run("1000", "")), "");
        let none = run("60", "");
        assert_eq!(none.status.code(), Some(125));
        assert!(said(&none).contains("brodo needs 93 descriptors for itself"), "{}", said(&none));
    }
}

#[test]
fn options_come_from_a_file_if_it_is_named() {
    let path = std::env::temp_dir().join(format!("brodo-session-{}.toml", std::process::id()));
    fs::write(&path, "mtu = 4000\nifname = 'up0'\n[attach]\nmtu = 2000\n").expect("a temporary file");
    for &user in users() {
        let options = ["--config", path.to_str().expect("UTF-8"), "--ifname", "up1"];
        assert_eq!(user.inside(&options, "ip -o link show up1 | grep -c 'mtu 4000 '"), "1\n");
    }
    fs::remove_file(&path).expect("ours");
}

#[test]
fn metrics_are_served_while_the_network_is_and_their_socket_goes_with_it() {
    use std::io::{Read, Write};
    for &user in users() {
        let path = std::env::temp_dir().join(format!("brodo-metrics-{}-{user:?}.sock", std::process::id()));
        let address = format!("unix:{}", path.display());
        let mut command = user.brodo(&["run", "--metrics", &address, "--", "sh", "-c", "echo there; cat"]);
        let mut brodo = Running::start(command.stdin(Stdio::piped()));
        brodo.line_with("there");
        let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: brodo\r\n\r\n").expect("it reads");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("text");
        for part in ["HTTP/1.1 200 OK\r\n", "\nbrodo_tcp_opened_total 0\n", "\nbrodo_workers 1\n"] {
            assert!(reply.contains(part), "{user:?}: {part} is not in {reply}");
        }
        brodo.kill("TERM");
        assert!(brodo.status().is_some() && !path.exists(), "{user:?}: {} is left", path.display());
    }
}

#[test]
fn readiness_is_written_once_and_the_descriptor_closed() {
    for &user in users() {
        // `cat` ends once the pipe has no writer, while the command still runs.
        let script = "mkfifo $2/f; cat $2/f & $1 run --ready-fd 9 9>$2/f -- sleep 1000 & brodo=$!
             wait %1; kill $brodo; wait $brodo; $1 run --ready-fd 9 9>/dev/null -- ls /proc/self/fd";
        let directory = std::env::temp_dir().join(format!("brodo-ready-{}-{user:?}", std::process::id()));
        fs::create_dir(&directory).expect("a directory");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("ours");
        let path = directory.to_str().expect("UTF-8");
        let output =
            user.command(&["bash", "-c", script, "sh", program_str(), path]).output().expect("bash runs");
        let lines = text(&output);
        assert!(lines.starts_with("\n0\n1\n") && !lines.lines().any(|line| line == "9"), "{user:?} {lines}");
        fs::remove_dir_all(&directory).expect("ours");
    }
}
