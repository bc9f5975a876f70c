//! Idle connections: opened, then without traffic, to measure their memory, or the time at which something
//! else ends them.

use super::connection::{PATIENCE, listen};
use super::many::raise_descriptor_limit;
use super::wait_for_end_of_input;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::{Value, json};
use socket2::SockRef;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

/// Accepts connections and keeps them.
pub(super) fn accept(port: u16) -> io::Result<()> {
    raise_descriptor_limit()?;
    let kept: io::Result<Vec<TcpStream>> = listen(port)?.incoming().collect();
    kept.map(drop)
}

/// Opens `count` connections, prints a line, and keeps them until standard input ends.
pub(super) fn open(peer: SocketAddr, count: usize) -> io::Result<Value> {
    raise_descriptor_limit()?;
    let kept: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(peer)).collect::<io::Result<_>>()?;
    println!("{}", json!({ "open": kept.len() }));
    wait_for_end_of_input()?;
    Ok(Value::Null)
}

/// Time for a server to accept the last connections.
const SETTLE: Duration = Duration::from_millis(200);
/// Ends noticed by one call.
const EVENTS: usize = 256;

/// Time of a clock that all processes share.
pub(crate) fn clock() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Opens `count` connections, prints a line, and waits until all of them have ended; the times of the first
/// and the last end, and the number of those that were reset.
pub(super) fn ends(peer: SocketAddr, count: usize) -> io::Result<Value> {
    raise_descriptor_limit()?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let open = |number: usize| -> io::Result<Option<TcpStream>> {
        let connection = TcpStream::connect(peer)?;
        epoll::add(&epoll, &connection, EventData::new_u64(number as u64), EventFlags::RDHUP)?;
        Ok(Some(connection))
    };
    let mut connections: Vec<Option<TcpStream>> = (0..count).map(open).collect::<io::Result<_>>()?;
    println!("{}", json!({ "open": connections.len() }));
    let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
    let (mut ended, mut reset, mut first) = (0, 0, None);
    while ended < count {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience))?;
        let now = clock();
        first.get_or_insert(now);
        if events.is_empty() {
            return Err(io::Error::other(format!("{ended} of {count} connections have ended")));
        }
        for event in &events {
            let place = connections.get_mut({ event.data }.u64() as usize);
            // A connection that is dropped is in no list of epoll's any more.
            let Some(connection) = place.and_then(Option::take) else { continue };
            ended += 1;
            let error = connection.take_error()?;
            reset += usize::from(error.is_some_and(|error| error.kind() == ErrorKind::ConnectionReset));
        }
    }
    let [first, last] = [first.unwrap_or_default(), clock()].map(|time| time.as_nanos() as u64);
    Ok(json!({ "ended": ended, "reset": reset, "first_ns": first, "last_ns": last }))
}

/// Opens `count` connections and closes all of them with a reset: the nanoseconds of the closing.
pub(super) fn resets(peer: SocketAddr, count: usize) -> io::Result<Value> {
    raise_descriptor_limit()?;
    let open = |_| -> io::Result<TcpStream> {
        let connection = TcpStream::connect(peer)?;
        SockRef::from(&connection).set_linger(Some(Duration::ZERO))?;
        Ok(connection)
    };
    let connections: Vec<TcpStream> = (0..count).map(open).collect::<io::Result<_>>()?;
    thread::sleep(SETTLE);
    let begin = clock();
    drop(connections);
    Ok(json!({ "resets": count, "ns": clock().saturating_sub(begin).as_nanos() as u64 }))
}

#[cfg(test)]
mod tests {
    //! Connections that a server ends.

    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn resets_are_counted_apart_from_other_ends() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let peer = listener.local_addr().expect("an address");
        let client = thread::spawn(move || ends(peer, 3));
        let mut accepted: Vec<_> = (0..3).map(|_| listener.accept().expect("accepted").0).collect();
        let before = clock();
        drop(accepted.pop());
        for connection in &accepted {
            SockRef::from(connection).set_linger(Some(Duration::ZERO)).expect("set");
        }
        drop(accepted);
        let found = client.join().expect("no panic").expect("all have ended");
        assert_eq!([&found["ended"], &found["reset"]], [3, 2]);
        let [first, last] = ["first_ns", "last_ns"].map(|name| found[name].as_u64().unwrap_or(0));
        assert!(before.as_nanos() as u64 <= first && first <= last, "{found}");
    }

    #[test]
    fn connections_are_reset_and_timed() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let peer = listener.local_addr().expect("an address");
        let found = resets(peer, 2).expect("reset");
        assert!(found["resets"] == 2 && found["ns"].as_u64().is_some_and(|ns| ns > 0), "{found}");
        let error = listener.accept().and_then(|(mut connection, _)| connection.read(&mut [0]));
        assert_eq!(error.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    }
}
