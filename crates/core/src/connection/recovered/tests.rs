//! Connections that go on after gigabytes: sequence numbers lie in every part of their space.

use super::*;
use crate::config::{Config, Keys};
use crate::flow::{FlowId, FlowKey, Protocol};
use crate::journal::RecordKind;
use crate::link::LinkCaps;
use crate::memory::budget::Budget;
use crate::tcp::window::Advertised;
use crate::wire::tcp::TcpOptions;
use std::net::SocketAddr;
use std::sync::Arc;

const NOW: Instant = Instant::from_ms(1000);
const WINDOW: u32 = 60_000;

fn shared() -> Shared {
    let keys = Keys { table: [0; 16], isn: [0; 16], dns: [1; 16] };
    let budget = Arc::new(Budget::new(1 << 20));
    Shared::new(Config::default(), LinkCaps::default(), &keys, budget, 0)
}

/// A connection that has moved so many bytes either way, all of which are acknowledged, with the guest's
/// window closed.
fn quiet(from_guest: u64, to_guest: u64) -> (Record, TcpState, Progress) {
    let (rx_begin, tx_begin) = (Seq(1000), Seq(5000));
    let (ack, una) = (rx_begin + from_guest as u32, tx_begin + to_guest as u32);
    let state = TcpState {
        tx: SenderState::Open.save(),
        rx: ReceiverState::Open.save(),
        advertised: Advertised { ack, edge: ack + WINDOW },
        una,
        wnd: 0,
        socket: Some(1),
        mss: 1460,
        peer_scale: Some(7),
        scale: 7,
        sack: true,
        inbound: false,
        broken: false,
        passive: false,
        tx_begin,
        rx_begin,
        segments: (0, 0),
        retransmissions: 0,
        connect_us: 0,
        read_all: false,
        away: false,
        tx_end: una,
        rx_nxt: ack,
    };
    let progress = Progress { written: from_guest, read: to_guest, shut: false, peer_closed: false };
    let end = |text: &str| text.parse::<SocketAddr>().expect("an endpoint").into();
    let key =
        FlowKey { protocol: Protocol::Tcp, guest: end("10.0.2.15:40000"), remote: end("198.51.100.7:80") };
    let kind = RecordKind::Tcp(state);
    (Record { id: FlowId { index: 1, generation: 1 }, key, opened_at: NOW, kind }, state, progress)
}

/// A segment of the guest's that opens its window.
fn update(state: &TcpState) -> TcpHeader {
    TcpHeader {
        src_port: 40_000,
        dst_port: 80,
        seq: state.rx_nxt,
        ack: state.una,
        flags: TcpFlags::ACK,
        window: (WINDOW >> 7) as u16,
        urgent: 0,
        options: TcpOptions::default(),
    }
}

#[test]
fn bytes_beyond_half_of_the_sequence_space_are_no_obstacle() {
    const GIB: u64 = 1 << 30;
    for from_guest in [0, GIB, 3 * GIB, 5 * GIB, 7 * GIB] {
        for to_guest in [0, GIB, 3 * GIB, 5 * GIB, 7 * GIB] {
            let mut shared = shared();
            let (record, state, progress) = quiet(from_guest, to_guest);
            let found = Connection::recover(&mut shared, NOW, &record, Some(SocketId(1)), &state, progress);
            let mut connection = found.unwrap_or_else(|_| panic!("{from_guest} up, {to_guest} down"));
            assert_eq!((connection.rx.nxt(), connection.tx.una()), (state.rx_nxt, state.una));
            connection.tx.acknowledge(&mut shared, NOW, &update(&state), false);
            assert_eq!(connection.tx.wnd(), WINDOW >> 7 << 7, "{from_guest} up, {to_guest} down");
        }
    }
}
