//! TCP_INFO: the state of a connection as its kernel has it.
//!
//! The structure grows with the kernels, and the libraries' copies of it end early. It is read as bytes here,
//! and a field that a kernel lacks is zero.

use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// State of a connection whose streams are both open: `TCP_ESTABLISHED`.
pub(crate) const ESTABLISHED: u8 = 1;
/// States after a FIN of our own alone: not acknowledged (`TCP_FIN_WAIT1`), acknowledged (`TCP_FIN_WAIT2`).
pub(crate) const FIN_WAIT_1: u8 = 4;
pub(crate) const FIN_WAIT_2: u8 = 5;
/// State after a FIN of the peer's alone: `TCP_CLOSE_WAIT`.
pub(crate) const CLOSE_WAIT: u8 = 8;
/// State of a connection without any: `TCP_CLOSE`.
pub(crate) const CLOSED: u8 = 7;
/// State of a socket that listens: `TCP_LISTEN`.
pub(crate) const LISTENS: u8 = 10;

/// Bytes that are read: up to `tcpi_data_segs_out`.
const LEN: usize = 160;

/// The fields that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TcpInfo {
    /// State of the connection.
    pub(crate) state: u8,
    /// Smoothed round-trip time in microseconds; 0 before there is one.
    pub(crate) rtt_us: u32,
    /// Segments received, those without data too.
    pub(crate) segments_received: u32,
    /// Segments sent again.
    pub(crate) retransmissions: u32,
    /// Segments with data, received and sent.
    pub(crate) data_segments_received: u32,
    pub(crate) data_segments_sent: u32,
    /// Sequence space that the peer has acknowledged, SYN and FIN with it; and received in order, FIN with
    /// it.
    pub(crate) acknowledged: u64,
    pub(crate) received: u64,
    /// Segments sent and not acknowledged; bytes written and not sent. With neither, all that was written is
    /// acknowledged.
    pub(crate) unacknowledged_segments: u32,
    pub(crate) unsent_bytes: u32,
}

impl TcpInfo {
    /// Of a TCP socket.
    ///
    /// # Errors
    /// It is not one.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let mut bytes = [0; LEN];
        sys::tcp_info(socket, &mut bytes)?;
        let number = |offset: usize| {
            let field = bytes.get(offset..).and_then(|rest| rest.first_chunk::<4>());
            field.map_or(0, |field| u32::from_ne_bytes(*field))
        };
        let long = |offset: usize| {
            let field = bytes.get(offset..).and_then(|rest| rest.first_chunk::<8>());
            field.map_or(0, |field| u64::from_ne_bytes(*field))
        };
        Ok(Self {
            state: bytes[0],
            rtt_us: number(68),
            segments_received: number(140),
            retransmissions: number(100),
            data_segments_received: number(152),
            data_segments_sent: number(156),
            acknowledged: long(120),
            received: long(128),
            unacknowledged_segments: number(24),
            unsent_bytes: number(144),
        })
    }
}
