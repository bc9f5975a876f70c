//! Encoding of an input: eight bytes of configuration, then operations of four bytes each.
//!
//! Every input means something, and every operation has the same length, so that a mutation changes one
//! operation and leaves the others what they were. An excessive number is reduced where it is used.

use brodo_core::config::{BufferBounds, Config, Tuning};
use brodo_core::link::LinkCaps;

/// Bytes of configuration.
const SETUP_LEN: usize = 8;
/// Most operations of one input.
const OPS_MAX: usize = 400;

/// Set-up of a run.
#[derive(Debug, Clone, Copy)]
pub struct Setup([u8; SETUP_LEN]);

impl Setup {
    /// Whether the guest uses IPv6.
    pub const fn v6(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Capabilities of the link.
    pub const fn caps(self) -> LinkCaps {
        let checksum = self.0[0] & 2 != 0;
        // Without checksums there is no TSO, whose bit is free.
        let packet_max = if !checksum && self.0[0] & 4 != 0 { Some(1504) } else { None };
        LinkCaps { checksum, tso: checksum && self.0[0] & 4 != 0, uso: false, packet_max }
    }

    /// Whether the host reports every change (chatty).
    pub const fn chatty(self) -> bool {
        self.0[0] & 8 != 0
    }

    /// Whether host sockets are connected at once.
    pub const fn connects_at_once(self) -> bool {
        self.0[0] & 16 == 0
    }

    /// Whether the link leaves ends of segments unread; then, whether the host sends from there.
    pub const fn unread(self) -> Option<bool> {
        if self.0[2] & 64 != 0 { Some(self.0[2] & 128 != 0) } else { None }
    }

    /// Whether the guest offers selective acknowledgement.
    pub const fn sack(self) -> bool {
        self.0[0] & 32 == 0
    }

    /// The guest's window scale, if it offers one; above 14 in one case of eight.
    pub const fn scale(self) -> Option<u8> {
        if self.0[0] & 64 != 0 { None } else { Some([7, 0, 2, 14, 7, 10, 15, 1][(self.0[1] & 7) as usize]) }
    }

    /// Whether the guest puts timestamps into its segments.
    pub const fn timestamps(self) -> bool {
        self.0[0] & 128 != 0
    }

    /// The guest's MSS option.
    pub const fn mss(self) -> Option<u16> {
        match self.0[1] >> 3 & 7 {
            0 => None,
            1 => Some(48),
            2 => Some(1),
            3 => Some(536),
            4 => Some(9000),
            5 => Some(65_535),
            _ => Some(1460),
        }
    }

    /// Room in a host socket's send buffer at first, bytes.
    pub fn space(self) -> usize {
        [usize::MAX, 0, 1, 700, 65_536, 262_144, 3000, usize::MAX][usize::from(self.0[2] & 7)]
    }

    /// Distance of the stack's first numbers from the end of sequence space; `None` leaves them alone.
    pub fn iss_before_wrap(self) -> Option<u32> {
        [None, Some(0), Some(1), Some(2), Some(1000), Some(100_000), Some(1 << 31), None]
            [usize::from(self.0[2] >> 3 & 7)]
    }

    /// The guest's initial sequence number on its connection number `incarnation`.
    pub const fn irs(self, incarnation: u32) -> u32 {
        let from_end = [0x1234_5678, 0, 1, 2, 1000, 70_000, 1 << 31, 3][(self.0[3] & 7) as usize];
        0_u32.wrapping_sub(from_end).wrapping_add(incarnation << 26)
    }

    /// The stack's configuration.
    pub fn config(self) -> Config {
        let bounds = |choice: u8| {
            let (initial, max) = [
                (65_536, 4 << 20),
                (4096, 4096),
                (2000, 100_000),
                (65_536, 65_536),
                (1400, 1 << 20),
                (300_000, 16 << 20),
                (8192, 262_144),
                (600, 600),
            ][usize::from(choice & 7)];
            BufferBounds { initial, max }
        };
        Config {
            mtu: [1500, 1280, 9000, 65_520][usize::from(self.0[3] >> 3 & 3)],
            tcp_rx: bounds(self.0[4]),
            tcp_tx: bounds(self.0[4] >> 3),
            tcp_tuning: [Tuning::Rtt, Tuning::Step(16_384), Tuning::Pressure, Tuning::Fixed]
                [usize::from(self.0[4] >> 6)],
            memory: [256 << 20, 90_000, 200_000, 140_000, 300_000, 500_000, 1 << 20, 4 << 20]
                [usize::from(self.0[5] & 7)],
            ..Config::default()
        }
    }
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The operation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind { $($(#[doc = $doc])+ $name,)+ }

        /// All kinds, in the order of their bytes.
        const KINDS: &[Kind] = &[$(Kind::$name,)+];
    };
}

kinds! {
    /// The guest opens a connection, or retransmits its SYN.
    Syn,
    /// The next data, in order.
    Data,
    /// Data at another place.
    DataAt,
    /// Several segments of data in order, in one batch.
    Bulk,
    /// One super-segment of data in order.
    Super,
    /// An honest acknowledgement.
    Ack,
    /// A false acknowledgement.
    AckAt,
    /// SACK blocks of bytes that the guest may not have.
    SackLie,
    /// An honest acknowledgement that reports a duplicate.
    Duplicate,
    /// A changed window.
    Window,
    /// A reset.
    Reset,
    /// FIN where the data ends.
    Fin,
    /// FIN at another place.
    FinAt,
    /// SYN in a connection.
    SynAt,
    /// Any flags.
    Flags,
    /// Options that no TCP sends.
    Options,
    /// Retransmission of unacknowledged bytes.
    Again,
    /// A keep-alive or window probe.
    KeepAlive,
    /// The next frames to the guest are lost.
    Lose,
    /// The host's peer sends.
    HostSend,
    /// The host's peer closes its direction.
    HostFin,
    /// The connection behind the host socket breaks.
    HostError,
    /// Room in the host socket.
    Space,
    /// The host's peer reads, which gives room.
    Take,
    /// Partial writes.
    AtMost,
    /// A connect ends.
    Connected,
    /// Time passes.
    Time,
    /// Time passes until the stack's next deadline.
    Deadline,
    /// Link credit.
    Credit,
    /// An honest acknowledgement of half of what the guest has.
    AckHalf,
    /// A peer of the host's connects to the guest, which accepts at once or leaves that for later.
    Call,
    /// The guest accepts, or repeats its SYN-ACK.
    Accept,
    /// The guest's network device is reset.
    DeviceReset,
}

/// Kinds that five bits of an operation name; the others go with its fourth connection, which is none.
const NAMED_BY_FIVE_BITS: usize = 32;

/// One operation.
#[derive(Debug, Clone, Copy)]
pub struct Op {
    /// The operation.
    pub kind: Kind,
    /// Its connection, 0 to 2.
    pub flow: usize,
    /// The guest's frame waits for the next one without this mark: the driver gets both in one batch.
    pub batched: bool,
    /// First operand.
    pub a: u8,
    /// Second operand.
    pub v: u16,
}

/// Decodes an input.
pub fn decode(data: &[u8]) -> Option<(Setup, impl Iterator<Item = Op>)> {
    let (setup, rest) = data.split_first_chunk::<SETUP_LEN>()?;
    let ops = rest.chunks_exact(4).take(OPS_MAX).map(|b| Op {
        kind: KINDS[kind_of(b[0]) % KINDS.len()],
        flow: usize::from(b[0] >> 5 & 3) % 3,
        batched: b[0] & 128 != 0,
        a: b[1],
        v: u16::from_le_bytes([b[2], b[3]]),
    });
    Some((Setup(*setup), ops))
}

/// Number of the kind in an operation's first byte.
fn kind_of(byte: u8) -> usize {
    usize::from(byte & 31) + if byte >> 5 & 3 == 3 { NAMED_BY_FIVE_BITS } else { 0 }
}

/// The bytes that mean this operation on a flow, 0 to 2; for seeds.
pub fn encode(kind: Kind, flow: u8, a: u8, v: u16) -> [u8; 4] {
    let index = KINDS.iter().position(|&k| k == kind).unwrap_or_default();
    let flow = if index < NAMED_BY_FIVE_BITS { flow } else { 3 };
    let index = (index % NAMED_BY_FIVE_BITS) as u8;
    [index | flow << 5, a, v.to_le_bytes()[0], v.to_le_bytes()[1]]
}
