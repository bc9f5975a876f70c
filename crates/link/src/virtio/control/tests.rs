//! Commands by a driver, right and wrong ones.

use super::*;
use crate::virtio::driver::{DriverRing, Shape, mapped, memfd};
use crate::virtio::memory::RegionPlace;
use crate::virtio::ring::Filled;

const SHAPE: Shape = Shape { size: 16, slot: 4096, piece: None, event_index: false };
/// Where the buffers of a command are.
const COMMAND: u64 = 0x8000;
const ANSWER: u64 = 0x9000;

/// The command by which a driver sets the number of pairs to two.
pub(in crate::virtio) const USE_TWO_PAIRS: [u8; 4] = [4, 0, 2, 0];

struct Bed {
    memory: GuestMemory,
    driver: DriverRing,
    queue: ControlQueue,
    sent: u16,
}

fn bed() -> Bed {
    let place = RegionPlace { guest: 0, size: 1 << 20, user: 0, offset: 0 };
    let memory = mapped(&memfd(place.size), place);
    let driver = DriverRing::new(SHAPE, 0, 0);
    let ring = Ring::start(driver.layout(), Filled::Both, &memory).expect("a ring");
    Bed { memory, driver, queue: ControlQueue::new(ring, 4), sent: 0 }
}

impl Bed {
    /// Descriptor number `index`.
    fn describe(&self, index: u64, address: u64, len: usize, flags: u16) {
        let next = index as u16 + 1;
        let bytes = [
            &address.to_le_bytes()[..],
            &(len as u32).to_le_bytes(),
            &flags.to_le_bytes(),
            &next.to_le_bytes(),
        ];
        let place = self.driver.descriptors() + 16 * index;
        self.memory.user(place, 16).expect("the table").write(&bytes.concat());
    }

    /// Offers a chain from descriptor 0 on.
    fn offer(&mut self) {
        let available = self.driver.available_area();
        let entry = available + 4 + 2 * u64::from(self.sent % SHAPE.size);
        self.memory.user(entry, 2).expect("an entry").write(&[0, 0]);
        self.sent += 1;
        self.memory.user(available + 2, 2).expect("the index").write(&self.sent.to_le_bytes());
    }

    /// A command in pieces, as Linux sends it: class and command, number, answer.
    fn command(&mut self, pieces: &[&[u8]]) -> Result<(Option<u16>, u8), RingError> {
        let mut address = COMMAND;
        for (index, piece) in (0..).zip(pieces) {
            self.memory.user(address, piece.len()).expect("a buffer").write(piece);
            self.describe(index, address, piece.len(), 1);
            address += piece.len() as u64;
        }
        self.memory.user(ANSWER, 1).expect("a buffer").write(&[0xff]);
        self.describe(pieces.len() as u64, ANSWER, 1, 2);
        self.offer();
        assert!(self.queue.ring_mut().has_chains(&self.memory)?);
        let pairs = self.queue.serve(&self.memory)?;
        let answer: [u8; 1] = self.memory.user(ANSWER, 1).expect("a buffer").structure(0);
        assert!(self.queue.ring_mut().needs_call(&self.memory)?, "the driver waits");
        Ok((pairs, answer[0]))
    }
}

#[test]
fn the_driver_sets_the_number_of_pairs() {
    let mut bed = bed();
    assert_eq!(bed.command(&[&[4, 0], &[3, 0]]), Ok((Some(3), 0)));
    assert_eq!(bed.command(&[&[4, 0, 1, 0]]), Ok((Some(1), 0)));
    assert_eq!(bed.command(&[&[3, 0]]), Ok((None, 0)), "an announcement is acknowledged");
    for wrong in [&[4, 0, 0, 0][..], &[4, 0, 5, 0], &[4, 0, 1], &[4, 1, 1, 0], &[0, 0, 1], &[9]] {
        assert_eq!(bed.command(&[wrong]), Ok((None, 1)), "{wrong:?}");
    }
    assert_eq!(bed.queue.serve(&bed.memory), Ok(None));
    assert!(!bed.queue.ring_mut().arm(&bed.memory, 1).expect("sound"));
}

#[test]
fn a_command_without_room_for_an_answer_is_used_up() {
    let mut bed = bed();
    bed.memory.user(COMMAND, 4).expect("a buffer").write(&USE_TWO_PAIRS);
    bed.describe(0, COMMAND, 4, 0);
    bed.offer();
    assert_eq!(bed.queue.serve(&bed.memory), Ok(Some(2)));
    assert_eq!(bed.driver.used_index(&bed.memory), 1);
}

#[test]
fn buffers_in_the_wrong_order_break_the_ring() {
    let mut bed = bed();
    bed.describe(0, ANSWER, 1, 3);
    bed.describe(1, COMMAND, 4, 0);
    bed.offer();
    assert_eq!(bed.queue.serve(&bed.memory), Err(RingError::Direction));
}
