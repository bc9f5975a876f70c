//! Forwards between loopbacks whose server listens in one family alone: `localhost` reaches it by either,
//! both ways. A namespace stands for the host.

use crate::support::{Folder, User, program_str, text, users};

/// `$1` is the program. The guest's servers at ports 7004 and 7006, published at 8004 and 8006, and the
/// host's at 9004 and 9006, each in one family; 8000 has no server, and 8001 leads to a given address. A
/// connection to 8005 outlives an upgrade.
const SCRIPT: &str = r#"
ip link set lo up; mkfifo up down
serve() { for f in 4 6; do socat TCP$f-LISTEN:$1$f,bind=$(loop $f),reuseaddr,fork SYSTEM:"echo $2 $f" & done; }
loop() { case $1 in 4) echo 127.0.0.1;; 6) echo "[::1]";; esac; }
ask() { echo "$2:$1 $(socat -u TCP:$2:$1 - 2>/dev/null)"; }
both() { for port; do ask $port 127.0.0.1; ask $port "[::1]"; done; }
export -f serve loop ask both
serve 900 "served by host"; until [ $(ss -Hlnt | grep -c ":900[46]") = 2 ]; do sleep 0.01; done
ports=8004:7004,8006:7006,8000:7000,8005:7005
"$1" run --control $PWD/socket -t $ports -t "127.0.0.1/8001:127.0.0.1/7006" -t "127.0.0.1/8002:7006" -T 9004,9006 -- bash -c '
    serve 700 "served by guest"; socat TCP6-LISTEN:7005,bind="[::1]",reuseaddr,fork EXEC:cat &
    until [ $(ss -Hlnt | grep -c ":700[456]") = 3 ]; do sleep 0.01; done
    both 9004 9006; echo >up; read end <down; kill $(jobs -p)' & brodo=$!
read line <up
both 8004 8006 8000; ask 8001 127.0.0.1; ask 8002 127.0.0.1
"$1" counters --instance $PWD/socket | grep -E "forward_rejected|splice_reset" | tr -d " "
exec 5<>/dev/tcp/127.0.0.1/8005; echo before >&5; read -r answer <&5; echo $answer
"$1" upgrade --instance $PWD/socket >/dev/null; echo after >&5; read -t 30 -r answer <&5; echo $answer; exec 5>&-
echo >down; wait $brodo; kill $(jobs -p)
"#;

#[test]
fn a_server_in_one_family_is_reached_by_both_loopbacks() {
    for &user in users() {
        let folder = Folder::new(&format!("loopbacks-{user:?}"));
        let words = ["unshare", "-rn", "bash", "-c", SCRIPT, "bash", program_str()];
        let output = User::command(user, &words).current_dir(folder.path("")).output().expect("runs");
        let (all, errors) = (text(&output), String::from_utf8_lossy(&output.stderr).into_owned());
        let expected = [
            "127.0.0.1:9004 served by host 4\n[::1]:9004 served by host 4\n",
            "127.0.0.1:9006 served by host 6\n[::1]:9006 served by host 6\n",
            "127.0.0.1:8004 served by guest 4\n[::1]:8004 served by guest 4\n",
            "127.0.0.1:8006 served by guest 6\n[::1]:8006 served by guest 6\n",
            // Connected and reset, for which socat has no word.
            "127.0.0.1:8000 \n[::1]:8000 \n127.0.0.1:8001 \n127.0.0.1:8002 \n",
            // Each of these four counts once, and none as a splice that was open.
            "\n4forward_rejected\nbefore\nafter\n",
        ];
        for part in expected {
            assert!(all.contains(part), "{user:?}: {part} is not in\n{all}\n{errors}");
        }
    }
}
