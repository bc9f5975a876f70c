//! Properties of limits and of competing flows, over random paths and loads, beyond those of single segments.
//! Where figures count the guest is [`brodo_sim::linux_guest`].

use super::seeds;
use brodo_core::config::{BufferBounds, Config};
use brodo_core::link::{LinkCaps, RxMeta};
use brodo_core::tcp::info::TcpInfo;
use brodo_core::time::{Duration, Instant};
use brodo_core::trace::{Cause, Event};
use brodo_sim::driver::SimDriver;
use brodo_sim::link::to_stack;
use brodo_sim::linux_guest::Options;
use brodo_sim::net::{Delay, Path};
use brodo_sim::packet::{self, ParsedFrame, TcpSegment, flags};
use brodo_sim::rng::{Pattern, Rng};
use brodo_sim::script::REMOTE_V4;
use brodo_sim::wan::{self, Wan};
use brodo_sim::world::{Conversation, Ending, World};
use std::net::{IpAddr, SocketAddr};

/// The limit that every flow of these tests begins with.
const FLOOR: u32 = 64 << 10;

/// A path drawn from a seed, whose product of bandwidth and delay is in reach of the limit; and that product,
/// bytes.
fn path(rng: &mut Rng) -> (wan::Path, u64) {
    let rtt = Duration::from_micros(rng.pick(&[600, 1000, 2500, 6000, 15_000, 40_000]));
    let product = rng.range(100_000, 1_200_000);
    let bits_per_s = (product as u128 * 8_000_000_000 / rtt.as_nanos()) as u64;
    (wan::Path { rtt, bits_per_s: Some(bits_per_s), tun: None }, product)
}

/// A world of a guest and a stack with the usual bounds.
fn wan(path: wan::Path, rng: &mut Rng) -> Wan {
    let bounds = BufferBounds { initial: FLOOR, max: 16 << 20 };
    let config = Config { mtu: 1500, tcp_rx: bounds, tcp_tx: bounds, ..Config::default() };
    Wan::new(&config, path, Options::default().burst, rng.next())
}

/// A backlogged flow over a path without loss: at last both limits are at most two and a half times what the
/// path holds (invariant 10) and stay within a quarter of their mean (12), there are no retransmissions and
/// drops (20), growth has a cause (9), and two seconds after the last byte the limit is where it began (29).
#[test]
fn limits_find_their_size_and_lose_it() {
    seeds::each("limits_find_their_size_and_lose_it", 100, |seed| {
        let mut rng = Rng::new(seed);
        let (path, product) = path(&mut rng);
        let up = rng.chance(500);
        let mut wan = wan(path, &mut rng);
        let flow = wan.connect(Options::default());
        let of = |info: TcpInfo| if up { info.rx } else { info.tx };
        // The probes of the rule take up to seconds to end; they are in units of the round trip below
        // that.
        let lasts = path.rtt * 400;
        let total = product * 400;
        if up {
            wan.connections[flow].write(total);
        } else {
            wan.host.writes = total;
        }
        let mut limits = Vec::new();
        for i in 1..=300_u32 {
            wan.run_until(Instant::ZERO + lasts * i / 400);
            limits.push(of(wan.info(flow).expect("open")).limit);
        }
        let last = &limits[200..];
        let (low, high) = (*last.iter().min().expect("some"), *last.iter().max().expect("some"));
        // A round trip is measured with the time in which a super-frame is sent, so the path holds one more
        // each way.
        let super_frame = u64::from(Options::default().burst) * 1460;
        let most = ((product + 2 * super_frame) * 5 / 2).max(FLOOR.into());
        assert!(u64::from(high) <= most, "a limit of {high} on a path that holds {product}: {path:?}");
        assert!(high - low <= (high + low) / 4, "the limit swings between {low} and {high}: {path:?}");
        for (at, event) in wan.events.take() {
            if let Event::Tuned { from, to, cause, .. } = event {
                let grows = matches!(cause, Cause::Hit | Cause::Probe | Cause::ProbeFailed);
                assert!(to <= from || grows, "grew at {at:?} because of {cause:?}");
            }
        }
        wan.run_until(Instant::ZERO + lasts * 2 + Duration::from_secs(2));
        assert_eq!(wan.retransmitted() + wan.connections[flow].retransmitted(), 0);
        assert_eq!(wan.stack().counters().drops().count(), 0);
        let moved = if up { wan.host.got(Wan::server(flow)) } else { wan.connections[flow].received() };
        assert_eq!(moved, total, "moved by the end: {path:?}");
        wan.run_until(wan.now() + Duration::from_secs(2));
        assert_eq!(of(wan.info(flow).expect("open")).limit, FLOOR, "two seconds after the end");
    });
}

