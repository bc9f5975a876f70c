//! Common programs: curl against python's web server, socat and nc with half closes, iperf3.

use crate::Test;
use crate::bed::{Bed, LIMIT, Link, SERVERS, check};
use crate::stress::{Counted, guest_counter, ring_drops};
use brodo_bench::process::{Failure, Finished, Result, wait_until};
use brodo_bench::world::{HOST_V4, HOST_V6, Netns, WORLD_V4, WORLD_V6};
use std::fs;

pub(crate) const TESTS: &[Test] = &[
    Test::new("curl and python's web server", web).on(&Link::ALL).with(&["curl", "python3", "sha256sum"]),
    Test::new("socat and nc close their halves", half_closes).with(&["socat", "nc", "sha256sum"]),
    Test::new("iperf3", iperf3).on(&Link::ALL).with(&["iperf3"]),
];

/// A web server that also takes files and answers with their SHA-256.
const WEB_SERVER: &str = "
import hashlib, http.server, socket, sys

class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_PUT(self):
        hash, left = hashlib.sha256(), int(self.headers['Content-Length'])
        while left:
            data = self.rfile.read(min(left, 65536))
            hash.update(data)
            left -= len(data)
        answer = hash.hexdigest().encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

Server(('::', 8000), Handler).serve_forever()
";

/// Bytes of the file that is sent around.
const FILE_BYTES: &str = "20000003";

fn both_sides(bed: &Bed) -> [&Netns; 2] {
    [&bed.world.host, &bed.world.world]
}

fn on_host(bed: &Bed, words: &[&str]) -> Result<Finished> {
    bed.world.run(&[], words, LIMIT)?.success()
}

/// A file of random bytes in the home of the user, and its SHA-256.
fn random_file(bed: &Bed) -> Result<(String, String)> {
    let file = bed.world.home().join("random");
    let file = file.to_string_lossy().into_owned();
    on_host(bed, &["sh", "-c", &format!("head -c {FILE_BYTES} /dev/urandom > {file}")])?;
    let hash = first_word(&on_host(bed, &["sha256sum", &file])?.stdout);
    Ok((file, hash))
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().to_owned()
}

