//! Each way in which a policy refuses a question or a connection, met by common clients: they end with an
//! error at once, in the words of the guide's table, whose cells are read here.
//!
//! Every client makes the same requests in turn (the programs in `refusals/`). The last two are open when
//! a rule and a lockdown end them. A client that is not installed is left out with a message.

use crate::support::{Folder, Running, User, eventually, is_ci, json, json_lines, serve, users};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const PAGE: &str = include_str!("../../../../docs/src/policy.md");
/// Heading of the guide's table, with the clients.
const HEADING: &str = "| Refusal | curl | git | Python | Node | Go | Java |\n|---|---|---|---|---|---|---|\n";

/// Seconds after which a client gives a request up: much more than a refusal takes on a busy machine, and
/// less than the 127 s for which Linux repeats a SYN without an answer.
const PATIENCE_S: &str = "100";

/// Refusals by the names that the requests have, in the order of the table's rows.
const REFUSALS: [&str; 8] = ["question", "ipv4", "ipv6", "tls", "http", "later", "rule", "lockdown"];

/// Clients by their columns, with their programs.
const CLIENTS: [(&str, &[&str]); 6] = [
    ("curl", &["curl"]),
    ("git", &["git"]),
    ("Python", &["python3"]),
    ("Node", &["node"]),
    ("Go", &["go"]),
    ("Java", &["javac", "java"]),
];

/// Clients that are there wherever nothing may be skipped: the others are no part of the set-up for tests.
const ALWAYS: [&str; 2] = ["curl", "Python"];

/// Settings of the environment that would lead a client elsewhere, or have it say more.
const UNWANTED: [&str; 8] = [
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NODE_OPTIONS",
    "JAVA_TOOL_OPTIONS",
];

/// The clients that this user can run.
fn installed(user: User) -> Vec<&'static str> {
    let is_there = |programs: &&[&str]| {
        programs.iter().all(|program| {
            let output = user.command(&["sh", "-c", "command -v $0", program]).output();
            output.is_ok_and(|output| output.status.success())
        })
    };
    let (there, missing): (Vec<_>, Vec<_>) =
        CLIENTS.into_iter().partition(|(_, programs)| is_there(programs));
    for (client, _) in missing {
        assert!(!is_ci() || !ALWAYS.contains(&client), "{client} is missing");
        eprintln!("*** SKIPPED: refusals of {client}, which is not installed");
    }
    there.into_iter().map(|(client, _)| client).collect()
}

/// Writes a client's program into the folder, compiled if need be: the command.
fn prepare(client: &str, folder: &Folder) -> String {
    let write = |name: &str, text: &str| {
        let path = folder.path(name);
        fs::write(&path, text).expect("a file");
        path
    };
    match client {
        "Python" => format!("python3 {}", write("probe.py", include_str!("refusals/probe.py"))),
        "Node" => format!("node {}", write("probe.js", include_str!("refusals/probe.js"))),
        "Go" => {
            let (source, program) =
                (write("probe.go", include_str!("refusals/probe.go")), folder.path("probe"));
            // The standard library is compiled once for all runs, and nothing is fetched.
            let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/go");
            let mut command = Command::new("go");
            command.args(["build", "-o", &program, &source]).current_dir(folder.path(""));
            command.env("GOFLAGS", "-mod=mod").env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
            compile(command.env("CGO_ENABLED", "0").env("GOCACHE", cache));
            program
        }
        "Java" => {
            let source = write("Probe.java", include_str!("refusals/Probe.java"));
            compile(Command::new("javac").args(["-d", &folder.path(""), &source]));
            let options =
                "-Djdk.httpclient.allowRestrictedHeaders=host -XX:+UseSerialGC -XX:TieredStopAtLevel=1";
            format!("java {options} -cp {} Probe", folder.path(""))
        }
        _ => format!("bash {} {client}", write("probe.sh", include_str!("refusals/probe.sh"))),
    }
}

