//! Invariants of TCP, checked on every segment of every simulation.
//!
//! The observer stands on the link. It sees the guest's segments in the order in which the stack receives
//! them, and the stack's segments as they are sent, and checks these invariants (numbers of the guide's page
//! on testing):
//!
//! - the right edge of the offered window never moves left, across scaling and rounding (RFC 9293, 3.8.6;
//!   invariant 1);
//! - acknowledgements never go back, and never cover bytes that the guest has not sent (4) or has sent beyond
//!   the window (3);
//! - no byte is sent beyond the guest's window, except one to probe it, nor in segments above its MSS;
//! - the sequence space is sent without gaps, FIN once and after all data (6);
//! - a reset stands at what the guest has not acknowledged, where it is taken or challenged (RFC 5961, 3.2),
//!   or has the numbers of an answer to a segment of this batch (RFC 9293, 3.10.7.1) or to a SYN;
//! - SACK blocks cover only bytes that the guest has sent, and are sent only if it permitted them;
//! - every segment after the handshake carries ACK, and windows in SYN segments are unscaled (RFC 7323, 2.2).
//!
//! It also counts retransmissions, so that a run without loss can be held to zero.

use crate::packet::{TcpSegment, flags};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// SACK blocks that an option has room for.
const SACK_MAX: usize = 4;
/// SYNs remembered of each pair of ends. A hostile guest sends many, and the link cannot know which of them
/// is answered: without credit the answer to the first may come after all the others.
const OPENINGS_MAX: usize = 512;

/// `a` is after `b` in sequence space.
pub const fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// The later of two sequence numbers.
pub const fn later(a: u32, b: u32) -> u32 {
    if after(a, b) { a } else { b }
}

/// The observed part of a segment: all but its payload, so that bulk transfers are observed without a copy.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    src: SocketAddr,
    dst: SocketAddr,
    flags: u8,
    seq: u32,
    ack: u32,
    window: u16,
    mss: Option<u16>,
    wscale: Option<u8>,
    sack_ok: bool,
    /// The first blocks of its SACK option, and how many it has.
    sack: [(u32, u32); SACK_MAX],
    sack_count: usize,
    /// Payload, bytes.
    len: u32,
}

impl Seen {
    /// A segment whose payload, of `len` bytes, stands elsewhere.
    pub fn apart(s: &TcpSegment, len: u32) -> Self {
        let TcpSegment { src, dst, flags, seq, ack, window, mss, wscale, sack_ok, .. } = *s;
        let mut sack = [(0, 0); SACK_MAX];
        sack.iter_mut().zip(&s.sack).for_each(|(to, from)| *to = *from);
        let sack_count = s.sack.len().min(SACK_MAX);
        Self { src, dst, flags, seq, ack, window, mss, wscale, sack_ok, sack, sack_count, len }
    }

    const fn has(&self, bits: u8) -> bool {
        self.flags & bits == bits
    }

    fn seq_len(&self) -> u32 {
        self.len + u32::from(self.has(flags::SYN)) + u32::from(self.has(flags::FIN))
    }

    /// Numbers of the reset that answers this segment where there is no connection (RFC 9293, 3.10.7.1).
    fn answer(&self) -> ResetNumbers {
        let end = self.seq.wrapping_add(self.seq_len());
        if self.has(flags::ACK) { (self.ack, None) } else { (0, Some(end)) }
    }
}

impl From<&TcpSegment> for Seen {
    fn from(s: &TcpSegment) -> Self {
        Self::apart(s, s.data.len() as u32)
    }
}

#[derive(Debug, Clone)]
struct Opening {
    iss: u32,
    wscale: Option<u8>,
    mss: Option<u16>,
    window: u16,
    sack_ok: bool,
}

#[derive(Debug, Clone)]
struct Connection {
    /// Options of the SYN.
    guest_iss: u32,
    guest_scale: u8,
    guest_mss: u32,
    guest_sack: bool,
    /// One after the last sequence number the guest has sent.
    guest_max: u32,
    /// Right edge of the guest's window.
    guest_edge: u32,
    /// Acknowledgement of the guest, by segments within the window: the stack ignores all others.
    guest_ack: u32,
    /// The guest's SYN has come once more: this connection may be gone, and that a new one.
    is_begun_again: bool,
    iss: u32,
    scale: u8,
    /// One after the last sequence number the stack has sent.
    max: u32,
    fin: Option<u32>,
    ack: u32,
    edge: u32,
}

/// The stack's SYN for a connection that begins on the host's side.
#[derive(Debug, Clone)]
struct ActiveOpen {
    iss: u32,
    scale: Option<u8>,
    window: u16,
}

