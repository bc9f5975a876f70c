//! The user and the log of a service in the background, and names for guests that ask a DHCP server.

use crate::support::{Folder, User, is_root, program_str, text, users};

/// Output of a script, which must succeed: `$b` is the program, the working directory a folder.
fn shown(name: &str, user: User, words: &[&str], script: &str) -> String {
    let folder = Folder::new(name);
    let script = format!("set -e; b=$1; cd \"$2\"\n{script}");
    let folder = folder.path("");
    let shell = ["sh", "-c", &script, "sh", program_str(), folder.trim_end_matches('/')];
    let output = user.command(&[words, &shell].concat()).output().expect("runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{user:?} {}\n{}\n{errors}", output.status, text(&output));
    text(&output) + &errors
}

/// A target, and pasta that serves it in the background; its process id is `$pasta`.
const PASTA: &str = r#"
ip link set lo up
unshare -n sleep 1000 & target=$!
trap 'kill $target $others 2>/dev/null || true' EXIT
until [ "$(readlink /proc/$target/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
pasta() { "$b" as pasta --config-net -t none -u none -T none -U none --pid pid "$@" $target; pasta=$(cat pid); }
# A process without a parent may wait for the system to note its end.
gone() { while grep -q '^State:.[^Z]' /proc/$1/status 2>/dev/null; do sleep 0.01; done; }
"#;

#[test]
fn root_s_service_becomes_another_user_and_still_has_privileged_ports() {
    if !is_root() || users().is_empty() {
        eprintln!("*** SKIPPED: this takes root");
        return;
    }
    let all = shown(
        "identity-user",
        User::Root,
        &["unshare", "-n"],
        &(PASTA.to_owned()
            + r#"
        of() { sed -n "s/^$1:\t\([0-9a-f]*\).*/\1/p" /proc/$pasta/status; }
        nsenter -t $target -n socat TCP-LISTEN:80,reuseaddr,fork SYSTEM:'echo served' & others=$!
        pasta; echo user $(of Uid) $(of Gid) $(of CapEff) $(of CapPrm) $(of Groups)
        # A port that only root may have, after the change; the control socket is still root's too.
        "$b" forward --instance $pasta add -t 127.0.0.1/81:80 >/dev/null
        until socat -t5 - TCP:127.0.0.1:81 </dev/null; do sleep 0.05; done
        "$b" status --instance $pasta | grep -c "eth0\|tap0" >/dev/null && echo status
        all="$pasta $(pgrep -P $pasta)"; kill $pasta; for it in $all; do gone $it; done; echo ended
        pasta --runas 1234:7; echo user $(of Uid) $(of Gid) $(of CapEff)
        # Killed, it takes root's processes along.
        all=$(pgrep -P $pasta); kill -9 $pasta; for it in $all; do gone $it; done; echo ended
        pasta --runas 0; echo user $(of Uid) $(of Gid); kill $pasta; gone $pasta
        "$b" as pasta --runas nobody-here --config-net $target || echo status $?
        setpriv --reuid 1 --regid 1 --clear-groups "$b" attach --run-as 2 $target || echo status $?
        "#),
    );
    assert!(
        all.contains("user 65534 65534 0000000000000420 0000000000000420\nserved\nstatus\nended\n"),
        "{all}"
    );
    assert!(all.contains("user 1234 7 0000000000000420\nended\nuser 0 0\nstatus 1\nstatus 2\n"), "{all}");
    for part in [
        "pasta: Started as root, will change to nobody.",
        "Invalid --runas option: nobody-here",
        "--run-as: root alone can become another user",
    ] {
        assert!(all.contains(part), "{part} is not in {all}");
    }
}

#[test]
fn a_service_in_the_background_logs_to_the_system_s_log() {
    for &user in users() {
        // A log daemon of the test's own at /dev/log, which is started again in the middle.
        let all = shown(
            "identity-log",
            user,
            &["unshare", "-rmn"],
            &(PASTA.to_owned()
                + r#"
            mount -t tmpfs none /mnt; touch /mnt/tun /mnt/null; mount --bind /dev/net/tun /mnt/tun
            mount --bind /dev/null /mnt/null; mount -t tmpfs -o mode=755 none /dev; mkdir /dev/net; touch /dev/net/tun /dev/null
            mount --bind /mnt/tun /dev/net/tun; mount --bind /mnt/null /dev/null
            daemon() { socat -u UNIX-RECV:/dev/log OPEN:log,creat,append & others=$!; until [ -S /dev/log ]; do sleep 0.01; done; }
            logged() { until grep -q "$1" log; do sleep 0.01; done; }
            daemon; pasta --brodo-verbose; logged "serving the network"
            grep -o "<30>brodo\[$pasta]: serving the network" log | sed 's/[0-9]*]/PID]/'
            kill $others; rm -f /dev/log; daemon; kill $pasta; gone $pasta; logged "asked to end"
            : >log; pasta -d; kill $pasta; gone $pasta; pasta -l other --brodo-verbose; kill $pasta; gone $pasta
            [ -s log ] || echo nothing more
            "#),
        );
        assert!(all.contains("<30>brodo[PID]: serving the network\n"), "{user:?} {all}");
        assert!(all.contains("nothing more\n"), "{user:?} {all}");
    }
}

#[test]
fn a_dhcp_client_gets_its_names() {
    for &user in users() {
        let all = shown(
            "identity-names",
            user,
            &[],
            r#"
            printf '#!/bin/sh\necho "$1 $ip $hostname $(echo $opt81 | tr a-f A-F)"\n' > got; chmod +x got
            "$b" as pasta -a 10.0.2.15/24 -g 10.0.2.2 -4 -f -t none -u none -T none -U none -H guest --fqdn guest.example -- sh -c \
                'ip link set tap0 up 2>/dev/null || ip link set eth0 up
                 busybox udhcpc -q -n -f -i $(ls /sys/class/net | grep -v lo | head -n 1) -O 81 -s ./got 2>/dev/null; hostname'
            "#,
        );
        assert!(all.contains("bound 10.0.2.15 guest 0CFFFF056775657374076578616D706C6500"), "{user:?} {all}");
        assert!(all.contains("\nguest\n"), "{user:?} {all}");
    }
}
