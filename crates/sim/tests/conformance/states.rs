//! Every state of RFC 9293 against every kind of event: segments sent, host calls, and the next state, as one
//! table.
//!
//! `BRODO_BLESS=1 cargo test -p brodo-sim --test conformance states` writes the committed table anew. Each
//! changed line is a change of the protocol, to be checked against RFC 9293, 3.10.

use brodo_core::host::{Close, HostError};
use brodo_core::tcp::State;
use brodo_sim::host::Call;
use brodo_sim::script::Script;
use std::fmt::Write as _;
use std::path::Path;

const SYN: &str = "SYN seq=0 win=65535 mss=1460 wscale=7 sackok";

/// A state, the script that reaches it, the state expected there, and SND.UNA relative to the ISS.
struct StateCase {
    name: &'static str,
    state: Option<State>,
    una: u32,
    reach: fn(&mut Script),
}

const STATES: [StateCase; 12] = [
    StateCase { name: "CLOSED, no connection", state: None, una: 1, reach: |_| {} },
    StateCase {
        name: "SYN-RECEIVED, the host is connecting",
        state: Some(State::SynReceived),
        una: 1,
        reach: |t| t.guest(SYN),
    },
    StateCase {
        name: "SYN-RECEIVED, SYN|ACK sent",
        state: Some(State::SynReceived),
        una: 1,
        reach: |t| {
            t.host_connects_at_once();
            t.guest(SYN);
        },
    },
    StateCase {
        name: "SYN-SENT",
        state: Some(State::SynSent),
        una: 1,
        reach: |t| {
            t.connection(8080, 50_123);
            t.peer_connects().expect("there is room");
        },
    },
    StateCase { name: "ESTABLISHED", state: Some(State::Established), una: 1, reach: Script::establish },
    StateCase {
        name: "ESTABLISHED, 100 bytes not acknowledged",
        state: Some(State::Established),
        una: 1,
        reach: |t| {
            t.establish();
            t.host_sends(100);
        },
    },
    StateCase {
        name: "FIN-WAIT-1",
        state: Some(State::FinWait1),
        una: 1,
        reach: |t| {
            t.establish();
            t.host_eof();
        },
    },
    StateCase {
        name: "FIN-WAIT-2",
        state: Some(State::FinWait2),
        una: 2,
        reach: |t| {
            t.establish();
            t.host_eof();
            t.guest("ACK");
        },
    },
    StateCase {
        name: "CLOSE-WAIT, 100 bytes not acknowledged",
        state: Some(State::CloseWait),
        una: 1,
        reach: |t| {
            t.establish();
            t.guest("FIN|ACK");
            t.host_sends(100);
        },
    },
    StateCase {
        name: "CLOSING",
        state: Some(State::Closing),
        una: 1,
        reach: |t| {
            t.establish();
            t.host_eof();
            t.guest("FIN|ACK seq=1 ack=1");
        },
    },
    StateCase {
        name: "LAST-ACK",
        state: Some(State::LastAck),
        una: 1,
        reach: |t| {
            t.establish();
            t.guest("FIN|ACK");
            t.host_eof();
        },
    },
    StateCase {
        name: "TIME-WAIT",
        state: Some(State::TimeWait),
        una: 2,
        reach: |t| {
            t.establish();
            t.host_eof();
            t.guest("ACK");
            t.guest("FIN|ACK");
        },
    },
];

