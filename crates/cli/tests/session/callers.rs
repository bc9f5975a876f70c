//! brodo in the place of pasta, passt and slirp4netns for callers that no test can install: each one's own
//! line, with its descriptors and its way to find out that the network is there, and to end it.
//!
//! A network namespace stands for the host. Traffic is tested elsewhere: here a packet proves that the guest
//! is served.

use crate::support::{Folder, Running, User, eventually, lives, program_str, text, users};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// A host without links to others, whose ports a guest can have all: the script runs there, with the program
/// as `$b` and a folder as working directory.
const HOST: &str = r#"
set -e; b=$1; cd "$2"; ip link set lo up; echo '2048 65535' > /proc/sys/net/ipv4/ip_local_port_range
target() { unshare -rn sleep 1000 & target=$!
    until [ "$(readlink /proc/$target/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done; }
inside() { nsenter -t $target -U --preserve-credentials -n "$@"; }
"#;

/// A command of `user` on such a host.
fn on_host(user: User, folder: &Folder, script: &str) -> Command {
    let script = format!("{HOST}\n{script}");
    let folder = folder.path("");
    user.command(&["unshare", "-rn", "sh", "-c", &script, "sh", program_str(), folder.trim_end_matches('/')])
}

/// Output of a script on such a host, which must succeed.
fn shown(name: &str, user: User, script: &str) -> String {
    let folder = Folder::new(name);
    let output = on_host(user, &folder, script).output().expect("runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{user:?} {}\n{}\n{errors}", output.status, text(&output));
    text(&output) + &errors
}

/// Lix: the namespaces are descriptors 0 and 1, readiness is an interface that is up, the end is SIGKILL.
#[test]
fn lix_waits_for_an_interface_that_is_up() {
    for &user in users() {
        let all = shown(
            "callers-lix",
            user,
            r#"
            target; prefix=64:ff9b:1:4b8e:472e:a5c8:a9fe
            "$b" as pasta --quiet --foreground --config-net --gateway 169.254.1.1 --address 169.254.1.2 --netmask 16 \
                --dns-forward 169.254.1.1 --gateway $prefix:101 --address $prefix:102 --dns-forward $prefix:101 \
                --ns-ifname eth0 --no-netns-quit --netns /proc/self/fd/0 --userns /proc/self/fd/1 \
                </proc/$target/ns/net 1</proc/$target/ns/user & pasta=$!
            until inside ip -o link show eth0 up 2>/dev/null | grep -q eth0; do sleep 0.01; kill -0 $pasta; done
            inside ip -o addr show dev eth0
            until inside ip route | grep '^default'; do sleep 0.01; done
            inside ping -c1 -W5 169.254.1.1 >/dev/null; echo served
            kill -9 $pasta; wait $pasta || echo status $?
            until ! inside ip -o link show eth0 2>/dev/null; do sleep 0.01; done; kill $target
            "#,
        );
        let parts =
            ["inet 169.254.1.2/16", "inet6 64:ff9b:1:4b8e:472e:a5c8:a9fe:102/64", "default via 169.254.1.1"];
        for part in [&parts[..], &["served", "status 137"]].concat() {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}");
        }
    }
}

/// Opens a TAP in a namespace, passes its descriptor to a command outside, waits for it, runs a script
/// inside, and ends the command. Words: folder, readiness by a descriptor or not, the script, the command,
/// in which TAP, READY and PID stand for numbers.
const WITH_TAP: &str = r"
import os, signal, socket, subprocess, sys
inside = '''
import fcntl, os, socket, struct, subprocess, sys
tap = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tap, 0x400454ca, struct.pack('16sH22x', b'tap7', 0x1002))
subprocess.run('ip link set lo up; ip link set tap7 up', shell=True, check=True)
channel = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(channel, [b't'], [tap]); os.close(tap)
channel.recv(1)
sys.exit(subprocess.run(['sh', '-ec', sys.argv[2]]).returncode)
'''
ready, script, command = sys.argv[1] == 'ready', sys.argv[2], sys.argv[3:]
ours, theirs = socket.socketpair()
guest = subprocess.Popen(['unshare', '-rn', sys.executable, '-c', inside, str(theirs.fileno()), script],
                         pass_fds=[theirs.fileno()])
_, (tap,), _, _ = socket.recv_fds(ours, 1, 1)
reader, writer = os.pipe()
numbers = {'TAP': tap, 'READY': writer, 'PID': guest.pid}
for name, number in numbers.items():
    command = [word.replace(name, str(number)) for word in command]
brodo = subprocess.Popen(command, pass_fds=[tap, writer], stdin=subprocess.DEVNULL)
os.close(tap); os.close(writer)
if ready:
    print('ready', os.read(reader, 9).decode(), flush=True)
ours.send(b'g')
print('inside', guest.wait(), flush=True)
brodo.send_signal(signal.SIGTERM)
print('ended', brodo.wait(), flush=True)
";

/// A script that runs [`WITH_TAP`] with these words, and goes on behind them.
fn with_tap(words: &str) -> String {
    format!("\ncat > with_tap.py <<'END'\n{WITH_TAP}\nEND\npython3 with_tap.py {words}")
}

/// Guix: a TAP in a namespace that slirp4netns does not enter; what it cannot reach is taken from it.
#[test]
fn guix_passes_a_tap_by_its_descriptor() {
    for &user in users() {
        let script = with_tap(
            r#"ready 'ip addr add 10.0.2.100/24 dev tap7; ip route add default via 10.0.2.2
                ping -c1 -W5 10.0.2.2 >/dev/null
                until ip -6 route show default | grep -o "^default"; do sleep 0.05; done' \
                "$b" as slirp4netns --netns-type=tapfd --enable-sandbox --enable-ipv6 --ready-fd=READY TAP
            "#,
        );
        let all = shown("callers-guix", user, &script);
        assert!(all.starts_with("ready 1\ndefault\ninside 0\nended 0\n"), "{user:?}: {all}");
    }
}

/// A caller of pasta's with a TAP of its own.
#[test]
fn pasta_serves_a_tap_that_is_there() {
    for &user in users() {
        let script = with_tap(
            r#"no 'ip addr add 10.9.0.2/16 dev tap7
                until ip neigh | grep -o "lladdr 9a:55:9a:55:9a:55"; do ping -c1 -W1 10.9.0.1 >/dev/null || true; done' \
                "$b" as pasta --fd TAP --netns-only --netns /proc/PID/ns/net -f -q --no-netns-quit \
                -t none -u none -T none -U none --no-map-gw -4 -a 10.9.0.2 -n 16 -g 10.9.0.1 -M 9a:55:9a:55:9a:55
            "$b" as pasta --fd 77 -f 2>&1 || echo status $?; "$b" as pasta --fd 3 -- true 2>&1 || echo status $?
            "#,
        );
        let all = shown("callers-tap", user, &script);
        assert!(all.starts_with("lladdr 9a:55:9a:55:9a:55\ninside 0\nended 0\n"), "{user:?}: {all}");
        assert!(
            all.contains("--tap-fd 77 is not a descriptor") && all.matches("status 1").count() == 2,
            "{all}"
        );
    }
}

/// Ethernet frame with an ARP request of 02::1 for `wanted` from `own`, behind its length.
fn arp_request(own: [u8; 4], wanted: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0, 0, 0, 42];
    frame.extend([0xff; 6]);
    frame.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1]);
    frame.extend(own);
    frame.extend([0; 6]);
    frame.extend(wanted);
    frame
}

