//! A guest with the host's network (`--copy-host`), brodo in the background (`--daemon`), and brodo in the
//! place of pasta. The host is a network namespace with a TAP of its own, so that no packet leaves it.

use crate::support::{Folder, User, eventually, is_root, lives, program_str, text, users};
use std::fs;
use std::process::{Command, Output};

/// A namespace with a TAP that has addresses and routes of a documentation network, in which `script` runs
/// with the path of brodo as `$1`.
fn on_host(script: &str, words: &[&str]) -> Output {
    let set_up = r"
        ip link set lo up; ip tuntap add mode tap uplink0; ip link set uplink0 mtu 9000 up
        ip addr add 192.0.2.9/24 dev uplink0; ip addr add 192.0.2.10/24 dev uplink0
        ip addr add 2001:db8::9/64 dev uplink0 nodad
        ip route add 203.0.113.0/24 via 192.0.2.7 metric 77; ip route add default via 192.0.2.1
        ip route add default via fe80::1 dev uplink0
        mount -t tmpfs none /run; mkdir -p /run/netns
        b=$1; shift
    ";
    let script = format!("set -e\n{set_up}\n{script}");
    let words = [&["-mn", "sh", "-c", &script, "sh", program_str()], words].concat();
    Command::new("unshare").args(words).output().expect("runs")
}

fn shown(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {errors}", output.status);
    text(output)
}

/// Only root can make the host; brodo is then root too.
fn can_run() -> bool {
    is_root() && !users().is_empty()
}

#[test]
fn a_guest_gets_the_hosts_addresses_routes_and_name() {
    if !can_run() {
        return;
    }
    let script = r#"$b run --copy-host "$@" -- sh -c "ip -o addr; ip route; ip -6 route; ip link; cat /etc/resolv.conf""#;
    let all = shown(&on_host(script, &[]));
    for part in [
        "uplink0    inet 192.0.2.9/24",
        "uplink0    inet 192.0.2.10/24",
        "uplink0    inet6 2001:db8::9/64",
        "default via 192.0.2.1 dev uplink0",
        "203.0.113.0/24 via 192.0.2.7 dev uplink0 metric 77",
        "default via fe80::1 dev uplink0",
        "mtu 9000",
        "nameserver 169.254.1.1",
    ] {
        assert!(all.contains(part), "{part} is not in\n{all}");
    }
    let options =
        ["--address", "198.51.100.7/32", "--gateway", "198.51.100.1", "--ifname", "up0", "--mtu", "1400"];
    let replaced = shown(&on_host(script, &options));
    for part in
        ["up0    inet 198.51.100.7/32", "default via 198.51.100.1 dev up0", "2001:db8::9/64", "mtu 1400"]
    {
        assert!(replaced.contains(part), "{part} is not in\n{replaced}");
    }
    for part in ["192.0.2.", "203.0.113."] {
        assert!(!replaced.contains(part), "{part} is in\n{replaced}");
    }
}

#[test]
fn an_interface_can_be_named_and_a_host_without_one_still_has_a_guest() {
    if !can_run() {
        return;
    }
    let output = on_host("$b run --copy-host=other0 -- true", &[]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--copy-host=other0"), "{errors}");
    let local = shown(&on_host("ip link del uplink0; $b run --copy-host -- ip -o addr", &[]));
    assert!(local.contains("tap0    inet 169.254.2.1/16"), "{local}");
}

/// As pasta: each family that the host does not have is link-local, so that its ports can be published.
#[test]
fn in_a_family_that_the_host_does_not_have_ports_are_published_too() {
    if !can_run() {
        return;
    }
    let script = r#"
        without() { case $1 in
            4) ip -4 addr flush dev uplink0;;
            6) ip addr del 2001:db8::9/64 dev uplink0; ip -6 route del default
               ip -6 route add ::1 dev lo metric 256;; # As systemd.
        esac; }
        without $1
        $b as pasta --config-net -q -t "$2/8080-8080:80-80" -u none -T none -U none -- sh -c '
            ip -o addr; ip -4 route; ip -6 route; exec socat TCP$0-LISTEN:80,fork SYSTEM:"echo served"' $1 & pasta=$!
        trap 'kill $pasta 2>/dev/null || true' EXIT
        until socat -u "TCP:$2:8080" - 2>/dev/null | grep served; do sleep 0.05; kill -0 $pasta; done
        kill $pasta; wait $pasta || true; trap - EXIT
        $b as pasta --config-net -$1 -q -- ip -o addr
    "#;
    for (words, parts) in [
        (
            ["4", "127.0.0.1"],
            [
                "uplink0    inet 169.254.2.1/16",
                "default via 169.254.2.2 dev uplink0",
                "2001:db8::9/64",
                "served",
            ],
        ),
        (
            ["6", "[::1]"],
            ["uplink0    inet6 fe80::2/64", "default via fe80::1 dev uplink0", "192.0.2.9/24", "served"],
        ),
    ] {
        let all = shown(&on_host(script, &words));
        for part in parts {
            assert!(all.contains(part), "{part} is not in\n{all}");
        }
        assert_eq!(all.matches(parts[0]).count(), 2, "also of a guest with that family alone: {all}");
    }
}