/// The guest's end of a connection and the peer's.
type Ends = (SocketAddr, SocketAddr);
/// Numbers of a reset: sequence number, and acknowledgement if it has one.
type ResetNumbers = (u32, Option<u32>);

/// The observer of one link.
#[derive(Debug, Default)]
pub struct Observer {
    /// The guest's SYNs, the last ones of each pair of ends.
    openings: BTreeMap<Ends, Vec<Opening>>,
    /// The stack's SYNs that the guest has not answered.
    active_opens: BTreeMap<Ends, ActiveOpen>,
    connections: BTreeMap<Ends, Connection>,
    /// Segments of this batch that begin beyond the window as it was before: connection, left and right edge.
    ahead: Vec<(Ends, u32, u32)>,
    /// Resets that answer segments of this batch if there is no connection.
    answers: Vec<(Ends, ResetNumbers)>,
    retransmitted: u64,
    data_bytes: u64,
    /// The stack has crashed once.
    crashed: bool,
}

impl Observer {
    /// The stack has crashed: segments that take no sequence space may stand behind bytes that were lost, and
    /// resets anywhere.
    pub fn crashed(&mut self) {
        self.crashed = true;
    }

    /// Retransmissions: segments with payload, SYN or FIN all of which the stack had sent before.
    pub fn retransmitted(&self) -> u64 {
        self.retransmitted
    }

    /// Payload bytes the stack sent, repetitions included.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The right edge of the window advertised to the guest, absolute.
    pub fn offered_edge(&self, guest: SocketAddr, remote: SocketAddr) -> Option<u32> {
        self.connections.get(&(guest, remote)).map(|c| c.edge)
    }

    /// Begins a batch of the guest's segments, which [`Observer::from_guest`] records one by one.
    pub fn begin_batch(&mut self) {
        self.answers.clear();
        let ahead = std::mem::take(&mut self.ahead);
        for (key, c) in &mut self.connections {
            // An acknowledgement delayed for lack of credit covers accepted bytes all the same.
            c.take_ahead(&ahead, key);
        }
    }

    /// Records a segment of the guest before the stack gets it.
    pub fn from_guest(&mut self, s: impl Into<Seen>) {
        let s = s.into();
        let key = (s.src, s.dst);
        self.answers.push((key, s.answer()));
        if s.has(flags::SYN) && !s.has(flags::ACK) && !s.has(flags::RST) {
            let opening =
                Opening { iss: s.seq, wscale: s.wscale, mss: s.mss, window: s.window, sack_ok: s.sack_ok };
            let openings = self.openings.entry(key).or_default();
            openings.retain(|known| known.iss != opening.iss);
            if let Some(c) = self.connections.get_mut(&key) {
                c.is_begun_again |= c.guest_iss == opening.iss;
            }
            openings.push(opening);
            if openings.len() > OPENINGS_MAX {
                openings.remove(0);
            }
            return;
        }
        if s.has(flags::SYN | flags::ACK) && !s.has(flags::RST) && self.accepted(key, &s) {
            return;
        }
        let Some(c) = self.connections.get_mut(&key) else { return };
        let end = s.seq.wrapping_add(s.seq_len());
        // A segment that begins beyond the advertised window is unacceptable and must not be acknowledged,
        // unless an acknowledgement in the middle of the batch moves the edge before the stack processes it.
        if after(s.seq, c.edge) {
            self.ahead.push((key, s.seq, end));
        } else {
            c.guest_max = later(c.guest_max, end);
        }
        // An acknowledgement more than half the sequence space old proves nothing.
        if s.has(flags::ACK) && c.max.wrapping_sub(s.ack) < 1 << 30 {
            let window = u32::from(s.window) << c.guest_scale;
            c.guest_edge = later(c.guest_edge, s.ack.wrapping_add(window));
            if !after(s.seq, c.edge) && !after(c.ack, end) && !after(s.ack, c.max) {
                c.guest_ack = later(c.guest_ack, s.ack);
            }
        }
    }

