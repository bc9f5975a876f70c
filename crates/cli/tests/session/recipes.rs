//! The recipes of the guide's page on policies in use, as they stand there, and refusals as programs report
//! them.

use crate::support::{Folder, User, program_str, users};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/src/policy-recipes.md");

/// The page's blocks in this language.
fn blocks(language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    PAGE.split(begin.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

/// A program that only says its name.
fn script(path: &Path) {
    fs::write(path, "#!/bin/sh\nbasename \"$0\"\n").expect("a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
}

fn has_bubblewrap(user: User) -> bool {
    let tried = user.inside(&[], "bwrap --ro-bind / / --unshare-pid true 2>/dev/null && echo yes; true");
    tried == "yes\n"
}

#[test]
fn the_recipes_of_the_guide_work() {
    for &user in users() {
        let folder = Folder::new(&format!("recipes-{user:?}"));
        let at = |name: &str| folder.path(name);
        fs::create_dir(at("bin")).expect("a folder");
        fs::create_dir(at("project")).expect("a folder");
        for name in ["bin", "project"] {
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o777)).expect("its mode");
        }
        symlink(program_str(), at("bin/brodo")).expect("a link");
        script(Path::new(&at("build.sh")));
        script(Path::new(&at("project/agent")));
        for block in blocks("toml") {
            let name = block.strip_prefix("# ").and_then(|rest| rest.lines().next()).expect("a file's name");
            fs::write(at(name), block).expect("a file");
        }
        let recipes = blocks("sh");
        assert_eq!(recipes.len(), 4);
        for recipe in recipes {
            if recipe.contains("bwrap") && !has_bubblewrap(user) {
                eprintln!("*** SKIPPED: no bubblewrap here that {user:?} can use");
                continue;
            }
            // The agent is the project's own program here.
            let recipe = recipe.replace("-- agent", "-- ./agent");
            let set_up = "set -e; cd \"$1\"; PATH=\"$1/bin:$PATH\"; eval \"$2\"";
            let words = ["sh", "-c", set_up, "sh", &at(""), &recipe];
            let output = user.command(&words).env("TERM", "dumb").output().expect("a shell");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{user:?} {recipe}: {} {errors}", output.status);
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("agent\n") || said.contains("build.sh\n"), "{recipe}: {said}{errors}");
        }
        for made in ["audit.jsonl", "flows.jsonl", "report.html", "learnt.toml"] {
            assert!(Path::new(&at(made)).exists(), "{made}");
        }
    }
}

/// Requests by curl and Python that are refused in each way, at a port with rules for TLS and HTTP.
const REFUSED: &str = r"
curl -sS https://evil.example/
curl -sS http://192.0.2.1/
curl -sSk --resolve evil.example:PORT:10.0.2.2 https://evil.example:PORT/
curl -sS -H 'Host: evil.example' http://10.0.2.2:PORT/
python3 - <<'END'
import socket, ssl, urllib.request
def attempt(does):
    try: does()
    except Exception as error: print(type(error).__name__, error)
attempt(lambda: socket.getaddrinfo('evil.example', 443))
attempt(lambda: socket.create_connection(('192.0.2.1', 80)))
to = ('10.0.2.2', PORT)
attempt(lambda: ssl._create_unverified_context().wrap_socket(
    socket.create_connection(to), server_hostname='evil.example'))
request = urllib.request.Request('http://10.0.2.2:PORT/', headers={'Host': 'evil.example'})
attempt(lambda: urllib.request.urlopen(request))
END
true";

#[test]
fn programs_tell_refusals_from_outages() {
    for &user in users() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let (tls, http) = (format!("tls://pkg.example:{port}"), format!("http://pkg.example:{port}"));
        let network = ["--map-host-loopback", "10.0.2.2", "--host-name", "pkg.example=10.0.2.2"];
        let rules = ["--allow", &tls, "--allow", &http];
        let script = REFUSED.replace("PORT", &port.to_string());
        let words = [&["run"], &network[..], &rules, &["--", "sh", "-c", &script]].concat();
        let output = user.brodo(&words).output().expect("brodo starts");
        let said =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        for expected in [
            "Could not resolve host",
            "connect to 192.0.2.1",
            "brodo: the policy refuses this request: name",
            "gaierror [Errno -2]",
            "ConnectionRefusedError",
            "ACCESS_DENIED",
            "HTTP Error 403",
        ] {
            assert!(said.contains(expected), "{expected} is not in {said}");
        }
        // The words of curl depend on its library.
        assert!(said.lines().any(|line| line.starts_with("curl: (35)")), "{said}");
        assert!(said.to_lowercase().contains("access denied"), "{said}");
    }
}
