//! Segments of the guest's with content that a test chooses.

use super::Script;
use crate::packet::l4_sum;

impl Script {
    /// The guest sends these bytes in one segment over IPv4, instead of those of its pattern.
    pub fn guest_sends(&mut self, bytes: &[u8]) {
        self.sends_in(&format!("ACK data={}", bytes.len()), bytes);
    }

    /// The same at a place of its stream, whose first byte is number 1.
    pub fn guest_sends_at(&mut self, seq: u32, bytes: &[u8]) {
        self.sends_in(&format!("ACK seq={seq} data={}", bytes.len()), bytes);
    }

    fn sends_in(&mut self, line: &str, bytes: &[u8]) {
        let mut frame = self.frame(line);
        let l4 = 14 + usize::from(frame[14] & 15) * 4;
        let payload = frame.len() - bytes.len();
        frame[payload..].copy_from_slice(bytes);
        frame[l4 + 16..l4 + 18].fill(0);
        let (guest, remote) = self.endpoints();
        let sum = l4_sum(guest.ip(), remote.ip(), 6, &frame[l4..]);
        frame[l4 + 16..l4 + 18].copy_from_slice(&(!sum).to_be_bytes());
        self.guest_raw(&frame);
    }
}
