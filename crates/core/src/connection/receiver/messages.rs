//! The receiving half of a connection to brodo's DNS service: its bytes stay in the queue, and leave it as
//! whole messages, each behind its length (RFC 1035, 4.2.2).

use super::Receiver;
use crate::context::Shared;
use crate::memory::chunk::SLICES_MAX;
use std::io::IoSlice;

/// Bytes of a message's length.
const PREFIX: usize = 2;

/// A message longer than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::connection) struct TooLong;

impl Receiver {
    /// Lets nothing pass to the host socket, from the first byte on.
    pub(in crate::connection) fn hold(&mut self) {
        debug_assert!(self.bytes == 0, "no byte has passed");
        self.held_back = true;
    }

    /// Removes the next whole message, of at most `len_max` bytes. `None` if there is none yet.
    ///
    /// # Errors
    /// [`TooLong`]: the stream cannot be read any further.
    pub(in crate::connection) fn next_message(
        &mut self,
        shared: &mut Shared,
        len_max: usize,
    ) -> Option<Result<Vec<u8>, TooLong>> {
        let head = self.front(shared, PREFIX)?;
        let len = usize::from(u16::from_be_bytes([head[0], head[1]]));
        if len > len_max {
            return Some(Err(TooLong));
        }
        let mut message = self.front(shared, PREFIX + len)?;
        shared.memory.pool.consume(&mut self.queue, message.len() as u32);
        message.drain(..PREFIX);
        Some(Ok(message))
    }

    /// A copy of the first `len` bytes of the queue, if there are as many.
    fn front(&self, shared: &Shared, len: usize) -> Option<Vec<u8>> {
        if (self.queue.len() as usize) < len {
            return None;
        }
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let pool = &shared.memory.pool;
            let from = pool.seek(&self.queue, out.len() as u32);
            let (count, ..) = pool.slices(&self.queue, from, (len - out.len()) as u32, &mut slices);
            slices[..count].iter().for_each(|slice| out.extend_from_slice(slice));
        }
        Some(out)
    }
}