fn compile(command: &mut Command) {
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The cells of the guide's table, by client and refusal.
fn cells() -> BTreeMap<(&'static str, &'static str), &'static str> {
    let (_, table) = PAGE.split_once(HEADING).expect("the table");
    let rows: Vec<_> = table.lines().take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), REFUSALS.len(), "a row for each refusal");
    let row = |(refusal, row): (&'static str, &'static str)| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 1 + CLIENTS.len(), "{row}");
        CLIENTS
            .iter()
            .zip(cells.into_iter().skip(1))
            .map(move |((client, _), cell)| ((*client, refusal), cell))
    };
    REFUSALS.into_iter().zip(rows).flat_map(row).collect()
}

/// A message without differences between libraries and versions of a client.
fn plain(words: &str) -> String {
    let words = words.to_lowercase().replace('_', " ");
    words.replace("access was denied", "access denied").replace("could not connect", "couldn't connect")
}

/// Whether a client's words are those of a cell: all of its marked phrases, or those of one of several
/// alternatives.
fn are_of_cell(words: &str, cell: &str) -> bool {
    cell.split(" or ").any(|alternative| {
        let mut phrases = alternative.split('`').skip(1).step_by(2).peekable();
        phrases.peek().is_some() && phrases.all(|phrase| plain(words).contains(&plain(phrase)))
    })
}

/// The head of a request, line by line; none at the end of the stream.
fn head(stream: &mut BufReader<&TcpStream>) -> Option<Vec<String>> {
    let lines = stream.lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect::<Vec<_>>();
    (!lines.is_empty()).then_some(lines)
}