/// From the first byte on a limit that is too small for its path reaches what the path holds in as many round
/// trips as it takes to double it that often, and three (invariant 11). A download: the limit is the only
/// bound.
#[test]
fn limits_double_every_round_trip() {
    seeds::each("limits_double_every_round_trip", 100, |seed| {
        let mut rng = Rng::new(seed);
        let (path, product) = path(&mut rng);
        let mut wan = wan(path, &mut rng);
        wan.host.writes = u64::MAX;
        let flow = wan.connect(Options::default());
        let doublings = (product as f64 / f64::from(FLOOR)).log2().ceil().max(0.0) as u32;
        // One round trip for the handshake. A round trip is measured with what its segments take to be sent.
        let transmission =
            Duration::from_nanos(u64::from(FLOOR) * 8_000_000_000 / path.bits_per_s.unwrap_or(1));
        let interval = path.rtt.max(Duration::from_micros(500)) + transmission;
        wan.run_until(Instant::ZERO + path.rtt + interval * (doublings + 3));
        let limit = wan.info(flow).expect("open").tx.limit;
        assert!(u64::from(limit) >= product, "{limit} of {product} after {doublings} doublings: {path:?}");
    });
}

/// An application-limited flow does not grow its limit (invariant 9).
#[test]
fn limits_of_slow_applications_stay() {
    seeds::each("limits_of_slow_applications_stay", 60, |seed| {
        let mut rng = Rng::new(seed);
        let (path, _) = path(&mut rng);
        let mut wan = wan(path, &mut rng);
        let flow = wan.connect(Options::default());
        wan.run_until(Instant::ZERO + path.rtt * 2);
        for _ in 0..200 {
            // At most a quarter of the limit in a round trip.
            let bytes = rng.range(1, 4000);
            wan.connections[flow].write(bytes);
            wan.poll(flow);
            wan.host.write(Wan::server(flow), bytes);
            wan.run_until(wan.now() + path.rtt / 4);
        }
        let info = wan.info(flow).expect("open");
        assert_eq!((info.rx.grows, info.tx.grows), (0, 0), "{path:?}");
        assert!(info.rx.bytes > 0 && info.tx.bytes > 0);
    });
}

/// The ends of a plain guest's connection number `i`.
fn ends(config: &Config, i: u16) -> (SocketAddr, SocketAddr) {
    let guest: IpAddr = config.v4.expect("IPv4 is on").guest.into();
    (SocketAddr::new(guest, 30_000 + i), SocketAddr::new(REMOTE_V4, 1000 + i))
}

/// A segment of a plain guest, which begins at 0, as a frame.
fn frame(config: &Config, i: u16, segment: &TcpSegment) -> (RxMeta, Vec<u8>) {
    let (src, dst) = ends(config, i);
    let segment = TcpSegment { src, dst, ..segment.clone() };
    (RxMeta::default(), segment.to_frame(to_stack(config.mac.0)))
}

/// Opens connection `i` of a plain guest; the stack's first sequence number.
fn open(driver: &mut SimDriver, config: &Config, i: u16) -> u32 {
    open_with(driver, config, i, 1460)
}

/// Opens connection `i` of a guest with an MSS of `mss` bytes.
fn open_with(driver: &mut SimDriver, config: &Config, i: u16, mss: u16) -> u32 {
    let (src, dst) = ends(config, i);
    let plain = TcpSegment { window: 65_535, ..TcpSegment::new(src, dst) };
    let syn =
        TcpSegment { flags: flags::SYN, mss: Some(mss), wscale: Some(7), sack_ok: true, ..plain.clone() };
    let answer = driver.turn(driver.now(), &[frame(config, i, &syn)]);
    let Ok(ParsedFrame::Tcp(answer)) = packet::parse(&answer[0].bytes) else { panic!("not a SYN-ACK") };
    let ack = TcpSegment { flags: flags::ACK, seq: 1, ack: answer.seq.wrapping_add(1), ..plain };
    driver.turn(driver.now(), &[frame(config, i, &ack)]);
    answer.seq
}

