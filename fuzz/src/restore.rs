//! Snapshots: any bytes as records, a stack from them, and a conversation with that stack.
//!
//! The bytes are restored as they are; with a frame made right (first and last record, keys), without
//! which nothing at all would be restored; and as edits of a snapshot of everything, which leave its
//! records as they lie. A stack that comes of it is spoken to ([`crate::restored`]); at last it is saved and
//! restored again, which must give the same snapshot.

use crate::restored::{AnyHost, NOW, Play, settings, under_policy};
use brodo_core::policy::Effect;
use brodo_core::snapshot::{Record, Records, RestoreError, Tag};
use brodo_core::stack::{Omitted, Restored, Stack};
use brodo_core::time::Instant;
use brodo_sim::samples;
use std::sync::OnceLock;

/// Most edits of one input: more would leave nothing that is valid.
const EDITS_MAX: u8 = 6;

/// Checks the bytes as they are, with their frame made right, and as edits.
pub fn run(data: &[u8]) {
    converse(data);
    converse(&framed(data));
    converse(&edited(data));
}

/// Snapshots of all samples, one after another, and of flows behind gates.
fn everything() -> &'static [Vec<u8>; 2] {
    static BYTES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut script = samples::script(under_policy(Effect::Allow));
        for (_, play) in samples::SAMPLES {
            play(&mut script);
        }
        let mut gated = samples::script(under_policy(Effect::Deny));
        samples::gated(&mut gated);
        [samples::snapshot(&script).bytes, samples::snapshot(&gated).bytes]
    })
}

/// A snapshot of everything with edits: its index and their number, then for each four bytes: record, place
/// in it, kind, value.
fn edited(data: &[u8]) -> Vec<u8> {
    let Some((&count, edits)) = data.split_first() else { return Vec::new() };
    let [samples, gated] = everything();
    let base = if count < 0x80 { samples } else { gated };
    let mut records: Vec<(u16, Vec<u8>)> =
        Records::new(base).map(|record| (record.tag, record.bytes.to_vec())).collect();
    for edit in edits.chunks_exact(4).take(1 + usize::from(count % EDITS_MAX)) {
        let &[record, place, kind, value] = edit else { break };
        let count = records.len();
        let (_, bytes) = &mut records[usize::from(record) % count];
        if bytes.is_empty() {
            continue;
        }
        // Long records have their payload at the end.
        let at = usize::from(place) * (1 + bytes.len() / 400) % bytes.len();
        match kind % 8 {
            0..4 => bytes[at] = value,
            4 => bytes[at] ^= 1 << (value % 8),
            5 => bytes.insert(at, value),
            6 => _ = bytes.remove(at),
            // The largest number of 32 bits.
            _ => _ = bytes.splice(at..=at, [0xff, 0xff, 0xff, 0xff, 0x0f]),
        }
    }
    let mut out = Vec::new();
    for (tag, bytes) in &records {
        Record { tag: *tag, version: 1, bytes }.write(&mut out);
    }
    framed(&out)
}

/// The records of `data` between a first and a last record that are right, and with keys.
fn framed(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut count = 2u32;
    let put = |out: &mut Vec<u8>, tag: Tag, bytes: &[u8]| {
        Record { tag: tag as u16, version: 1, bytes }.write(out);
    };
    put(&mut out, Tag::Begin, b"brodo\0");
    put(&mut out, Tag::Keys, &[0; 49]);
    for record in Records::new(data) {
        if ![Tag::Begin, Tag::Keys, Tag::End].iter().any(|&tag| record.tag == tag as u16) {
            record.write(&mut out);
            count += 1;
        }
    }
    // A varint of postcard's: seven bits in each byte.
    let mut end = Vec::new();
    while count >= 0x80 {
        end.push(count as u8 | 0x80);
        count >>= 7;
    }
    end.push(count as u8);
    put(&mut out, Tag::End, &end);
    out
}

/// Restores a stack and talks to it.
fn converse(data: &[u8]) {
    let restored = restore(data, NOW, &mut AnyHost::new(data.len() as u64));
    let Ok(Restored { stack, lost, .. }) = restored else { return };
    let mut play = Play::new(stack, data.len() as u64);
    play.converse(&lost);
    check_again(&mut play);
}

fn restore(data: &[u8], now: Instant, host: &mut AnyHost) -> Result<Restored, RestoreError> {
    Stack::restore(settings(under_policy(Effect::Allow), None), now, data, host)
}

/// A second snapshot is restored without loss, and a third is equal to it.
fn check_again(play: &mut Play) {
    let (bytes, omitted) = save(&play.stack, play.now);
    if omitted != Omitted::default() {
        return;
    }
    let again = restore(&bytes, play.now, &mut play.host).expect("a snapshot of a restored stack");
    assert_eq!((again.lost.len(), again.unused), (0, 0), "lost of a restored stack: {:?}", again.lost);
    assert!(save(&again.stack, play.now).0 == bytes, "a snapshot changes by being restored");
}

/// A snapshot with a new index for each socket.
fn save(stack: &Stack, now: Instant) -> (Vec<u8>, Omitted) {
    let (mut bytes, mut sockets) = (Vec::new(), 0);
    let index_of = |_, _| {
        sockets += 1;
        sockets
    };
    let omitted = stack.save(now, index_of, |record| record.write(&mut bytes));
    (bytes, omitted)
}