/// A server that takes requests and answers none; its port, and the number of requests.
fn silent() -> (u16, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = requests.clone();
    let port = serve(move |stream| {
        let mut stream = BufReader::new(&stream);
        while head(&mut stream).is_some() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    (port, requests)
}

/// A server that answers every request, and keeps what their heads have said; its port.
fn answering(heads: &Arc<Mutex<Vec<String>>>) -> u16 {
    let heads = heads.clone();
    serve(move |stream| {
        let mut reader = BufReader::new(&stream);
        while let Some(head) = head(&mut reader) {
            heads.lock().expect("no panic").extend(head);
            let mut stream = &stream;
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n").is_err() {
                return;
            }
        }
    })
}

/// Reads so many lines of the clients, each of which has to be that of its cell.
fn expect_words(brodo: &mut Running, count: usize, refusals: &[&str]) {
    let cells = cells();
    let mut seen = BTreeSet::new();
    for _ in 0..count {
        let line = brodo.line();
        eprintln!("{line}");
        let mut parts = line.splitn(3, '\t');
        let [client, refusal, words] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let cell = cells.iter().find(|(key, _)| **key == (client, refusal));
        let (key, cell) = cell.unwrap_or_else(|| panic!("no cell for {line}"));
        assert!(refusals.contains(&key.1) && seen.insert(*key), "out of turn: {line}");
        assert!(are_of_cell(words, cell), "{line}\nis not: {cell}");
    }
}

/// Numbers of refusals in an audit log, by destination or name, and reason.
fn refused(audit: &str) -> BTreeMap<(String, String), u64> {
    let mut refused = BTreeMap::new();
    for line in json_lines(audit).iter().filter(|line| line["verdict"] == "deny") {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let of = if line["stage"] == "question" { text("name") } else { text("remote") };
        *refused.entry((of, text("reason"))).or_default() += line["count"].as_u64().unwrap_or_default();
    }
    refused
}

/// As one user alone: clients differ, and refusals do not.
#[test]
fn clients_end_at_once_with_the_words_of_the_guide() {
    let Some(&user) = users().last() else { return };
    let folder = Folder::new("refusals");
    let (socket, audit) = (folder.path("socket"), folder.path("audit"));
    let clients = installed(user);
    let heads = Arc::new(Mutex::new(Vec::new()));
    let (web, (first, at_first), (second, at_second)) = (answering(&heads), silent(), silent());
    let commands: Vec<_> = clients.iter().map(|client| prepare(client, &folder)).collect();
    let requests = [
        format!("question=http://unknown.example:{web}/"),
        format!("ipv4=http://192.0.2.1:{web}/"),
        format!("ipv6=http://[2001:db8::1]:{web}/"),
        format!("tls=https://evil.example:{web}/"),
        format!("http=http://evil.example:{web}/"),
        format!("later=http://pkg.example:{web}/"),
        format!("rule=http://10.0.2.2:{first}/"),
        format!("lockdown=http://10.0.2.2:{second}/"),
    ];
    let each = |command: &String| {
        // git names no host but that of its address.
        let of =
            requests.iter().filter(|request| !(command.ends_with(" git") && request.starts_with("later")));
        let of: Vec<_> = of.map(|request| format!("'{request}'")).collect();
        // All write to one pipe: the filter writes each line at once, also one that a client writes in parts.
        format!("{command} {PATIENCE_S} {} | grep --line-buffered . &", of.join(" "))
    };
    let script = format!(
        "cd {}\n{}\nwait; exit 0",
        folder.path(""),
        commands.iter().map(each).collect::<Vec<_>>().join("\n")
    );
    let network = ["--map-host-loopback", "10.0.2.2", "--audit", &audit, "--control", &socket];
    let names = ["--host-name", "pkg.example=10.0.2.2", "--host-name", "evil.example=10.0.2.2"];
    let rules = [format!("tls://pkg.example:{web}"), format!("http://pkg.example:{web}")];
    let rules = [&rules[..], &[first, second].map(|port| format!("10.0.2.2:{port}"))].concat();
    let rules: Vec<_> = rules.iter().flat_map(|rule| ["--allow", rule]).collect();
    let words = [&["run"][..], &network, &names, &rules, &["--", "bash", "-c", &script]].concat();
    let mut brodo = user.brodo(&words);
    for variable in UNWANTED {
        brodo.env_remove(variable);
    }
    let mut brodo = Running::start(brodo.env("HOME", folder.path("")).env("LC_ALL", "C"));

    let all = clients.len();
    let later = all - usize::from(clients.contains(&"git"));
    expect_words(&mut brodo, 5 * all + later, &REFUSALS[..6]);
    eventually("every client waits for the first server", || at_first.load(Ordering::Relaxed) == all);
    json(user, &socket, &["policy", "deny", &format!("10.0.2.2:{first}")]);
    expect_words(&mut brodo, all, &["rule"]);
    eventually("every client waits for the second server", || at_second.load(Ordering::Relaxed) == all);
    json(user, &socket, &["policy", "lockdown"]);
    expect_words(&mut brodo, all, &["lockdown"]);
    assert_eq!(brodo.status(), Some(0));

    let audit = fs::read_to_string(&audit).expect("an audit log");
    let refused = refused(&audit);
    for (of, reason, count) in [
        ("unknown.example".to_owned(), "policy question".to_owned(), all),
        (format!("192.0.2.1:{web}"), "policy not-given-by-dns".to_owned(), all),
        (format!("[2001:db8::1]:{web}"), "policy not-given-by-dns".to_owned(), all),
        (format!("10.0.2.2:{web}"), "policy name".to_owned(), 2 * all),
        (format!("10.0.2.2:{web}"), "policy name-changed".to_owned(), later),
        (format!("10.0.2.2:{first}"), format!("deny 10.0.2.2:{first}"), all),
        (format!("10.0.2.2:{second}"), "policy lockdown".to_owned(), all),
    ] {
        let found = refused.get(&(of.clone(), reason.clone())).copied().unwrap_or_default();
        assert!(found >= count as u64, "{of}, {reason}: {found} of {count} in {audit}");
    }
    assert!(!refused.keys().any(|(_, reason)| reason == "policy timeout"), "{audit}");
    let heads = heads.lock().expect("no panic").join("\n").to_lowercase();
    assert!(heads.contains("host: pkg.example") && !heads.contains("evil"), "{heads}");
}

#[test]
fn cells_have_phrases_and_alternatives() {
    assert!(are_of_cell("curl: (7) Could not connect to server", "`Couldn't connect to server`"));
    assert!(are_of_cell("answer 403 the text", "`reset by peer` or `403`, `the text`"));
    assert!(!are_of_cell("answer 403", "`reset by peer` or `403`, `the text`"));
    assert!(!are_of_cell("anything", "nothing is marked"));
    assert!(cells().values().all(|cell| cell.contains('`') || *cell == "no such request"));
}
