//! Kernel behaviour that a path through two TUNs relies on: whole super-packets, equally readable and
//! writable.

use super::create;
use crate::vnet::{self, HEADER_LEN};
use brodo_core::link::Gso;
use brodo_testns::{in_namespace_with_tun, ip};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Carries packets from one TUN to the other, both ways, until none has come for a while; returns the longest
/// packet and whether any was a super-packet.
fn carry(a: &OwnedFd, b: &OwnedFd) -> (usize, bool) {
    let mut buffer = vec![0; 70_000];
    let (mut longest, mut cut_later) = (0, false);
    let quiet = Timespec::try_from(Duration::from_millis(300)).expect("in range");
    loop {
        let mut polled = [PollFd::new(a, PollFlags::IN), PollFd::new(b, PollFlags::IN)];
        if poll(&mut polled, Some(&quiet)).expect("poll") == 0 {
            return (longest, cut_later);
        }
        for (from, to) in [(a, b), (b, a)] {
            while let Ok(len) = rustix::io::read(from, &mut buffer[..]) {
                let header = buffer[..HEADER_LEN].try_into().expect("a header");
                cut_later |= matches!(vnet::parse(header).gso, Gso::Tcp4(_));
                longest = longest.max(len - HEADER_LEN);
                assert_eq!(rustix::io::write(to, &buffer[..len]).expect("taken whole"), len);
            }
        }
    }
}

#[test]
fn super_packets_pass_from_one_tun_to_another() {
    in_namespace_with_tun("tun::tests::super_packets_pass_from_one_tun_to_another", || {
        let (a, b) = (create("tun0", true).expect("TUN"), create("tun1", true).expect("TUN"));
        for (device, own) in [("tun0", "10.9.0.1"), ("tun1", "10.9.1.1")] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1").expect("IPv4 only");
            // Both ends are in one namespace: let the kernel take packets from its own addresses off a wire.
            for parameter in ["accept_local", "route_localnet"] {
                let path = format!("/proc/sys/net/ipv4/conf/{device}/{parameter}");
                std::fs::write(path, "1").expect("a sysctl");
            }
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), "0").expect("a sysctl");
            ip(&format!("addr add {own}/24 dev {device}"));
            ip(&format!("link set {device} up"));
        }
        let listener = TcpListener::bind("10.9.1.1:7000").expect("listener");
        // A connection between two of the host's own addresses leaves through one TUN and comes back through
        // the other only if they are looked up as local last, except for what has come in.
        ip("rule add pref 5 iif tun0 lookup local");
        ip("rule add pref 6 iif tun1 lookup local");
        ip("rule add pref 7 to 10.9.1.1 lookup 100");
        ip("rule add pref 8 to 10.9.0.1 lookup 101");
        ip("route add default dev tun0 table 100");
        ip("route add default dev tun1 table 101");
        ip("rule del pref 0");
        ip("rule add pref 9 lookup local");
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect("10.9.1.1:7000").expect("connects through both");
            stream.write_all(&vec![7; 4 << 20]).expect("sent");
        });
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            std::io::copy(&mut stream, &mut std::io::sink()).expect("received")
        });
        let (longest, cut_later) = carry(&a, &b);
        client.join().expect("client");
        assert_eq!(server.join().expect("server"), 4 << 20);
        assert!(longest > 1500 && cut_later, "only {longest} bytes at a time");
    });
}