#[test]
fn a_namespace_without_ipv6_stays_so_if_the_host_has_none() {
    if !can_run() {
        return;
    }
    let script = r"
        ip addr del 2001:db8::9/64 dev uplink0; ip -6 route del default; ip netns add x
        inside() { ip netns exec x $*; }
        for of in all default; do inside sysctl -qw net.ipv6.conf.$of.disable_ipv6=1; done
        $b as pasta --config-net -q -f --netns /run/netns/x & pasta=$!
        trap 'kill $pasta 2>/dev/null || true' EXIT
        until inside ip -4 route | grep -q default; do sleep 0.05; kill -0 $pasta; done
        inside ip -o addr show dev uplink0; inside sysctl net.ipv6.conf.uplink0.disable_ipv6
    ";
    let all = shown(&on_host(script, &[]));
    assert!(all.contains("inet 192.0.2.9/24") && all.contains("disable_ipv6 = 1"), "{all}");
    assert!(!all.contains("inet6"), "{all}");
}

#[test]
fn a_guest_and_its_host_reach_each_other_by_the_mapped_address_and_the_published_port() {
    if !can_run() {
        return;
    }
    // A server of the host's at the address that the guest has too, and one of the guest's.
    let script = r#"
        socat -u OPEN:/proc/sys/kernel/ostype TCP-LISTEN:7000,bind=192.0.2.9 &
        until ss -Hlnt | grep -q 192.0.2.9:7000; do sleep 0.01; done; mkfifo /run/over
        $b run --copy-host --map-host-address 169.254.1.2 -t 7001 -- sh -c '
            socat -u TCP:169.254.1.2:7000 -
            socat TCP-LISTEN:7001,fork SYSTEM:"echo \$SOCAT_PEERADDR" & read -r end; kill $!' <>/run/over &
        until ss -Hlnt | grep -q :7001; do sleep 0.01; done
        until socat -u TCP:192.0.2.9:7001 - 2>/dev/null | grep .; do sleep 0.1; done; echo >/run/over; wait
    "#;
    let all = shown(&on_host(script, &[]));
    assert!(all.contains("Linux") && all.contains("169.254.1.2"), "{all}");
}

/// podman moves the process of the PID file, so that the unit of its first container does not end the network
/// of all others.
#[test]
fn all_processes_of_a_daemon_follow_it_into_another_control_group() {
    if !can_run() {
        return;
    }
    let script = r#"
        for g in /sys/fs/cgroup /sys/fs/cgroup/unified; do test ! -e $g/cgroup.controllers || break; done
        g=$g/brodo-$$; mkdir -p $g/unit $g/scope 2>/dev/null && test -e $g/unit/cgroup.procs || { echo none; exit 0; }
        ip netns add blue
        sh -c 'echo $$ >$0/cgroup.procs; exec "$@"' $g/unit $b attach --daemon --pid-file /run/pid --netns /run/netns/blue
        echo before $(wc -l <$g/unit/cgroup.procs); cat /run/pid >$g/scope/cgroup.procs
        i=0; while grep -q . $g/unit/cgroup.procs && [ $i -lt 600 ]; do sleep 0.05; i=$((i + 1)); done
        echo after $(wc -l <$g/unit/cgroup.procs) $(wc -l <$g/scope/cgroup.procs); kill $(cat /run/pid)
        while grep -q . $g/unit/cgroup.procs $g/scope/cgroup.procs; do sleep 0.05; done; rmdir $g/unit $g/scope $g
    "#;
    let all = shown(&on_host(script, &[]));
    if all == "none\n" {
        eprintln!("*** SKIPPED: there is no cgroup v2 to make a group in");
        return;
    }
    let words: Vec<&str> = all.split_whitespace().collect();
    let ["before", before, "after", "0", after] = words[..] else { panic!("{all}") };
    assert!(before == after && before.parse().is_ok_and(|count: u32| count >= 3), "{all}");
}

