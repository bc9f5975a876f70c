//! Requests and answers of the broker. Its namespaces and its end are covered by the end-to-end tests: a fork
//! needs a process with one thread, which a test binary is not.

use super::*;

#[test]
fn requests_are_answered_with_sockets_of_the_kind() {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("pair");
    let thread = std::thread::spawn(move || serve(theirs));
    for kind in Kind::ALL {
        rustix::net::send(&ours, &[kind as u8, 3], SendFlags::NOSIGNAL).expect("ask");
        let Opened { kind: opened, refusal, sockets } = receive(&ours).expect("answer").expect("not the end");
        assert_eq!((opened, refusal, sockets.len()), (kind, None, 3));
        assert!(sockets.iter().all(|socket| kind.is(socket)), "{kind:?}");
        assert!(Kind::ALL.iter().all(|other| *other == kind || !other.is(&sockets[0])), "{kind:?}");
    }
    let client = SocketBroker::on(ours.try_clone().expect("dup")).expect("client");
    let mut further = SocketBroker::on(client.another().expect("channel")).expect("client");
    assert!(Kind::Tcp6.is(&further.socket(Kind::Tcp6).expect("socket")));
    assert_eq!(
        further.another().map(drop),
        Ok(()),
        "received, and closed: only the first client adds channels"
    );
    assert!(Kind::Udp4.is(&further.socket(Kind::Udp4).expect("socket")));
    drop(further);
    rustix::io::ioctl_fionbio(&ours, false).expect("blocking");
    rustix::net::send(&ours, &[200, 1], SendFlags::NOSIGNAL).expect("nonsense");
    thread.join().expect("it has ended");
    assert!(matches!(receive(&ours), Ok(None)));
}
