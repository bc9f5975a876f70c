//! Counters: one documented line for each thing counted.
//!
//! An unusable packet is never an error and never a log line: it increments exactly one [`DropReason`]. Plain
//! integers, owned by one worker; observers copy or add them, and list them by what [`crate::counters!`]
//! makes.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Reason for the drop of a frame, packet, segment or datagram.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc])+ $name,)+ }

        impl DropReason {
            /// Every reason, in order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Name of the reason in metrics and on the screen.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }
        }
    };
}

drop_reasons! {
    /// Shorter than an Ethernet header.
    FrameTooShort,
    /// An EtherType that is not ARP, IPv4 or IPv6.
    UnknownEtherType,
    /// Addressed to another MAC address.
    NotForUs,
    /// Truncated or contradictory ARP.
    MalformedArp,
    /// Truncated IPv4 header, wrong version, or lengths that contradict each other.
    MalformedIpv4,
    /// IPv4 header checksum wrong.
    Ipv4Checksum,
    /// A fragment of a protocol that is not reassembled: TCP, or one that is not carried.
    Fragment,
    /// A fragment without content, with a length that only the last may have, or that ends beyond the longest
    /// packet.
    FragmentMalformed,
    /// A fragment that overlaps or contradicts others, or of a packet with such a fragment (RFC 5722).
    FragmentOverlap,
    /// A duplicate fragment.
    FragmentDuplicate,
    /// A fragmented packet that was incomplete when its reassembly timed out.
    FragmentTimeout,
    /// A fragmented packet evicted because too many were incomplete.
    FragmentEvicted,
    /// Truncated IPv6 header or extension headers, wrong version, or contradictory lengths.
    MalformedIpv6,
    /// A packet whose time to live or hop limit ends here (answered with ICMP time exceeded).
    TtlExpired,
    /// An IP protocol that is not TCP, UDP or ICMP.
    UnknownProtocol,
    /// A source address other than the guest's own.
    SpoofedSource,
    /// A destination that cannot be a peer: unspecified, multicast or broadcast where no service listens,
    /// reserved.
    BadDestination,
    /// For a protocol or service that is left out (`--without`).
    LeftOut,
    /// Truncated TCP header or contradictory options.
    MalformedTcp,
    /// TCP checksum wrong.
    TcpChecksum,
    /// Truncated UDP header or contradictory length.
    MalformedUdp,
    /// UDP checksum wrong, or absent over IPv6.
    UdpChecksum,
    /// Truncated ICMPv4.
    MalformedIcmpv4,
    /// Truncated ICMPv6.
    MalformedIcmpv6,
    /// ICMP checksum wrong.
    IcmpChecksum,
    /// An ICMP error for the guest beyond the rate limit (RFC 1812, 4.3.2.8) or four of a socket at once.
    IcmpErrorRate,
    /// An ICMP type that brodo does not answer.
    UnknownIcmp,
    /// Truncated neighbour discovery message, a bad option, or a hop limit that is not 255.
    MalformedNdp,
    /// Truncated or contradictory DHCPv4.
    MalformedDhcpv4,
    /// Truncated or contradictory DHCPv6.
    MalformedDhcpv6,
    /// A TCP segment for no connection that is not a SYN (answered with a reset).
    NoConnection,
    /// A TCP segment outside the window (answered with an acknowledgement).
    OutOfWindow,
    /// Data or ACK that is not allowed in the connection's state.
    UnacceptableSegment,
    /// A malformed query to the DNS address (answered with FORMERR where possible).
    MalformedDns,
    /// A query beyond the bound of pending queries (answered with SERVFAIL).
    DnsOverload,
    /// A message of a resolver that answers no pending query.
    DnsUnsolicited,
    /// An answer to a pending query with other letter case than the query's: forged, or of a resolver that
    /// does not keep the case, which is queried once more.
    DnsCaseMismatch,
    /// A segment beyond the bound of out-of-order ranges in one connection.
    TooManyGaps,
    /// The flow table is full.
    FlowTableFull,
    /// An inbound flow beyond the share of the flow table that is open to them: a quarter is the guest's own.
    InboundFlows,
    /// An inbound flow beyond the bound for one peer.
    FlowsPerPeer,
    /// An inbound connection between two endpoints that already have one.
    EndsInUse,
    /// The host is out of sockets or memory.
    HostExhausted,
    /// A segment of a flow that a kernel socket has, or is about to have: the guest sends it again.
    Promoted,
    /// The memory budget is spent.
    MemoryBudget,
    /// A datagram for the guest longer than an IP packet can be.
    DatagramTooBig,
    /// A datagram without room in its host socket, when its queue was full too.
    HostSocketFull,
    /// A datagram that waited too long for room in its host socket (CoDel, RFC 8289).
    HostQueueDelay,
    /// A message of brodo's own without credit of the link.
    LinkFull,
    /// A datagram that the host refused to send.
    HostSendFailed,
    /// A flow to a destination of the floor (host loopback, link-local and metadata addresses), to an address
    /// of brodo's own without a service, or to one that the host reports out of reach.
    Refused,
    /// A flow to a destination of a deny rule.
    Denied,
    /// A question or a new flow about which a person is being asked.
    PolicyAsks,
    /// A datagram beyond the rate of the rule that allows its flow, or a ping beyond the bounds of rules by
    /// name.
    RuleRate,
    /// A question to DNS beyond the rate of questions.
    QuestionRate,
    /// A flow beyond the rate of new flows.
    NewFlowRate,
    /// A flow beyond the bound for one destination.
    FlowsPerDestination,
    /// An echo request on a host that allows no ping sockets.
    EchoUnsupported,
    /// A segmentation request (GSO) that contradicts the packet, or makes more datagrams of it than Linux.
    BadOffload,
}

