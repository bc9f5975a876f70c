//! A hostile guest, failing host sockets and a link without credit, drawn from a seed.
//!
//! Segments have any flags and numbers near every edge; connects end in every way; sockets fill up, fail and
//! close; credit runs out. In every case the observer's rules hold on every segment, the host gets a prefix
//! of what the guest sent, the guest a prefix of what the host sent, and once all connections have failed or
//! timed out no state is left.

use brodo_core::host::HostError;
use brodo_sim::rng::Rng;
use brodo_sim::script::{Script, Setup};
use std::fmt::Write as _;

const FLAGS: [&str; 14] = [
    "SYN",
    "SYN",
    "ACK",
    "ACK",
    "ACK",
    "ACK|PSH",
    "ACK|PSH",
    "FIN|ACK",
    "FIN|ACK|PSH",
    "RST",
    "RST|ACK",
    "SYN|ACK",
    "PSH",
    "ACK|URG",
];
const ERRORS: [HostError; 4] =
    [HostError::Reset, HostError::TimedOut, HostError::HostUnreachable, HostError::Refused];

/// A sequence number, mostly correct, otherwise near an edge or anywhere.
fn skew(rng: &mut Rng, window: u64) -> i64 {
    match rng.below(10) {
        0..6 => 0,
        6 => -1,
        7 => 1,
        8 => rng.below(window.max(1) * 2) as i64 - window as i64,
        _ => i64::from(rng.next() as i32),
    }
}

fn segment(t: &Script, rng: &mut Rng) -> String {
    let flags = rng.pick(&FLAGS);
    let mut line = flags.to_owned();
    let (sent, received) = t.guest_progress();
    if flags == "SYN" {
        line += " seq=0 mss=1460";
        // A repeated SYN has the options of the first.
        if !t.endpoints().0.port().is_multiple_of(3) {
            line += " wscale=7";
        }
    } else {
        let _ = write!(line, " seq={}", i64::from(sent) + skew(rng, 70_000));
        if flags.contains("ACK") {
            let _ = write!(line, " ack={}", i64::from(received) + skew(rng, 70_000));
        }
    }
    if rng.chance(500) && flags != "SYN" {
        let _ = write!(line, " data={}", rng.pick(&[1, 10, 536, 1460]));
    }
    line + &format!(" win={}", rng.pick(&[0, 1, 1000, 65_535, 65_535]))
}

fn host(t: &mut Script, rng: &mut Rng) {
    if !t.has_socket() {
        return;
    }
    let socket = t.socket();
    if t.driver.host.is_connecting(socket) {
        match rng.below(3) {
            0 => t.host_connected(),
            1 => t.host_connect_fails(rng.pick(&ERRORS)),
            _ => {}
        }
        return;
    }
    t.host_received_some();
    match rng.below(12) {
        0..6 if t.host_is_open() => t.host_sends(rng.pick(&[1, 100, 2000, 20_000])),
        6 if t.host_is_open() => t.host_eof(),
        7 if t.host_is_open() => t.host_breaks(rng.pick(&ERRORS)),
        8 if t.host_is_open() => t.host_accepts(rng.pick(&[0, 1, 1000])),
        9..12 => t.host_accepts_more(rng.pick(&[1, 1000, 100_000])),
        _ => {}
    }
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut setup = Setup { v6: rng.chance(500), seed, ..Setup::default() };
    setup.caps.checksum = rng.chance(500);
    setup.caps.tso = setup.caps.checksum && rng.chance(500);
    setup.config.tcp_rx.initial = rng.pick(&[2000, 64 << 10]);
    setup.config.tcp_tx.initial = rng.pick(&[2000, 64 << 10]);
    setup.config.max_flows = 4;
    let mut t = Script::new(setup);
    t.driver.host.set_chatty(rng.chance(500));
    let mut flows: Vec<_> = (0..6).map(|i| t.connection(40_001 + i, 80)).collect();
    let mut port = 40_100;
    for _ in 0..rng.range(20, 300) {
        let at = rng.below(6) as usize;
        t.select(flows[at]);
        match rng.below(20) {
            0..9 => {
                let line = segment(&t, &mut rng);
                if line.starts_with("SYN ") {
                    // The stack's initial sequence number moves with time; the observer distinguishes
                    // connections by it.
                    t.advance_ms(1);
                }
                t.guest(&line);
            }
            9..11 => {
                // A well-behaved guest: it acknowledges all bytes and sends a few.
                t.guest("ACK data=100");
            }
            11..16 => host(&mut t, &mut rng),
            16 => t.advance_ms(rng.pick(&[1, 50, 300, 5_000, 100_000])),
            17 => t.link_credit(Some(rng.below(5) as usize)),
            18 => t.link_credit(None),
            _ if t.stack_isn().is_some() => {
                port += 1;
                flows[at] = t.connection(port, 80);
            }
            _ => {}
        }
        t.take_all();
    }
    t.link_credit(None);
    t.host_loses_everything();
    // Retransmissions are given up after a quarter of an hour, an idle guest after two hours and nine probes.
    t.advance_ms(4 * 3_600_000);
    t.expect_all_gone();
}

/// `BRODO_SIM_SEED` repeats one seed, `BRODO_SIM_RUNS` sets how many are tried.
#[test]
fn hostile_schedules_break_no_rule_and_leave_nothing() {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("BRODO_SIM_SEED") {
        return run(seed);
    }
    for seed in 1..=number("BRODO_SIM_RUNS").unwrap_or(200) {
        run(seed);
    }
}