#[test]
fn a_daemon_is_ready_when_its_command_ends_and_keeps_nothing_of_the_callers() {
    for &user in users() {
        let folder = Folder::new("daemon");
        let pid_file = folder.path("pid");
        // The pipe's end is the end of all its writers; descriptor 5 is one more.
        let script = r#"
            unshare -rn sleep 100 & target=$!
            until [ "$(readlink /proc/$target/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
            ( $1 attach --daemon --pid-file $2 $target 5>&1 2>&1; echo status $? ) | cat
            nsenter -t $target -U --preserve-credentials -n ip -o -4 addr show dev eth0
            cat $2; kill $target; wait
        "#;
        let output =
            user.command(&["sh", "-c", script, "sh", program_str(), &pid_file]).output().expect("runs");
        let all = text(&output);
        assert!(all.starts_with("status 0\n") && all.contains("inet 10.0.2.15/24"), "{user:?} {all}");
        let pid: u32 = all.lines().last().and_then(|line| line.parse().ok()).expect("a process id");
        eventually("brodo ends with its target", || !lives(pid));
        assert_eq!(fs::read_to_string(&pid_file).expect("the file stays"), format!("{pid}\n"));
    }
}

/// Its starter, which writes the file, stands still for a while.
#[test]
fn a_daemon_is_ready_when_its_pid_file_is_written() {
    for &user in users() {
        let folder = Folder::new(&format!("daemon-ready-{user:?}"));
        let script = r#"
            unshare -rn sleep 100 & target=$!
            until [ "$(readlink /proc/$target/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
            mkfifo $2/ready; exec 6<>$2/ready
            $1 attach --daemon --ready-fd 6 --pid-file $2/pid $target & starter=$!
            child=; until [ -n "$child" ]; do read -r child </proc/$starter/task/$starter/children || :; done
            kill -STOP $starter; read -r -t 1 -u 6 && echo early; kill -CONT $starter
            read -r -t 60 -u 6 && cat $2/pid; wait $starter; echo status $?; kill $target; wait; echo $child
        "#;
        let words = ["bash", "-c", script, "bash", program_str(), &folder.path("")];
        let output = user.command(&words).output().expect("runs");
        let (all, errors) = (text(&output), String::from_utf8_lossy(&output.stderr));
        let child = all.lines().last().unwrap_or_default().trim();
        assert_eq!(all.lines().next(), Some(child), "{user:?} {all} {errors}");
        assert!(all.contains("status 0\n"), "{user:?} {all} {errors}");
    }
}

#[test]
fn a_daemon_that_fails_says_why_and_leaves_nothing() {
    for &user in users() {
        let folder = Folder::new("daemon-failure");
        let pid_file = folder.path("pid");
        let output = user.brodo(&["attach", "--daemon", "--pid-file", &pid_file, "--netns", "/nonexistent"]);
        let output = { output }.output().expect("runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{errors}");
        assert!(errors.contains("/nonexistent"), "{errors}");
        assert!(fs::metadata(&pid_file).is_err(), "no PID file is left");
    }
}

#[test]
fn a_daemon_ends_at_once_when_the_path_of_its_namespace_is_deleted() {
    if !can_run() {
        return;
    }
    let script = r"
        ip netns add blue; $b attach --daemon --pid-file /run/pid --netns /run/netns/blue
        pid=$(cat /run/pid); kill -0 $pid; ip netns del blue
        i=0; while kill -0 $pid 2>/dev/null; do sleep 0.02; i=$((i + 1)); done; echo $((i * 20)) ms
    ";
    let all = shown(&on_host(script, &[]));
    assert!(all.ends_with(" ms\n"), "{all}");
}

/// brodo under the name `pasta`: exit status, output, errors.
fn pasta(user: User, words: &[&str]) -> (Option<i32>, String, String) {
    let output = user.brodo(&[&["as", "pasta"], words].concat()).output().expect("runs");
    (output.status.code(), text(&output), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn pastas_probes_and_errors_are_answered_as_its_callers_expect() {
    for &user in users() {
        let (status, out, _) = pasta(user, &["--version"]);
        assert!(status == Some(0) && out.starts_with("pasta ") && out.contains("(brodo)"), "{out}");
        let (status, out, _) = pasta(user, &["--help"]);
        assert!(status == Some(0) && out.contains("--map-guest-addr"), "{out}");
        let (status, _, errors) = pasta(user, &["--frobnicate"]);
        assert_eq!(status, Some(1));
        assert!(errors.contains("unrecognized option '--frobnicate'"), "{errors}");
        let (status, _, errors) = pasta(user, &["--config-net", "--netns", "/nonexistent"]);
        assert_eq!(status, Some(1), "{errors}");
        let (status, _, errors) = pasta(user, &["-m", "70000", "--", "true"]);
        assert_eq!((status, errors.as_str()), (Some(1), "MTU 70000 too large (max 65521)\n"));
    }
}

#[test]
fn podmans_way_to_start_pasta_works_by_its_name() {
    if !can_run() {
        return;
    }
    let script = r#"
        mkdir /run/bin; ln -s $b /run/bin/pasta; ip netns add blue
        BRODO_ARGS="--flow-log /run/flows" /run/bin/pasta --config-net --pid /run/pid -t 127.0.0.1/8080-8080:80-80 \
            --dns-forward 169.254.1.1 -u none -T none -U none --no-map-gw --quiet --netns /run/netns/blue \
            --map-guest-addr 169.254.1.2
        ip netns exec blue sh -c 'ip -o -4 addr; ip route; ip link show uplink0'
        ip netns exec blue socat TCP-LISTEN:80,bind=192.0.2.9 SYSTEM:'echo served' &
        until ip netns exec blue ss -Hlnt | grep -q 192.0.2.9:80; do sleep 0.01; done
        socat -u TCP:127.0.0.1:8080 -
        test -e /run/flows; kill $(cat /run/pid); ip netns del blue; wait
    "#;
    let all = shown(&on_host(script, &[]));
    for part in ["uplink0    inet 192.0.2.9/24", "default via 192.0.2.1 dev uplink0", "mtu 65520", "served"] {
        assert!(all.contains(part), "{part} is not in\n{all}");
    }
}

#[test]
fn a_port_in_use_ends_it_with_a_sentence_and_without_a_process() {
    if !can_run() {
        return;
    }
    let script = r"
        socat TCP-LISTEN:8080,bind=127.0.0.1 - &
        until ss -Hlnt | grep -q 127.0.0.1:8080; do sleep 0.01; done; ip netns add blue
        $b as pasta --config-net --pid /run/pid -t 127.0.0.1/8080 --netns blue 2>&1 || echo status $?
        ip netns exec blue ip -o link; test ! -e /run/pid; kill $!
    ";
    let all = shown(&on_host(script, &[]));
    assert!(
        all.contains("Address already in use") && all.contains("8080") && all.contains("status 1"),
        "{all}"
    );
    assert!(!all.contains("uplink0"), "no interface is left: {all}");
}

/// The router is link-local, as most are: by the interface a datagram of the host's loopback would come from
/// an address of another scope than the guest's own, to which no service could answer.
#[test]
fn datagrams_of_the_hosts_loopback_come_from_the_guests_own_addresses() {
    if !can_run() {
        return;
    }
    let script = r#"
        ask() { for i in $(seq 100); do
            said=$(echo asked | socat -T9 -t0.3 - "$1" 2>/dev/null) && [ -n "$said" ] && break; sleep 0.1
        done; echo "$1" $said; }
        serve='socat UDP6-RECVFROM:5000,ipv6-v6only,fork SYSTEM:"cat; echo \$SOCAT_PEERADDR" &
               socat UDP4-RECVFROM:5000,fork SYSTEM:"cat; echo \$SOCAT_PEERADDR" &
               socat UDP4-RECVFROM:5001,bind=127.0.0.1,fork SYSTEM:"cat; echo \$SOCAT_PEERADDR" & wait'
        $b as pasta --config-net -q -t none -u 5000,5001 -T none -U none "$@" -- sh -c "$serve" & pasta=$!
        trap 'kill $pasta 2>/dev/null || true' EXIT
        ask UDP:127.0.0.1:5000; ask "UDP:[::1]:5000"
        if [ $# -gt 0 ]; then ask UDP:127.0.0.1:5001; fi
        kill $pasta; wait $pasta || true; trap - EXIT
    "#;
    let all = shown(&on_host(script, &[]));
    let own = "UDP:127.0.0.1:5000 asked 192.0.2.9\nUDP:[::1]:5000 asked [2001:0db8:0000:0000:0000:0000:0000:0009]\n";
    assert_eq!(all, own);
    let all = shown(&on_host(script, &["--host-lo-to-ns-lo"]));
    for part in ["5000 asked 127.0.0.1\n", "5000 asked [0000:0000:", "5001 asked 127.0.0.1\n"] {
        assert!(all.contains(part), "{part} is not in\n{all}");
    }
}

/// The line of podman-run(1), with the network's own address for the guest.
#[test]
fn podmans_documented_line_gives_the_guest_the_networks_own_address() {
    if !can_run() {
        return;
    }
    let script = r"
        $b as pasta --config-net -4 -a 10.0.2.0 -n 24 -g 10.0.2.2 --dns-forward 10.0.2.3 -t none -u none -q -- \
            sh -c 'ip -br -4 addr; ping -q -c 1 10.0.2.3'
    ";
    let all = shown(&on_host(script, &[]));
    for part in ["10.0.2.0/24", " 0% packet loss"] {
        assert!(all.contains(part), "{part} is not in\n{all}");
    }
}

#[test]
fn without_a_command_pasta_starts_a_login_shell() {
    for &user in users() {
        let script = "echo 'echo name $0' | SHELL=/bin/sh \"$1\" as pasta --config-net";
        let output = user.command(&["sh", "-c", script, "sh", program_str()]).output().expect("runs");
        let (all, errors) = (text(&output), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && all.contains("name -/bin/sh\n"), "{user:?} {all} {errors}");
    }
}

/// Names of the host whose router is its resolver, as at home. Arguments: the resolver in the host's
/// resolv.conf, the one that the guest asks, options of pasta. Prints what the guest finds.
const NAMES: &str = r#"
    ip link del uplink0; ip netns add router; ip link add uplink0 type veth peer name down0 netns router
    ip addr add 192.0.2.9/24 dev uplink0; ip link set uplink0 up; ip route add default via 192.0.2.1
    ip -n router addr add 192.0.2.1/24 dev down0; ip -n router link set down0 up
    ip -n router link set lo up
    cat >/run/serve <<'PYTHON'
import socket, sys
socket_ = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket_.bind((sys.argv[1], 53))
print(flush=True)
while True:
    query, peer = socket_.recvfrom(4096)
    end = query.index(b"\0", 12) + 5
    count, record = b"\0\0", b""
    if query[end - 3] == 1:
        count = b"\0\1"
        record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(sys.argv[2])
    head = query[:2] + b"\x81\x80\0\1" + count + b"\0\0\0\0"
    socket_.sendto(head + query[12:end] + record, peer)
PYTHON
    mkfifo /run/ready
    ip netns exec router python3 /run/serve 192.0.2.1 203.0.113.1 >/run/ready & servers=$!
    trap 'kill $servers' EXIT
    read -r _ </run/ready
    python3 /run/serve 127.0.0.53 203.0.113.53 >/run/ready & servers="$servers $!"
    read -r _ </run/ready
    socat TCP-LISTEN:80,bind=127.0.0.1,fork 'SYSTEM:echo loopback' & servers="$servers $!"
    until socat -u TCP:127.0.0.1:80 - >/dev/null 2>&1; do sleep 0.05; done
    echo "nameserver $1" >/run/hosts; echo "nameserver $2" >/run/guests; shift 2
    mount --bind /run/hosts /etc/resolv.conf
    $b as pasta --config-net -q "$@" -t none -u none -T none -U none -- sh -c '
        mount --bind /run/guests /etc/resolv.conf
        getent ahostsv4 name.example || echo nowhere
        socat -u TCP:192.0.2.1:80 - 2>/dev/null || echo closed'
"#;

#[test]
fn a_router_that_is_the_hosts_resolver_answers_although_it_stands_for_the_loopback() {
    if !can_run() {
        return;
    }
    let (router, stub) = ("192.0.2.1", "127.0.0.53");
    for (words, found, port) in [
        (&[router, router][..], "203.0.113.1 ", "loopback\n"),
        (&[stub, router], "203.0.113.53 ", "loopback\n"),
        (&[router, "192.0.2.53", "--dns-forward", "192.0.2.53"], "203.0.113.1 ", "loopback\n"),
        (&[router, router, "-D", "none"], "nowhere", "loopback\n"),
        (&[router, router, "-D", "9.9.9.9"], "nowhere", "loopback\n"),
        (&[router, router, "--map-host-loopback", "192.0.2.77"], "203.0.113.1 ", "closed\n"),
        (&[router, "192.0.2.77", "--map-host-loopback", "192.0.2.77"], "nowhere", "closed\n"),
    ] {
        let all = shown(&on_host(NAMES, words));
        assert!(all.contains(found) && all.ends_with(port), "{words:?}: {all}");
    }
}
