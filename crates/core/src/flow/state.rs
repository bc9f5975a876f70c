//! States of a TCP connection by their names in RFC 9293, derived from its two halves and never stored.

/// States of RFC 9293, section 3.3.2. LISTEN does not occur: it is the host's kernel that listens for the
/// guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// SYN sent, for a peer of the host's (active open).
    SynSent,
    /// SYN received; the host socket is being connected, or the SYN-ACK awaits its acknowledgement.
    SynReceived,
    /// Synchronised: data flows both ways.
    Established,
    /// FIN sent, not acknowledged.
    FinWait1,
    /// FIN sent and acknowledged; that of the guest is awaited.
    FinWait2,
    /// FIN received; ours is not sent.
    CloseWait,
    /// FINs crossed; ours is not acknowledged.
    Closing,
    /// FIN received first, then sent; ours is not acknowledged.
    LastAck,
    /// Both directions are closed, ours first.
    TimeWait,
    /// Both directions are over, or the connection was reset.
    Closed,
}

impl State {
    /// State of an open connection toward the guest of which only the ends of its streams are known: the
    /// guest's, and the host's.
    pub(crate) const fn of_ends(guest_finished: bool, host_finished: bool) -> Self {
        match (guest_finished, host_finished) {
            (false, false) => Self::Established,
            (true, false) => Self::CloseWait,
            (false, true) => Self::FinWait2,
            (true, true) => Self::Closed,
        }
    }
}
