//! The conversation. That the broker is where it should be, and leaves nothing behind, is shown by the
//! end-to-end tests: a fork needs a process with one thread, which a test binary is not.

use super::*;

#[test]
fn requests_are_answered_with_sockets_of_the_kind() {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("pair");
    let thread = std::thread::spawn(move || serve(&theirs));
    for kind in Kind::ALL {
        rustix::net::send(&ours, &[kind as u8, 3], SendFlags::NOSIGNAL).expect("ask");
        let (answered, refusal, sockets) = receive(&ours).expect("answer").expect("not the end");
        assert_eq!((answered, refusal, sockets.len()), (kind, None, 3));
        assert!(sockets.iter().all(|socket| kind.is(socket)), "{kind:?}");
        assert!(Kind::ALL.iter().all(|other| *other == kind || !other.is(&sockets[0])), "{kind:?}");
    }
    rustix::net::send(&ours, &[200, 1], SendFlags::NOSIGNAL).expect("nonsense");
    thread.join().expect("it has ended");
    assert!(matches!(receive(&ours), Ok(None)));
}
