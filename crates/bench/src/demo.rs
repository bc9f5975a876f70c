//! A demonstration on real input: inside a brodo namespace, curl downloads from python's web server on the
//! host side.
//!
//! It is told as it happens: what was started as whom, what arrived (compared by SHA-256), how fast, and over
//! which flows: the guest's connection as curl sees it, and the host's socket that brodo opened for it.

use crate::process::{Context, Failure, Result, find_program, wait_until};
use crate::system::{Guest, Programs, System};
use crate::world::{HOST_V4, HOST_V6, Netns, USER, WORLD_V4, World};
use std::fs;
use std::time::Duration;

/// Size of the file that is sent.
const FILE_MIB: u64 = 512;
/// TCP port of the web server.
const PORT: u16 = 8000;
const LIMIT: Duration = Duration::from_mins(2);

/// Runs it, printing the story to standard output.
pub fn run(programs: &Programs) -> Result<()> {
    for program in ["curl", "python3", "sha256sum", "ss"] {
        find_program(program).ok_or_else(|| Failure(format!("{program} is not installed (make setup)")))?;
    }
    let world = World::new()?;
    println!("1. A host namespace with {HOST_V4} and {HOST_V6}, and a world behind it with {WORLD_V4}.\n");

    let file = world.folder().join("data");
    let script = format!("head -c {} /dev/urandom > {}", FILE_MIB << 20, file.display());
    world.run(&[], ["sh", "-c", &script], LIMIT)?.success()?;
    let sent = sha256(&world, &file.to_string_lossy())?;
    for netns in [&world.host, &world.world] {
        serve(&world, netns)?;
    }
    println!(
        "2. Python's web server on both sides, with a file of {FILE_MIB} MiB of random bytes,\n   sha256 {sent}\n"
    );

    let brodo = world.install_program(&programs.find(System::Brodo)?)?;
    let brodo = brodo.to_string_lossy();
    let guest = Guest::forwarder(&world, &world.enter_host_as_user(), &[&brodo, "run", "-v", "--"])?;
    println!("3. As user {USER}, no root: `brodo run`. Inside it looks like this:\n");
    let inside = world.run(&guest.enter, ["ip", "-brief", "address"], LIMIT)?.success()?;
    indent(&inside.stdout);

    println!("4. curl inside downloads the file:\n");
    let mut all_equal = true;
    for server in [HOST_V4, HOST_V6, WORLD_V4] {
        all_equal &= download(&world, &guest, server, &sent)?;
    }
    let (rss, cpu) = (guest.rss_kib(), guest.cpu_ms());
    let gib = 3.0 * FILE_MIB as f64 / 1024.0;
    println!(
        "5. brodo took {:.0} ms of CPU per GiB and {:.1} MiB of memory. What it counted:\n",
        cpu / gib,
        rss as f64 / 1024.0
    );
    let end = guest.finish(LIMIT)?.success()?;
    indent(&end.stderr);
    if all_equal { Ok(()) } else { Err(Failure("what arrived is not what was sent".into())) }
}

fn serve(world: &World, netns: &Netns) -> Result<()> {
    let program = "import http.server, socket, sys\n\
                   class Server(http.server.ThreadingHTTPServer): address_family = socket.AF_INET6\n\
                   handler = lambda *a: http.server.SimpleHTTPRequestHandler(*a, directory=sys.argv[1])\n\
                   Server(('::', int(sys.argv[2])), handler).serve_forever()";
    let folder = world.folder().to_string_lossy().into_owned();
    world.serve(netns, ["/usr/bin/env", "python3", "-c", program, &folder, &PORT.to_string()], PORT).map(drop)
}

/// Downloads once and tells how it went; whether the content was equal.
fn download(world: &World, guest: &Guest, server: &str, sent: &str) -> Result<bool> {
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
        return Err(finished.failure("curl printed something else"));
    };
    let number = |text: &str| text.parse::<f64>().context(|| format!("curl printed {text:?}"));
    let rate = number(bytes)? * 8.0 / number(seconds)? / 1e9;
    let received = sha256(world, &copy)?;
    let equal = received == sent;
    let verdict = if equal { "equal" } else { "DIFFERENT" };
    println!("   curl {url}");
    println!("     {bytes} bytes in {:.2} s, {rate:.2} Gbit/s; sha256 {verdict}", number(seconds)?);
    println!("     guest  {from} port {port} -> {address}:{PORT}");
    let socket = socket.flatten().unwrap_or_else(|| "gone before it could be looked at".into());
    println!("     host   {socket}\n");
    fs::remove_file(&copy).context(|| format!("cannot remove {copy}"))?;
    Ok(equal)
}

/// brodo's own socket towards the server, as the host's kernel lists it.
fn host_socket(world: &World, address: &str) -> Option<String> {
    let filter = format!("dst {address} and dport = :{PORT}");
    let words = ["ss", "-tnpH", "state", "established"].into_iter().chain(filter.split(' '));
    let listed = world.run(&world.host.enter(), words, LIMIT).ok()?.stdout;
    let line = listed.lines().find(|line| line.contains("brodo"))?;
    // Queues, own address, peer's address, program.
    let words: Vec<&str> = line.split_whitespace().collect();
    let program = words.get(4)?.trim_start_matches("users:((").trim_end_matches("))").replace(',', " ");
    Some(format!("{} -> {}, a socket of {program}", words.get(2)?, words.get(3)?))
}

fn sha256(world: &World, file: &str) -> Result<String> {
    let finished = world.run(&[], ["sha256sum", file], LIMIT)?.success()?;
    let hash = finished.stdout.split_whitespace().next();
    hash.map(str::to_owned).ok_or_else(|| finished.failure("printed no hash"))
}

fn indent(text: &str) {
    for line in text.lines() {
        println!("   {line}");
    }
    println!();
}
