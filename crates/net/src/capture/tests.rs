//! Captures read back block by block, by other programs where there are any, and end quietly on a full disk.

use super::Capture;
use crate::clock::{Clock, Origin};
use brodo_core::link::{FRAME_MAX, Gso, TxFrame};
use brodo_core::time::Instant;
use std::io::IoSlice;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const HOUR_NS: u64 = 3_600_000_000_000;

/// A file of this test alone, removed with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        Self(std::env::temp_dir().join(format!("brodo-capture-{}-{test}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// Blocks of a file: type and body. Lengths are checked against each other.
fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut blocks = Vec::new();
    while !bytes.is_empty() {
        let total = word(bytes, 4) as usize;
        assert_eq!(total % 4, 0);
        assert_eq!(word(bytes, total - 4) as usize, total, "the length is repeated at the end");
        blocks.push((word(bytes, 0), bytes[8..total - 4].to_vec()));
        bytes = &bytes[total..];
    }
    blocks
}

#[test]
fn a_file_reads_back() {
    let file = Scratch::new("reads-back");
    // As after a suspend of eight hours, or with a wall clock that was set.
    let start = Clock::start();
    let unix_ns = start.origin().unix_ns - 8 * HOUR_NS;
    let clock = Clock::at(Origin { unix_ns, ..start.origin() });
    let mut capture = Capture::create(&file.0, "tap0", clock).expect("file");
    let sent: Vec<u8> = (0..61).collect();
    let now = Instant::from_ms(5);
    capture.outbound(now, &sent);
    assert_eq!(capture.flush_at(), Some(Instant::from_ms(1005)));
    let payload = [IoSlice::new(b"pay"), IoSlice::new(b"load")];
    let frame = TxFrame { headers: &sent[..54], payload: &payload, partial: None, gso: Gso::None };
    capture.inbound(Instant::from_ms(6), &frame);
    assert_eq!(capture.flush_at(), Some(Instant::from_ms(1005)), "counted from the first");
    capture.flush();
    assert_eq!(capture.flush_at(), None);
    let largest = vec![9; FRAME_MAX];
    capture.outbound(now, &largest);
    drop(capture);

    let blocks = blocks(&std::fs::read(&file.0).expect("file"));
    let kinds: Vec<_> = blocks.iter().map(|b| b.0).collect();
    assert_eq!(kinds, [0x0a0d_0d0a, 1, 6, 6, 6]);
    assert_eq!(word(&blocks[0].1, 0), 0x1a2b_3c4d);
    assert_eq!(word(&blocks[1].1, 0) as u16, 1, "Ethernet");
    assert_eq!(word(&blocks[1].1, 4) as usize, FRAME_MAX);
    let packets = [(2, &sent[..]), (1, &[&sent[..54], b"payload"].concat()), (2, &largest)];
    for ((_, body), (direction, data)) in blocks[2..].iter().zip(packets) {
        assert_eq!(word(body, 12) as usize, data.len());
        assert_eq!(word(body, 16) as usize, data.len());
        assert_eq!(&body[20..20 + data.len()], data);
        let options = 20 + data.len().next_multiple_of(4);
        assert_eq!(body[options..options + 4], [2u16.to_ne_bytes(), 4u16.to_ne_bytes()].concat());
        assert_eq!(word(body, options + 4), direction);
        assert_eq!(body.len(), options + 12);
    }
    let at = (u64::from(word(&blocks[2].1, 4)) << 32) | u64::from(word(&blocks[2].1, 8));
    let (wall, next) = (clock.date_ns(now), u64::from(word(&blocks[3].1, 8)));
    assert!(at.abs_diff(wall) < HOUR_NS, "{at} {wall}");
    assert_eq!(next.wrapping_sub(at) as u32, 1_000_000, "one base for all frames");
}