/// An address as it stands in a URL.
fn bracketed(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

fn web(bed: &Bed) -> Result<()> {
    let (file, hash) = random_file(bed)?;
    let script = bed.world.folder().join("server.py");
    fs::write(&script, WEB_SERVER).map_err(|e| Failure(format!("{}: {e}", script.display())))?;
    for netns in both_sides(bed) {
        bed.world.serve(netns, ["/usr/bin/env", "python3", &script.to_string_lossy()], 8000)?;
    }
    let copy = bed.world.home().join("copy");
    let copy = copy.to_string_lossy();
    for server in SERVERS {
        let url = format!("http://{}:8000/random", bracketed(server));
        bed.run(&["curl", "-sS", "--fail", "-m", "150", "-o", &copy, &url])?;
        let received = first_word(&on_host(bed, &["sha256sum", &copy])?.stdout);
        check(received == hash, || format!("{url}: {received} instead of {hash}"))?;
        let answer = bed.run(&["curl", "-sS", "--fail", "-m", "150", "-T", &file, &url])?;
        check(answer.stdout == hash, || answer.failure(&format!("expected {hash}")).0)?;
    }
    // Ten requests on one connection, and several connections at once.
    let url = format!("http://{}:8000/random", bracketed(HOST_V6));
    let words = ["curl", "-sS", "--fail", "-m", "150", "-Z", "--parallel-max", "4"];
    let urls = [url.as_str(); 6].into_iter().flat_map(|url| ["-o", "/dev/null", url]);
    bed.run(&words.into_iter().chain(urls).collect::<Vec<_>>()).map(drop)
}

/// The server answers only after the end of its input, on the half that is still open.
fn half_closes(bed: &Bed) -> Result<()> {
    let (file, hash) = random_file(bed)?;
    for netns in both_sides(bed) {
        let listen = "TCP6-LISTEN:7100,fork,reuseaddr,ipv6only=0";
        bed.world.serve(netns, ["socat", "-t", "30", listen, "EXEC:sha256sum"], 7100)?;
        // Sends a line, ends its half at once, and reads on.
        let listen = "TCP6-LISTEN:7101,fork,reuseaddr,ipv6only=0";
        let greet = "SYSTEM:echo first; exec 1>&-; sha256sum 1>&2";
        bed.world.serve(netns, ["socat", "-t", "30", listen, greet], 7101)?;
    }
    for server in SERVERS {
        let target = format!("TCP:{}:7100", bracketed(server));
        for client in [format!("socat -t 30 - {target} < {file}"), format!("nc -N {server} 7100 < {file}")] {
            let answer = bed.run(&["sh", "-c", &client])?;
            check(first_word(&answer.stdout) == hash, || answer.failure(&format!("expected {hash}")).0)?;
        }
        let words = format!("socat -t 30 - TCP:{}:7101 < {file}", bracketed(server));
        let answer = bed.run(&["sh", "-c", &words])?;
        check(answer.stdout.trim() == "first", || answer.failure("expected one line").0)?;
    }
    // The server prints the sum after the client has ended.
    let times = || bed.world.describe().matches(hash.as_str()).count();
    let all = wait_until(LIMIT, || (times() == SERVERS.len()).then_some(()));
    check(all.is_some(), || format!("the file arrived {} times after the server's end", times()))
}

/// No loss on the way from the guest to brodo: its interface dropped no frame, and its kernel met no sign of
/// one.
///
/// Retransmissions alone are no such sign. A kernel probes the tail of its flight (RFC 8985) after some ten
/// milliseconds without an acknowledgement, and its timer expires after some two hundred, also where the
/// receiver only waits for a processor. An acknowledgement that passes the probe before the probe is reported
/// as a duplicate (a segment with data has no room for the report) counts as TCPLossProbeRecovery: see
/// [`probes_were_superfluous`].
fn nothing_was_lost(bed: &Bed, resent: u64) -> Result<()> {
    let count = |name| guest_counter(bed, "TcpExt", name);
    let impatience = count("TCPLossProbes")? + count("TCPTimeouts")?;
    check(resent == 0 || impatience > 0, || format!("{resent} retransmissions without a timer's expiry"))?;
    for sign in ["TCPSackRecovery", "TCPFastRetrans"] {
        let times = count(sign)?;
        check(times == 0, || format!("{sign} is {times}"))?;
    }
    let dropped = ring_drops(bed)?;
    check(dropped == 0, || format!("{dropped} frames dropped by the guest's interface"))
}

/// No probe of a tail has repaired a loss: for every recovery that the guest's kernel counts, brodo has
/// received bytes twice. Ends brodo.
fn probes_were_superfluous(bed: &Bed) -> Result<()> {
    let recoveries = guest_counter(bed, "TcpExt", "TCPLossProbeRecovery")?;
    let counted = Counted::of(bed)?;
    let duplicates = counted.get("tcp_duplicate_bytes");
    check(duplicates >= recoveries, || {
        format!("TCPLossProbeRecovery is {recoveries}, {duplicates} duplicate bytes at brodo")
    })
}

/// One test of iperf3 against a server of its own.
///
/// A server that stays closes its listening socket after every test and opens another: a client that comes
/// between the two is refused, one that waited in the queue of the old socket is reset (esnet/iperf, pull
/// request 2066).
fn iperf3_once(bed: &Bed, netns: &Netns, server: &str, options: &[&str]) -> Result<serde_json::Value> {
    let mut serving = bed.world.start_server(&netns.enter(), ["iperf3", "-s", "-1"], 5201)?;
    let mut words = vec!["iperf3", "-J", "-t", "1", "-c", server];
    words.extend(options);
    let found = bed.run(&words)?.json()?;
    serving.wait(LIMIT)?;
    Ok(found)
}

fn iperf3(bed: &Bed) -> Result<()> {
    let servers = [
        (&bed.world.host, HOST_V4),
        (&bed.world.host, HOST_V6),
        (&bed.world.world, WORLD_V4),
        (&bed.world.world, WORLD_V6),
    ];
    for (netns, server) in servers {
        for options in [&[][..], &["-R"], &["-P", "4"], &["-u", "-b", "20M", "-l", "1200"]] {
            let found = iperf3_once(bed, netns, server, options)?;
            let end = found["end"].clone();
            let received = if options.contains(&"-u") { &end["sum"] } else { &end["sum_received"] };
            let bytes = received["bytes"].as_u64().unwrap_or(0);
            check(bytes > 0, || format!("{server} {options:?}: nothing received: {found}"))?;
            if !options.contains(&"-R") {
                let resent = end["sum_sent"]["retransmits"].as_u64().unwrap_or(0);
                nothing_was_lost(bed, resent)
                    .map_err(|Failure(why)| Failure(format!("{server} {options:?}: {why}")))?;
            }
        }
    }
    probes_were_superfluous(bed)
}
