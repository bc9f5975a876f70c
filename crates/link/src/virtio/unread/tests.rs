//! Parts of frames: read and sent from where they are.
use super::*;
use crate::virtio::driver::{mapped, memfd};
use crate::virtio::memory::RegionPlace;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

const SIZE: usize = 1 << 20;

/// Memory with a pattern, and the pattern.
fn memory() -> (Arc<GuestMemory>, Vec<u8>) {
    let memory = mapped(&memfd(SIZE as u64), RegionPlace { guest: 0, size: SIZE as u64, user: 0, offset: 0 });
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at * 13 + at / 253) as u8).collect();
    memory.guest(0, SIZE).expect("all of it").write(&bytes);
    (Arc::new(memory), bytes)
}

/// Frames in buffers of 1000 bytes with a gap of 24 behind each; the frames, and their bytes.
fn noted(
    memory: &Arc<GuestMemory>,
    bytes: &[u8],
    counts: &[usize],
) -> (UnreadFrames, Vec<(Unread, Vec<u8>)>) {
    let (frames, mut at) = (UnreadFrames::default(), 0);
    let mut all = Vec::new();
    for count in counts {
        let spans: Vec<_> =
            (at..at + count).map(|n| Span { address: n as u64 * 1024, len: 1000, writable: false }).collect();
        let whole: Vec<u8> = (at..at + count).flat_map(|n| bytes[n * 1024..][..1000].to_vec()).collect();
        at += count;
        all.push((frames.add(memory, &spans, 300), whole[300..].to_vec()));
    }
    (frames, all)
}

#[test]
fn every_part_of_every_frame_is_its_own() {
    let (memory, bytes) = memory();
    let (frames, noted) = noted(&memory, &bytes, &[1, 3, 7]);
    for (unread, whole) in &noted {
        assert_eq!(unread.len as usize, whole.len());
        for (start, len) in [(0, whole.len()), (0, 1), (699, 2), (650, 100), (whole.len() - 1, 1)] {
            let part = unread.skip(start).first(len);
            let expected = &whole[start.min(whole.len())..][..part.len as usize];
            let mut read = vec![0; len];
            assert_eq!(frames.read(part, &mut read), expected.len());
            assert_eq!(&read[..expected.len()], expected);
        }
    }
    let beyond = Unread { frame: 3, start: 0, len: 10 };
    let behind = Unread { frame: 0, start: 700, len: 10 };
    for nothing in [beyond, behind, Unread { frame: u32::MAX, start: u32::MAX, len: u32::MAX }] {
        assert_eq!(frames.read(nothing, &mut [0; 10]), 0);
    }
    assert_eq!(
        frames.read(Unread { len: u32::MAX, ..noted[0].0 }, &mut [0; 2000]),
        700,
        "and no other frame's"
    );
}

#[test]
fn pieces_are_sent_in_order_as_far_as_there_is_room() {
    let (memory, bytes) = memory();
    // More vectors than one call has.
    let (frames, noted) = noted(&memory, &bytes, &[200, 1, 300]);
    let heads: Vec<Vec<u8>> = (0..3).map(|n| vec![n; 200]).collect();
    let pieces: Vec<_> =
        heads.iter().zip(&noted).map(|(bytes, (unread, _))| Piece { bytes, unread: *unread }).collect();
    let expected: Vec<u8> =
        heads.iter().zip(&noted).flat_map(|(head, (_, rest))| [&head[..], rest].concat()).collect();
    let (near, mut far) = UnixStream::pair().expect("a pair");
    near.set_nonblocking(true).expect("set");
    let (mut sent, mut received) = (0, Vec::new());
    loop {
        // The rest of the pieces, as the stack would offer it.
        let mut skip = sent;
        let rest: Vec<_> = pieces
            .iter()
            .map(|piece| {
                let skipped = skip.min(piece.len());
                skip -= skipped;
                piece.skip(skipped)
            })
            .filter(|piece| !piece.is_empty())
            .collect();
        if rest.is_empty() {
            break;
        }
        match frames.send(near.as_fd(), &rest) {
            Ok(taken) => sent += taken,
            Err(Errno::AGAIN) => {
                let mut some = vec![0; 10_001];
                let read = far.read(&mut some).expect("there is something");
                received.extend_from_slice(&some[..read]);
            }
            Err(error) => panic!("{error}"),
        }
    }
    drop(near);
    far.read_to_end(&mut received).expect("the rest");
    assert!(received == expected, "{} of {} bytes", received.len(), expected.len());
}

#[test]
fn a_failure_is_reported_if_nothing_was_sent() {
    let (memory, bytes) = memory();
    let (frames, noted) = noted(&memory, &bytes, &[2]);
    let (near, far) = UnixStream::pair().expect("a pair");
    drop(far);
    let piece = Piece { bytes: b"head", unread: noted[0].0 };
    assert_eq!(frames.send(near.as_fd(), &[piece]), Err(Errno::PIPE), "and no signal");
    assert_eq!(frames.send(near.as_fd(), &[]), Ok(0));
}
