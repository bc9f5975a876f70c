//! A demonstration on real input: inside a brodo namespace, curl downloads from python's web server on the
//! host side.
//!
//! Each step is printed as it happens: processes, users, and the sockets of a download: the guest's
//! connection as curl sees it, and the host's socket that brodo opened for it. The result stands last: the
//! download, its speed, its SHA-256, its cost, and the next commands to try.

use crate::process::{Context, Failure, Result, find_program, wait_until};
use crate::system::{Guest, Programs, System};
use crate::world::{HOST_V4, HOST_V6, Netns, USER, WORLD_V4, World};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Size of the served file, MiB.
const FILE_MIB: u64 = 512;
/// TCP port of the web server.
const PORT: u16 = 8000;
const LIMIT: Duration = Duration::from_mins(2);

/// Source of the download, and the path it shows.
const SERVERS: [(&str, &str); 3] =
    [(HOST_V4, "the host, IPv4"), (HOST_V6, "the host, IPv6"), (WORLD_V4, "another machine")];

/// Runs the demonstration and prints each step to standard output.
pub fn run(programs: &Programs) -> Result<()> {
    for program in ["curl", "python3", "sha256sum", "ss"] {
        find_program(program).ok_or_else(|| Failure(format!("{program} is not installed (make setup)")))?;
    }
    let world = World::new()?;
    println!("1. Network namespaces stand in for a host ({HOST_V4}, {HOST_V6})");
    println!("   and for another machine behind it ({WORLD_V4}).");

    let file = world.folder().join("data");
    let script = format!("head -c {} /dev/urandom > {}", FILE_MIB << 20, file.display());
    world.run(&[], ["sh", "-c", &script], LIMIT)?.success()?;
    let sent = sha256(&world, &file.to_string_lossy())?;
    for netns in [&world.host, &world.world] {
        serve(&world, netns)?;
    }
    println!("2. Python's web server runs on both and has a file of {FILE_MIB} MiB of random bytes.");

    let program = programs.find(System::Brodo)?;
    let brodo = world.install_program(&program)?;
    let brodo = brodo.to_string_lossy();
    let guest = Guest::forwarder(&world, &world.enter_host_as_user(), &[&brodo, "run", "--"])?;
    println!("3. User {USER}, not root, starts `brodo run`. The network inside:\n");
    let inside = world.run(&guest.enter, ["ip", "-brief", "address"], LIMIT)?.success()?;
    inside.stdout.lines().for_each(|line| println!("     {}", line.trim_end()));
    println!("\n4. curl inside downloads the file, through brodo:\n");
    let mut downloads = Vec::new();
    for (server, what) in SERVERS {
        let download = download(&world, &guest, server, &sent)?;
        println!("     {}", download.connection);
        downloads.push((what, download));
    }
    let (rss_kib, cpu_ms) = (guest.rss_kib(), guest.cpu_ms());
    guest.finish(LIMIT)?.success()?;
    print!("\n{}", result(&downloads, cpu_ms, rss_kib));
    if downloads.iter().any(|(_, download)| !download.is_equal) {
        return Err(Failure("the bytes that arrived are not those sent".into()));
    }
    print!("{}", next_steps(&program));
    Ok(())
}

/// One download.
struct Download {
    bytes: f64,
    seconds: f64,
    /// Equality of the bytes that arrived and those sent, by SHA-256.
    is_equal: bool,
    /// Both halves of the connection.
    connection: String,
}

/// The result as a table.
fn result(downloads: &[(&str, Download)], cpu_ms: f64, rss_kib: u64) -> String {
    let mut text = format!("Result: {} downloads of {FILE_MIB} MiB as an ordinary user\n\n", downloads.len());
    for (what, download) in downloads {
        let verdict = if download.is_equal { "SHA-256 equal" } else { "SHA-256 DIFFERS" };
        let rate = download.bytes * 8.0 / download.seconds / 1e9;
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "  from {what:<16} {:>6.2} s  {rate:>6.1} Gbit/s  {verdict}", download.seconds);
    }
    let gib = downloads.iter().map(|(_, download)| download.bytes).sum::<f64>() / f64::from(1 << 30);
    let mib = rss_kib as f64 / 1024.0;
    text + &format!(
        "\n  brodo took {:.0} ms of processor time per GiB and {mib:.1} MiB of memory.\n",
        cpu_ms / gib
    )
}

