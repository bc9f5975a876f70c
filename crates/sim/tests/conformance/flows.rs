//! Flow information of the stack: bytes, duration, and the cause of each end.

use brodo_core::config::Config;
use brodo_core::flow::Protocol;
use brodo_core::flow::end::{EndCause, FlowEnd};
use brodo_core::flow::info::{FlowState, Initiator, Traffic};
use brodo_core::host::{HostError, IcmpCause};
use brodo_core::tcp::State;
use brodo_core::time::Duration;
use brodo_sim::script::{Script, Setup};
use std::net::SocketAddr;

/// A script whose ends are recorded.
fn each(body: impl Fn(&mut Script)) {
    Script::each(|t| {
        t.driver.stack.record_ends(true);
        body(t);
    });
}

/// The one flow that has ended since the last call.
fn end(t: &mut Script) -> FlowEnd {
    let mut ends = t.driver.stack.take_ends();
    assert_eq!(ends.len(), 1, "{ends:?}");
    ends.remove(0)
}

#[track_caller]
fn ends_by(t: &mut Script, cause: EndCause) {
    assert_eq!(end(t).cause, cause);
    assert!(!t.driver.stack.has_records());
}

#[test]
fn a_connection_tells_how_much_and_how_long() {
    each(|t| {
        t.guest("SYN seq=0 win=65535 mss=1460 wscale=7 sackok");
        t.advance_ms(40);
        t.host_connected();
        t.expect("SYN|ACK");
        t.guest("ACK");
        t.guest("ACK|PSH data=100");
        t.host_received(100);
        t.host_sends(300);
        t.take_all();
        t.guest("ACK");
        t.advance_ms(1000);
        let info = t.driver.stack.flow_details(0, t.now()).next().expect("open").info;
        assert_eq!(info.from_guest, Traffic { bytes: 100, packets: 1 });
        assert_eq!(info.to_guest, Traffic { bytes: 300, packets: 1 });
        assert_eq!(info.state, FlowState::Tcp(State::Established));
        assert_eq!((info.key.protocol, info.initiator), (Protocol::Tcp, Initiator::Guest));
        assert_eq!(info.connect, Some(Duration::from_millis(40)));
        assert!(info.idle >= Duration::from_millis(990) && info.age >= Duration::from_millis(1040));
        t.host_eof();
        t.guest("ACK");
        t.guest("FIN|ACK");
        t.take_all();
        assert!(!t.driver.stack.has_records(), "TIME-WAIT is not the end");
        t.advance_ms(3000);
        let end = end(t);
        assert_eq!((end.cause, end.opened, end.rule), (EndCause::Finished, true, None));
        assert_eq!(end.info.from_guest.bytes, 100);
        // Two seconds of them in TIME-WAIT.
        assert_eq!(end.info.age, Duration::from_millis(3040));
    });
}

#[test]
fn resets_of_guest_and_host_have_causes_of_their_own() {
    each(|t| {
        t.establish();
        t.guest("RST");
        ends_by(t, EndCause::ResetByGuest);
    });
    each(|t| {
        t.establish();
        t.host_breaks(HostError::Reset);
        ends_by(t, EndCause::ResetByHost);
    });
    each(|t| {
        t.establish();
        t.host_breaks(HostError::TimedOut);
        ends_by(t, EndCause::TimedOut);
    });
    each(|t| {
        t.guest("SYN seq=0 win=65535");
        t.guest("RST");
        ends_by(t, EndCause::ResetByGuest);
    });
}

#[test]
fn a_reset_in_time_wait_changes_nothing() {
    each(|t| {
        t.establish();
        t.host_eof();
        t.guest("ACK");
        t.guest("FIN|ACK");
        t.take_all();
        t.guest("RST");
        ends_by(t, EndCause::Finished);
    });
}

#[test]
fn connects_that_fail_say_why() {
    let causes = [
        (HostError::Refused, EndCause::Refused),
        (HostError::Reset, EndCause::Refused),
        (HostError::TimedOut, EndCause::TimedOut),
        (HostError::HostUnreachable, EndCause::Unreachable),
        (HostError::NetUnreachable, EndCause::Unreachable),
        (HostError::Prohibited, EndCause::Unreachable),
        (HostError::Exhausted, EndCause::NoResources),
    ];
    for (error, cause) in causes {
        each(|t| {
            t.guest("SYN seq=0 win=65535");
            t.host_connect_fails(error);
            let end = end(t);
            assert_eq!((end.cause, end.info.connect), (cause, None));
        });
        each(|t| {
            t.host_refuses_at_once(error);
            t.guest("SYN seq=0 win=65535");
            ends_by(t, cause);
        });
    }
}

