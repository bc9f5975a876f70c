//! The plugins of container runtimes on a real namespace: all verbs of CNI and of netavark, a published port,
//! and nothing left at the end. No packet leaves the machine.

use crate::support::{Folder, User, program_str, text, users};

/// `$1` is the program, `$2` a folder; a target in namespaces of its own, and the verbs of CNI: `cni VERB`,
/// with the configuration of `conf KEYS` on standard input.
const SET_UP: &str = r#"
set -e
b="$1"; cd "$2"; mkdir run; chmod 700 run; export XDG_RUNTIME_DIR=$PWD/run
unshare -rn sleep 1000 & target=$!
trap 'kill $target $server 2>/dev/null || true' EXIT
until [ "$(readlink /proc/$target/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
netns=/proc/$target/ns/net; name=test$$; port=$((20000 + $$ % 10000))
in="nsenter -t $target -U --preserve-credentials -n"; inside() { $in "$@"; }
conf() { printf '{"cniVersion":"1.1.0","name":"%s","type":"brodo"%s}' $name "$1"; }
cni() { CNI_COMMAND=$1 CNI_CONTAINERID=c1 CNI_NETNS=$netns CNI_IFNAME=eth0 CNI_PATH=$PWD "$b" as cni; }
masked() { sed "s,$netns,NETNS,g; s/$port/PORT/g; s/$name/NAME/g"; }
pids() { cat run/brodo/*/$name/*.pid /run/brodo/*/$name/*.pid 2>/dev/null || true; }
gone() { for i in $(seq 100); do kill -0 $1 2>/dev/null || { echo $2; return; }; sleep 0.05; done; }
served() {
    $in socat TCP-LISTEN:80,reuseaddr,fork SYSTEM:'echo served' & server=$!
    until [ "$(socat -t5 - TCP:127.0.0.1:$port </dev/null 2>/dev/null)" = served ]; do sleep 0.1; done; echo served
}
"#;

fn shown(name: &str, user: User, script: &str) -> String {
    let folder = Folder::new(name);
    let script = format!("{SET_UP}{script}");
    let folder = folder.path("");
    let output = user.command(&["sh", "-c", &script, "sh", program_str(), folder.trim_end_matches('/')]);
    let output = { output }.output().expect("runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{user:?} {}\n{}\n{errors}", output.status, text(&output));
    text(&output)
}

#[track_caller]
fn assert_parts(all: &str, parts: &[&str]) {
    for part in parts {
        assert!(all.contains(part), "{part} is not in\n{all}");
    }
}

#[test]
fn every_verb_of_cni_does_its_work() {
    for &user in users() {
        let all = shown(
            "plugin-cni",
            user,
            r#"
            ports=',"runtimeConfig":{"portMappings":[{"HostPort":'$port',"ContainerPort":80,"Protocol":"tcp","HostIP":""}]}'
            conf | cni VERSION; conf | cni STATUS && echo status $?
            conf "$ports,\"mtu\":1500,\"deny\":[\"10.0.0.0/8\"]" | cni ADD > result; masked < result
            inside ip -o -4 addr show dev eth0
            served
            conf ",\"prevResult\":$(cat result)" | cni CHECK; echo check $?
            conf | cni ADD || echo again $?
            inside ip addr del 10.0.2.15/24 dev eth0
            conf ",\"prevResult\":$(cat result)" | cni CHECK || echo lacks $?
            pid=$(pids); conf ',"runtimeConfig":{"portMappings":7}' | cni DEL; conf | cni DEL; gone $pid ended
            conf ",\"prevResult\":$(cat result)" | cni CHECK || echo gone $?
            conf | cni ADD >/dev/null; pid=$(pids)
            conf ',"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]' | cni GC; kill -0 $pid && echo kept
            conf ',"cni.dev/valid-attachments":[]' | cni GC; gone $pid collected
            inside ip link show eth0 2>&1 | grep -o 'does not exist'
            conf | cni ADD >/dev/null; pid=$(pids); conf ',"cni.dev/valid-attachments":null' | cni GC; gone $pid 'also by null'
            pids
            "#,
        );
        assert_parts(
            &all,
            &[
                r#"{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}"#,
                "status 0\n",
                r#""interfaces":[{"mac":"52:55:0a:00:02:0f","mtu":1500,"name":"eth0","sandbox":"NETNS"}]"#,
                r#"{"address":"10.0.2.15/24","gateway":"10.0.2.2","interface":0}"#,
                "inet 10.0.2.15/24",
                "served\ncheck 0\n",
                "again 1\n",
                "eth0 lacks 10.0.2.15/24",
                "lacks 1\n",
                "ended\n",
                "brodo does not run for eth0 of c1",
                "gone 1\n",
                "kept\n",
                "collected\ndoes not exist\nalso by null\n",
            ],
        );
        assert!(all.ends_with("also by null\n"), "a PID file is left: {all}");
    }
}

#[test]
fn failures_of_cni_are_json_with_a_code_and_leave_nothing() {
    for &user in users() {
        let all = shown(
            "plugin-cni-failures",
            user,
            r#"
            say() { "$@" && exit 9 || echo " status $?"; }
            fails() { conf "$1" | say cni ${2:-ADD}; }
            fails ',"frobnicate":1'; fails ',"mtu":7'; fails '' FROBNICATE
            echo '{"cniVersion":"9.0","name":"n"}' | say cni ADD; echo '{' | say cni ADD
            conf | CNI_COMMAND=ADD CNI_CONTAINERID=c1 say "$b" as cni; say "$b" as cni </dev/null
            netns=/nonexistent fails ''; fails ',"ipam":{"type":"nothing"}'
            inside ip tuntap add name eth0 mode tap; fails ''; inside ip link del eth0
            printf '#!/bin/sh\ncat >/dev/null; echo "$CNI_COMMAND" >> verbs; [ $CNI_COMMAND != ADD ] || echo "%s"\n' \
                '{\"ips\":[{\"address\":\"10.7.0.9/24\",\"gateway\":\"10.7.0.1\"}]}' > lease; chmod +x lease
            fails ',"ipam":{"type":"lease"},"runtimeConfig":{"portMappings":[{"hostPort":5,"containerPort":5,"protocol":"sctp"}]}'
            conf ',"ipam":{"type":"lease"}' | cni ADD; inside ip route; conf ',"ipam":{"type":"lease"}' | cni DEL
            tr '\n' ' ' < verbs; inside ip link show eth0 2>&1 || true; pids
            ls -d run/brodo/cni/$name /run/brodo/cni/$name 2>/dev/null || echo no folder
            "#,
        );
        for (code, part) in [
            (7, "`frobnicate` is not an option of brodo attach"),
            (7, "invalid value '7' for '--mtu"),
            (4, "CNI_COMMAND is FROBNICATE: no such verb"),
            (1, "9.0 is not among"),
            (6, "EOF while parsing"),
            (4, "CNI_IFNAME is not set"),
            (4, "a container runtime executes this"),
            (100, "/nonexistent"),
            (7, "CNI_PATH has no IPAM plugin nothing"),
            (100, "has an interface eth0 already"),
            (7, "not of sctp"),
        ] {
            let line = all.lines().find(|line| line.contains(part));
            assert!(line.is_some_and(|line| line.contains(&format!(r#""code":{code},"#))), "{part}: {all}");
        }
        assert_eq!(all.matches(" status 1\n").count(), 11, "{all}");
        assert_parts(&all, &["default via 10.7.0.1", "10.7.0.9/24", "ADD DEL ADD DEL ", "does not exist"]);
        assert!(all.ends_with("no folder\n"), "{all}");
    }
}

/// The daemon waits for a reader of its log, so that its start takes as long as it should.
#[test]
fn del_ends_a_start_under_way_also_one_without_its_plugin() {
    for &user in users() {
        let all = shown(
            "plugin-cni-start",
            user,
            r#"
            mkfifo log; line() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -c "^--pid-file.*/$name/" || true; }
            conf ',"flow-log":"'$PWD'/log"' > config; export CNI_CONTAINERID=c1 CNI_NETNS=$netns CNI_IFNAME=eth0
            for plugin in waits killed; do
                CNI_COMMAND=ADD "$b" as cni <config >added & until [ $(line) -ge 2 ]; do sleep 0.01; done
                conf | cni ADD || echo second $?
                [ $plugin = waits ] || { kill -9 $!; }
                conf | cni DEL; wait $! && echo added || echo $plugin $?
                for i in $(seq 100); do [ $(line) = 0 ] || sleep 0.05; done; echo left $(line)
                ls -d run/brodo/cni/$name /run/brodo/cni/$name 2>/dev/null || echo no folder
            done
            "#,
        );
        assert_eq!(all.matches("eth0 of c1 is attached already").count(), 2, "{all}");
        assert_parts(&all, &["waits 1\nleft 0\nno folder\n", "killed 137\nleft 0\nno folder\n"]);
    }
}