#[test]
fn other_programs_read_it() {
    let file = Scratch::new("others");
    let mut capture = Capture::create(&file.0, "tap0", Clock::start()).expect("file");
    // Who has 10.0.2.2?
    let arp = b"\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\x01\x08\x06\0\x01\x08\0\x06\x04\0\x01\x02\0\0\0\0\x01\
                \x0a\0\x02\x0f\0\0\0\0\0\0\x0a\0\x02\x02";
    capture.outbound(Instant::from_ms(1), arp);
    drop(capture);
    for (program, args) in [("tcpdump", ["-nr"]), ("tshark", ["-nr"])] {
        let run = Command::new(program).args(args).arg(&file.0).stderr(Stdio::piped()).output();
        let Ok(output) = run else { continue };
        let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("has 10.0.2.2"), "{program}: {text}");
    }
}

#[test]
fn a_full_disk_ends_the_capture_with_one_error() {
    let clock = Clock::start();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let error = Capture::new(full, "tap0", clock).expect_err("the headers do not fit");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    // Full later: a pipe without a reader.
    let (reader, writer) = rustix::pipe::pipe().expect("pipe");
    let mut capture = Capture::new(writer.into(), "tap0", clock).expect("headers");
    drop(reader);
    capture.outbound(Instant::ZERO, &[0; 60]);
    capture.flush();
    capture.outbound(Instant::ZERO, &[0; 60]);
    let error = capture.take_error().expect("noticed");
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    assert!(capture.take_error().is_none(), "once");
}

#[test]
fn several_workers_write_whole_blocks_to_one_file() {
    const WORKERS: u8 = 4;
    const FRAMES: u8 = 200;
    let file = Scratch::new("workers");
    let capture = Capture::create(&file.0, "tap0", Clock::start()).expect("file");
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let mut capture = capture.clone();
            scope.spawn(move || {
                for number in 0..FRAMES {
                    let frame = [&[worker, number][..], &[worker; 3000]].concat();
                    capture.outbound(Instant::from_ms(number.into()), &frame);
                }
                // Due for the writers.
                assert_eq!(capture.flush_at(), Some(Instant::from_ms(1000)));
                capture.flush();
            });
        }
    });
    assert_eq!(capture.flush_at(), None);
    drop(capture);
    let mut next = [0; WORKERS as usize];
    for (_, body) in &blocks(&std::fs::read(&file.0).expect("file"))[2..] {
        let (worker, number) = (body[20], body[21]);
        assert_eq!(number, next[usize::from(worker)], "the frames of a worker are in order");
        assert!(body[22..3022].iter().all(|&byte| byte == worker), "blocks of others are not inside");
        next[usize::from(worker)] += 1;
    }
    assert_eq!(next, [FRAMES; WORKERS as usize]);
}

/// Whole blocks alone reach the file, at any time: a process that crashes leaves the rest in its buffer, and
/// the next one writes behind what is there.
#[test]
fn the_file_ends_with_a_block_whenever_the_process_does() {
    let file = Scratch::new("whole");
    let open = std::fs::File::create(&file.0).expect("file");
    let mut capture = Capture::new(open, "tap0", Clock::start()).expect("headers");
    for len in (1_u32..400).map(|n| n as usize * 7919 % 9000 + 1) {
        capture.outbound(Instant::from_ms(5), &vec![1; len]);
        // It would not be readable otherwise.
        blocks(&std::fs::read(&file.0).expect("file"));
    }
    let written = std::fs::metadata(&file.0).expect("file").len();
    assert!(written > 256 << 10, "{written} bytes: the buffer was written");
}

/// Another handle of the same open file goes on behind the last block, without a second header.
#[test]
fn a_capture_goes_on_in_another_process() {
    let file = Scratch::new("goes-on");
    let (clock, now) = (Clock::start(), Instant::from_ms(5));
    let open = std::fs::File::create(&file.0).expect("file");
    let mut first = Capture::new(open.try_clone().expect("dup"), "tap0", clock).expect("headers");
    first.outbound(now, &[1; 60]);
    first.flush();
    let mut second = Capture::resume(open, clock);
    let (frames, bytes) = first.counts();
    second.set_counts(frames, bytes);
    second.outbound(now, &[2; 70]);
    assert_eq!(second.counts(), (2, 130));
    drop((first, second));
    let kinds: Vec<u32> =
        blocks(&std::fs::read(&file.0).expect("file")).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [super::SECTION_HEADER, super::INTERFACE_DESCRIPTION, 6, 6]);
}
