//! Journals: any words as records, a stack recovered from them, and a conversation with that stack
//! ([`crate::restored`]). A process that was taken over may have left any of them.
//!
//! The words are taken as they are, and as edits of the journal of all samples, which leave most of a record
//! valid. The kernel's counters, which cannot be forged, are drawn: most often those that fit the record. So
//! are the records of chunks in payload memory, around the places where the records of flows want bytes.

use crate::restored::{AnyHost, NOW, Play, config, settings};
use brodo_core::carried::Resumed;
use brodo_core::flow::info::{Carrier, Initiator};
use brodo_core::flow::{FlowId, FlowKey};
use brodo_core::host::SocketId;
use brodo_core::journal::carried::{CarriedRecord, PeerRecord};
use brodo_core::journal::promoted::{CarriedOn, PromotedRecord};
use brodo_core::journal::{Progress, Remains, SLOT_WORDS, Slot};
use brodo_core::memory::payload::{ChunkRecord, LARGE, PayloadLayout, PayloadMemory, SMALL};
use brodo_core::stack::{Adopt, Keys, Recover, Restored, SocketKind, Stack};
use brodo_sim::rng::Rng;
use brodo_sim::samples;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Words of one record.
type Words = [u64; SLOT_WORDS];

/// Bytes of one edit: slot, word, bit from which on, value.
const EDIT_LEN: usize = 4;
/// Most edits of one input.
const EDITS_MAX: usize = 8;
/// Chunks of each size with a record, at most.
const CHUNKS_MAX: u64 = 100;

/// Words with the advertised acknowledgement, with SND.UNA and with both first sequence numbers
/// ([`brodo_core::journal`]); in the upper half what is of our stream, but for the first.
const ADVERTISED: usize = 1;
const ACKNOWLEDGED: usize = 2;
const SOCKET: usize = 3;
const BEGIN: usize = 4;

/// Checks the bytes as words, and as edits.
pub fn run(data: &[u8]) {
    let words: Vec<Words> = data.chunks_exact(size_of::<Words>()).map(words_of).collect();
    converse(&words, data.len() as u64);
    converse(&edited(data), data.len() as u64);
}

fn words_of(bytes: &[u8]) -> Words {
    let mut words = Words::default();
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

fn slots(count: usize) -> Vec<Slot> {
    (0..count).map(|_| Slot::default()).collect()
}

/// The journal of all samples, played one after another.
pub fn everything() -> &'static [Words] {
    static WORDS: OnceLock<Vec<Words>> = OnceLock::new();
    WORDS.get_or_init(|| {
        let slots: &'static [Slot] = Box::leak(slots(config().max_flows + 2).into());
        let mut script = samples::script(config());
        script.driver.stack.set_journal(slots);
        for (_, play) in samples::SAMPLES {
            play(&mut script);
        }
        let words = |slot: &Slot| slot.each_ref().map(|word| word.load(Ordering::Relaxed));
        slots.iter().map(words).filter(|words| words.iter().any(|&word| word != 0)).collect()
    })
}

/// The journal of everything with edits.
fn edited(data: &[u8]) -> Vec<Words> {
    let mut all = everything().to_vec();
    for edit in data.as_chunks::<EDIT_LEN>().0.iter().take(EDITS_MAX) {
        let [slot, word, shift, value] = edit.map(usize::from);
        let count = all.len();
        let word = &mut all[slot % count][word % SLOT_WORDS];
        *word ^= (value as u64) << (shift % 64);
    }
    all
}

/// Recovers a stack and talks to it.
fn converse(words: &[Words], seed: u64) {
    let slots = slots(words.len());
    for (slot, words) in slots.iter().zip(words) {
        for (to, word) in slot.iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
    }
    let remains = Remains::take(&slots);
    assert!(Remains::take(&slots).flows() == 0, "the memory is not cleared");
    let mut kernel = AnyKernel { words, host: AnyHost::new(seed), rng: Rng::new(seed) };
    let payload = PAYLOAD.take().unwrap_or_else(Payload::new);
    payload.fill(words, &mut kernel.rng);
    let Payload { records, memory } = payload;
    let settings = settings(config(), memory);
    let keys = Keys { table: [1; 16], isn: [2; 16], dns: [3; 16] };
    let Restored { stack, lost, .. } = Stack::recover(settings, keys, NOW, &remains, &mut kernel);
    let mut play = Play::new(stack, seed);
    play.converse(&lost);
    PAYLOAD.set(Some(Payload { records, memory: play.stack.take_payload_memory() }));
}

thread_local! {
    /// Payload memory of the run before, which is never given back.
    static PAYLOAD: Cell<Option<Payload>> = const { Cell::new(None) };
}

/// Payload memory and all of its records.
struct Payload {
    records: &'static [ChunkRecord],
    memory: Option<PayloadMemory>,
}

