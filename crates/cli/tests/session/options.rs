//! Options of small scope on real namespaces: parts left out, a link too small for IPv6, ports at addresses
//! to come, the log in a file. A namespace stands for the host.

use crate::support::{Folder, User, program_str, text, users};

/// Runs `script` in a network namespace of its own; `$b` is the program, the working directory a folder.
fn shown(name: &str, user: User, script: &str) -> String {
    let folder = Folder::new(name);
    let script = format!(
        "set -e; b=$1; cd \"$2\"; ip link set lo up; echo 0 0 > /proc/sys/net/ipv4/ping_group_range\n{script}"
    );
    let folder = folder.path("");
    let words = ["unshare", "-rn", "sh", "-c", &script, "sh", program_str(), folder.trim_end_matches('/')];
    let output = User::command(user, &words).output().expect("runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{user:?} {}\n{}\n{errors}", output.status, text(&output));
    text(&output) + &errors
}

#[test]
fn parts_that_are_left_out_do_not_answer() {
    for &user in users() {
        let all = shown(
            "options-without",
            user,
            r#"
            # $1 is the patience: an answer may take long, and silence has no end.
            ask='ping -c1 -W$1 10.0.2.2 >/dev/null && echo ping || echo silent
                 socat - TCP:10.0.2.2:80,connect-timeout=$1 </dev/null 2>&1 | grep -o "timed out\|refused"'
            "$b" run -4 -- sh -c "$ask" sh 60; "$b" run -4 --without ping,tcp -- sh -c "$ask" sh 1
            "$b" run -4 --without udp -u 5000 -- true || echo status $?
            "#,
        );
        assert!(all.starts_with("ping\nrefused\nsilent\ntimed out\nstatus 2\n"), "{user:?}: {all}");
        assert!(all.contains("-u: --without leaves its protocol out"), "{user:?}: {all}");
    }
}

#[test]
fn a_link_too_small_for_ipv6_carries_ipv4() {
    for &user in users() {
        let all = shown(
            "options-mtu",
            user,
            r#"
            head -c 300000 /dev/urandom > sent
            socat -u OPEN:sent TCP-LISTEN:7000,bind=127.0.0.1 & trap "kill $! 2>/dev/null || true" EXIT
            until ss -lnt | grep -q 127.0.0.1:7000; do sleep 0.01; done
            "$b" run --mtu 88 --map-host-loopback gateway -- sh -c \
                'ip addr show eth0 | grep -o "mtu 88\|inet6* [0-9.:a-f]*"; socat -u TCP:10.0.2.2:7000 CREATE:got'
            cmp sent got && echo equal
            socat -u TCP-LISTEN:7001,bind=127.0.0.1 CREATE:back & up=$!
            until ss -lnt | grep -q 127.0.0.1:7001; do sleep 0.01; done
            # It ends with the server: bytes in its kernel's socket would be lost with the namespace.
            "$b" run --mtu 88 --map-host-loopback gateway -- sh -c 'socat -t60 - TCP:10.0.2.2:7001 <sent >/dev/null'
            wait $up; cmp sent back && echo equal
            "$b" run -6 --mtu 1279 -- true || echo status $?
            "#,
        );
        assert!(all.starts_with("mtu 88\ninet 10.0.2.15\nequal\nequal\nstatus 2\n"), "{user:?}: {all}");
        assert!(all.contains("IPv6 needs an MTU of 1280"), "{user:?}: {all}");
    }
}

#[test]
fn a_port_is_published_at_an_address_to_come() {
    for &user in users() {
        let all = shown(
            "options-freebind",
            user,
            r#"
            "$b" run -t 192.0.2.7/7000 -- true 2>&1 | grep -o 'Cannot assign' || true
            "$b" run --freebind -t 192.0.2.7/7000 -- socat TCP-LISTEN:7000 SYSTEM:'echo served' &
            until ss -lnt | grep -q 192.0.2.7:7000; do sleep 0.01; done
            ip addr add 192.0.2.7/32 dev lo
            until [ "$(socat - TCP:192.0.2.7:7000 </dev/null 2>/dev/null)" = served ]; do sleep 0.1; done; echo served
            "#,
        );
        assert!(all.starts_with("Cannot assign\nserved\n"), "{user:?}: {all}");
    }
}

#[test]
fn the_log_is_in_a_file() {
    for &user in users() {
        let all = shown(
            "options-log",
            user,
            r#"
            "$b" run -v --log-file log --log-file-size 4096 -- true
            "$b" run --log-file log -t 127.0.0.1/1-2:3-4 --address 10.0.0.1/33 -- true 2>&1 || echo status $?
            "$b" run --log-file log -- /nonexistent 2>stderr || echo status $?
            grep -o 'nonexistent' stderr | head -n1
            mkfifo ready; export XDG_RUNTIME_DIR=$PWD
            "$b" run --log-file log -v --ready-fd 3 --pid-file pid -- sleep 1000 3>ready & read -r _ < ready
            until kill -USR2 "$(cat pid)" 2>/dev/null && grep -q 'after a pause' log; do sleep 0.2; done; echo upgraded
            kill "$(cat pid)"; wait || true
            cat log.1 log
            "$b" run --log-file /nonexistent/log -- true || echo status $?
            cp "$b" pasta; echo old > l; ./pasta -l l -t none -u none -T none -U none -- true & one=$!; wait $one
            head -n1 l | sed "s/($one)/(PID)/"; grep -c old l || true
            "#,
        );
        let first = format!("pasta {}: ", env!("CARGO_PKG_VERSION"));
        let first = all.lines().find(|line| line.starts_with(&first)).expect("the first line");
        assert!(first.ends_with("/pasta (PID)") && all.contains("/pasta (PID)\n0\n"), "{user:?}: {all}");
        for part in [
            "serving DNS",
            "brodo: flows_evicted 0",
            "status 2",
            "status 127\nnonexistent",
            "\nupgraded\n",
            "status 125",
        ] {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}");
        }
        let dated = |line: &str| line.starts_with("20") && line.contains("Z brodo: ");
        assert!(all.lines().filter(|line| line.contains("brodo: logging to a file")).all(dated), "{all}");
    }
}