#[test]
fn a_guest_that_is_gone_times_out() {
    each(|t| {
        t.host_connects_at_once();
        t.guest("SYN seq=0 win=65535");
        t.advance_ms(120_000);
        ends_by(t, EndCause::TimedOut);
    });
    each(|t| {
        t.establish();
        t.advance_ms(24 * 3600 * 1000);
        ends_by(t, EndCause::TimedOut);
    });
}

#[test]
fn datagrams_count_and_say_why_they_ended() {
    each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=100");
        t.guest("UDP data=20");
        let info = t.driver.stack.flow_details(0, t.now()).next().expect("open").info;
        assert_eq!(info.state, FlowState::Unanswered);
        t.host_sends_raw(&[7; 250], Some(100));
        t.advance_ms(400_000);
        let end = end(t);
        assert_eq!(end.cause, EndCause::Finished);
        assert_eq!(end.info.from_guest, Traffic { bytes: 120, packets: 2 });
        assert_eq!(end.info.to_guest, Traffic { bytes: 250, packets: 3 });
    });
    each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=100");
        t.advance_ms(60_000);
        ends_by(t, EndCause::TimedOut);
    });
    each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=100");
        t.host_gets_icmp(IcmpCause::PortUnreachable);
        t.advance_ms(60_000);
        ends_by(t, EndCause::Refused);
    });
    each(|t| {
        t.connection(5000, 4433);
        t.guest("UDP data=100");
        t.host_sends_datagram(10);
        let got = t.expect_datagram();
        t.guest_refuses_datagram(&got);
        ends_by(t, EndCause::ResetByGuest);
    });
}

#[test]
fn what_was_never_opened_ends_too() {
    each(|t| {
        // The gateway answers to nothing but ping.
        let config = &t.setup().config;
        let gateway = if t.is_v6() {
            config.v6.expect("configured").gateway.into()
        } else {
            config.v4.expect("configured").gateway.into()
        };
        let (guest, _) = t.endpoints();
        t.connection_to(guest, SocketAddr::new(gateway, 80));
        t.guest("SYN seq=0 win=65535");
        let refused = end(t);
        assert_eq!((refused.cause, refused.opened), (EndCause::Refused, false));
        assert_eq!(refused.info.key.remote.ip(), gateway);
        t.take_all();
        t.driver.host.refuse_next_open(HostError::NetUnreachable);
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        let end = end(t);
        assert_eq!((end.cause, end.opened), (EndCause::Unreachable, false));
    });
}

#[test]
fn who_makes_room_is_evicted() {
    let setup = Setup { config: Config { max_flows: 1, ..Config::default() }, ..Setup::default() };
    Script::each_with(&setup, |t| {
        t.driver.stack.record_ends(true);
        t.driver.stack.record_openings(true);
        t.connection(5000, 4433);
        t.guest("UDP data=1");
        t.connection(5001, 4433);
        t.guest("UDP data=1");
        let end = end(t);
        assert_eq!((end.cause, end.info.key.guest.port()), (EndCause::Evicted, 5000));
        let ports: Vec<_> = t.driver.stack.take_openings().iter().map(|info| info.key.guest.port()).collect();
        assert_eq!(ports, [5000, 5001]);
        let at_end: Vec<_> = t.driver.stack.ends_at_shutdown(t.now()).collect();
        assert_eq!(at_end.len(), 1);
        assert_eq!((at_end[0].cause, at_end[0].info.key.guest.port()), (EndCause::ShutDown, 5001));
    });
}

#[test]
fn nothing_is_kept_unless_asked_for() {
    Script::each(|t| {
        t.establish();
        t.guest("RST");
        assert!(!t.driver.stack.has_records());
        t.driver.stack.record_ends(true);
        t.connection(5001, 80);
        t.establish();
        t.guest("RST");
        assert!(t.driver.stack.has_records());
        t.driver.stack.record_ends(false);
        assert!(!t.driver.stack.has_records(), "records without an observer are dropped");
    });
}

#[test]
fn a_list_can_be_made_piece_by_piece() {
    Script::each(|t| {
        for port in 5000..5010 {
            t.connection(port, 4433);
            t.guest("UDP data=1");
        }
        let now = t.now();
        let first: Vec<_> = t.driver.stack.flow_details(0, now).take(4).collect();
        let rest: Vec<_> =
            t.driver.stack.flow_details(first[3].info.flow.index + 1, now).map(|d| d.info).collect();
        assert_eq!((first.len(), rest.len()), (4, 6));
        assert!(first.iter().all(|detail| detail.socket.is_some() && detail.tcp.is_none()));
        let id = first[2].info.flow;
        assert_eq!(t.driver.stack.flow_detail(id, now).as_ref(), Some(&first[2]));
        let gone = brodo_core::flow::FlowId { generation: id.generation + 1, ..id };
        assert_eq!(t.driver.stack.flow_detail(gone, now), None);
    });
}
