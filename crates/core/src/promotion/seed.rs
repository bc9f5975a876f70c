//! Seed of a TCP socket: what the kernel has to know of a connection to go on with it, and the same when it
//! comes back.
//!
//! Names are those of RFC 9293. A seed that the stack gives is right by construction; one that comes back
//! was read from a socket that the guest has talked to, by another process. So there is one constructor, and
//! it checks what no connection can be like. That a returned seed continues the one that was given is for
//! the connection to check, which knows what has moved meanwhile.

use std::net::SocketAddr;

/// Largest shift of a window field (RFC 7323, 2.3).
const SCALE_MAX: u8 = 14;
/// Largest window without scaling.
const WINDOW_UNSCALED_MAX: u32 = 65_535;
/// Most sequence space in flight: half of what comparisons can tell apart (RFC 7323, 2.3).
const FLIGHT_MAX: u32 = 1 << 30;

/// Shifts of both window fields (RFC 7323), if both sides offered them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowScales {
    /// Of the guest's windows (Snd.Wind.Shift).
    pub snd: u8,
    /// Of ours (Rcv.Wind.Shift).
    pub rcv: u8,
}

/// Content of a seed. The kernel socket's own address is `remote`, and its peer is `guest`. Timestamps are
/// never negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeedFields {
    /// The guest's end.
    pub guest: SocketAddr,
    /// The remote end, as the guest sees it.
    pub remote: SocketAddr,
    /// Oldest unacknowledged sequence number.
    pub snd_una: u32,
    /// Next sequence number to be sent. Equal to `snd_una` when a flow is promoted.
    pub snd_nxt: u32,
    /// Window of the guest, bytes.
    pub snd_wnd: u32,
    /// Largest window that the guest ever offered, bytes.
    pub wnd_max: u32,
    /// Sequence number of the segment that gave `snd_wnd` last.
    pub snd_wl1: u32,
    /// Next sequence number expected.
    pub rcv_nxt: u32,
    /// RCV.NXT in the last segment that was sent: the window counts from there.
    pub rcv_wup: u32,
    /// Window as advertised then, bytes: its right edge is `rcv_wup + rcv_wnd`.
    pub rcv_wnd: u32,
    /// Largest payload of a segment to the guest, without options, bytes.
    pub mss: u16,
    /// Window scaling.
    pub scales: Option<WindowScales>,
    /// SACK permitted by both sides (RFC 2018).
    pub sack: bool,
}

/// Fields that contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidSeed;

/// Seed of a TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpSeed(SeedFields);

impl TcpSeed {
    /// A seed of these fields.
    ///
    /// # Errors
    /// [`InvalidSeed`] if no connection can be in this state.
    pub fn new(fields: SeedFields) -> Result<Self, InvalidSeed> {
        let SeedFields { guest, remote, scales, mss, .. } = fields;
        let scaled = |scale: u8| WINDOW_UNSCALED_MAX << scale;
        let scales = scales.unwrap_or(WindowScales { snd: 0, rcv: 0 });
        let holds = guest.is_ipv4() == remote.is_ipv4()
            && guest.port() != 0
            && remote.port() != 0
            && mss > 0
            && scales.snd <= SCALE_MAX
            && scales.rcv <= SCALE_MAX
            && fields.flight() <= FLIGHT_MAX
            && fields.snd_wnd <= fields.wnd_max
            && fields.wnd_max <= scaled(scales.snd)
            // The edge is at or behind RCV.NXT, and within a window of it.
            && fields.rcv_wnd <= scaled(scales.rcv)
            && fields.rcv_nxt.wrapping_sub(fields.rcv_wup) <= fields.rcv_wnd;
        if holds { Ok(Self(fields)) } else { Err(InvalidSeed) }
    }

    /// Its content.
    pub fn fields(&self) -> &SeedFields {
        &self.0
    }

    /// Bytes that the guest may still send.
    pub fn window(&self) -> u32 {
        self.0.rcv_wnd - self.0.rcv_nxt.wrapping_sub(self.0.rcv_wup)
    }

    /// Whether this is the same connection as another, later: the same ends and the same options.
    pub(crate) fn continues(&self, earlier: &Self) -> bool {
        let (now, before) = (&self.0, &earlier.0);
        (now.guest, now.remote) == (before.guest, before.remote)
            && (now.mss, now.scales, now.sack) == (before.mss, before.scales, before.sack)
    }
}

impl SeedFields {
    /// Sequence space in flight.
    pub fn flight(&self) -> u32 {
        self.snd_nxt.wrapping_sub(self.snd_una)
    }
}

#[cfg(test)]
mod tests;