    /// Checks a segment as the guest sees it.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn to_guest(&mut self, s: impl Into<Seen>) -> Result<(), String> {
        let s = &s.into();
        let key = (s.dst, s.src);
        self.data_bytes += u64::from(s.len);
        if s.has(flags::RST) {
            return self.reset(key, s);
        }
        if !s.has(flags::ACK) {
            return self.syn(key, s);
        }
        if s.has(flags::SYN) {
            return self.syn_ack(s);
        }
        let Some(c) = self.connections.get_mut(&key) else {
            return Err("for a connection that was never accepted".to_owned());
        };
        c.take_ahead(&self.ahead, &key);
        c.acknowledgement(s)?;
        c.selective(s)?;
        self.retransmitted += u64::from(c.sequence(s, self.crashed)?);
        Ok(())
    }

    /// A reset. At another place than the guest's, it would leave the guest waiting.
    fn reset(&self, key: Ends, s: &Seen) -> Result<(), String> {
        let numbers = (s.seq, s.has(flags::ACK).then_some(s.ack));
        let withdraws = self.active_opens.get(&key).is_some_and(|open| open.iss.wrapping_add(1) == s.seq);
        if self.crashed || withdraws || self.answers.contains(&(key, numbers)) {
            return Ok(());
        }
        let Some(c) = self.connections.get(&key) else { return Ok(()) };
        // Other SYNs than that of the connection are refused, long after they came if need be.
        let refuses = |open: &Opening| {
            let is_other = open.iss != c.guest_iss || c.is_begun_again;
            is_other && numbers == (0, Some(open.iss.wrapping_add(1)))
        };
        if self.openings.get(&key).is_some_and(|all| all.iter().any(refuses)) {
            return Ok(());
        }
        c.reset(s)
    }

    /// A SYN of the stack's own.
    fn syn(&mut self, key: Ends, s: &Seen) -> Result<(), String> {
        if !s.has(flags::SYN) {
            return Err("neither ACK nor RST nor SYN".to_owned());
        }
        if s.ack != 0 || s.len > 0 || s.has(flags::FIN) {
            return Err("a SYN that is more than one".to_owned());
        }
        if let Some(open) = self.active_opens.get_mut(&key).filter(|open| open.iss == s.seq) {
            self.retransmitted += 1;
            open.window = open.window.max(s.window);
            return Ok(());
        }
        self.active_opens.insert(key, ActiveOpen { iss: s.seq, scale: s.wscale, window: s.window });
        Ok(())
    }

    /// SYN-ACK of the guest to an active open of the stack; false without such a SYN.
    fn accepted(&mut self, key: Ends, s: &Seen) -> bool {
        let Some(open) = self.active_opens.get(&key).filter(|open| open.iss.wrapping_add(1) == s.ack) else {
            return false;
        };
        let scaled = open.scale.is_some() && s.wscale.is_some();
        let default_mss = if s.src.is_ipv4() { 536 } else { 1220 };
        let next = s.seq.wrapping_add(1);
        let connection = Connection {
            guest_iss: s.seq,
            guest_scale: if scaled { s.wscale.unwrap_or(0).min(14) } else { 0 },
            guest_mss: s.mss.map_or(default_mss, u32::from).max(48),
            guest_sack: s.sack_ok,
            guest_max: next,
            guest_edge: s.ack.wrapping_add(s.window.into()),
            guest_ack: s.ack,
            is_begun_again: false,
            iss: open.iss,
            scale: if scaled { open.scale.unwrap_or(0) } else { 0 },
            max: s.ack,
            fin: None,
            ack: next,
            edge: next.wrapping_add(open.window.into()),
        };
        self.active_opens.remove(&key);
        self.connections.insert(key, connection);
        true
    }

    fn syn_ack(&mut self, s: &Seen) -> Result<(), String> {
        let key = (s.dst, s.src);
        let is_repeated = |c: &Connection| c.iss == s.seq && c.guest_iss.wrapping_add(1) == s.ack;
        if let Some(c) = self.connections.get_mut(&key).filter(|c| is_repeated(c)) {
            self.retransmitted += 1;
            // Memory may have been freed; a window advertised with its scale by a segment after the first
            // counts all the same.
            c.edge = later(c.edge, s.ack.wrapping_add(s.window.into()));
            return Ok(());
        }
        let Some(openings) = self.openings.get(&key) else {
            return Err("SYN|ACK without a SYN".to_owned());
        };
        let Some(open) = openings.iter().find(|open| open.iss == s.ack.wrapping_sub(1)) else {
            return Err(format!("SYN|ACK does not acknowledge a SYN: {} for {openings:?}", s.ack));
        };
        if open.wscale.is_none() && s.wscale.is_some() {
            return Err("window scale though the guest offered none".to_owned());
        }
        if s.wscale.is_some_and(|shift| shift > 14) {
            return Err("window scale above 14".to_owned());
        }
        let scaled = open.wscale.is_some() && s.wscale.is_some();
        let default_mss = if s.src.is_ipv4() { 536 } else { 1220 };
        let max = s.seq.wrapping_add(1);
        let connection = Connection {
            guest_iss: open.iss,
            guest_scale: if scaled { open.wscale.unwrap_or(0).min(14) } else { 0 },
            // The MSS has a floor of 48 bytes, independent of the guest's option (Linux: tcp_min_snd_mss).
            guest_mss: open.mss.map_or(default_mss, u32::from).max(48),
            guest_sack: open.sack_ok,
            guest_max: s.ack,
            guest_edge: max.wrapping_add(open.window.into()),
            guest_ack: s.seq,
            is_begun_again: false,
            iss: s.seq,
            scale: if scaled { s.wscale.unwrap_or(0) } else { 0 },
            max,
            fin: None,
            ack: s.ack,
            edge: s.ack.wrapping_add(s.window.into()),
        };
        self.connections.insert(key, connection);
        Ok(())
    }
}

