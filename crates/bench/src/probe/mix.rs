//! Traffic of two kinds at once: a sparse flow beside bulk (interactive latency while a download runs), and
//! bulk beside a flood of datagrams the other way.

use super::round_trip::{Exchange, ExchangeShape, flow_process, flow_result};
use super::stream::Stream;
use super::{BulkDirection, bulk, stream};
use serde_json::{Value, json};
use std::io;
use std::net::SocketAddr;
use std::thread;
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
    let exchange = Exchange { shape: ExchangeShape::Rr, duration, pause: PAUSE };
    let sparse = flow_process(SocketAddr::new(peer.ip(), respond), exchange)?;
    let mut found = if flows == 0 { json!({}) } else { bulk_of(direction, peer, flows, duration)? };
    let sparse = flow_result(sparse)?;
    for name in ["count", "p50_us", "p99_us"] {
        found[name] = sparse[name].clone();
    }
    Ok(found)
}

/// The figures of bulk in one direction.
fn bulk_of(
    direction: BulkDirection,
    peer: SocketAddr,
    flows: usize,
    duration: Duration,
) -> io::Result<Value> {
    match direction {
        BulkDirection::Up => bulk::up(peer, flows, duration),
        BulkDirection::Down => bulk::down(peer, flows, duration),
    }
}

/// The figures of one bulk flow, and of the datagrams that go the other way as fast as they can.
pub(super) fn beside_datagrams(
    direction: BulkDirection,
    peer: SocketAddr,
    size: usize,
    duration: Duration,
) -> io::Result<Value> {
    let flood = Stream { size, duration, rate: 0 };
    thread::scope(|scope| {
        let flood = scope.spawn(|| match direction {
            BulkDirection::Up => stream::down(peer, flood),
            BulkDirection::Down => stream::up(peer, flood),
        });
        let mut found = bulk_of(direction, peer, 1, duration)?;
        let flood = flood.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        for name in ["datagrams", "datagrams_per_second", "loss_percent", "wrong"] {
            found[name] = flood[name].clone();
        }
        Ok(found)
    })
}