impl Payload {
    fn new() -> Self {
        let layout = PayloadLayout::of(config().memory);
        let records: &'static [ChunkRecord] =
            (0..layout.records()).map(|_| ChunkRecord::default()).collect::<Vec<_>>().leak();
        Self { records, memory: PayloadMemory::new(layout, vec![0; layout.bytes()].leak(), records) }
    }

    /// Writes records of some chunks of both sizes.
    fn fill(&self, words: &[Words], rng: &mut Rng) {
        let (large, small) = self.records.split_at(1 + config().memory / LARGE);
        for (records, size) in [(large, LARGE), (small, SMALL)] {
            let Some((made, records)) = records.split_first() else { continue };
            let count = rng.below(CHUNKS_MAX);
            let claimed = if rng.chance(50) { u64::MAX } else { count };
            made[0].store(claimed, Ordering::Relaxed);
            for record in records.iter().take(count as usize) {
                let drawn = chunk_record(words, size as u64, rng);
                record.iter().zip(drawn).for_each(|(word, drawn)| word.store(drawn, Ordering::Relaxed));
            }
        }
    }
}

/// Record of a chunk of `size` bytes ([`brodo_core::memory::payload`]): a flow, flags and the sequence number
/// of the first place, the places in use.
fn chunk_record(words: &[Words], size: u64, rng: &mut Rng) -> [u64; 3] {
    let (index, record) = match words.len() as u64 {
        0 => (0, Words::default()),
        count => {
            let index = rng.below(count);
            (index, words[index as usize])
        }
    };
    let to_guest = rng.below(2);
    let wanted = if to_guest == 1 { record[ACKNOWLEDGED] >> 32 } else { record[BEGIN] & u64::from(u32::MAX) };
    let seq = (wanted as u32).wrapping_add(rng.below(3000) as u32).wrapping_sub(1500);
    let (start, end) = (rng.below(size + 2), rng.below(size + 2));
    let flow = index << 32 | record[0] >> 32;
    [flow, u64::from(seq) | 1 << 32 | to_guest << 33, start.min(end) << 32 | start.max(end)]
}

/// Sockets whose kernel has counted what fits the records, or something else.
struct AnyKernel<'a> {
    words: &'a [Words],
    host: AnyHost,
    rng: Rng,
}

impl Adopt for AnyKernel<'_> {
    fn socket(&mut self, flow: FlowId, index: u32, kind: SocketKind) -> Option<SocketId> {
        self.host.socket(flow, index, kind)
    }

    fn carrier(&mut self, flow: FlowId, carrier: Carrier, number: u32) -> Option<u32> {
        self.host.carrier(flow, carrier, number)
    }
}

impl Recover for AnyKernel<'_> {
    fn progress(&mut self, index: u32, _: bool, _: u32) -> Option<Progress> {
        if self.rng.chance(30) {
            return None;
        }
        let upper = |word: u64| (word >> 32) as u32;
        let record = self.words.iter().find(|words| upper(words[SOCKET]) == index.wrapping_add(1))?;
        let written = upper(record[ADVERTISED]).wrapping_sub(record[BEGIN] as u32);
        let read = upper(record[ACKNOWLEDGED]).wrapping_sub(upper(record[BEGIN]));
        // Further than the guest knows, often; sometimes as far as a kernel can count.
        let mut further = |bytes: u32| match self.rng.below(8) {
            0..4 => u64::from(bytes),
            4..7 => u64::from(bytes) + self.rng.below(70_000),
            _ => self.rng.below(u64::MAX),
        };
        let (written, read) = (further(written), further(read));
        Some(Progress { written, read, shut: self.rng.chance(300), peer_closed: self.rng.chance(300) })
    }

    fn stream(&mut self, flow: FlowId, index: u32, _: bool) -> Option<SocketId> {
        self.host.socket(flow, index, SocketKind::Stream)
    }

    fn carried(&mut self, flow: FlowId, record: &CarriedRecord) -> Option<Resumed> {
        let (carrier, moved) = match record {
            CarriedRecord::Splice(_) => (Carrier::Splice, Some([self.rng.below(u64::MAX), 7])),
            CarriedRecord::Relay(_) => (Carrier::Relay, None),
        };
        Some(Resumed { number: self.host.carrier(flow, carrier, 7)?, moved })
    }

    fn promoted(
        &mut self,
        _: FlowId,
        _: &FlowKey,
        _: Initiator,
        record: &PromotedRecord,
    ) -> Option<CarriedOn> {
        // Of some nothing has moved since they left, as the progress of their host sockets often says.
        let mut few = || if self.rng.chance(500) { 0 } else { self.rng.below(70_000) };
        let (read, written, held) = (few(), few(), [few(), few()]);
        let (guest_closed, shut) = (self.rng.chance(300), self.rng.chance(300));
        Some(CarriedOn { read, written, held, guest_closed, shut }).filter(|_| record.kernel != 0)
    }

    fn published(&mut self, flow: FlowId, record: &PeerRecord) -> Option<SocketId> {
        self.host.socket(flow, record.listener, SocketKind::PublishedUdp)
    }
}
