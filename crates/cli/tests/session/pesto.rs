//! pesto and pasta's configuration socket: brodo's pesto at a brodo in pasta's place, with the forwards that
//! `brodo forward` shows too. A network namespace stands for the host, so that its ports are free.

use crate::support::{Folder, User, program_str, text, users};

/// `$1` is the program, `$2` a folder; a target, brodo in pasta's place for it, and its socket `conf`.
const SET_UP: &str = r#"
set -e
b="$1"; cd "$2"; ip link set lo up; export XDG_RUNTIME_DIR=$PWD; pesto() { "$b" as pesto "$@"; }
unshare -rn sleep 1000 & target=$!
trap 'kill $target $taker $server 2>/dev/null || true' EXIT
until [ "$(readlink /proc/$target/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
port=20000; taken=20001
socat TCP-LISTEN:$taken,bind=127.0.0.1 - <&2 & taker=$!
until ss -Hlnt | grep -q 127.0.0.1:$taken; do sleep 0.01; done
"$b" as pasta --config-net -q -a 10.9.8.7/24 -g 10.9.8.1 -4 -t none -u none -T none -U none --pid pid -c "$2/conf" $target
masked() { sed "s/$port/PORT/g; s/$taken/TAKEN/g; s,$PWD/,,g"; }
"#;

fn shown(name: &str, user: User, script: &str) -> String {
    let folder = Folder::new(name);
    let script = format!("{SET_UP}{script}");
    let folder = folder.path("");
    let namespace = if user == User::Root { "-n" } else { "-rn" };
    let words =
        ["unshare", namespace, "sh", "-c", &script, "sh", program_str(), folder.trim_end_matches('/')];
    let output = user.command(&words).output().expect("runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{user:?} {}\n{}\n{errors}", output.status, text(&output));
    text(&output)
}

#[test]
fn ports_are_listed_added_and_removed_and_brodo_forward_sees_them() {
    for &user in users() {
        let all = shown(
            "pesto-changes",
            user,
            r#"
            pesto -A -t 127.0.0.1/$port:80 conf; pesto -A -t 127.0.0.1/$port:80 conf; echo again $?
            "$b" forward --instance $(cat pid) | masked
            "$b" forward --instance $(cat pid) add -t 127.0.0.2/$port >/dev/null
            pesto -s -D -t 127.0.0.1/$port:80 conf | masked
            nsenter -t $target -U --preserve-credentials -n socat -u TCP-LISTEN:$port,fork CREATE:got & server=$!
            until [ -s got ]; do echo published | socat -u - TCP:127.0.0.2:$port || true; sleep 0.1; done 2>/dev/null
            cat got
            "#,
        );
        let parts = [
            "again 0\n",
            "-t      127.0.0.1/PORT:80",
            "Previous configuration (conf)\n  HOST\n    TCP [127.0.0.1]:PORT  =>  80 \n    TCP [127.0.0.2]:PORT  =>  PORT \n  SPLICE\n",
            "Updated configuration (conf)\n  HOST\n    TCP [127.0.0.2]:PORT  =>  PORT \n  SPLICE\n",
            "published",
        ];
        for part in parts {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}");
        }
    }
}

#[test]
fn bad_lines_and_what_no_pesto_sends_change_nothing() {
    for &user in users() {
        let long = "x".repeat(120);
        let all = shown(
            "pesto-obstacles",
            user,
            &format!(
                r#"
            pesto -A -t 127.0.0.1/$port conf
            fails() {{ pesto "$@" 2>&1 && exit 9 || echo "status $?"; }}
            fails --frobnicate conf; fails; fails conf conf; fails -t 80000 conf; fails -C OTHER conf; fails {long}
            # A table that is none, more rules than were announced, a message that ends too soon, and none.
            send() {{ socat -u - UNIX-CONNECT:conf >/dev/null 2>&1 || true; }}
            printf '\7\0\0\0\1' | send; printf '\1\377\377\377\377x' | send; printf '\1\0' | send; send </dev/null
            printf '\1\0\0\0\1%056d\0' 7 | send; head -c 100000 /dev/urandom | send
            pesto conf | masked; kill -0 $(cat pid); echo served
            "#
            ),
        );
        for part in [
            "unrecognized option '--frobnicate'\nUsage: pesto",
            "Invalid port specifier '80000'",
            "Unsupported pif",
        ] {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}");
        }
        assert_eq!(all.matches("status 1\n").count(), 6, "{user:?} {all}");
        let left = "(conf)\n  HOST\n    TCP [127.0.0.1]:PORT  =>  PORT \n  SPLICE\nserved\n";
        assert!(all.ends_with(left), "{user:?} {all}");
    }
}

#[test]
fn a_port_in_use_is_status_1_and_changes_nothing() {
    for &user in users() {
        let all = shown(
            "pesto-refusals",
            user,
            "
            pesto -A -t 127.0.0.1/$port conf
            pesto -t 127.0.0.1/$taken conf 2>&1 | masked || true; pesto -t 127.0.0.1/$taken conf 2>/dev/null || echo status $?
            pesto -D -t 127.0.0.1/9 conf 2>/dev/null || echo status $?
            printf 'basil:s\\0\\0\\0\\0\\1\\0\\0\\0\\200\\0\\0\\0\\20\\0' > hello
            socat OPEN:hello!!- UNIX-LISTEN:older >/dev/null & until [ -S older ]; do sleep 0.01; done
            pesto -t 127.0.0.1/9 older 2>&1 || echo status $?
            pesto conf | masked; pesto nothing 2>&1 || echo status $?
            ",
        );
        assert!(all.contains("Address already in use"), "{user:?} {all}");
        assert_eq!(all.matches("status 1").count(), 4, "{user:?} {all}");
        assert!(all.contains("the other side speaks version 1: use both of one release"), "{user:?} {all}");
        let tables =
            "passt/pasta configuration (conf)\n  HOST\n    TCP [127.0.0.1]:PORT  =>  PORT \n  SPLICE\n";
        assert!(all.contains(tables) && all.contains("Failed to connect to nothing: "), "{user:?} {all}");
    }
}
