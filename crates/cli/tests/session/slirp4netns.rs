//! brodo in the place of slirp4netns, started as its callers start it: rootlesskit with an interface made
//! before, podman with a path and an exit descriptor, a user's script; ports published by its API.

use crate::support::{Folder, User, program_str, text, users};

/// Beginning of all scripts: `$1` is the program, `$2` a folder; a target in namespaces of its own, a
/// function to enter it, and one that asks the API.
const SET_UP: &str = r#"
set -e
b="$1"; cd "$2"; printf '#!/bin/sh\nexec "%s" as slirp4netns "$@"\n' "$b" > slirp4netns; chmod +x slirp4netns
unshare -rn sleep 1000 & target=$!
trap 'kill $target $slirp $server 2>/dev/null || true' EXIT
until [ "$(readlink /proc/$target/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
in="nsenter -t $target -U --preserve-credentials -n"; inside() { $in "$@"; }
ask() { printf '%s' "$1" | socat -t5 - UNIX-CONNECT:api; echo; }
ready() { until [ -s ready ]; do sleep 0.01; kill -0 $slirp; done; echo "ready <$(cat ready)>"; }
"#;

/// Output of a script of an ordinary user's, which must succeed.
fn shown(name: &str, user: User, script: &str) -> String {
    let folder = Folder::new(name);
    let script = format!("{SET_UP}{script}");
    let output = user.command(&["sh", "-c", &script, "sh", program_str(), &folder.path("")]);
    let output = { output }.output().expect("runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{user:?} {}\n{}\n{errors}", output.status, text(&output));
    text(&output)
}

#[test]
fn rootlesskits_interface_is_joined_and_its_ports_are_published_by_the_api() {
    for &user in users() {
        // The interface is made and up before; afterwards rootlesskit configures it. It is there still when
        // brodo has ended.
        let all = shown(
            "slirp-rootlesskit",
            user,
            r#"
            inside ip tuntap add name tap0 mode tap; inside ip link set tap0 up; inside ip link set lo up
            ./slirp4netns --mtu 65520 -r 3 --disable-host-loopback --enable-sandbox --enable-seccomp \
                --api-socket api $target tap0 3>ready & slirp=$!
            ready; inside ip -o -4 addr show dev tap0
            inside ip link set tap0 mtu 65520; inside ip addr add 10.0.2.100/24 dev tap0
            inside ip route add default via 10.0.2.2
            $in socat TCP-LISTEN:80,reuseaddr,fork SYSTEM:'echo served $SOCAT_SOCKADDR' & server=$!
            port=$((20000 + $$ % 10000))
            ask '{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_addr":"127.0.0.1","host_port":'$port',"guest_addr":"10.0.2.100","guest_port":80}}'
            ask '{"execute":"list_hostfwd"}' | sed "s/$port/PORT/g"; ask 'badjson'; ask '{"execute":"frobnicate"}'
            ask '{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_addr":"127.0.0.1","host_port":'$port',"guest_addr":"10.0.2.100","guest_port":81}}'
            ask '{"execute":"add_hostfwd","arguments":{"proto":"sctp","host_port":1,"guest_port":1}}'
            ask '{"execute":"remove_hostfwd","arguments":{"id":"x"}}'; head -c 4096 /dev/zero | tr '\0' ' ' | socat -t5 - UNIX-CONNECT:api; echo
            for i in 1 2 3 4 5 6 7 8 9; do socat -t5 - TCP:127.0.0.1:$port </dev/null && break; sleep 0.2; done
            "$b" forward --instance $slirp | sed "s/$port/PORT/g"
            ask '{"execute":"remove_hostfwd","arguments":{"id":1}}'
            socat -t5 - TCP:127.0.0.1:$port </dev/null 2>&1 | grep -o 'Connection refused'
            kill $slirp; wait $slirp; echo status $?; inside ip -o link show tap0; ls
            "#,
        );
        let entry = r#""guest_addr":"10.0.2.100","guest_port":80,"host_addr":"127.0.0.1","host_port":PORT,"id":1,"proto":"tcp""#;
        let parts = [
            "ready <1>\n{\"return\":{\"id\":1}}\n",
            entry,
            r#"{"error":{"desc":"bad request: cannot parse JSON"}}"#,
            r#"{"error":{"desc":"bad request: unknown execute"}}"#,
            r#"{"error":{"desc":"bad request: add_hostfwd: slirp_add_hostfwd failed"#,
            r#"{"error":{"desc":"bad request: add_hostfwd: bad arguments.proto"}}"#,
            r#"{"error":{"desc":"bad request: remove_hostfwd: bad arguments.id"}}"#,
            r#"{"error":{"desc":"bad request: too large message"}}"#,
            "served 10.0.2.100",
            "127.0.0.1/PORT:10.0.2.100/80",
            "{\"return\":{}}\nConnection refused",
            "status 0\n",
            "tap0",
        ];
        for part in parts {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}");
        }
        assert!(!all.contains("\napi"), "the socket's path is removed: {all}");
    }
}

