//! A sparse flow beside bulk: interactive latency while a download runs.

use super::round_trip::{Exchange, flow_process, flow_result};
use super::{BulkDirection, bulk};
use serde_json::{Value, json};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Pause between an answer and the next request: the flow is sparse, and never has more than one byte in
/// flight.
const PAUSE: Duration = Duration::from_millis(2);

/// The figures of the bulk, if it has flows, and those of the sparse flow.
pub(super) fn measure(
    direction: BulkDirection,
    peer: SocketAddr,
    respond: u16,
    flows: usize,
    duration: Duration,
) -> io::Result<Value> {
    let exchange = Exchange { connect: false, duration, pause: PAUSE };
    let sparse = flow_process(SocketAddr::new(peer.ip(), respond), exchange)?;
    let mut found = match direction {
        _ if flows == 0 => json!({}),
        BulkDirection::Up => bulk::up(peer, flows, duration)?,
        BulkDirection::Down => bulk::down(peer, flows, duration)?,
    };
    let sparse = flow_result(sparse)?;
    for name in ["p50_us", "p99_us"] {
        found[name] = sparse[name].clone();
    }
    Ok(found)
}