/// MAC address in the answer to an ARP request, among other frames.
fn answered(machine: &mut UnixStream, own: [u8; 4], wanted: [u8; 4]) -> [u8; 6] {
    machine.write_all(&arp_request(own, wanted)).expect("sent");
    loop {
        let mut length = [0; 4];
        machine.read_exact(&mut length).expect("a frame");
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        machine.read_exact(&mut frame).expect("its rest");
        if frame[12..14] == [8, 6] && frame[20..22] == [0, 2] && frame[28..32] == wanted {
            return frame[22..28].try_into().expect("six bytes");
        }
    }
}

/// A line of passt's with a connected socket as descriptor 7, which krun and muvm pass; the machine's end.
fn with_socket(user: User, folder: &Folder, line: &str) -> (Running, UnixStream) {
    let (machine, theirs) = UnixStream::pair().expect("a pair");
    let script = format!(r#"exec 7<&0 </dev/null; exec "$b" as passt {line} --fd 7"#);
    let mut command = on_host(user, folder, &script);
    (Running::start(command.stdin(Stdio::from(OwnedFd::from(theirs)))), machine)
}

/// muvm: no wait, the first frames are sent at once; the end is that of the socket.
#[test]
fn muvm_sends_frames_at_once() {
    for &user in users() {
        let folder = Folder::new("callers-muvm");
        let (mut passt, mut machine) = with_socket(user, &folder, "-q -f");
        answered(&mut machine, [169, 254, 2, 1], [169, 254, 2, 2]);
        drop(machine);
        assert_eq!(passt.status(), Some(0), "{user:?}");
    }
}

/// crun's krun: all ports, and readiness by the end of the command.
#[test]
fn krun_publishes_all_ports_and_waits_for_the_fork() {
    for &user in users() {
        let folder = Folder::new("callers-krun");
        let line = "-t all -u all --no-dhcp-dns --no-map-gw --brodo-pid-file=pid";
        let (mut passt, mut machine) = with_socket(user, &folder, line);
        assert_eq!(passt.status(), Some(0), "{user:?}");
        let pid: u32 =
            fs::read_to_string(folder.path("pid")).expect("written").trim().parse().expect("a number");
        let listening = fs::read_to_string(format!("/proc/{pid}/net/tcp")).expect("its namespace");
        assert!(listening.lines().count() > 2000, "{user:?}: every port below the ephemeral ones");
        answered(&mut machine, [169, 254, 2, 1], [169, 254, 2, 2]);
        drop(machine);
        eventually("it has ended with its machine", || !lives(pid));
    }
}

/// libguestfs: the PID file once the command has ended, addresses and the router's MAC of its own.
#[test]
fn libguestfs_reads_the_pid_file_and_connects() {
    for &user in users() {
        let folder = Folder::new("callers-guestfs");
        let script = r#"
            "$b" as passt --one-off --socket s.sock --pid s.pid --address 169.254.2.15 --netmask 16 \
                --mac-addr 52:56:00:00:00:02 --gateway 169.254.2.2
        "#;
        let output = on_host(user, &folder, script).output().expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let pid: u32 =
            fs::read_to_string(folder.path("s.pid")).expect("written").trim().parse().expect("a number");
        assert!(pid > 1 && lives(pid));
        let mut machine = UnixStream::connect(folder.path("s.sock")).expect("it listens");
        let mac = answered(&mut machine, [169, 254, 2, 15], [169, 254, 2, 2]);
        assert_eq!(mac, [0x52, 0x56, 0, 0, 0, 2], "{user:?}");
        drop(machine);
        eventually("it has ended with its machine", || !lives(pid));
    }
}

/// KubeVirt, by libvirt: vhost-user, ports as exclusions from all; SIGTERM and both files removed by libvirt.
#[test]
fn kubevirt_excludes_the_ports_of_its_sidecar() {
    for &user in users() {
        let all = shown(
            "callers-kubevirt",
            user,
            r#"
            "$b" as passt --vhost-user --one-off --socket vm.sock --pid vm.pid --interface lo \
                --tcp-ports '~1500-1510,~1520,~1790' --udp-ports '~1500-1510' --repair-path none --log-file vm.log
            for port in 1499 1500 1520 1521; do ss -Hlnt "sport = $port" | grep -o ":$port " | head -n1 || true; done
            pid=$(cat vm.pid); kill $pid; while kill -0 $pid 2>/dev/null; do sleep 0.02; done
            rm vm.pid; rm -f vm.sock; ls
            "#,
        );
        assert!(all.starts_with(":1499 \n:1521 \nvm.log\n"), "{user:?}: {all}");
    }
}

/// nerdctl, buildkit and Docker by rootlesskit: pasta with its own network, and pesto's socket.
#[test]
fn rootlesskit_probes_and_starts_pasta_and_publishes_by_pesto() {
    for &user in users() {
        let all = shown(
            "callers-rootlesskit",
            user,
            r#"
            "$b" as pasta --version >/dev/null; "$b" as pasta --host-lo-to-ns-lo --version >/dev/null
            "$b" as pesto --version >/dev/null; target
            "$b" as pasta --stderr --ns-ifname=tap0 --mtu=65520 --config-net --address=10.0.2.100 --netmask=24 \
                --gateway=10.0.2.2 --dns-forward=10.0.2.3 --no-map-gw --ipv4-only --tcp-ports=none --udp-ports=none \
                --tcp-ns=none --udp-ns=none --host-lo-to-ns-lo --conf-path=conf.sock $target
            inside ip -o -4 addr show dev tap0
            nsenter -t $target -U --preserve-credentials -n socat TCP-LISTEN:80,bind=127.0.0.1,fork SYSTEM:'echo served' & server=$!
            "$b" as pesto -A --tcp-ports=127.0.0.1/1080:80 conf.sock
            until socat -t5 - TCP:127.0.0.1:1080 </dev/null 2>/dev/null | grep served; do sleep 0.05; done
            "$b" as pesto -D --tcp-ports=127.0.0.1/1080:80 conf.sock
            socat - TCP:127.0.0.1:1080 </dev/null 2>&1 | grep -o refused; kill $target $server
            "#,
        );
        for part in ["tap0    inet 10.0.2.100/24", "served\n", "refused"] {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}");
        }
    }
}