#[test]
fn netavark_s_operations_make_and_end_a_network() {
    for &user in users() {
        let all = shown(
            "plugin-netavark",
            user,
            r#"
            netavark() { "$b" as netavark "$@"; }
            netavark info
            echo '{"name":"'$name'","id":"1","driver":"brodo","options":{"mtu":"1500"}}' | netavark create > network; cat network
            echo '{"name":"'$name'","id":"1","driver":"brodo","options":{"frobnicate":"1"}}' | netavark create || echo refused $?
            input='{"container_id":"c1","container_name":"c","port_mappings":[{"container_port":80,"host_ip":"127.0.0.1",
                "host_port":'$port',"protocol":"tcp","range":1}],"network":'$(cat network)',
                "network_options":{"aliases":[],"interface_name":"eth0","static_ips":null,"static_mac":null}}'
            echo "$input" | netavark setup $netns; served; inside ip link show eth0
            pid=$(pids); echo "$input" | netavark teardown $netns; echo "$input" | netavark teardown /nonexistent
            gone $pid ended; pids
            "#,
        );
        assert_parts(
            &all,
            &[
                r#""api_version":"1.0.0""#,
                r#""subnets":[{"gateway":"10.0.2.2","subnet":"10.0.2.0/24"}]"#,
                r#"{"error":"`frobnicate` is not an option of brodo attach"}"#,
                "refused 1\n",
                r#""eth0":{"mac_address":"52:55:0a:00:02:0f","subnets":[{"gateway":"10.0.2.2","ipnet":"10.0.2.15/24"}]}"#,
                r#""dns_server_ips":["10.0.2.3"]"#,
                "served\n",
                "mtu 1500",
            ],
        );
        assert!(all.ends_with("ended\n"), "{all}");
    }
}
