//! The client against the other end of its channel: requests beyond its room are put off, and made later.

use super::*;
use crate::promotion::message::Request;
use rustix::net::socketpair;

/// A client, and the agent's end of its channel.
fn pair() -> (PromotionAgent, OwnedFd) {
    let (client, agent) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("pair");
    (PromotionAgent::on(client).expect("a client"), agent)
}

fn request(agent: &OwnedFd) -> (Kind, u64) {
    let request = Request::receive(agent.as_fd()).expect("a request").expect("no end");
    (request.kind, request.number)
}

#[test]
fn a_frozen_socket_is_thawed_before_its_release_even_if_both_must_wait_for_room() {
    let (mut client, agent) = pair();
    let socket = agent.try_clone().expect("a copy");
    let mut waiting = 0;
    while client.adopt(socket.as_fd()).is_ok() {
        waiting += 1;
    }
    client.release_frozen(7, socket);
    assert!(client.has_unsent());
    // Room for the first of the two, which is not asked for again.
    assert_eq!(request(&agent), (Kind::Adopt, 0));
    client.send_releases();
    assert!(client.has_unsent());
    for _ in 1..waiting {
        assert_eq!(request(&agent), (Kind::Adopt, 0));
    }
    client.send_releases();
    assert!(!client.has_unsent());
    assert_eq!([request(&agent), request(&agent)], [(Kind::Thaw, 7), (Kind::Release, 0)]);
}
