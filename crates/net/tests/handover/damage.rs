//! Damaged hand-overs: without whole bytes, or with descriptors of other types. A part of the flows is reset,
//! or nothing is restored and the old network goes on; nothing panics.

use crate::guest::{Guest, Script};
use crate::link::SharedLink;
use crate::{GUEST_ECHO, Settings, host, turn};
use brodo_core::snapshot::{Record, Records};
use brodo_net::{Handover, NetworkError, TakenOver, Takeover, channel};
use brodo_testns::in_namespace;
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;
use smoltcp::socket::tcp::State;
use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::thread;

/// Damaged hand-overs that are tried.
const TRIES: u64 = 600;

/// SplitMix64, for a reproducible series.
struct Series(u64);

impl Series {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound.max(1) as u64) as usize
    }

    fn edit(&mut self, bytes: &mut [u8]) {
        let at = self.below(bytes.len());
        if let Some(byte) = bytes.get_mut(at) {
            *byte = if self.below(2) == 0 {
                [0, 1, 2, 0x7f, 0x80, 0xff][self.below(6)]
            } else {
                *byte ^ 1 << self.below(8)
            };
        }
    }
}

/// The records with some of their contents edited, those of the stack among them; the first and the last, and
/// so the number of them, stay.
fn edited(bytes: &[u8], series: &mut Series) -> Vec<u8> {
    let mut out = Vec::new();
    let count = Records::new(bytes).count();
    for (number, record) in Records::new(bytes).enumerate() {
        let mut content = record.bytes.to_vec();
        if number > 0 && number + 1 < count && series.below(3) == 0 {
            for _ in 0..=series.below(8) {
                series.edit(&mut content);
            }
        }
        Record { bytes: &content, ..record }.write(&mut out);
    }
    out
}

fn duplicate(bytes: Vec<u8>, of: &Takeover) -> Takeover {
    let descriptors = of.descriptors.iter().map(AsFd::as_fd).collect::<Vec<_>>();
    let descriptors = descriptors.iter().map(|fd| fd.try_clone_to_owned().expect("dup")).collect();
    Takeover { bytes, descriptors, ..Takeover::default() }
}

/// Edits of a hand-over in full flow, each restored and run for some turns.
pub(crate) fn of_every_kind(settings: &Settings, whole: &Takeover) {
    let (mut refused, mut lost) = (0, 0);
    for seed in 0..TRIES {
        let mut series = Series(seed);
        let mut damaged = duplicate(edited(&whole.bytes, &mut series), whole);
        for _ in 0..series.below(4) {
            let (one, other) = (series.below(whole.descriptors.len()), series.below(whole.descriptors.len()));
            damaged.descriptors.swap(one, other);
        }
        if series.below(4) == 0 {
            damaged.descriptors.truncate(series.below(whole.descriptors.len()));
        }
        match settings.builder().restore(damaged) {
            Ok(restored) => {
                lost += restored.lost;
                let mut network = restored.network;
                for _ in 0..3 {
                    let _ = network.turn().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                }
                // The network that has come of it is whole.
                let again = network.save().duplicate().expect("descriptors");
                let TakenOver { lost, unused, .. } = settings.builder().restore(again).expect("whole");
                assert_eq!((lost, unused), (0, 0), "seed {seed}");
            }
            // A listening socket was lost, and its port is still bound.
            Err(NetworkError::Restore(_) | NetworkError::Forward(_)) => refused += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(refused > 0 && lost > 0, "{refused} were refused, {lost} flows lost");
}

/// A stream and a UDP socket in each other's place: both flows end, the stream with a reset at both of its
/// ends, and the other connection goes on.
#[test]
fn a_descriptor_of_another_type_costs_its_flow_alone() {
    in_namespace("damage::a_descriptor_of_another_type_costs_its_flow_alone", || {
        let (link, end) = channel::pair(channel::Options::default()).expect("eventfd");
        let settings = Settings { link: SharedLink::new(link), forwards: Vec::new(), broker: None };
        let mut network = settings.builder().build().expect("network");
        let mut guest = Guest::new(end, GUEST_ECHO);
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("address").port();
        let script =
            Script { port, listens: false, stream: 5, sends: 300_000, expects: 200_000, stalls: false };
        for _ in 0..2 {
            guest.begin(script);
        }
        guest.converse(host::echo(), 1);
        while guest.in_state(State::Established).len() < 2 {
            guest.poll();
            turn(&mut network);
        }
        let streams = [0, 1].map(|_| listener.accept().expect("accept").0);
        while network.workers()[0].stack().flows() < 3 {
            guest.turn();
            turn(&mut network);
        }

        let handover: Handover<'_> = network.save();
        let is_stream = |fd: &_| socket_type(fd) == Ok(SocketType::STREAM);
        let stream = handover.descriptors.iter().position(is_stream).expect("a stream");
        let udp = handover.descriptors.iter().position(|fd| !is_stream(fd)).expect("a UDP socket");
        let mut takeover = handover.duplicate().expect("descriptors");
        takeover.descriptors.swap(stream, udp);
        let cut =
            Takeover { bytes: takeover.bytes[..takeover.bytes.len() - 1].to_vec(), ..Takeover::default() };
        assert!(settings.builder().restore(cut).is_err(), "it is not whole");
        turn(&mut network);

        let restored = settings.builder().restore(takeover).expect("most of it");
        drop(network);
        let TakenOver { network: mut other, lost, unclaimed, .. } = restored;
        assert_eq!((lost, unclaimed), (2, 2));
        let reset = loop {
            guest.poll();
            turn(&mut other);
            if let Some(&reset) = guest.in_state(State::Closed).first() {
                break reset;
            }
        };
        guest.give_up(reset);
        let hosts = streams.map(|stream| {
            thread::spawn(move || {
                let mut first = stream.try_clone().expect("dup");
                let broken =
                    matches!(first.read(&mut []), Err(error) if error.kind() == ErrorKind::ConnectionReset);
                let broken = broken || stream.take_error().expect("open").is_some();
                if !broken {
                    host::both(&stream, script);
                }
                broken
            })
        });
        while !hosts.iter().all(thread::JoinHandle::is_finished) {
            guest.turn();
            turn(&mut other);
        }
        let broken = hosts.map(|host| host.join().expect("content"));
        assert_eq!(broken.iter().filter(|&&broken| broken).count(), 1, "one was reset, the other not");
    });
}