/// However little credit the link gives, and whenever: flows that always have something to send differ by at
/// most one turn and one super-segment (invariant 24).
#[test]
fn backlogged_flows_share_the_link() {
    seeds::each("backlogged_flows_share_the_link", 100, |seed| {
        let mut rng = Rng::new(seed);
        let tso = rng.chance(500);
        // Send limits out of reach: the link alone is the limiting factor.
        let bounds = BufferBounds { initial: 4 << 20, max: 4 << 20 };
        let config = Config { mtu: 1500, tcp_tx: bounds, ..Config::default() };
        let mut driver = SimDriver::new(
            config.clone(),
            LinkCaps { checksum: tso, tso, uso: false, packet_max: None },
            seed,
        );
        let flows = rng.range(2, 6) as u16;
        // Each with segments of its own size, so that a turn is another number of bytes.
        let mut mss = || rng.range(536, 1460) as u16;
        let iss: Vec<_> = (0..flows).map(|i| open_with(&mut driver, &config, i, mss())).collect();
        let backlog = vec![0; 4 << 20];
        for socket in driver.host.all().collect::<Vec<_>>() {
            driver.host.peer_send(socket, &backlog);
        }
        let mut sent = vec![0_u32; iss.len()];
        for round in 1..=400 {
            driver.link.set_credit(Some(rng.range(0, 40) as usize));
            let acks: Vec<_> = (0..flows)
                .map(|i| {
                    let (src, dst) = ends(&config, i);
                    let ack = iss[usize::from(i)].wrapping_add(1 + sent[usize::from(i)]);
                    let plain = TcpSegment { window: 65_535, seq: 1, ack, ..TcpSegment::new(src, dst) };
                    frame(&config, i, &TcpSegment { flags: flags::ACK, ..plain })
                })
                .collect();
            for frame in driver.turn(Instant::from_ms(round), &acks) {
                for piece in frame.cut() {
                    let Ok(ParsedFrame::Tcp(s)) = packet::parse(&piece) else { continue };
                    sent[usize::from(s.dst.port() - 30_000)] += s.data.len() as u32;
                }
            }
            if sent.iter().any(|&bytes| bytes > 3 << 20) {
                break;
            }
            let (low, high) = (sent.iter().min().expect("some"), sent.iter().max().expect("some"));
            assert!(high - low <= (256 << 10) + (64 << 10), "round {round}: {sent:?}");
        }
        assert!(sent.iter().all(|&bytes| bytes > 0), "{sent:?}");
    });
}

/// Answers to small requests, whose sockets become readable behind those of any number of bulk transfers, are
/// the first frames of the turn; and many of them hold no transfer back.
#[test]
fn sparse_flows_go_first_and_hold_nobody_back() {
    seeds::each("sparse_flows_go_first_and_hold_nobody_back", 100, |seed| {
        let mut rng = Rng::new(seed);
        let bounds = BufferBounds { initial: 4 << 20, max: 4 << 20 };
        let config = Config { mtu: 1500, tcp_tx: bounds, ..Config::default() };
        let caps = LinkCaps { checksum: true, tso: rng.chance(500), uso: false, packet_max: None };
        let mut driver = SimDriver::new(config.clone(), caps, seed);
        let (bulk, sparse) = (rng.range(1, 6) as u16, rng.range(1, 20) as u16);
        for i in 0..bulk + sparse {
            open(&mut driver, &config, i);
        }
        let sockets: Vec<_> = driver.host.all().collect();
        let (transfers, requests) = sockets.split_at(usize::from(bulk));
        // Each transfer has had a turn and waits for the link; the window still lets it send 6 MB.
        driver.link.set_credit(Some(usize::from(bulk) * if caps.tso { 8 } else { 64 }));
        for &socket in transfers {
            driver.host.peer_send(socket, &vec![0; 2 << 20]);
        }
        driver.turn(Instant::from_ms(1), &[]);
        for &socket in requests {
            driver.host.peer_send(socket, &[1; 100]);
        }
        driver.link.set_credit(Some(usize::from(sparse) + 300));
        let frames = driver.turn(Instant::from_ms(2), &[]);
        let ports: Vec<_> = frames
            .iter()
            .filter_map(|frame| match packet::parse(&frame.bytes) {
                Ok(ParsedFrame::Tcp(s)) if !s.data.is_empty() => Some(s.dst.port() - 30_000),
                _ => None,
            })
            .collect();
        // One transfer whose turn the link interrupted may go on before them.
        let interrupted = ports.iter().take_while(|&&port| port == ports[0] && port < bulk).count();
        let first = &ports[interrupted..][..usize::from(sparse)];
        assert!(first.iter().all(|&port| port >= bulk), "{ports:?}");
        assert!(ports.iter().any(|&port| port < bulk), "{ports:?}");
    });
}

