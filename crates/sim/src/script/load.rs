//! The verbs for scripts about load: many connections, windows that are full, and memory that is held.

use super::{Line, STUCK, Script};

impl Script {
    /// Goes on with so many further connections in turn, from guest port 41,000 on to port 80, and does
    /// `open` with each. Gives their indices.
    pub fn connections(&mut self, count: u16, open: impl Fn(&mut Self)) -> Vec<usize> {
        let one = |i| {
            let flow = self.connection(41_000 + i, 80);
            open(self);
            flow
        };
        (0..count).map(one).collect()
    }

    /// The guest sends full segments until it is at the right edge of its window, wherever that moves
    /// meanwhile. Returns all frames of the stack up to then.
    pub fn guest_fills_window(&mut self) -> Vec<Line> {
        for _ in 0..STUCK {
            let len = (self.mss() as u32).min(self.offered_edge() - self.guest_progress().0);
            if len == 0 {
                return self.take_all();
            }
            self.guest(&format!("ACK data={len}"));
        }
        panic!("the window has no end");
    }

    /// The socket takes nothing from now on and the guest fills its window: the connection holds as much
    /// memory as one can.
    pub fn hoard(&mut self) {
        self.host_accepts(0);
        self.guest_fills_window();
    }
}