#[test]
fn obstacles_of_pasta_and_passt_end_with_status_1_and_leave_nothing() {
    for &user in users() {
        let long = "x".repeat(120);
        let script = format!(
            r#"
            target; touch taken; mkdir closed; chmod 0 closed
            socat TCP-LISTEN:1081,bind=127.0.0.1 - <&- & taken=$!
            until ss -Hlnt | grep -q 127.0.0.1:1081; do sleep 0.01; done
            fails() {{ "$b" as "$@" 2>&1 && exit 9 || echo "status $?"; }}
            fails pasta --frobnicate; fails pasta --config-net -P pid $$x; fails pasta --config-net -P pid --netns /nonexistent
            fails pasta --config-net -P pid -- /nonexistent/command; fails pasta -P pid --runas no-such-user -- true
            fails pasta --config-net -P pid --netns closed/net; fails passt --config-net
            fails pasta --config-net -P pid --netns taken; fails pasta --config-net -P pid -t 127.0.0.1/1081 $target
            fails pasta --config-net -P pid -c {long} $target; fails pasta --config-net -P pid -c taken $target
            fails pasta --config-net -P /nonexistent/pid $target; fails pasta -f --stats 0 $target; fails pasta --stats 1 $target
            fails passt --frobnicate; fails passt -P pid -s {long}; fails passt -P pid -s taken; fails passt -P pid --fd 77
            fails passt -P pid -s s.sock -t 127.0.0.1/1081
            inside ip -o link show; kill $target $taken; wait 2>/dev/null || true; ls -A
            "#
        );
        let all = shown("callers-obstacles", user, &script);
        for part in [
            "pasta: unrecognized option '--frobnicate'\nUsage: ",
            "/nonexistent",
            "Address already in use",
            "the path of a socket has at most 107 bytes",
            "a file other than a socket is there",
            "Can't display statistics if not running in foreground",
            "passt: unrecognized option '--frobnicate'\nUsage: ",
            "fd:77 is not a descriptor",
        ] {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}");
        }
        assert_eq!(all.matches("status 1\n").count(), 19, "{user:?}: {all}");
        assert!(all.ends_with("closed\ntaken\n") && !all.contains("tap0"), "{user:?}: {all}");
    }
}
