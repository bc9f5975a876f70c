//! Fuzz target for the whole stack: an input is a configuration and a sequence of operations (see `op`) of
//! three connections of a guest, their host sockets, the link and the clock.
//!
//! The guest is unconstrained. For every input, invariants must hold after every turn (`check`), every
//! segment must keep the rules of [`brodo_sim::observer`], and every call the contract of
//! [`brodo_sim::host`]. At the end guest and host behave correctly: then all bytes sent must arrive, on every
//! connection without a reason to end; and once all are closed no state may be left (`finish`).
//!
//! `BRODO_FUZZ_TRACE=1` prints what an input does, line by line.

mod check;
mod conn;
mod finish;
mod guest;
pub mod op;
mod ranges;

use brodo_core::config::Config;
use brodo_core::flow::{FlowKey, Protocol};
use brodo_core::host::HostError;
use brodo_core::link::RxMeta;
use brodo_core::stack::{Io, Stack};
use brodo_core::tcp::State;
use brodo_core::tcp::info::TcpInfo;
use brodo_core::time::{Duration, Instant};
use brodo_sim::driver::{SimDriver, Simulated};
use brodo_sim::host::{ConnectPlan, SimHost};
use brodo_sim::link::to_stack;
use brodo_sim::packet::{self, ParsedFrame, TcpSegment};
use brodo_sim::script::{REMOTE_V4, REMOTE_V6};
use conn::Conn;
use op::{Kind, Op, Setup};
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

/// Connections that an input plays with.
const CONNS: usize = 3;
/// Most bytes that one host peer sends.
const DOWN_MAX: u32 = 400_000;
/// Deadlines that one passing of time stops at.
const STEPS_MAX: usize = 100;
/// Virtual time of silence after which a guest may be given up.
const PATIENCE: Duration = Duration::from_secs(50);
/// Virtual time of silence after which a guest that has not answered the SYN-ACK may be given up.
const OPENING_PATIENCE: Duration = Duration::from_secs(10);

/// A stack, a guest and a host in the middle of an input.
struct Run {
    setup: Setup,
    config: Config,
    driver: SimDriver,
    conns: Vec<Conn>,
    start: Instant,
    now: Instant,
    batch: Vec<(RxMeta, Vec<u8>)>,
    /// Frames to the guest that are still to be lost.
    lose: u32,
    /// The link has unlimited credit.
    credit: bool,
    trace: bool,
}

/// Plays one input.
pub fn run(data: &[u8]) {
    let Some((setup, ops)) = op::decode(data) else { return };
    let mut run = Run::new(setup);
    for op in ops {
        run.say(|| format!("{op:?}"));
        run.step(op);
    }
    run.finish();
}

/// Whether every operation is printed.
static TRACE: OnceLock<bool> = OnceLock::new();