#[test]
fn podmans_line_configures_the_interface_and_ends_with_the_exit_descriptor() {
    for &user in users() {
        let all = shown(
            "slirp-podman",
            user,
            r"
            mkfifo keep; ( exec sleep 1000 >keep ) & keeper=$!
            ./slirp4netns --disable-host-loopback --mtu=65520 --enable-sandbox --enable-seccomp --enable-ipv6 \
                -c -r 3 -e 4 --netns-type=path /proc/$target/ns/net tap0 3>ready 4<keep & slirp=$!
            ready; inside ip -o addr show dev tap0; inside ip route; inside ip link show tap0
            # Longer than the interval at which the path is looked at.
            sleep 1.5; kill -0 $slirp; ls /proc/$slirp/root
            kill $keeper; wait $slirp; echo status $?
            ",
        );
        for part in [
            "ready <1>",
            "inet 10.0.2.100/24",
            "inet6 fd00::",
            "default via 10.0.2.2",
            "mtu 65520",
            "etc\nproc\nrun\n",
            "status 0\n",
        ] {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}");
        }
    }
}

/// Services have their log on standard output, and starters a pipe on standard input.
#[test]
fn standard_descriptors_say_that_it_is_ready_and_end_it() {
    for &user in users() {
        let all = shown(
            "slirp-standard",
            user,
            r"
            mkfifo keep; ( exec sleep 1000 >keep ) & keeper=$!
            ./slirp4netns -c -r 1 -e 0 $target tap0 <keep >ready & slirp=$!
            ready; kill $keeper; wait $slirp; echo status $?
            ",
        );
        assert!(all.contains("ready <1>") && all.contains("status 0\n"), "{user:?}: {all}");
    }
}

/// A machine's monitor: an ARP request for the router and its answer, a ping and its answer.
const MONITOR: &str = r"
import socket, struct, sys
monitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
monitor.settimeout(20); monitor.connect(sys.argv[1])
mac, own, router = bytes.fromhex('02000000000a'), socket.inet_aton('10.0.2.100'), socket.inet_aton('10.0.2.2')
def until(part, at):
    while True:
        frame = monitor.recv(1 << 16)
        if frame[at:at + len(part)] == part:
            return frame
arp = bytes.fromhex('0806000108000604')
monitor.send(b'\xff' * 6 + mac + arp + b'\0\1' + mac + own + bytes(6) + router)
answer = until(arp + b'\0\2', 12)
print('router', socket.inet_ntoa(answer[28:32]))
def total(data):
    words = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while words >> 16:
        words = (words & 0xffff) + (words >> 16)
    return struct.pack('!H', ~words & 0xffff)
echo = b'\x08\0\0\0\0\7\0\1' + b'ping' * 4
echo = echo[:2] + total(echo) + echo[4:]
header = struct.pack('!BBHHHBBH', 0x45, 0, 20 + len(echo), 1, 0, 64, 1, 0) + own + router
header = header[:10] + total(header) + header[12:]
monitor.send(answer[6:12] + mac + b'\x08\0' + header + echo)
until(b'\0\0', 34); print('ping answered', flush=True)
sys.stdin.read()
";

