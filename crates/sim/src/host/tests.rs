//! Simulated host sockets against the kernel's behaviour: errors, queues, half closes.

use super::*;

const FLOW: FlowId = FlowId { index: 3, generation: 9 };

fn to() -> SocketAddr {
    "192.0.2.1:80".parse().expect("address")
}

fn connected(host: &mut SimHost) -> SocketId {
    let (id, progress) = host.tcp_connect(FLOW, to()).expect("planned to succeed");
    assert_eq!(progress, Connect::Done);
    id
}

fn recv(host: &mut SimHost, id: SocketId, n: usize) -> Result<Vec<u8>, HostError> {
    let mut buf = vec![0; n];
    let n = host.tcp_recv(id, &mut [IoSliceMut::new(&mut buf)])?;
    buf.truncate(n);
    Ok(buf)
}

fn send(host: &mut SimHost, id: SocketId, data: &[u8]) -> Result<usize, HostError> {
    let (a, b) = data.split_at(data.len() / 2);
    host.tcp_send(id, &[IoSlice::new(a), IoSlice::new(b)])
}

fn events(host: &mut SimHost) -> Vec<Readiness> {
    host.take_events().into_iter().map(|(flow, r)| (assert_eq!(flow, FLOW), r).1).collect()
}

const READABLE: Readiness =
    Readiness { readable: true, writable: false, read_closed: false, urgent: false, error: false };
const WRITABLE: Readiness =
    Readiness { readable: false, writable: true, read_closed: false, urgent: false, error: false };

#[test]
fn connects_end_as_planned() {
    let mut host = SimHost::default();
    host.plan_connect(ConnectPlan::Pending);
    host.plan_connect(ConnectPlan::Pending);
    host.plan_connect(ConnectPlan::Fail(HostError::NetUnreachable));
    let (a, _) = host.tcp_connect(FLOW, to()).expect("pending");
    let (b, _) = host.tcp_connect(FLOW, to()).expect("pending");
    assert_eq!(host.tcp_connect(FLOW, to()), Err(HostError::NetUnreachable));
    assert_eq!(host.tcp_connected(a), Ok(Connect::Pending));
    host.finish_connect(a, Ok(()));
    assert_eq!(events(&mut host), [WRITABLE]);
    assert_eq!(host.tcp_connected(a), Ok(Connect::Done));
    host.finish_connect(b, Err(HostError::Refused));
    assert!(events(&mut host)[0].error);
    assert_eq!(host.tcp_connected(b), Err(HostError::Refused));
    host.close(a, Close::Graceful);
    host.close(b, Close::Graceful);
    assert_eq!(host.open_sockets(), 0);
}

#[test]
fn an_edge_is_reported_once_until_the_socket_is_drained() {
    let mut host = SimHost::default();
    let id = connected(&mut host);
    host.peer_send(id, b"abc");
    host.peer_send(id, b"def");
    assert_eq!(events(&mut host), [READABLE]);
    assert_eq!(recv(&mut host, id, 3), Ok(b"abc".to_vec()));
    host.peer_send(id, b"ghi");
    assert_eq!(events(&mut host), [], "not drained: the stack must go on by itself");
    assert_eq!(recv(&mut host, id, 100), Ok(b"defghi".to_vec()));
    host.peer_send(id, b"j");
    assert_eq!(events(&mut host), [READABLE]);
}

#[test]
fn data_comes_before_the_error_and_the_error_before_the_end() {
    let mut host = SimHost::default();
    let id = connected(&mut host);
    host.peer_send(id, b"abc");
    host.peer_error(id, HostError::Reset);
    assert_eq!(recv(&mut host, id, 9), Ok(b"abc".to_vec()));
    assert_eq!(recv(&mut host, id, 9), Err(HostError::Reset));
    assert_eq!(recv(&mut host, id, 9), Ok(vec![]));
    assert_eq!(send(&mut host, id, b"x"), Err(HostError::Reset));
}

#[test]
fn a_full_send_buffer_takes_part_then_blocks_then_wakes() {
    let mut host = SimHost::default();
    host.set_default_space(4);
    let id = connected(&mut host);
    assert_eq!(send(&mut host, id, b"abcdef"), Ok(4));
    assert_eq!(send(&mut host, id, b"ef"), Err(HostError::WouldBlock));
    assert_eq!(events(&mut host), []);
    assert_eq!(host.peer_take(id, 3), b"abc");
    host.give_space(id, 3);
    host.give_space(id, 1);
    assert_eq!(events(&mut host), [WRITABLE]);
    assert_eq!(send(&mut host, id, b"ef"), Ok(2));
    assert_eq!(host.peer_take(id, 9), b"def");
    host.set_send_at_most(1);
    assert_eq!(send(&mut host, id, b"gh"), Ok(1));
    assert_eq!(events(&mut host), [WRITABLE], "a partial write with room left wakes at once");
}