impl Run {
    fn new(setup: Setup) -> Self {
        let config = setup.config();
        let mut driver = SimDriver::new(config.clone(), setup.caps(), 1);
        if let Some(sends) = setup.unread() {
            // The shortest beginning that has all headers.
            driver.leave_unread(134, sends);
        }
        driver.host.set_record(false);
        driver.host.set_chatty(setup.chatty());
        driver.host.set_default_space(setup.space());
        let plan = if setup.connects_at_once() { ConnectPlan::Done } else { ConnectPlan::Pending };
        driver.host.set_default_connect(plan);
        let conns = (0..CONNS as u16)
            .map(|i| {
                let (guest, remote) = ends(&config, setup.v6(), i);
                Conn::new(setup, guest, remote, 0, setup.irs(0))
            })
            .collect();
        let start =
            setup.iss_before_wrap().map_or(Instant::from_ms(1), |before| start_for(setup.v6(), before));
        let trace = *TRACE.get_or_init(|| std::env::var_os("BRODO_FUZZ_TRACE").is_some());
        let mut run = Self {
            setup,
            config,
            driver,
            conns,
            start,
            now: start,
            batch: Vec::new(),
            lose: 0,
            credit: true,
            trace,
        };
        run.say(|| format!("{:?} {:?}", setup.caps(), setup.config()));
        run.turn();
        run
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:12.3}  {}", (self.now - self.start).as_nanos() as f64 / 1e6, what());
        }
    }

    fn infos(&self) -> [Option<TcpInfo>; CONNS] {
        let mut infos = [None; CONNS];
        for info in self.driver.stack.tcp_infos(self.now) {
            if let Some(i) = self.conns.iter().position(|c| (c.guest, c.remote) == (info.guest, info.remote))
            {
                infos[i] = Some(info);
            }
        }
        infos
    }

    fn info(&self, i: usize) -> Option<TcpInfo> {
        self.infos()[i]
    }

    /// The guest sends; without `batched` all that it has sent reaches the stack now.
    fn send(&mut self, segment: &TcpSegment, meta: RxMeta, batched: bool) {
        self.say(|| format!("guest > {}", brief(segment)));
        self.batch.push((meta, segment.to_frame(to_stack(self.config.mac.0))));
        if !batched {
            self.turn();
        }
    }

    /// One turn of the driver, and the checks after it.
    fn turn(&mut self) {
        self.turn_with(|_, _| ());
    }

    /// One turn preceded by `body`, an action of the driver.
    fn turn_with(&mut self, body: impl FnOnce(&mut Stack, &mut Io<'_, Simulated>)) {
        let before = self.infos();
        for conn in &mut self.conns {
            (conn.resets, conn.frames, conn.bare_acks) = (0, 0, 0);
        }
        let flows: Vec<_> = self.conns.iter().map(|c| (c.incarnation, c.flow)).collect();
        let frames = std::mem::take(&mut self.batch);
        let mut sent = self.driver.turn_with(self.now, body);
        sent.extend(self.driver.turn(self.now, &frames));
        for sent in sent {
            for piece in sent.cut() {
                let lost = self.lose > 0;
                self.lose = self.lose.saturating_sub(1);
                self.receive(&piece, lost, &before);
            }
        }
        let after = self.infos();
        for (i, conn) in self.conns.iter_mut().enumerate() {
            let flow = after[i].map(|info| info.flow);
            if flow.is_some() && flow != conn.flow {
                if conn.last_syn != conn.irs {
                    conn.restart(conn.last_syn);
                }
                conn.flow = flow;
            }
            let host = &self.driver.host;
            if let Some(socket) = host.all().filter(|&s| host.peer(s) == conn.remote).last()
                && conn.flow.is_some()
            {
                conn.socket = Some(socket);
            }
        }
        self.check(&flows, &before, &after);
    }

    fn receive(&mut self, frame: &[u8], lost: bool, before: &[Option<TcpInfo>; CONNS]) {
        let Ok(ParsedFrame::Tcp(segment)) = packet::parse(frame) else { return };
        let verb = if lost { "lost" } else { "<" };
        self.say(|| format!("guest {verb} {}", brief(&segment)));
        let ends = (segment.dst, segment.src);
        if let Some(i) = self.conns.iter().position(|c| (c.guest, c.remote) == ends) {
            self.conns[i].receive(&segment, lost, self.now, before[i].as_ref());
        }
    }

    /// Time passes, with a turn at every deadline on the way unless there are too many.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let infos = self.infos();
        for (conn, info) in self.conns.iter_mut().zip(infos) {
            let opening = info.is_none_or(|info| is_opening(info.state));
            conn.excused |= end - self.start > if opening { OPENING_PATIENCE } else { PATIENCE };
        }
        for _ in 0..STEPS_MAX {
            match self.driver.next_deadline() {
                Some(at) if at < end => self.now = self.now.max(at),
                _ => break,
            }
            self.turn();
        }
        if self.driver.next_deadline().is_some_and(|at| at < end) {
            // Events due earlier happen late: no check of their times.
            self.conns.iter_mut().for_each(|c| c.resent_at.clear());
        }
        self.now = end;
        self.turn();
    }

    fn step(&mut self, op: Op) {
        let (i, a, v) = (op.flow, op.a, op.v);
        if !matches!(op.kind, Kind::Time | Kind::Deadline) {
            self.conns.iter_mut().for_each(|c| c.resent_at.clear());
        }
        match op.kind {
            Kind::Lose => self.lose = u32::from(a & 31),
            Kind::Credit => {
                self.credit = a & 128 != 0;
                self.driver.link.set_credit((!self.credit).then_some(usize::from(a & 15)));
                self.turn();
            }
            Kind::Time => {
                const MS: u64 = 1000;
                let us = [
                    1,
                    20,
                    100,
                    MS,
                    3 * MS,
                    10 * MS,
                    21 * MS,
                    50 * MS,
                    101 * MS,
                    205 * MS,
                    450 * MS,
                    1100 * MS,
                    2100 * MS,
                    5000 * MS,
                    61_000 * MS,
                    7_500_000 * MS,
                ][usize::from(a & 15)];
                self.pass(Duration::from_micros(us * u64::from(1 + (v & 7))));
            }
            Kind::Deadline => {
                if let Some(at) = self.driver.next_deadline() {
                    self.pass(at.max(self.now) - self.now);
                }
            }
            Kind::AtMost => {
                self.driver.host.set_send_at_most(if v == 0 { usize::MAX } else { v.into() });
            }
            Kind::Call => self.call(i, a & 1 == 0),
            Kind::DeviceReset => self.turn_with(Stack::guest_reset),
            Kind::HostSend | Kind::HostFin | Kind::HostError | Kind::Space | Kind::Take | Kind::Connected => {
                self.host_step(op);
            }
            _ => self.guest_step(i, op),
        }
        if !matches!(op.kind, Kind::Time | Kind::Deadline) {
            self.conns.iter_mut().for_each(|c| c.resent_at.clear());
        }
    }

    /// A peer of the host's connects to the guest, where connection `i` is over or was never there.
    fn call(&mut self, i: usize, accept: bool) {
        self.turn();
        if self.info(i).is_some_and(|info| info.state != State::TimeWait) {
            return;
        }
        let conn = &mut self.conns[i];
        let irs = self.setup.irs(conn.incarnation);
        conn.restart(irs);
        let (guest, remote) = (conn.guest, conn.remote);
        self.turn_with(|stack, io| {
            let adopt = |host: &mut SimHost, flow| Ok(host.adopt_tcp(flow, remote));
            // Bytes that the host socket of the one before has not taken keep that in place.
            let key = FlowKey { protocol: Protocol::Tcp, guest: guest.into(), remote: remote.into() };
            let _ = stack.inbound_tcp(io, key, adopt);
        });
        if accept {
            self.accept(i);
        }
        // Its time-out is that of an active open.
        self.conns[i].excused |= self.info(i).is_none_or(|info| info.state == State::SynSent);
    }

    /// The guest answers the SYN that it has received.
    fn accept(&mut self, i: usize) {
        if self.conns[i].called {
            let segment = self.conns[i].syn_ack();
            self.send(&segment, RxMeta::default(), false);
        }
    }

    /// Operations of the host's peer or kernel.
    fn host_step(&mut self, op: Op) {
        let conn = &mut self.conns[op.flow];
        let host = &mut self.driver.host;
        let Some(socket) = conn.socket.filter(|&s| host.closed(s).is_none()) else { return };
        let errors = [HostError::Reset, HostError::TimedOut, HostError::HostUnreachable, HostError::Refused];
        let error = errors[usize::from(op.a & 3)];
        if host.is_connecting(socket) {
            if op.kind == Kind::Connected {
                conn.excused |= op.a & 4 != 0;
                host.finish_connect(socket, if op.a & 4 == 0 { Ok(()) } else { Err(error) });
                self.turn();
            }
            return;
        }
        let open = host.peer_is_open(socket);
        match op.kind {
            Kind::HostSend if open && conn.down < DOWN_MAX => {
                let data = conn.down_bytes(op.v.into());
                conn.down += u32::from(op.v);
                host.peer_send(socket, &data);
            }
            Kind::HostFin if open => {
                conn.down_fin = true;
                host.peer_fin(socket);
            }
            Kind::HostError if !conn.broken => {
                (conn.excused, conn.broken) = (true, true);
                if op.a & 8 == 0 {
                    host.peer_error(socket, error);
                } else {
                    host.break_silently(socket, error);
                }
            }
            Kind::Space => host.give_space(socket, op.v.into()),
            Kind::Take => {
                let n = conn.take(host, op.v.into());
                host.give_space(socket, n);
            }
            _ => {}
        }
        if !op.batched {
            self.turn();
        }
    }
}