#[test]
fn a_machine_on_a_socket_of_bess_is_served_until_the_exit_descriptor_is_closed() {
    for &user in users() {
        let script = format!(
            r#"
            cat > monitor.py <<'END'
{MONITOR}
END
            mkfifo keep hold; ( exec sleep 1000 >keep ) & keeper=$!
            ./slirp4netns --target-type=bess -r 3 -e 4 --enable-sandbox --api-socket api bess 3>ready 4<keep & slirp=$!
            ready; stat -c '%a %F' bess
            python3 monitor.py bess <hold >said & server=$!
            exec 5>hold; until grep -q answered said; do sleep 0.02; kill -0 $server; done; cat said
            ask '{{"execute":"add_hostfwd","arguments":{{"proto":"tcp","host_port":'$((20000 + $$ % 10000))',"guest_port":80}}}}'
            kill $keeper; wait $slirp; echo status $?; exec 5>&-; wait $server; ls
            "#
        );
        let all = shown("slirp-bess", user, &script);
        for part in [
            "ready <1>\n600 socket\nrouter 10.0.2.2\nping answered\n",
            "{\"return\":{\"id\":1}}",
            "status 0\n",
        ] {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}");
        }
        let left = all.rsplit("status 0\n").next().expect("a list").split_whitespace().collect::<Vec<_>>();
        assert_eq!(left, ["hold", "keep", "monitor.py", "ready", "said", "slirp4netns"], "{all}");
    }
}

#[test]
fn a_sandboxed_process_that_is_killed_takes_its_others_along() {
    for &user in users() {
        let all = shown(
            "slirp-killed",
            user,
            r"
            ./slirp4netns -c -r 3 --enable-sandbox $target tap0 3>ready & slirp=$!
            ready; others=$(pgrep -P $slirp); others=$others,$(pgrep -P $(echo $others | tr ' ' ,))
            kill -KILL $slirp; wait $slirp || true
            for other in $(echo $others | tr , ' '); do while kill -0 $other 2>/dev/null; do sleep 0.02; done; done
            echo gone $(echo $others | tr , ' ' | wc -w)
            ",
        );
        // Keeper, engine, broker.
        assert!(all.contains("gone 3\n"), "{user:?} {all}");
    }
}

#[test]
fn the_host_s_loopback_is_at_the_router_unless_that_is_disabled() {
    for &user in users() {
        let all = shown(
            "slirp-loopback",
            user,
            r"
            port=$((20000 + $$ % 10000)); socat TCP-LISTEN:$port,bind=127.0.0.1,reuseaddr,fork SYSTEM:'echo host' & server=$!
            try() { inside socat -t5 - TCP:10.0.2.2:$port </dev/null || echo refused; }
            ./slirp4netns -c -r 3 $target tap0 3>ready & slirp=$!
            ready; try; inside ip link show tap0; kill $slirp; wait $slirp; rm ready
            ./slirp4netns -c -r 3 --disable-host-loopback $target tap0 3>ready & slirp=$!
            ready; try
            ",
        );
        assert!(all.contains("ready <1>\nhost\n") && all.contains("mtu 1500"), "{user:?} {all}");
        assert!(all.ends_with("ready <1>\nrefused\n"), "{user:?} {all}");
    }
}

#[test]
fn obstacles_have_the_original_s_status_and_leave_nothing() {
    for &user in users() {
        let long = "x".repeat(120);
        let all = shown(
            "slirp-obstacles",
            user,
            &format!(
                r#"
            fails() {{ ./slirp4netns "$@" 2>&1 && exit 9 || echo "status $?"; }}
            fails --frobnicate; fails $target; fails -c --cidr 10.0.2.100/24 $target tap0
            fails -c --api-socket {long} $target tap0; fails -c --netns-type=path /nonexistent tap0
            fails -c -r 77 $target tap0; fails -c -a slirp4netns $target tap0
            mkdir closed; chmod 0 closed; fails -c --netns-type=path closed/net tap0
            fails --target-type=bess {long}; fails --target-type=bess -a slirp4netns bess; fails --target-type=bess -r 77 bess
            fails --target-type=bess slirp4netns; fails --target-type=bess -c bess
            inside ip -o link show tap0 2>&1 || echo no interface; rmdir closed; ls -A
            "#
            ),
        );
        for part in [
            "slirp4netns: unrecognized option '--frobnicate'\nUsage: ",
            "a PID or PATH and a TAPNAME are needed\nUsage: ",
            "CIDR needs to be a network address like 10.0.2.0/24, not like 10.0.2.100/24\nstatus 1\n",
            "the path of a socket has at most 107 bytes",
            "/nonexistent",
            "--ready-fd 77 is not a descriptor",
            "a file other than a socket is there",
            "no interface",
        ] {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}");
        }
        assert_eq!(all.matches("status 1\n").count(), 13, "{all}");
        assert!(all.ends_with("no interface\nslirp4netns\n"), "nothing is left: {user:?} {all}");
    }
}
