//! Rows 7 to 12: flows bounded by the host's side, by CPU time, or by other flows.
//!
//! Rows 8 and 9 have the kernel's own buffers and a path of 50 ms behind the host socket; *direct* is a
//! program that uses such a socket itself, without a guest. Row 7 charges CPU time for the machine's work.
//! The guest is smoltcp.

use super::{Expected, Figure, Progress, Row, Unit};
use crate::driver::SimDriver;
use crate::kernel_stream::{KernelStream, Wire};
use crate::link::to_stack;
use crate::net::{Bottleneck, Delay, Path};
use crate::packet::{self, ParsedFrame, TcpSegment, flags};
use crate::script::REMOTE_V4;
use crate::world::{Answer, Behind, Conversation, Cost, Ending, World};
use brodo_core::config::{BufferBounds, Config};
use brodo_core::counters::DropReason;
use brodo_core::link::{LinkCaps, RxMeta};
use brodo_core::time::{Duration, Instant};
use std::net::SocketAddr;

/// A guest link like a TAP: checksums and segmentation are the guest kernel's.
const CAPS: LinkCaps = LinkCaps { checksum: true, tso: true, uso: true, packet_max: None };

/// The rows.
pub(super) fn rows() -> Vec<Row> {
    let row = |id, title, setup, measure| Row { id, title, setup, measure };
    vec![
        row(
            "7",
            "Connect, request, response",
            "M concurrent loops of connect, send a byte, read a byte, close. CPU time is charged as \
             measured: 3 us a turn, 4 us a frame, 5 us a call. Expected: throughput never falls with more \
             loops, and the tail latency is bounded.",
            connect_request_response,
        ),
        row(
            "8",
            "Upload over a long path behind the host socket",
            "100 MB over 50 ms, at 400 Mbit/s and at 1 Gbit/s (which 4 MiB of send buffer cannot fill), \
             connect and slow start included. Expected: 95 % of the throughput of a program with the \
             socket itself. Control: a program that stays within three quarters of the send buffer.",
            upload,
        ),
        row(
            "9",
            "Download to a guest that reads at intervals",
            "60 MB over 50 ms at 400 Mbit/s; the guest's program sleeps for the dwell time and then \
             empties its socket. Expected: 95 % of the throughput of a program with the socket itself and \
             the same dwell time.",
            download,
        ),
        row(
            "10",
            "A bulk flow and sparse requests on one link",
            "Guest link of 100 Mbit/s and 20 ms with room for any queue; for a minute a request of 100 \
             bytes every 50 ms beside a bulk flow. Expected: after the first ten seconds, in which the \
             limits probe, the 99th percentile of the response times is at most the time without the bulk \
             flow, plus one round trip for a queue of one bandwidth-delay product, plus 1 ms.",
            sparse_beside_bulk,
        ),
        row(
            "11",
            "Ten thousand idle connections",
            "Each has connected and moved one byte each way, acknowledged. Expected: no payload memory, and at most \
             1 KiB of state each: its slot, index, timer and lists.",
            idle,
        ),
        row(
            "12",
            "A thousand slow readers",
            "1,000 connections whose readers take 50 bytes every 50 ms, 1 MB/s in all, from senders that \
             always have more. Expected: memory within the budget, no drops for want of it, and in every \
             second every reader gets its rate. In the last two cases windows of 64 KiB would be four and \
             eight times the memory.",
            slow_readers,
        ),
    ]
}

fn figure(case: &str, what: &'static str, unit: Unit, expected: Expected, value: f64) -> Figure {
    Figure { case: case.to_owned(), what, unit, expected, value, controls: Vec::new() }
}

/// A path on the guest link without limit of rate.
fn wire(delay: Duration) -> Path {
    Path::new(vec![Box::new(Delay(delay))])
}

/// A world with a short, fast guest link.
fn near(config: Config) -> World {
    let delay = Duration::from_micros(50);
    World::new(config, CAPS, 1, wire(delay), wire(delay))
}

fn ethernet() -> Config {
    Config { mtu: 1500, ..Config::default() }
}

/// The value that `share` of the sorted times do not exceed, seconds.
fn percentile(times: &[Duration], share: f64) -> f64 {
    let at = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len().max(1)) - 1;
    times.get(at).map_or(f64::NAN, Duration::as_secs_f64)
}

fn sorted(answers: impl Iterator<Item = Answer>) -> Vec<Duration> {
    let mut times: Vec<_> = answers.map(|a| a.took).collect();
    times.sort_unstable();
    times
}