/// Next steps for a newcomer, with the program that was shown.
fn next_steps(program: &Path) -> String {
    let brodo = program.display();
    format!(
        "\nNext, as any user:\n\n\
         \x20 {brodo} run -- curl -sI https://example.org    one command with a network of its own\n\
         \x20 {brodo} run                                    a shell with a network of its own\n\
         \x20 {brodo} top                                    its connections, from another terminal\n\
         \x20 {brodo} run --help                             every option\n\n\
         The guide begins at docs/src/introduction.md.\n"
    )
}

fn serve(world: &World, netns: &Netns) -> Result<()> {
    let program = "import http.server, socket, sys\n\
                   class Server(http.server.ThreadingHTTPServer): address_family = socket.AF_INET6\n\
                   handler = lambda *a: http.server.SimpleHTTPRequestHandler(*a, directory=sys.argv[1])\n\
                   Server(('::', int(sys.argv[2])), handler).serve_forever()";
    let folder = world.folder().to_string_lossy().into_owned();
    world.serve(netns, ["/usr/bin/env", "python3", "-c", program, &folder, &PORT.to_string()], PORT).map(drop)
}

/// Downloads once.
fn download(world: &World, guest: &Guest, server: &str, sent: &str) -> Result<Download> {
    let address = if server.contains(':') { format!("[{server}]") } else { server.to_owned() };
    let url = format!("http://{address}:{PORT}/data");
    let copy = world.home().join("copy").to_string_lossy().into_owned();
    let report = "%{local_ip}|%{local_port}|%{size_download}|%{time_total}";
    let words = ["curl", "-sS", "--fail", "-o", &copy, "-w", report, &url];
    let mut job = world.start(&guest.enter, words)?;
    let socket = wait_until(LIMIT, || match host_socket(world, &address) {
        None if job.is_running() => None,
        found => Some(found),
    });
    let finished = job.wait(LIMIT)?.success()?;
    let words: Vec<&str> = finished.stdout.split('|').collect();
    let [from, port, bytes, seconds] = words[..] else {
        return Err(finished.failure("unexpected output of curl"));
    };
    let number = |text: &str| text.parse::<f64>().context(|| format!("curl printed {text:?}"));
    let socket = socket.flatten().unwrap_or_else(|| "a socket that was gone before it was listed".into());
    let download = Download {
        bytes: number(bytes)?,
        seconds: number(seconds)?,
        is_equal: sha256(world, &copy)? == sent,
        connection: format!("{from}:{port} in the guest, {socket} on the host, to {address}:{PORT}"),
    };
    fs::remove_file(&copy).context(|| format!("cannot remove {copy}"))?;
    Ok(download)
}

/// Address and port of brodo's own socket towards the server, as the host's kernel lists it.
fn host_socket(world: &World, address: &str) -> Option<String> {
    let filter = format!("dst {address} and dport = :{PORT}");
    let words = ["ss", "-tnpH", "state", "established"].into_iter().chain(filter.split(' '));
    let listed = world.run(&world.host.enter(), words, LIMIT).ok()?.stdout;
    let line = listed.lines().find(|line| line.contains("brodo"))?;
    // Queues, own address, peer's address, program.
    line.split_whitespace().nth(2).map(str::to_owned)
}

fn sha256(world: &World, file: &str) -> Result<String> {
    let finished = world.run(&[], ["sha256sum", file], LIMIT)?.success()?;
    let hash = finished.stdout.split_whitespace().next();
    hash.map(str::to_owned).ok_or_else(|| finished.failure("printed no hash"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn download(is_equal: bool) -> Download {
        Download { bytes: f64::from(512 << 20), seconds: 0.5, is_equal, connection: String::new() }
    }

    #[test]
    fn the_result_has_size_speed_verdict_and_cost_and_the_next_commands_stand_last() {
        let text = result(&[("the host", download(true)), ("elsewhere", download(false))], 300.0, 2048);
        let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(
            lines,
            [
                "Result: 2 downloads of 512 MiB as an ordinary user",
                "  from the host           0.50 s     8.6 Gbit/s  SHA-256 equal",
                "  from elsewhere          0.50 s     8.6 Gbit/s  SHA-256 DIFFERS",
                "  brodo took 300 ms of processor time per GiB and 2.0 MiB of memory.",
            ]
        );
        let next = next_steps(Path::new("target/release/brodo"));
        assert_eq!(next.matches("target/release/brodo ").count(), 4);
        let guide = next.lines().next_back().and_then(|line| line.split(' ').next_back()).expect("a line");
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(guide.trim_end_matches('.'));
        assert!(guide.is_file(), "{}", guide.display());
    }
}
