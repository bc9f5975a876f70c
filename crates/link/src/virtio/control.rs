//! The control queue of a network device (virtio 1.3, 5.1.6.5): commands of the driver, each answered in its
//! own buffer.
//!
//! A device with several pairs has one, by which the driver says how many of them it uses. Monitors with a
//! control queue of their own (QEMU, cloud-hypervisor) enable rings instead, and keep theirs.

use super::memory::GuestMemory;
use super::ring::{Ring, RingError, Span};

/// Commands served in one call, so that a driver which goes on with them does not keep the loop.
const COMMANDS_MAX: usize = 16;

/// Classes and commands.
const ANNOUNCE: u8 = 3;
const ANNOUNCE_ACK: u8 = 0;
const MQ: u8 = 4;
const MQ_PAIRS_SET: u8 = 0;

/// Answers to a command.
const OK: u8 = 0;
const ERROR: u8 = 1;

/// A control queue.
#[derive(Debug)]
pub struct ControlQueue {
    ring: Ring,
    /// Most pairs that the driver may use.
    pairs_max: u16,
    spans: Vec<Span>,
}

impl ControlQueue {
    /// Commands from this ring, whose buffers both sides fill, of a device with so many pairs.
    pub fn new(ring: Ring, pairs_max: u16) -> Self {
        Self { ring, pairs_max, spans: Vec::new() }
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The ring, to arm it or to ask for a call.
    pub fn ring_mut(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// Answers commands; the number of pairs to use, if the driver has set it.
    ///
    /// # Errors
    /// The ring is broken.
    pub fn serve(&mut self, memory: &GuestMemory) -> Result<Option<u16>, RingError> {
        let mut pairs = None;
        for _ in 0..COMMANDS_MAX {
            self.spans.clear();
            let Some(chain) = self.ring.peek(memory, 0, &mut self.spans)? else { break };
            let wanted = self.command(memory)?;
            pairs = wanted.unwrap_or_default().or(pairs);
            let answer = [if wanted.is_ok() { OK } else { ERROR }];
            let written = match self.spans.iter().find(|span| span.writable) {
                Some(place) => {
                    let written = memory.guest(place.address, 1).ok_or(RingError::Buffer)?.write(&answer);
                    memory.mark_dirty(place.address, written);
                    written
                }
                None => 0,
            };
            // At most 1.
            self.ring.complete(memory, chain.head, written as u32)?;
        }
        self.ring.publish(memory)?;
        Ok(pairs)
    }

    /// The command in the buffers of a chain: the number of pairs to use, if it sets that.
    fn command(&self, memory: &GuestMemory) -> Result<Result<Option<u16>, Unknown>, RingError> {
        // Class, command and a number; no command here is longer.
        let mut bytes = [0; 4];
        let mut filled = 0;
        for span in self.spans.iter().filter(|span| !span.writable) {
            let slice = memory.guest(span.address, span.len as usize).ok_or(RingError::Buffer)?;
            filled += slice.read(&mut bytes[filled..]);
        }
        let [class, command, low, high] = bytes;
        let number = u16::from_le_bytes([low, high]);
        Ok(match (class, command, filled) {
            (MQ, MQ_PAIRS_SET, 4) if (1..=self.pairs_max).contains(&number) => Ok(Some(number)),
            (ANNOUNCE, ANNOUNCE_ACK, 2) => Ok(None),
            _ => Err(Unknown),
        })
    }
}

/// A command that the device does not have, or whose number is impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unknown;

#[cfg(test)]
pub(super) mod tests;
