//! Model of a kernel socket that has taken a connection over from the stack: the guest-facing end of a
//! promoted flow.
//!
//! It begins with a seed (TCP_REPAIR), speaks to the guest as Linux's TCP does as far as the guest can tell
//! apart (window with its edge never moving left, acknowledgement of each arrival, retransmission of the
//! oldest segment with back-off, window probes, FIN and reset), and gives its state back. It keeps nothing
//! ahead of a gap, and has no congestion window: that costs speed and breaks no rule.

use crate::observer::{after, later};
use crate::packet::{TcpSegment, flags};
use brodo_core::journal::promoted::CarriedOn;
use brodo_core::promotion::{Fins, OurFin, SeedFields, TcpSeed, WindowScales};
use brodo_core::time::{Duration, Instant};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Receive and send buffer, bytes.
const BUFFER: usize = 48 << 10;
/// First retransmission time-out; it doubles up to the second.
const RTO: Duration = Duration::from_millis(200);
const RTO_MAX: Duration = Duration::from_secs(10);

/// The kernel socket.
#[derive(Debug, Clone)]
pub(crate) struct KernelEnd {
    seed: SeedFields,
    una: u32,
    nxt: u32,
    wnd: u32,
    wnd_max: u32,
    wl1: u32,
    rcv_nxt: u32,
    edge: u32,
    /// RCV.NXT of the last segment sent.
    wup: u32,
    /// From SND.UNA on.
    send: VecDeque<u8>,
    /// Received, and not read.
    recv: VecDeque<u8>,
    /// FIN behind all of `send`, and whether the guest has acknowledged it.
    fin: bool,
    fin_acked: bool,
    /// FIN of the guest's.
    guest_fin: bool,
    /// Bytes that were read, and written.
    counts: (u64, u64),
    /// A segment was received.
    received: bool,
    reset: bool,
    ack_due: bool,
    timer: Option<Instant>,
    backoff: u32,
    out: Vec<TcpSegment>,
}

impl KernelEnd {
    /// A socket that goes on as `seed` says. Its first segment asks the guest for its window, as Linux does
    /// when it leaves the repair mode.
    pub(crate) fn new(seed: &TcpSeed) -> Self {
        let f = *seed.fields();
        assert_eq!(f.flight(), 0, "a promoted flow is quiet");
        let mut end = Self {
            seed: f,
            una: f.snd_una,
            nxt: f.snd_nxt,
            wnd: f.snd_wnd,
            wnd_max: f.wnd_max,
            wl1: f.snd_wl1,
            rcv_nxt: f.rcv_nxt,
            edge: f.rcv_wup.wrapping_add(f.rcv_wnd),
            wup: f.rcv_wup,
            send: VecDeque::new(),
            recv: VecDeque::new(),
            fin: false,
            fin_acked: false,
            guest_fin: false,
            counts: (0, 0),
            received: false,
            reset: false,
            ack_due: false,
            timer: None,
            backoff: 0,
            out: Vec::new(),
        };
        end.probe();
        end
    }

