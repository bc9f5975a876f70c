//! A real container of rootless podman on brodo in pasta's place, or in slirp4netns' for a podman before 4.4
//! (Debian 12), which starts no pasta: its addresses and routes, a published port, its network in
//! `brodo status`, and the end of brodo with the container.
//!
//! Where podman, or for pasta a network of the host, is missing the test says so and passes. The image is
//! made on the spot.

use crate::support::{Folder, User, program_str, text, users};
use std::process::Command;

/// The program in whose place podman starts brodo.
#[derive(Clone, Copy)]
enum Replaced {
    Pasta,
    Slirp4netns,
}

impl Replaced {
    /// That of the installed podman; none without one.
    fn of_podman() -> Option<Self> {
        let output = Command::new("podman").arg("--version").output().ok()?;
        let version = text(&output);
        let mut numbers = version.split_whitespace().last()?.split('.').map(str::parse::<u32>);
        let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(if version < (4, 4) { Self::Slirp4netns } else { Self::Pasta })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Pasta => "pasta",
            Self::Slirp4netns => "slirp4netns",
        }
    }

    /// podman's `--network`, so that brodo publishes the ports.
    fn network(self) -> &'static str {
        match self {
            Self::Pasta => "pasta",
            Self::Slirp4netns => "slirp4netns:port_handler=slirp4netns",
        }
    }

    /// The container's router.
    fn router(self) -> Option<String> {
        match self {
            Self::Pasta => {
                let output = Command::new("ip").args(["-4", "route", "show", "default"]).output().ok()?;
                text(&output).split_whitespace().nth(2).map(str::to_owned)
            }
            Self::Slirp4netns => Some("10.0.2.2".to_owned()),
        }
    }
}

/// Runs with brodo as `$1`, a folder of the user's as `$2`, the name in brodo's place and the network.
const SCRIPT: &str = r#"
set -e
cd "$2"; mkdir -p bin image/bin image/tmp image/etc
# Short: a socket in it has a name of 68 characters.
run=$(mktemp -d /tmp/run.XXXXXX); trap 'rm -rf "$run"' EXIT
busybox=$(command -v busybox)
cp "$1" "bin/$3"; cp "$busybox" image/bin/busybox
for library in $(ldd "$busybox" 2>/dev/null | grep -o '/[^ ]*'); do
    mkdir -p "image${library%/*}"; cp -L "$library" "image$library"
done
for name in sh ip nc sleep; do ln -s busybox image/bin/$name; done
export HOME=$2 XDG_RUNTIME_DIR=$run CONTAINERS_HELPER_BINARY_DIR=$2/bin PATH=$2/bin:$PATH
mkdir -p .config/containers; echo '{"default":[{"type":"insecureAcceptAnything"}]}' > .config/containers/policy.json
p="podman --cgroup-manager cgroupfs --events-backend file --storage-driver vfs"
tar -C image --owner=0 --group=0 -c . | $p import - brodo-test >/dev/null 2>&1
port=$((20000 + $$ % 10000))
id=$($p run -d --cgroups=disabled --network="$4" -p 127.0.0.1:$port:80 brodo-test \
    sh -c 'ip -4 addr; ip route; while true; do echo served | nc -l -p 80; done')
for i in 1 2 3 4 5 6 7 8 9 10; do
    sleep 0.3; answer=$(echo | nc -w 5 127.0.0.1 $port) && [ -n "$answer" ] && break
done
echo "answer $answer"; $p logs $id
"$1" status | sed 's/^/status /'
pid=$(ls $run/brodo | sed 's/[.]sock//'); conmon=$($p inspect -f '{{.State.ConmonPid}}' $id)
$p rm -f -t 0 $id >/dev/null
for i in $(seq 100); do kill -0 $pid 2>/dev/null || { echo ended; break; }; sleep 0.1; done
# podman's own clean-up, which conmon starts at a container's end, writes there too.
for i in $(seq 100); do kill -0 $conmon 2>/dev/null || break; sleep 0.1; done
"#;

/// crun refuses hosts with both versions of control groups, and the container needs none: without the second
/// version, as far as root may hide it.
fn with_one_hierarchy(command: Command) -> Command {
    const HIDE: &str = "umount /sys/fs/cgroup/unified 2>/dev/null; exec \"$@\"";
    if !rustix::process::geteuid().is_root() {
        return command;
    }
    let mut hidden = Command::new("unshare");
    hidden.args(["-m", "sh", "-c", HIDE, "sh"]).arg(command.get_program()).args(command.get_args());
    hidden
}

#[test]
fn a_container_of_podman_gets_its_network_from_brodo() {
    let Some(place) = Replaced::of_podman() else {
        eprintln!("*** SKIPPED: podman is not installed");
        return;
    };
    let Some(router) = place.router() else {
        eprintln!("*** SKIPPED: the host has no default route to copy");
        return;
    };
    if users().is_empty() {
        return;
    }
    let folder = Folder::new("podman");
    let words = ["sh", "-c", SCRIPT, "sh", program_str(), &folder.path(""), place.name(), place.network()];
    let output = with_one_hierarchy(User::Ordinary.command(&words)).output().expect("runs");
    let (all, errors) = (text(&output), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{all}\n{errors}");
    for part in ["answer served", &format!("default via {router}"), "netns", "ended"] {
        assert!(all.contains(part), "{part} is not in\n{all}\n{errors}");
    }
}
