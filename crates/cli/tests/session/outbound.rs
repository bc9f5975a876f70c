//! `--outbound`: the source of connections, datagrams and pings, and sources that the host does not have. A
//! namespace stands for the host, with several addresses on its loopback interface.

use crate::support::{User, program_str, text, users};

/// `$1` is the program; servers at 192.0.2.9 tell the address that they are asked from.
const SCRIPT: &str = r#"
echo 0 0 > /proc/sys/net/ipv4/ping_group_range
ip link set lo up; for n in 1 2 9; do ip addr add 192.0.2.$n/32 dev lo; done; ip addr add 2001:db8::2/128 dev lo
socat TCP-LISTEN:7000,bind=192.0.2.9,reuseaddr,fork SYSTEM:'echo tcp $SOCAT_PEERADDR' & a=$!
socat UDP-LISTEN:7000,bind=192.0.2.9,reuseaddr,fork SYSTEM:'read -r q; echo udp $SOCAT_PEERADDR' & b=$!
socat TCP-LISTEN:7001,bind=127.0.0.1,reuseaddr,fork SYSTEM:'echo loopback $SOCAT_PEERADDR' & c=$!
trap 'kill $a $b $c' EXIT
until ss -lnt | grep -q 127.0.0.1:7001 && ss -lnt | grep -q 192.0.2.9:7000 && ss -lnu | grep -q 192.0.2.9:7000
do sleep 0.01; done
ask='socat -t5 - TCP:192.0.2.9:7000 </dev/null; socat -t0.01 UDP:192.0.2.9:7000 SYSTEM:"echo q; read -r line; echo \$line >&2" 2>&1; ping -c1 -W5 192.0.2.9 | grep -o "1 received"'
"$1" run -4 --outbound 192.0.2.2 --map-host-loopback gateway -- sh -c "$ask; socat -t5 - TCP:10.0.2.2:7001 </dev/null"
"$1" run --outbound %lo --outbound 192.0.2.1 --outbound 2001:db8::2 -- sh -c "$ask"
for wrong in 203.0.113.1 %none0 192.0.2.1%none0; do "$1" run --outbound $wrong -- true 2>&1 || echo "status $?"; done
"$1" run --outbound 192.0.2.1 --outbound 192.0.2.2 -- true 2>&1 || echo "status $?"
"#;

#[test]
fn flows_leave_from_the_wanted_source() {
    for &user in users() {
        let words = ["unshare", "-rn", "sh", "-c", SCRIPT, "sh", program_str()];
        let output = User::command(user, &words).output().expect("runs");
        let (all, errors) = (text(&output), String::from_utf8_lossy(&output.stderr).into_owned());
        let expected = [
            "tcp 192.0.2.2\nudp 192.0.2.2\n1 received\nloopback 192.0.2.2\n",
            "tcp 192.0.2.1\nudp 192.0.2.1\n1 received\n",
            "--outbound 203.0.113.1: Cannot assign requested address",
            "--outbound %none0: the host has no such interface",
            "--outbound is given twice for a family",
        ];
        for part in expected {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}\n{errors}");
        }
        assert_eq!(all.matches("status 2").count(), 4, "{all}");
    }
}