/// The same frames in one batch, in several, or one by one: the host gets the same bytes and the guest the
/// same last acknowledgement and window (invariant 27).
#[test]
fn batches_change_nothing_but_time() {
    seeds::each("batches_change_nothing_but_time", 60, |seed| {
        let mut rng = Rng::new(seed);
        let config = Config { mtu: 1500, ..Config::default() };
        let mut places: Vec<_> =
            (0..rng.range(1, 60)).map(|i| (i as u32 * 1000, rng.range(1, 1200))).collect();
        for _ in 0..rng.below(20) {
            let (a, b) = (rng.below(places.len() as u64) as usize, rng.below(places.len() as u64) as usize);
            if rng.chance(500) { places.swap(a, b) } else { places.insert(a, places[b]) }
        }
        let (space, at_most) = (rng.pick(&[usize::MAX, 5000, 20_000]), rng.pick(&[usize::MAX, 700]));
        let play = |cut: &mut dyn FnMut() -> usize| {
            let mut driver = SimDriver::new(config.clone(), LinkCaps::default(), 1);
            driver.host.set_default_space(space);
            driver.host.set_send_at_most(at_most);
            let iss = open(&mut driver, &config, 0);
            let (src, dst) = ends(&config, 0);
            let frames: Vec<_> = places
                .iter()
                .map(|&(place, len)| {
                    let mut s = TcpSegment { seq: 1 + place, window: 65_535, ..TcpSegment::new(src, dst) };
                    (s.flags, s.ack) = (flags::ACK, iss.wrapping_add(1));
                    s.data = Pattern(7).bytes(place.into(), len as usize);
                    frame(&config, 0, &s)
                })
                .collect();
            let mut rest = &frames[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(cut().clamp(1, rest.len()));
                driver.turn(driver.now(), now);
                rest = later;
            }
            let socket = driver.host.last().expect("connected");
            driver.host.give_space(socket, 1 << 20);
            driver.turn(Instant::from_ms(10), &[]);
            let info = driver.stack.tcp_infos(driver.now()).next().expect("open");
            let got = driver.host.peer_take(socket, usize::MAX);
            (got, info.rx.bytes, info.rx.held)
        };
        let together = play(&mut || usize::MAX);
        assert_eq!(Pattern(7).mismatch(0, &together.0), None);
        assert!(!together.0.is_empty() || places.iter().all(|p| p.0 > 0));
        assert_eq!(play(&mut || 1), together, "one by one");
        assert_eq!(play(&mut || rng.range(1, 9) as usize), together, "in pieces");
    });
}

/// Connections that end in any way, in the middle of what they do, delay no other: the open ones deliver
/// everything without a retransmission, and in the time that their own bytes take (invariant 28).
#[test]
fn endings_of_some_do_not_hold_up_others() {
    seeds::each("endings_of_some_do_not_hold_up_others", 100, |seed| {
        let mut rng = Rng::new(seed);
        let wire = || Path::new(vec![Box::new(Delay(Duration::from_micros(50)))]);
        let config = Config { mtu: 1500, ..Config::default() };
        let caps = LinkCaps { checksum: true, tso: rng.chance(500), uso: false, packet_max: None };
        let mut world = World::new(config, caps, rng.next(), wire(), wire());
        for i in 0..rng.range(3, 12) {
            let rude = [Ending::GuestResets, Ending::HostResets, Ending::Refused];
            world.add(Conversation {
                start: Instant::from_ms(1 + rng.below(3)),
                v6: rng.chance(500),
                up: rng.range(1, 150_000),
                down: rng.range(1, 150_000),
                ending: if i % 2 == 0 { Ending::Each } else { rng.pick(&rude) },
                ..Conversation::default()
            });
        }
        let report = world.run(Instant::from_ms(20_000));
        assert_eq!(report.retransmitted, 0);
        // smoltcp asks for the MAC address of another destination only a second after the last question.
        assert!(report.ended < Instant::from_ms(1300), "the last ended at {:?}", report.ended);
    });
}