fn connect_request_response(progress: &mut Progress) -> Vec<Figure> {
    let (from, until) = (Instant::from_ms(50), Instant::from_ms(350));
    let mut figures = Vec::new();
    let mut least = 0.0;
    for loops in [1, 2, 4, 8] {
        let case = format!("M = {loops}");
        progress.run(&case);
        let delay = Duration::from_micros(10);
        let mut world = World::new(ethernet(), CAPS, loops, wire(delay), wire(delay));
        world.cost = Some(Cost::default());
        for _ in 0..loops {
            let one = Conversation::requests(1, 1, 1, Duration::ZERO);
            world.add(Conversation {
                ending: Ending::GuestFirst,
                repetitions: u32::MAX,
                guest_buffer: 4096,
                ..one
            });
        }
        world.run_until(until);
        let times = sorted(world.answers().iter().copied().filter(|a| a.at >= from));
        let rate = times.len() as f64 / (until - from).as_secs_f64();
        let (p50, p99) = (percentile(&times, 0.5), percentile(&times, 0.99));
        figures.push(figure(&case, "per second", Unit::Count, Expected::AtLeast(least, 0.0), rate));
        figures.push(figure(&case, "median", Unit::Millisecond, Expected::Shown, p50));
        let bound = if loops == 8 { Expected::AtMost(4.0 * p50, 0.0) } else { Expected::Shown };
        figures.push(figure(&case, "99th percentile", Unit::Millisecond, bound, p99));
        least = rate;
    }
    figures
}

/// Writing strategy of a program with the socket itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// Write until the buffer is full, and on each wake-up.
    UntilFull,
    /// Write at most three quarters of the buffer.
    ThreeQuarters,
}

/// Seconds from the connect until the last of `bytes` is read, without a guest; the reader sleeps for `dwell`
/// before every read.
fn direct(wire: Wire, bytes: u64, writer: Writer, dwell: Duration) -> f64 {
    let mut stream = KernelStream::new(wire);
    let mut now = Instant::ZERO + wire.rtt();
    let (mut left, mut wakes) = (bytes, now);
    loop {
        stream.advance(now);
        let room = match writer {
            Writer::UntilFull if stream.is_blocked() => 0,
            Writer::UntilFull => stream.room() as u64,
            Writer::ThreeQuarters => (stream.send_memory() * 3 / 4).saturating_sub(stream.queued()),
        };
        if room > 0 {
            stream.write(now, room as usize);
        }
        if writer == Writer::UntilFull && stream.room() == 0 {
            stream.block();
        }
        let readable = stream.readable();
        if wakes <= now && readable > 0 {
            if readable as u64 >= left {
                return (now - Instant::ZERO).as_secs_f64();
            }
            left -= readable as u64;
            stream.read(now, readable);
            wakes = now + dwell;
        }
        let wakes = (stream.readable() > 0).then_some(wakes);
        now = [stream.next(), wakes].into_iter().flatten().min().expect("there is always more to send");
    }
}

/// Seconds from the guest's connect until the last of `bytes` is read. The close is not awaited, because
/// smoltcp waits for its timer if its FIN meets a closed window.
fn through_brodo(plan: Conversation, bytes: u64) -> f64 {
    let mut world = near(ethernet());
    let start = plan.start;
    let conversation = world.add(plan);
    loop {
        let (up, down) = world.delivered(conversation);
        if up + down >= bytes {
            return (world.now() - start).as_secs_f64();
        }
        assert!(world.now() < Instant::from_ms(600_000), "{up} and {down} of {bytes} in ten minutes");
        world.advance();
    }
}

fn upload(progress: &mut Progress) -> Vec<Figure> {
    const BYTES: u64 = 100_000_000;
    let mut figures = Vec::new();
    for rate in [400_000_000, 1_000_000_000] {
        let case = format!("{} Mbit/s", rate / 1_000_000);
        progress.run(&case);
        let wire = Wire::new(Duration::from_millis(50), rate);
        let behind = Behind::Kernel(wire);
        let plan = Conversation { up: 2 * BYTES, behind, guest_buffer: 1 << 20, ..Conversation::default() };
        let per_s = |seconds: f64| BYTES as f64 / seconds;
        let best = per_s(direct(wire, BYTES, Writer::UntilFull, Duration::ZERO));
        let shy = per_s(direct(wire, BYTES, Writer::ThreeQuarters, Duration::ZERO));
        figures.push(Figure {
            controls: vec![("direct".to_owned(), Some(best)), ("three quarters".to_owned(), Some(shy))],
            ..figure(
                &case,
                "throughput",
                Unit::MegabytePerS,
                Expected::AtLeast(0.95 * best, 0.0),
                per_s(through_brodo(plan, BYTES)),
            )
        });
    }
    figures
}

