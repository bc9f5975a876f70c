//! States of a TCP connection by their names in RFC 9293, derived from its two halves and never stored.

/// The states of RFC 9293, section 3.3.2. LISTEN does not occur: it is the host's kernel that listens for the
/// guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// We have sent SYN, for a peer of the host's.
    SynSent,
    /// SYN received; the host socket is being connected, or the SYN-ACK awaits its acknowledgement.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// We have sent FIN.
    FinWait1,
    /// Our FIN is acknowledged.
    FinWait2,
    /// The guest has sent FIN.
    CloseWait,
    /// Both have sent FIN at the same time; ours is not acknowledged.
    Closing,
    /// The guest sent FIN first; ours is not acknowledged.
    LastAck,
    /// Both directions are closed, ours first.
    TimeWait,
    /// Nothing is left.
    Closed,
}
