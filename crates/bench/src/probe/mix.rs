//! A sparse flow beside bulk: interactive latency while a download runs.

use super::bulk;
use super::round_trip::{Exchange, flow_process, flow_result};
use clap::ValueEnum;
use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Between an answer and the next question: the flow is sparse, and never has more than one byte under way.
const PAUSE: Duration = Duration::from_millis(2);

/// Which way the bulk goes.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Direction {
    /// From the probe to the server.
    Up,
    /// From the server to the probe.
    Down,
}

/// The bulk's figures and the sparse flow's.
pub(super) fn measure(
    direction: Direction,
    peer: SocketAddr,
    respond: u16,
    flows: usize,
    duration: Duration,
) -> io::Result<Value> {
    let exchange = Exchange { connect: false, duration, pause: PAUSE };
    let sparse = flow_process(SocketAddr::new(peer.ip(), respond), exchange)?;
    let mut found = match direction {
        Direction::Up => bulk::up(peer, flows, duration),
        Direction::Down => bulk::down(peer, flows, duration),
    }?;
    let sparse = flow_result(sparse)?;
    for name in ["p50_us", "p99_us"] {
        found[name] = sparse[name].clone();
    }
    Ok(found)
}