#[test]
fn fin_both_ways() {
    let mut host = SimHost::default();
    let id = connected(&mut host);
    host.peer_fin(id);
    assert!(events(&mut host)[0].read_closed);
    assert_eq!(recv(&mut host, id, 9), Ok(vec![]));
    assert_eq!(send(&mut host, id, b"abc"), Ok(3));
    host.tcp_shutdown(id).expect("alive");
    assert!(!host.peer_sees_fin(id));
    host.peer_take(id, 9);
    assert!(host.peer_sees_fin(id));
    let calls: Vec<_> = host.calls_on(id).collect();
    assert_eq!(
        calls,
        [Call::Connect(to(), Ok(Connect::Done)), Call::Recv(9, Ok(0)), Call::Send(3, Ok(3)), Call::Shutdown]
    );
}

#[test]
fn datagrams_and_their_errors() {
    let mut host = SimHost::default();
    let id = host.udp_open(FLOW, None, to()).expect("opens");
    let fields = IpHeaderFields { tos: 2, ..IpHeaderFields::default() };
    let send = |host: &mut SimHost, data: &[u8], segment| {
        host.datagram_send(id, &[IoSlice::new(data)], segment, fields)
    };
    assert_eq!(send(&mut host, b"abcdef", Some(4)), Ok(6));
    assert_eq!(host.datagram_fields(id), Some(fields));
    assert_eq!(host.take_datagram(id), Some((b"abcdef".to_vec(), Some(4))));
    let report = IcmpReport { cause: IcmpCause::PortUnreachable, from: None, sequence: None };
    host.peer_icmp(id, report);
    assert!(events(&mut host)[0].error);
    assert_eq!(send(&mut host, b"x", None), Err(HostError::Refused));
    assert_eq!((host.datagram_error(id), host.datagram_error(id)), (Some(report), None));
    host.peer_datagram(id, b"reply", None);
    host.peer_overflow(id, 3);
    let mut bufs = [[0; 64]; 2];
    let mut received = [Received::default(); 2];
    let mut recv = |host: &mut SimHost| {
        let [a, b] = &mut bufs;
        host.datagram_recv(id, &mut [IoSliceMut::new(a), IoSliceMut::new(b)], &mut received)
    };
    assert_eq!(recv(&mut host), Ok(1));
    assert_eq!(recv(&mut host), Err(HostError::WouldBlock));
    assert_eq!(received[0], Received { len: 5, lost: 3, ..Received::default() });
    host.set_space(id, 1);
    assert_eq!(send(&mut host, b"abcdef", Some(4)), Ok(4), "as many as there is room for");
    assert_eq!(send(&mut host, b"ef", None), Err(HostError::WouldBlock));
    host.give_space(id, 1);
    assert!(host.take_events().iter().any(|(_, ready)| ready.writable));
    host.set_ping_supported(false);
    assert_eq!(host.ping_open(FLOW, to().ip()), Err(HostError::Unsupported));
}

fn panics<R>(f: impl FnOnce(&mut SimHost, SocketId) -> R + std::panic::UnwindSafe) -> bool {
    std::panic::catch_unwind(|| {
        let mut host = SimHost::default();
        let id = connected(&mut host);
        f(&mut host, id);
    })
    .is_err()
}

#[test]
fn misuse_is_noticed() {
    assert!(!panics(|h, s| h.close(s, Close::Graceful)));
    assert!(panics(|h, s| (h.close(s, Close::Graceful), h.close(s, Close::Reset))));
    assert!(panics(|h, s| (h.close(s, Close::Graceful), send(h, s, b"x"))));
    assert!(panics(|h, s| (h.tcp_shutdown(s), send(h, s, b"x"))));
    assert!(panics(|h, s| (h.tcp_shutdown(s), h.tcp_shutdown(s))));
    assert!(panics(|h, s| send(h, s, b"")));
    assert!(panics(|h, _| recv(h, SocketId(77), 1)));
    assert!(panics(|h, _| {
        h.plan_connect(ConnectPlan::Pending);
        let (s, _) = h.tcp_connect(FLOW, to()).expect("pending");
        send(h, s, b"x")
    }));
}