/// Number of drops by reason, and of all, modulo 2^64: counts of a process that has crashed may each be up to
/// 2^62.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Drops {
    by_reason: [u64; DropReason::ALL.len()],
    all: u64,
}

impl Default for Drops {
    fn default() -> Self {
        Self { by_reason: [0; DropReason::ALL.len()], all: 0 }
    }
}

impl Drops {
    fn add(&mut self, other: &Self) {
        self.by_reason.iter_mut().zip(&other.by_reason).for_each(|(sum, count)| *sum += count);
        self.all = self.all.wrapping_add(other.all);
    }
}

crate::counters! {
    /// Counters of one worker since its start.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Counters named "" {
        /// Frames taken from the guest.
        rx_frames,
        /// Bytes of frames taken from the guest.
        rx_bytes in bytes,
        /// Frames sent to the guest.
        tx_frames,
        /// Bytes of frames sent to the guest.
        tx_bytes in bytes,
        /// TCP connections opened.
        tcp_opened,
        /// Connections accepted on published ports for the guest.
        tcp_inbound,
        /// TCP connections closed, in whatever way.
        tcp_closed,
        /// TCP resets sent to the guest.
        tcp_resets_sent,
        /// TCP segments retransmitted to the guest.
        tcp_retransmissions,
        /// Loss recoveries toward the guest, however the loss was detected.
        tcp_recoveries,
        /// Expiries of the retransmission timer.
        tcp_timeouts,
        /// Tail loss probes sent (RFC 8985).
        tcp_tail_probes,
        /// Segments that the guest reports as duplicates (DSACK, RFC 2883).
        tcp_duplicates_reported,
        /// Delayed acknowledgements carried by an answer.
        tcp_acks_carried,
        /// Delayed acknowledgements sent alone, because no answer came in time.
        tcp_acks_late,
        /// TCP challenge ACKs sent (RFC 5961).
        tcp_challenge_acks,
        /// Connections probed because the guest's network device was reset: its kernel may be another one.
        tcp_doubted,
        /// Duplicate TCP payload bytes from the guest.
        tcp_duplicate_bytes in bytes,
        /// TCP payload bytes that went from a virtual machine's memory to the host's socket without a copy.
        tcp_zero_copy_bytes in bytes,
        /// Times a receive limit grew.
        rx_buffer_grows,
        /// Times a send limit grew.
        tx_buffer_grows,
        /// Times a receive limit shrank.
        rx_buffer_shrinks,
        /// Times a send limit shrank.
        tx_buffer_shrinks,
        /// UDP flows opened.
        udp_opened,
        /// UDP flows begun by a datagram to a published port.
        udp_inbound,
        /// Echo flows opened.
        echo_opened,
        /// UDP and echo flows closed.
        datagram_closed,
        /// Datagrams dropped by the host's kernel because its socket's buffer was full.
        udp_host_overflows,
        /// Datagrams queued for lack of room in their host socket.
        udp_held,
        /// Datagrams marked instead of dropped after too long a wait (ECN, RFC 3168).
        udp_marked,
        /// Connections between loopbacks, carried by a splice.
        splice_opened,
        /// Bytes moved by splices, both ways.
        splice_bytes in bytes,
        /// UDP conversations between loopbacks, carried by a relay.
        relay_opened,
        /// Bytes moved by relays, both ways.
        relay_bytes in bytes,
        /// Flows of splices and relays closed.
        carried_closed,
        /// Bulk connections that were to be given to a kernel socket.
        promotions_tried,
        /// Of these, those that did not become quiet in time.
        promotions_given_up,
        /// Connections given to a kernel socket that has received a segment of the guest's.
        promotions_made,
        /// Promotions refused because the driver cannot promote such a flow.
        promotions_refused_unsupported,
        /// Promotions refused because a capture wants to see the flow.
        promotions_refused_captured,
        /// Promotions refused because the process that makes such sockets does not answer.
        promotions_refused_broker,
        /// Promotions refused because the guest's segments could not be steered.
        promotions_refused_steering,
        /// Promotions refused because the kernel did not make the socket.
        promotions_refused_socket,
        /// Promotions refused for lack of descriptors, pipes or memory.
        promotions_refused_resources,
        /// Promoted connections taken back because a segment came by the link.
        promotions_recalled_stray,
        /// Promoted connections taken back because the kernel socket received nothing of the guest.
        promotions_recalled_silent,
        /// Promoted connections taken back for a capture.
        promotions_recalled_capture,
        /// Promoted connections taken back because segments were no longer steered to the socket.
        promotions_recalled_steering,
        /// Promoted connections taken back because the process that makes such sockets was gone.
        promotions_recalled_broker,
        /// Promoted connections taken back before a hand-over.
        promotions_recalled_hand_over,
        /// Promoted connections taken back because promotion was switched off, or they had come under limits
        /// of a policy.
        promotions_recalled_settings,
        /// Promoted connections taken back for lack of descriptors or pipes.
        promotions_recalled_resources,
        /// Promoted connections taken back because they had moved nothing for a while, and another was to
        /// have their place.
        promotions_recalled_idle,
        /// Promoted connections that have come back and gone on.
        promotions_returned,
        /// Promoted connections reset because their state could not be taken back.
        promotions_broken,
        /// Times that a frozen connection stood still because the process that thaws such sockets could not
        /// be asked to.
        promotions_thaws_put_off,
        /// Times that the guest's datagrams, which filled its transmit queue, got a queue of their own.
        diversions,
        /// Bytes moved by kernel sockets for promoted connections, both ways.
        promoted_bytes in bytes,
        /// Queries to the DNS address over UDP.
        dns_questions,
        /// Queries answered from host entries.
        dns_host_entries,
        /// Queries answered from the cache.
        dns_cached,
        /// Queries joined with an equal pending one.
        dns_joined,
        /// Queries to resolvers, each under a random ID and with letters in random case.
        dns_queries,
        /// Queries to a resolver that does not keep the case of letters; a second ID distinguishes
        /// their answers.
        dns_queries_folding,
        /// Queries sent again to another resolver.
        dns_retries,
        /// Queries without an answer of any resolver: the guest got SERVFAIL.
        dns_unanswered,
        /// Answers truncated because they are longer than the guest takes over UDP; the guest repeats the
        /// query over TCP.
        dns_truncated,
        /// Flows evicted because the table was full, or because their share of it or of the host's UDP ports
        /// was used up.
        flows_evicted,
        /// UDP flows of the guest evicted because their share of the host's ephemeral ports was used
        /// up.
        udp_flows_evicted,
        /// Times the link had no credit.
        link_stalls,
        /// Flows parked for memory that no waker woke, found by the watchdog: a defect, so always 0.
        lost_wakeups,
    }
    with drops: Drops;
}

impl Counters {
    /// Counts one drop.
    pub fn drop(&mut self, reason: DropReason) {
        self.drops.by_reason[reason as usize] += 1;
        self.drops.all = self.drops.all.wrapping_add(1);
    }

    /// Sets the number of drops for a reason, by its name.
    pub(crate) fn set_dropped(&mut self, name: &str, drops: u64) {
        if let Some(&reason) = DropReason::ALL.iter().find(|reason| reason.name() == name) {
            let before = std::mem::replace(&mut self.drops.by_reason[reason as usize], drops);
            self.drops.all = self.drops.all.wrapping_sub(before).wrapping_add(drops);
        }
    }

    /// Number of drops for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.by_reason[reason as usize]
    }

    /// Number of drops for all reasons, modulo 2^64: for differences.
    pub fn all_dropped(&self) -> u64 {
        self.drops.all
    }

    /// All drops with a count above zero.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.iter().map(|&r| (r, self.dropped(r))).filter(|&(_, n)| n > 0)
    }
}