impl Connection {
    /// Records as sent the segments that began beyond the window when they were sent, and lie within it now.
    fn take_ahead(&mut self, ahead: &[(Ends, u32, u32)], key: &Ends) {
        for &(_, seq, end) in ahead.iter().filter(|ahead| ahead.0 == *key) {
            if !after(seq, self.edge) {
                self.guest_max = later(self.guest_max, end);
            }
        }
    }

    /// SACK blocks, if permitted by the guest, cover bytes that it has sent beyond the acknowledgement; the
    /// first may report a duplicate (RFC 2018, section 4; RFC 2883, section 4).
    fn selective(&self, s: &Seen) -> Result<(), String> {
        let blocks = &s.sack[..s.sack_count];
        if !blocks.is_empty() && !self.guest_sack {
            return Err("SACK blocks for a guest that did not permit them".to_owned());
        }
        for (i, &(start, end)) in blocks.iter().enumerate() {
            // A block half the sequence space away is both behind and ahead, so a D-SACK for it is valid.
            let ahead = end.wrapping_sub(self.guest_max);
            if !after(end, start) || (1..1 << 30).contains(&ahead) {
                return Err(format!("a SACK block of what the guest has not sent: {start} to {end}"));
            }
            if i > 0 && !after(start, s.ack) {
                return Err(format!("a SACK block that the acknowledgement covers: {start} to {end}"));
            }
        }
        Ok(())
    }

    /// A reset of this connection: among what the guest has not acknowledged, and of what it has sent.
    fn reset(&self, s: &Seen) -> Result<(), String> {
        if after(self.guest_ack, s.seq) || after(s.seq, self.max) {
            let (from, to) = (self.guest_ack, self.max);
            return Err(format!("a reset at {}, not between {from} and {to}", s.seq));
        }
        if s.has(flags::ACK) && after(s.ack, self.guest_max) {
            return Err(format!("a reset for {}, of which the guest has sent {}", s.ack, self.guest_max));
        }
        Ok(())
    }

    fn acknowledgement(&mut self, s: &Seen) -> Result<(), String> {
        if after(self.ack, s.ack) {
            return Err(format!("acknowledgement went back by {}", self.ack.wrapping_sub(s.ack)));
        }
        if after(s.ack, self.guest_max) {
            let over = s.ack.wrapping_sub(self.guest_max);
            return Err(format!("acknowledges {over} bytes that the guest has not sent"));
        }
        self.ack = s.ack;
        let edge = s.ack.wrapping_add(u32::from(s.window) << self.scale);
        if after(self.edge, edge) {
            return Err(format!("the offered edge moved left by {}", self.edge.wrapping_sub(edge)));
        }
        self.edge = edge;
        Ok(())
    }

    /// Checks the sequence space a segment takes; whether all of it had been sent before.
    fn sequence(&mut self, s: &Seen, crashed: bool) -> Result<bool, String> {
        let len = s.len;
        if after(s.seq, self.max) && crashed && s.seq_len() == 0 {
            return Ok(true);
        }
        if after(s.seq, self.max) {
            return Err(format!("a gap of {} bytes before it", s.seq.wrapping_sub(self.max)));
        }
        // RFC 9293, 3.7.1, and RFC 6691: options count against the size, so this bound is the loosest that is
        // safe.
        if len > self.guest_mss {
            return Err(format!("{len} bytes in one segment, the guest's MSS is {}", self.guest_mss));
        }
        let end = s.seq.wrapping_add(len);
        if len > 1 && after(end, self.guest_edge) {
            return Err(format!("{} bytes beyond the guest's window", end.wrapping_sub(self.guest_edge)));
        }
        if let Some(fin) = self.fin {
            if len > 0 && after(end, fin) {
                return Err("data after FIN".to_owned());
            }
            if s.has(flags::FIN) && end != fin {
                return Err("FIN at another place than before".to_owned());
            }
        }
        if s.has(flags::FIN) {
            self.fin = Some(end);
        }
        let end = end.wrapping_add(u32::from(s.has(flags::FIN)));
        let is_repeated = s.seq_len() > 0 && !after(end, self.max);
        self.max = later(self.max, end);
        Ok(is_repeated)
    }
}

#[cfg(test)]
mod tests;