fn download(progress: &mut Progress) -> Vec<Figure> {
    const BYTES: u64 = 60_000_000;
    let wire = Wire::new(Duration::from_millis(50), 400_000_000);
    let mut figures = Vec::new();
    for ms in [0, 1, 5, 10, 20, 40] {
        let case = format!("dwell {ms} ms");
        progress.run(&case);
        let dwell = Duration::from_millis(ms);
        let plan = Conversation {
            down: 2 * BYTES,
            behind: Behind::Kernel(wire),
            guest_buffer: 4 << 20,
            guest_dwells: dwell,
            ..Conversation::default()
        };
        let best = BYTES as f64 / direct(wire, BYTES, Writer::UntilFull, dwell);
        figures.push(Figure {
            controls: vec![("direct".to_owned(), Some(best))],
            ..figure(
                &case,
                "throughput",
                Unit::MegabytePerS,
                Expected::AtLeast(0.95 * best, 0.0),
                BYTES as f64 / through_brodo(plan, BYTES),
            )
        });
    }
    figures
}

/// Response times of sparse requests on a link of 100 Mbit/s and 20 ms beside a bulk flow, up or down: the
/// sorted times of the first ten seconds without the first, and of the fifty after; and the bulk flow's bytes
/// per second.
fn sparse(bulk: Option<bool>) -> (Vec<Duration>, Vec<Duration>, f64) {
    const PLENTY: u64 = 1 << 40;
    let (settled, end) = (Instant::from_ms(10_000), Instant::from_ms(60_000));
    let link = || -> Path {
        let transmitter = Bottleneck::new(100_000_000, usize::MAX);
        Path::new(vec![Box::new(transmitter), Box::new(Delay(Duration::from_millis(10)))])
    };
    let mut world = World::new(ethernet(), CAPS, 1, link(), link());
    let (up, down) = bulk.map_or((0, 0), |up| if up { (PLENTY, 0) } else { (0, PLENTY) });
    let flow = world.add(Conversation {
        up,
        down,
        behind: Behind::Buffer(1 << 20),
        guest_buffer: 4 << 20,
        ..Conversation::default()
    });
    let requests = Conversation::requests(PLENTY, 100, 100, Duration::from_millis(50));
    let asked = world.add(Conversation { start: Instant::from_ms(10), ..requests });
    world.run_until(end);
    let of = |from: Instant, until: Instant| {
        let answers = world.answers().iter().filter(|a| a.conversation == asked).skip(1);
        sorted(answers.filter(|a| a.at >= from && a.at < until).copied())
    };
    let (up, down) = world.delivered(flow);
    (of(Instant::ZERO, settled), of(settled, end), (up + down) as f64 / (end - Instant::ZERO).as_secs_f64())
}

fn sparse_beside_bulk(progress: &mut Progress) -> Vec<Figure> {
    progress.run("alone");
    let base = percentile(&sparse(None).1, 0.99);
    let mut figures = vec![figure("alone", "99th percentile", Unit::Millisecond, Expected::Shown, base)];
    for (case, up) in [("bulk up", true), ("bulk down", false)] {
        progress.run(case);
        let (first, settled, rate) = sparse(Some(up));
        let bound = Expected::AtMost(base + 0.020 + 0.001, 0.0);
        let times = |what, expected, value| figure(case, what, Unit::Millisecond, expected, value);
        figures.extend([
            figure(case, "bulk throughput", Unit::MegabitPerS, Expected::AtLeast(11.4e6, 0.0), rate),
            times("first 10 s, 99th", Expected::Shown, percentile(&first, 0.99)),
            times("then, median", Expected::Shown, percentile(&settled, 0.5)),
            times("then, 99th percentile", bound, percentile(&settled, 0.99)),
        ]);
    }
    figures
}

