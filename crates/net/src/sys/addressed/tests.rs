//! An answer leaves from the address that was asked, in both families, one by one and in segments.

use super::*;
use crate::sys::set_socket_option;
use std::net::UdpSocket;
use std::os::fd::AsFd;

#[test]
fn answers_leave_from_the_address_that_was_asked() {
    for (any, asked) in [("0.0.0.0:0", "127.0.0.7"), ("[::]:0", "::1")] {
        let socket = UdpSocket::bind(any).expect("bind");
        let (level, option) = match socket.local_addr().expect("address") {
            SocketAddr::V4(_) => (libc::SOL_IP, libc::IP_PKTINFO),
            SocketAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_RECVPKTINFO),
        };
        set_socket_option(socket.as_fd(), level, option, 1).expect("option");
        let asked =
            SocketAddr::new(asked.parse().expect("address"), socket.local_addr().expect("address").port());
        let client = UdpSocket::bind(SocketAddr::new(asked.ip(), 0)).expect("bind");
        client.send_to(b"question", asked).expect("send");

        let mut buffer = [0; 100];
        let mut got = None;
        let count =
            recv_addressed(socket.as_fd(), &mut [IoSliceMut::new(&mut buffer)], |_, len, from, control| {
                got = Some((len, from, sent_to(control)));
            });
        let (len, from, to) = got.expect("one came");
        assert_eq!((count, len, from), (Ok(1), 8, client.local_addr().ok()));
        let to = to.expect("it says where to");
        assert_eq!(to.address, asked.ip());

        let peer = from.expect("an address");
        let answer = [IoSlice::new(b"aabb"), IoSlice::new(b"c")];
        let source = Some(Source { interface: 0, ..to });
        let fields = IpHeaderFields { tos: 0x28, ttl: std::num::NonZeroU8::new(9), dont_fragment: false };
        assert_eq!(
            send_addressed(socket.as_fd(), &answer, peer, source, Some(2), IpHeaderFields::default()),
            Ok(5)
        );
        for expected in [&b"aa"[..], b"bb", b"c"] {
            let (len, from) = client.recv_from(&mut buffer).expect("answer");
            assert_eq!((&buffer[..len], from), (expected, asked));
        }
        assert_eq!(send_addressed(socket.as_fd(), &answer, peer, source, None, fields), Ok(5));
        assert_eq!(client.recv_from(&mut buffer).expect("answer"), (5, asked));
    }
}