/// An event: its name and its cause. `{n}` is the next sequence number of the guest's, with an offset.
enum Event {
    /// A segment from RCV.NXT plus this; `ack` is SND.UNA unless the line has one.
    Segment(&'static str, i64, &'static str),
    /// An action at the host's socket, if one is connected.
    Host(&'static str, fn(&mut Script)),
    /// The end of the host's connect.
    Connect(&'static str, fn(&mut Script)),
    /// Milliseconds pass.
    Time(&'static str, u64),
}

const EVENTS: [Event; 34] = [
    Event::Segment("data in order", 0, "ACK data=100"),
    Event::Segment("data beyond a gap", 1000, "ACK data=100"),
    Event::Segment("data outside the window", 1_000_000, "ACK data=100"),
    Event::Segment("data that came before", -1, "ACK data=1"),
    Event::Segment("data that acknowledges everything", 0, "ACK all data=100"),
    Event::Segment("data without ACK", 0, "PSH data=100"),
    Event::Segment("ACK of nothing new", 0, "ACK"),
    Event::Segment("ACK of everything", 0, "ACK all"),
    Event::Segment("ACK of the future", 0, "ACK future"),
    Event::Segment("ACK of the far past", 0, "ACK ack=-1000000000"),
    Event::Segment("ACK outside the window", 1_000_000, "ACK"),
    Event::Segment("ACK before the window", -1, "ACK"),
    Event::Segment("ACK that closes the window", 0, "ACK win=0"),
    Event::Segment("FIN", 0, "FIN|ACK"),
    Event::Segment("FIN that acknowledges everything", 0, "FIN|ACK all"),
    Event::Segment("FIN beyond a gap", 1000, "FIN|ACK"),
    Event::Segment("FIN that came before", -1, "FIN|ACK"),
    Event::Segment("FIN without ACK", 0, "FIN"),
    Event::Segment("RST at RCV.NXT", 0, "RST"),
    Event::Segment("RST in the window", 100, "RST"),
    Event::Segment("RST outside the window", 1_000_000, "RST"),
    Event::Segment("RST before the window", -1, "RST"),
    Event::Segment("SYN in the window", 100, "SYN win=65535"),
    Event::Segment("SYN outside the window", 1_000_000, "SYN win=65535"),
    Event::Segment("SYN with the first number again", i64::MIN, "SYN win=65535 mss=1460 wscale=7 sackok"),
    Event::Segment("SYN|ACK", 0, "SYN|ACK win=65535"),
    Event::Connect("host: connected", Script::host_connected),
    Event::Connect("host: refused", |t| t.host_connect_fails(HostError::Refused)),
    Event::Host("host: 50 bytes", |t| t.host_sends(50)),
    Event::Host("host: end of stream", Script::host_eof),
    Event::Host("host: reset", |t| t.host_breaks(HostError::Reset)),
    Event::Time("500 ms pass", 500),
    Event::Time("3 s pass", 3000),
    Event::Time("3 hours pass", 3 * 3_600_000),
];

impl Event {
    fn name(&self) -> &'static str {
        match self {
            Self::Segment(name, ..) | Self::Host(name, _) | Self::Connect(name, _) | Self::Time(name, _) => {
                name
            }
        }
    }

    /// Triggers the event; false if it is impossible here.
    fn happen(&self, t: &mut Script, case: &StateCase) -> bool {
        let (next, received) = t.guest_progress();
        match self {
            Self::Segment(_, offset, line) => {
                let next = if case.state.is_none() { 1 } else { i64::from(next) };
                let seq = if *offset == i64::MIN { 0 } else { next + offset };
                let everything = received.max(1);
                let line = if line.contains("all") {
                    line.replace("all", &format!("ack={everything}"))
                } else if line.contains("future") {
                    line.replace("future", &format!("ack={}", everything + 1000))
                } else if line.contains("ACK") && !line.contains("ack=") {
                    format!("{line} ack={}", case.una)
                } else {
                    (*line).to_owned()
                };
                t.guest(&format!("{line} seq={seq}"));
            }
            Self::Host(_, event) if t.host_is_open() && !is_connecting(t) => event(t),
            Self::Connect(_, event) if is_connecting(t) => event(t),
            Self::Host(..) | Self::Connect(..) => return false,
            Self::Time(_, ms) => t.advance_ms(*ms),
        }
        true
    }
}

fn is_connecting(t: &Script) -> bool {
    t.has_socket() && t.driver.host.is_connecting(t.socket())
}

fn state(t: &Script) -> Option<State> {
    t.driver.stack.tcp_infos(t.now()).next().map(|info| info.state)
}

/// A call in the table's form; `None` for a call without information.
fn call_name(call: &Call) -> Option<String> {
    Some(match call {
        Call::Connect(..) => "connect".to_owned(),
        Call::Send(n, Ok(taken)) if n == taken => format!("send {n}"),
        Call::Send(n, result) => format!("send {n} {result:?}"),
        Call::Recv(_, Ok(0)) => "recv end".to_owned(),
        Call::Recv(_, Ok(n)) => format!("recv {n}"),
        Call::Recv(_, Err(HostError::WouldBlock)) | Call::Connected(_) => return None,
        Call::Recv(_, Err(error)) => format!("recv {error:?}"),
        Call::Shutdown => "shutdown".to_owned(),
        Call::KeepAlive => "keep-alive".to_owned(),
        Call::Close(Close::Graceful) => "close".to_owned(),
        Call::Close(Close::Reset) => "reset".to_owned(),
        other => format!("{other:?}"),
    })
}

/// Repetitions in a row appear once.
fn join(lines: impl Iterator<Item = String>, by: &str) -> String {
    let mut runs: Vec<(String, u32)> = Vec::new();
    for line in lines {
        match runs.last_mut() {
            Some((last, count)) if *last == line => *count += 1,
            _ => runs.push((line, 1)),
        }
    }
    let runs: Vec<_> = (runs.into_iter())
        .map(|(line, count)| if count > 1 { format!("{line} ({count} times)") } else { line })
        .collect();
    runs.join(by)
}

/// Effect of an event in a state: segments sent, host calls, next state.
fn reaction(t: &mut Script, case: &StateCase, event: &Event) -> Option<[String; 3]> {
    (case.reach)(t);
    t.take_all();
    assert_eq!(state(t), case.state, "{}", case.name);
    let calls = t.driver.host.calls().len();
    if !event.happen(t, case) {
        return None;
    }
    let sent = t.take_all().into_iter().map(|mut line| {
        // Window sizes are a matter of tuning, and the PSH flag carries no information here.
        line.fields.retain(|(name, _)| !["win", "mss", "wscale"].contains(&name.as_str()));
        line.psh = None;
        line.sack_ok = None;
        line.to_string().replace("ACK|PSH", "ACK").replace("FIN|ACK|PSH", "FIN|ACK")
    });
    let sent = join(sent, "; ");
    let asked = join(t.driver.host.calls()[calls..].iter().filter_map(|(_, call)| call_name(call)), ", ");
    let next = state(t);
    let next =
        if next == case.state { "same".to_owned() } else { next.map_or("gone".into(), |s| format!("{s:?}")) };
    Some([sent, asked, next])
}

fn table() -> String {
    let mut text = String::from(
        "Reaction to each event in each state of RFC 9293: segments to the guest; calls to the host; the next state.\n\
         The host closes its direction or sends data only where there is a socket. Numbers are relative to each\n\
         side's SYN; \"before\" and \"outside\" are said of RCV.NXT and the window.\n",
    );
    for case in &STATES {
        let _ = write!(text, "\n{}\n", case.name);
        for event in &EVENTS {
            let first = std::cell::RefCell::new(None);
            Script::each(|t| {
                let now = reaction(t, case, event);
                let mut first = first.borrow_mut();
                let same = first.get_or_insert_with(|| now.clone());
                assert_eq!(*same, now, "{}, {}: families and offloads differ", case.name, event.name());
            });
            if let Some([sent, asked, next]) = first.into_inner().flatten() {
                let dash = |s: String| if s.is_empty() { "-".to_owned() } else { s };
                let _ =
                    writeln!(text, "  {:<35} {}  |  {}  |  {next}", event.name(), dash(sent), dash(asked));
            }
        }
    }
    text
}

#[test]
fn every_event_in_every_state_does_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/snapshots/states.txt");
    let now = table();
    if std::env::var_os("BRODO_BLESS").is_some() {
        return std::fs::write(&path, now).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for (number, (was, is)) in committed.lines().zip(now.lines()).enumerate() {
        assert_eq!(was, is, "{}:{}: BRODO_BLESS=1 writes it anew", path.display(), number + 1);
    }
    assert_eq!(committed.lines().count(), now.lines().count(), "lines of {}", path.display());
}