/// A stack with `count` connections, each of which has moved a byte each way.
fn idle_connections(count: u32) -> SimDriver {
    let mut driver = SimDriver::new(ethernet(), CAPS, 1);
    driver.host.set_record(false);
    let macs = to_stack(ethernet().mac.0);
    let guest = ethernet().v4.expect("the default has it").guest;
    for n in 0..count {
        let from = SocketAddr::new(guest.into(), 1024 + (n % 50_000) as u16);
        let to = SocketAddr::new(REMOTE_V4, 80);
        let now = Instant::from_ms(1 + u64::from(n));
        let mut turn = |segment: TcpSegment| {
            let frame = (RxMeta::default(), segment.to_frame(macs));
            driver.turn(now, &[frame]).iter().rev().find_map(|sent| tcp(&sent.bytes))
        };
        let base = TcpSegment { window: 65_535, ..TcpSegment::new(from, to) };
        let options = TcpSegment { mss: Some(1460), wscale: Some(7), sack_ok: true, ..base.clone() };
        let answer = turn(TcpSegment { flags: flags::SYN, ..options }).expect("SYN|ACK");
        let ack = answer.seq.wrapping_add(1);
        let after = TcpSegment { flags: flags::ACK, seq: 1, ack, ..base };
        turn(TcpSegment { data: vec![b'?'], ..after.clone() });
        let socket = driver.host.last().expect("opened");
        driver.host.peer_take(socket, 1);
        driver.host.peer_send(socket, b"!");
        driver.turn(now, &[]);
        let all = TcpSegment { seq: 2, ack: ack.wrapping_add(1), ..after };
        driver.turn(now, &[(RxMeta::default(), all.to_frame(macs))]);
    }
    driver
}

/// The TCP segment in a frame.
fn tcp(frame: &[u8]) -> Option<TcpSegment> {
    match packet::parse(frame) {
        Ok(ParsedFrame::Tcp(segment)) => Some(segment),
        _ => None,
    }
}

fn idle(progress: &mut Progress) -> Vec<Figure> {
    const COUNT: u32 = 10_000;
    progress.run("connecting");
    let driver = idle_connections(COUNT);
    let stack = &driver.stack;
    let each = stack.state_allocated() as f64 / f64::from(COUNT);
    let exactly = |count: u32| Expected::Between(f64::from(count), f64::from(count));
    vec![
        figure("", "connections", Unit::Count, exactly(COUNT), stack.flows() as f64),
        figure("", "payload memory", Unit::Byte, exactly(0), stack.memory_used() as f64),
        figure("", "state of one", Unit::Byte, Expected::AtMost(1024.0, 0.0), each),
    ]
}

/// A thousand connections whose reader takes 50 bytes every 50 ms, at the end that `up` says: the most memory
/// held, the least that a reader got in any second after the first, in which they connect, and the segments
/// dropped.
fn slow(up: bool, memory: usize) -> (usize, u64, u64) {
    const READERS: usize = 1000;
    const SECONDS: u64 = 12;
    let mut world = near(Config { memory, tcp_rx: BufferBounds::receiving(memory), ..ethernet() });
    let bite = Duration::from_millis(50);
    for i in 0..READERS {
        let plan = Conversation { start: Instant::from_ms(1 + i as u64 / 5), ..Conversation::default() };
        world.add(if up {
            let behind = Behind::Buffer(4096);
            Conversation { up: 1 << 20, peer_reads: Some(1), peer_dwells: bite, behind, ..plan }
        } else {
            Conversation {
                down: 1 << 20,
                guest_reads: Some(1),
                guest_dwells: bite,
                guest_buffer: 4096,
                ..plan
            }
        });
    }
    let (mut before, mut least, mut most) = (vec![0; READERS], u64::MAX, 0);
    for second in 1..=SECONDS {
        while world.now() < Instant::from_ms(second * 1000) {
            world.advance();
            most = most.max(world.driver.stack.memory_used());
        }
        for (i, before) in before.iter_mut().enumerate() {
            let (up, down) = world.delivered(i);
            if second > 1 {
                least = least.min(up + down - *before);
            }
            *before = up + down;
        }
    }
    (most, least, world.driver.stack.counters().dropped(DropReason::MemoryBudget))
}

fn slow_readers(progress: &mut Progress) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (case, up, memory) in [
        ("guests, 8 MiB", false, 8 << 20),
        ("peers, 256 MiB", true, 256 << 20),
        ("peers, 16 MiB", true, 16 << 20),
        ("peers, 8 MiB", true, 8 << 20),
    ] {
        progress.run(case);
        let (most, least, dropped) = slow(up, memory);
        let fits = Expected::AtMost(memory as f64, 0.0);
        let enough = Expected::AtLeast(0.95, 0.0);
        let none = Expected::Between(0.0, 0.0);
        figures.push(figure(case, "most memory", Unit::Megabyte, fits, most as f64));
        figures.push(figure(case, "least in a second", Unit::Percent, enough, least as f64 / 1000.0));
        figures.push(figure(case, "dropped", Unit::Count, none, dropped as f64));
    }
    figures
}
