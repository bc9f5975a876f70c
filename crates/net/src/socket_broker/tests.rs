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
    // Only the first client adds channels: the kernel refuses another's, or the broker closes it.
    assert!(matches!(further.another().map(drop), Ok(()) | Err(Errno::PERM)));
    assert!(Kind::Udp4.is(&further.socket(Kind::Udp4).expect("socket")));
    drop(further);
    rustix::io::ioctl_fionbio(&ours, false).expect("blocking");
    rustix::net::send(&ours, &[200, 1], SendFlags::NOSIGNAL).expect("nonsense");
    thread.join().expect("it has ended");
    assert!(matches!(receive(&ours), Ok(None)));
}

/// A client sends requests, each with a copy of its own end of the channel, and takes no answer: the copies
/// that lie in the channel outlive the client.
#[test]
fn a_client_that_takes_no_answers_does_not_keep_the_broker() {
    let pair = || {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("pair")
    };
    let (ours, theirs) = pair();
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        serve(theirs);
        ended.send(()).expect("the test waits");
    });
    // A further channel that takes descriptors of its client, as on a kernel that cannot refuse them.
    let (further, passed) = pair();
    fd_passing::send(&ours, &[CHANNEL, 0], &[passed.as_fd()], SendFlags::empty()).expect("room");
    drop(passed);
    rustix::io::ioctl_fionbio(&further, true).expect("non-blocking");
    let request = [Kind::Tcp4 as u8, 1];
    let mut full = 0;
    // Until the channel is closed, or full for good.
    while full < 1000 {
        match fd_passing::send(&further, &request, &[further.as_fd()], SendFlags::empty()) {
            Ok(_) => full = 0,
            Err(Errno::AGAIN) => {
                full += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => break,
        }
    }
    drop(further);
    drop(ours);
    end.recv_timeout(Duration::from_secs(30)).expect("the broker has ended");
}
