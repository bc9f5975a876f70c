//! A real container of rootless podman on brodo in pasta's place: its addresses and routes, a published port,
//! its network in `brodo status`, and the end of brodo with the container.
//!
//! Needs podman 4.4 or later, the first that starts pasta, a static busybox and a network of the host. Where
//! they are missing the test says so and passes, also under `CI=true`: Debian 12 has podman 4.3, so what the
//! test needs cannot be installed there by the project's set-up. The image is made on the spot.

use crate::support::{Folder, User, program_str, text, users};
use std::process::Command;

/// First words of the reason for which the test cannot run.
fn missing() -> Option<String> {
    let version =
        Command::new("podman").arg("--version").output().map(|output| text(&output)).unwrap_or_default();
    let numbers = version.split_whitespace().last().unwrap_or_default();
    let mut numbers = numbers.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (4, 4) {
        return Some(format!("podman 4.4 or later is needed, and here is {}.{}", version.0, version.1));
    }
    let route = Command::new("ip").args(["-4", "route", "show", "default"]).output();
    if route.map(|output| text(&output)).unwrap_or_default().is_empty() {
        return Some("the host has no default route to copy".to_owned());
    }
    None
}

/// Runs with brodo as `$1` and a folder of the user's as `$2`.
const SCRIPT: &str = r#"
set -e
cd "$2"; mkdir -p run bin image/bin image/tmp image/etc; chmod 700 run
cp "$1" bin/pasta; cp "$(command -v busybox)" image/bin/busybox
for name in sh ip nc sleep; do ln -s busybox image/bin/$name; done
export HOME=$2 XDG_RUNTIME_DIR=$2/run CONTAINERS_HELPER_BINARY_DIR=$2/bin
mkdir -p .config/containers; echo '{"default":[{"type":"insecureAcceptAnything"}]}' > .config/containers/policy.json
p="podman --cgroup-manager cgroupfs --events-backend file --storage-driver vfs"
tar -C image -c . | $p import - brodo-test >/dev/null 2>&1
port=$((20000 + $$ % 10000))
id=$($p run -d --cgroups=disabled --network=pasta -p 127.0.0.1:$port:80 brodo-test \
    sh -c 'ip -4 addr; ip route; while true; do echo served | nc -l -p 80; done')
for i in 1 2 3 4 5 6 7 8 9 10; do
    sleep 0.3; answer=$(echo | nc -w 5 127.0.0.1 $port) && [ -n "$answer" ] && break
done
echo "answer $answer"; $p logs $id
"$1" status | sed 's/^/status /'
pid=$(ls run/brodo | sed 's/[.]sock//'); $p rm -f -t 0 $id >/dev/null
for i in $(seq 100); do kill -0 $pid 2>/dev/null || { echo ended; break; }; sleep 0.1; done
"#;

#[test]
fn a_container_of_podman_gets_its_network_from_brodo() {
    if let Some(why) = missing() {
        eprintln!("*** SKIPPED: {why}");
        return;
    }
    if users().is_empty() {
        return;
    }
    let folder = Folder::new("podman");
    let output = User::Ordinary.command(&["sh", "-c", SCRIPT, "sh", program_str(), &folder.path("")]);
    let output = { output }.output().expect("runs");
    let (all, errors) = (text(&output), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{all}\n{errors}");
    let host = Command::new("ip").args(["-4", "route", "show", "default"]).output().expect("ip runs");
    let host = text(&host);
    let router = host.split_whitespace().nth(2).expect("default via ROUTER");
    for part in ["answer served", &format!("default via {router}"), "netns", "ended"] {
        assert!(all.contains(part), "{part} is not in\n{all}\n{errors}");
    }
}
