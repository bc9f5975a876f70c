//! Flow logs and audit logs as a build would leave them, from fixed pseudo-random numbers.

use std::fmt::Write as _;

/// The destination with most bytes to the guest.
pub(crate) const LARGEST: &str = "objects.githubusercontent.com";

/// Names with ports, flows and bytes to the guest of each.
const BUILD: [(&str, u16, u32, u32); 12] = [
    ("static.crates.io", 443, 210, 180_000_000),
    ("index.crates.io", 443, 40, 9_000_000),
    ("github.com", 443, 12, 30_000_000),
    (LARGEST, 443, 9, 310_000_000),
    ("deb.debian.org", 80, 60, 95_000_000),
    ("registry.npmjs.org", 443, 120, 40_000_000),
    ("files.pythonhosted.org", 443, 44, 66_000_000),
    ("api.example", 443, 30, 6_000_000),
    ("", 5432, 4, 2_000_000),
    ("ntp.example", 123, 2, 200),
    ("xn--bcher-kva.example", 443, 1, 3000),
    (
        "a-very-long-name-of-a-content-delivery-node-in-frankfurt.eu-central-1.compute.example.net",
        443,
        3,
        500_000,
    ),
];

/// Numbers that are the same in every run.
struct Draw(u32);

impl Draw {
    fn next(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % bound
    }
}

/// A time of the day of all logs.
fn time(seconds: f64) -> String {
    let all = seconds as u32;
    format!("2026-11-21T18:{:02}:{:02}.{:06}Z", all / 60, all % 60, (seconds.fract() * 1e6) as u32)
}

fn line(name: &str, address: &str, port: u16, end: f64, seconds: u32, back: u32) -> String {
    let id = if seconds > 0 { "\"id\":\"0:1.1\"," } else { "" };
    let cause = if seconds > 0 {
        "\"cause\":\"finished\""
    } else {
        "\"rule\":\"policy default\",\"cause\":\"denied\""
    };
    let name = if name.is_empty() { String::new() } else { format!("\"name\":{},", serde_json::json!(name)) };
    let up = 400 + back / 100;
    format!(
        "{{\"time\":\"{}\",{id}{name}\"protocol\":\"tcp\",\"direction\":\"outbound\",\"guest\":\"10.0.2.15:44330\",\
         \"remote\":\"{address}:{port}\",\"duration_us\":{},\"from_guest\":{{\"bytes\":{up},\
         \"packets\":9}},\"to_guest\":{{\"bytes\":{back},\"packets\":9}},{cause}}}\n",
        time(end),
        seconds * 1_000_000
    )
}

/// One flow to a name.
pub(crate) fn flow(name: &str, end: f64, port: u16) -> String {
    line(name, "192.0.2.1", port, end, 1, 1000)
}

/// The flow log of a build of ten minutes.
pub(crate) fn build() -> String {
    let (mut draw, mut text) = (Draw(7), String::new());
    for (n, (name, port, flows, bytes)) in BUILD.into_iter().enumerate() {
        let begin = draw.next(400);
        let address = if name == LARGEST { "192.0.2.9".to_owned() } else { format!("192.0.2.{}", 20 + n) };
        for _ in 0..flows {
            let end = f64::from(begin + draw.next(170)) + f64::from(draw.next(1000)) / 1e3;
            text += &line(name, &address, port, end + 9.0, 1 + draw.next(9), bytes / flows);
        }
    }
    for n in 0..12 {
        text += &line("", &format!("203.0.113.{n}"), 22, f64::from(n) * 47.0, 0, 0);
    }
    // Nothing lifts the floor: no rule stands beside it.
    text.replace("\"rule\":\"policy default\"", "\"rule\":\"floor link-local\"")
}

/// A line of an audit log.
pub(crate) fn refused_question(name: &str) -> String {
    let name = serde_json::json!(name);
    format!(
        "{{\"seq\":1,\"time\":\"{}\",\"stage\":\"question\",\"verdict\":\"deny\",\"reason\":\"policy question\",\
         \"name\":{name},\"count\":12}}\n",
        time(77.0)
    )
}

/// The audit log of the same build.
pub(crate) fn audit() -> String {
    refused_question("static.example.org")
}

/// Flows to as many destinations.
pub(crate) fn many(count: u32) -> String {
    let (mut draw, mut text) = (Draw(9), String::new());
    for n in 0..count {
        let back = 200 + draw.next(1 << 20);
        let end = f64::from(n) * 0.03;
        let address = format!("198.18.{}.{}", n >> 8 & 255, n & 255);
        let _ =
            write!(text, "{}", line(&format!("n{n}.zone{}.example", n % 97), &address, 443, end, 1, back));
    }
    text
}