    /// The guest's end and the remote one.
    pub(crate) fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.seed.guest, self.seed.remote)
    }

    fn scales(&self) -> WindowScales {
        self.seed.scales.unwrap_or(WindowScales { snd: 0, rcv: 0 })
    }

    fn mss(&self) -> u32 {
        self.seed.mss.into()
    }

    /// Sequence space in flight.
    fn flight(&self) -> u32 {
        self.nxt.wrapping_sub(self.una)
    }

    /// Room that the guest knows of.
    pub(crate) fn window(&self) -> u32 {
        self.edge.wrapping_sub(self.rcv_nxt)
    }

    /// Segment of the guest's.
    pub(crate) fn receive(&mut self, s: &TcpSegment) {
        self.received = true;
        if self.reset {
            return;
        }
        let (len, end) = (s.seq_len(), s.seq.wrapping_add(s.seq_len()));
        let acceptable = !after(s.seq, self.edge)
            && if len == 0 { !after(self.rcv_nxt, s.seq) } else { after(end, self.rcv_nxt) };
        if !acceptable {
            self.ack_due |= !s.has(flags::RST);
            return;
        }
        if s.has(flags::RST) {
            self.reset |= s.seq == self.rcv_nxt;
            self.ack_due |= s.seq != self.rcv_nxt;
            return;
        }
        if s.has(flags::SYN) || !s.has(flags::ACK) || after(s.ack, self.nxt) {
            self.ack_due |= s.has(flags::SYN) || s.has(flags::ACK);
            return;
        }
        self.acknowledged(s);
        if len > 0 {
            self.data(s);
        }
    }

    fn acknowledged(&mut self, s: &TcpSegment) {
        let newer = after(s.ack, self.una) || (s.ack == self.una && !after(self.wl1, s.seq));
        if after(s.ack, self.una) {
            let acked = s.ack.wrapping_sub(self.una) as usize;
            let bytes = acked.min(self.send.len());
            self.send.drain(..bytes);
            self.fin_acked |= acked > bytes;
            self.una = s.ack;
            (self.timer, self.backoff) = (None, 0);
        }
        if newer {
            self.wnd = u32::from(s.window) << self.scales().snd;
            self.wnd_max = self.wnd_max.max(self.wnd);
            self.wl1 = s.seq;
        }
    }

    fn data(&mut self, s: &TcpSegment) {
        self.ack_due = true;
        if after(s.seq, self.rcv_nxt) || self.guest_fin {
            return;
        }
        let old = self.rcv_nxt.wrapping_sub(s.seq) as usize;
        let fresh = s.data.get(old..).unwrap_or_default();
        let taken = fresh.len().min(self.window() as usize);
        self.recv.extend(&fresh[..taken]);
        self.rcv_nxt = self.rcv_nxt.wrapping_add(taken as u32);
        if s.has(flags::FIN) && taken == fresh.len() {
            self.guest_fin = true;
            self.rcv_nxt = self.rcv_nxt.wrapping_add(1);
            self.edge = later(self.edge, self.rcv_nxt);
        }
    }

    /// Sends what may be sent at `now`.
    pub(crate) fn transmit(&mut self, now: Instant) {
        if self.reset {
            self.timer = None;
            return;
        }
        if self.timer.is_some_and(|at| at <= now) {
            self.timed_out();
        }
        while let Some(len) = self.next_len() {
            let offset = self.flight();
            self.nxt = self.nxt.wrapping_add(len);
            let fin = self.fin && offset + len == self.send.len() as u32;
            self.nxt = self.nxt.wrapping_add(u32::from(fin));
            self.segment(offset, len, fin);
        }
        if self.fin && !self.fin_acked && self.flight() == self.send.len() as u32 {
            // FIN alone.
            let offset = self.flight();
            self.nxt = self.nxt.wrapping_add(1);
            self.segment(offset, 0, true);
        }
        if self.ack_due || self.is_update_due() {
            let ack = self.header(flags::ACK, self.nxt);
            self.out.push(ack);
        }
        let waits = self.flight() > 0 || !self.send.is_empty();
        if waits && self.timer.is_none() {
            self.timer = Some(now + (RTO * (1 << self.backoff.min(6))).min(RTO_MAX));
        } else if !waits {
            self.timer = None;
        }
    }

    /// Bytes of the next new segment.
    fn next_len(&self) -> Option<u32> {
        let unsent = (self.send.len() as u32).checked_sub(self.flight())?;
        let usable = self.wnd.saturating_sub(self.flight());
        let len = unsent.min(usable).min(self.mss());
        let sliver = len < self.mss() && len < unsent && self.flight() > 0;
        (len > 0 && !sliver).then_some(len)
    }

    fn timed_out(&mut self) {
        (self.timer, self.backoff) = (None, self.backoff + 1);
        if self.flight() == 0 {
            return self.probe();
        }
        let data = (self.send.len() as u32).min(self.flight());
        let len = data.min(self.mss()).min(self.wnd.max(1));
        let fin = self.fin && len == self.send.len() as u32 && self.flight() > len;
        self.segment(0, len, fin);
    }

    /// A segment one before what the guest expects: it answers with its window.
    fn probe(&mut self) {
        let probe = self.header(flags::ACK, self.una.wrapping_sub(1));
        self.out.push(probe);
    }

    /// `len` bytes from `offset` on behind SND.UNA.
    fn segment(&mut self, offset: u32, len: u32, fin: bool) {
        let bits = flags::ACK | if fin { flags::FIN } else { 0 };
        let mut segment = self.header(bits, self.una.wrapping_add(offset));
        segment.data = self.send.iter().skip(offset as usize).take(len as usize).copied().collect();
        self.out.push(segment);
    }

    /// Bytes of room beyond what was received, if the edge may move there.
    fn gain(&self) -> Option<u32> {
        let room = BUFFER.saturating_sub(self.recv.len()) as u32;
        let gain = room.checked_sub(self.window())?;
        (gain >= self.mss().min(BUFFER as u32 / 2) && !self.guest_fin).then_some(gain)
    }

    fn is_update_due(&self) -> bool {
        self.gain().is_some_and(|gain| gain >= 2 * self.mss() || self.window() < self.mss())
    }

    /// A header with acknowledgement and window, which are binding.
    fn header(&mut self, bits: u8, seq: u32) -> TcpSegment {
        let scale = self.scales().rcv;
        let wanted = self.window() + self.gain().unwrap_or(0);
        // Rounded up, so that the edge never moves left.
        let field = wanted.div_ceil(1 << scale).min(65_535);
        self.edge = later(self.edge, self.rcv_nxt.wrapping_add(field << scale));
        (self.wup, self.ack_due) = (self.rcv_nxt, false);
        TcpSegment {
            flags: bits,
            seq,
            ack: self.rcv_nxt,
            window: field as u16,
            ..TcpSegment::new(self.seed.remote, self.seed.guest)
        }
    }

    /// Resets the guest.
    pub(crate) fn abort(&mut self) {
        let reset = self.header(flags::RST | flags::ACK, self.nxt);
        self.out.push(reset);
        self.reset = true;
    }

    /// Segments to the guest since the last call.
    pub(crate) fn take(&mut self) -> Vec<TcpSegment> {
        std::mem::take(&mut self.out)
    }

    /// Time of the next [`KernelEnd::transmit`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timer
    }

    /// Whether a segment was received.
    pub(crate) fn has_received(&self) -> bool {
        self.received
    }

    /// Whether the connection was reset, by either side.
    pub(crate) fn is_reset(&self) -> bool {
        self.reset
    }

    /// Whether the guest's FIN was received, perhaps behind bytes that were not read.
    pub(crate) fn has_guest_fin(&self) -> bool {
        self.guest_fin
    }

    /// Whether the guest has acknowledged our FIN, and so all before it.
    pub(crate) fn is_fin_acknowledged(&self) -> bool {
        self.fin_acked
    }

    /// Bytes that a write would take; what goes to a connection that was reset is lost, so none.
    pub(crate) fn room(&self) -> usize {
        if self.fin || self.reset { 0 } else { BUFFER.saturating_sub(self.send.len()) }
    }

    /// Writes bytes for the guest.
    pub(crate) fn write(&mut self, data: &[u8]) {
        assert!(!self.fin, "a write after the end");
        self.send.extend(data);
        self.counts.1 += data.len() as u64;
    }

    /// Ends the stream to the guest.
    pub(crate) fn shut_down(&mut self) {
        self.fin = true;
    }

    /// Bytes that wait to be read.
    pub(crate) fn unread(&self) -> &VecDeque<u8> {
        &self.recv
    }

    /// Reads some of them.
    pub(crate) fn read(&mut self, bytes: usize) {
        self.recv.drain(..bytes);
        self.counts.0 += bytes as u64;
    }

    /// Progress of a splice, which holds no bytes itself.
    pub(crate) fn carried(&self) -> CarriedOn {
        let (read, written) = self.counts;
        CarriedOn { read, written, held: [0; 2], guest_closed: self.guest_fin, shut: self.fin }
    }

    /// Whether the guest's stream has ended and is read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.guest_fin && self.recv.is_empty()
    }

    /// Whether both streams have ended, or are to end, or it was reset: its state cannot be read out.
    pub(crate) fn has_ended(&self) -> bool {
        self.reset || (self.fin && self.guest_fin)
    }

    /// Whether both streams have ended, and the guest knows of it.
    pub(crate) fn is_over(&self) -> bool {
        self.fin_acked && self.is_at_end()
    }

    /// Our FIN.
    fn our_fin(&self) -> OurFin {
        let is_sent = self.flight() > self.send.len() as u32;
        match (self.fin, self.fin_acked) {
            (false, _) => OurFin::None,
            (true, true) => OurFin::Acknowledged,
            (true, false) if is_sent => OurFin::Sent,
            (true, false) => OurFin::Unsent,
        }
    }

    /// State to go on with, as read in repair mode: seed and FINs, bytes from SND.UNA on, unread bytes.
    pub(crate) fn give_back(mut self) -> (TcpSeed, Fins, Vec<u8>, Vec<u8>) {
        assert!(!self.has_ended(), "a flow of which both streams have ended stays");
        let fins = Fins { guest: self.guest_fin, ours: self.our_fin() };
        // Numbers as if there were no FIN.
        let rcv_nxt = self.rcv_nxt.wrapping_sub(fins.guest.into());
        let wup = if self.wup == self.rcv_nxt { rcv_nxt } else { self.wup };
        let acknowledged = u32::from(fins.ours == OurFin::Acknowledged);
        let seed = TcpSeed::new(SeedFields {
            snd_una: self.una.wrapping_sub(acknowledged),
            snd_nxt: self.nxt.wrapping_sub(acknowledged.max((fins.ours == OurFin::Sent).into())),
            snd_wnd: self.wnd,
            wnd_max: self.wnd_max,
            snd_wl1: self.wl1,
            rcv_nxt,
            rcv_wup: wup,
            rcv_wnd: self.edge.wrapping_sub(self.wup),
            ..self.seed
        });
        let bytes = |queue: &mut VecDeque<u8>| std::mem::take(queue).into();
        (seed.expect("a live connection"), fins, bytes(&mut self.send), bytes(&mut self.recv))
    }
}