/// Whether the handshake is under way.
fn is_opening(state: State) -> bool {
    matches!(state, State::SynReceived | State::SynSent)
}

/// A segment in a few words.
fn brief(s: &TcpSegment) -> String {
    format!(
        "{} -> {} flags {:02x} seq {} ack {} win {} len {} {:?}",
        s.src.port(),
        s.dst.port(),
        s.flags,
        s.seq,
        s.ack,
        s.window,
        s.data.len(),
        s.sack
    )
}

/// The ends of connection number `i`.
fn ends(config: &Config, v6: bool, i: u16) -> (SocketAddr, SocketAddr) {
    let guest: Option<IpAddr> =
        if v6 { config.v6.map(|n| n.guest.into()) } else { config.v4.map(|n| n.guest.into()) };
    let remote = if v6 { REMOTE_V6 } else { REMOTE_V4 };
    (SocketAddr::new(guest.expect("both are configured"), 40_000 + i), SocketAddr::new(remote, 80 + i))
}

/// Start time of a stack for which the first connection's numbers begin `before` the end of sequence space.
fn start_for(v6: bool, before: u32) -> Instant {
    static AT_ZERO: [OnceLock<u32>; 2] = [OnceLock::new(), OnceLock::new()];
    let iss = *AT_ZERO[usize::from(v6)].get_or_init(|| {
        let config = Config::default();
        let (guest, remote) = ends(&config, v6, 0);
        let syn = TcpSegment { flags: packet::flags::SYN, ..TcpSegment::new(guest, remote) };
        let mut driver = SimDriver::new(config.clone(), brodo_core::link::LinkCaps::default(), 1);
        let sent = driver.turn(Instant::ZERO, &[(RxMeta::default(), syn.to_frame(to_stack(config.mac.0)))]);
        match packet::parse(&sent[0].bytes) {
            Ok(ParsedFrame::Tcp(answer)) => answer.seq,
            other => panic!("not an answer to a SYN: {other:?}"),
        }
    });
    // One number per 4 us (RFC 6528).
    Instant::ZERO + Duration::from_micros(4 * u64::from(0_u32.wrapping_sub(before).wrapping_sub(iss)))
}
