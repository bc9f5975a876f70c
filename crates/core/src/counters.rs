//! Counters: one documented place for everything brodo counts.
//!
//! A packet that cannot be used is never an error and never a log line: it increments exactly one
//! [`DropReason`]. Plain integers, owned by one worker; whoever wants to look copies or adds them.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Why a frame, packet, segment or datagram was not used.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc])+ $name,)+ }

        impl DropReason {
            /// Every reason, in order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The reason's name as shown to people and written to metrics.
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
    /// Addressed to another station.
    NotForUs,
    /// Truncated or contradictory ARP.
    MalformedArp,
    /// Truncated IPv4 header, wrong version, or lengths that contradict each other.
    MalformedIpv4,
    /// IPv4 header checksum wrong.
    Ipv4Checksum,
    /// A fragment of something that is not put together again: TCP, or a protocol that is not carried.
    Fragment,
    /// A fragment without content, of a length that none but the last may have, or that ends behind the
    /// longest packet.
    FragmentMalformed,
    /// A fragment that overlaps or contradicts others, or that belongs to a packet of which one did (RFC
    /// 5722).
    FragmentOverlap,
    /// A fragment that has come before.
    FragmentDuplicate,
    /// A fragmented packet that was not complete when its time was over.
    FragmentTimeout,
    /// A fragmented packet that had to go because too many were incomplete.
    FragmentEvicted,
    /// Truncated IPv6 header or extension headers, wrong version, or contradictory lengths.
    MalformedIpv6,
    /// A packet whose time to live or hop limit ends here (answered with ICMP time exceeded).
    TtlExpired,
    /// An IP protocol that is not TCP, UDP or ICMP.
    UnknownProtocol,
    /// A source address that is not the guest's own.
    SpoofedSource,
    /// A destination that cannot be a peer: unspecified, multicast or broadcast where no service listens,
    /// reserved.
    BadDestination,
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
    /// An ICMP error for the guest beyond the number that may be sent in a time (RFC 1812, 4.3.2.8).
    IcmpErrorRate,
    /// An ICMP type that nothing here answers.
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
    /// Data or ACK that the connection's state does not allow.
    UnacceptableSegment,
    /// A question to the DNS address that cannot be read (answered with FORMERR where possible).
    MalformedDns,
    /// More questions at a time than are kept (answered with SERVFAIL).
    DnsOverload,
    /// A message of a resolver that answers no question that waits.
    DnsUnsolicited,
    /// An answer to a question that waits, but with letters in other case than it was asked: forged, or of a
    /// resolver that does not keep the case, which is asked once more.
    DnsCaseMismatch,
    /// More out-of-order ranges in one connection than are kept.
    TooManyGaps,
    /// The flow table is full.
    FlowTableFull,
    /// A flow from the host's side beyond the share of the table that is theirs: a quarter is the guest's
    /// own.
    InboundFlows,
    /// A flow from the host's side of a peer that has as many as one peer may have.
    FlowsPerPeer,
    /// A connection from the host's side between two ends that have one already.
    EndsInUse,
    /// The host is out of sockets or memory.
    HostExhausted,
    /// The memory budget is spent.
    MemoryBudget,
    /// A datagram toward the guest that is longer than an IP packet can be.
    DatagramTooBig,
    /// The host had no room for a datagram, and as many as may be were already waiting.
    HostSocketFull,
    /// A datagram waited too long for room on the host (CoDel, RFC 8289).
    HostQueueDelay,
    /// The link had no credit for a message of brodo's own.
    LinkFull,
    /// The host refused to send a datagram.
    HostSendFailed,
    /// A flow to a destination that the floor refuses (host loopback, link-local and metadata addresses),
    /// that is brodo's own and offers nothing, or that the host says is out of reach.
    Refused,
    /// A flow to a destination that a deny rule refuses.
    Denied,
    /// A flow beyond the number that may begin in a time.
    NewFlowRate,
    /// A flow beyond the number that may be open to one destination.
    FlowsPerDestination,
    /// An echo request while the host allows no ping sockets.
    EchoUnsupported,
    /// A segmentation request (GSO) that contradicts the packet.
    BadOffload,
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What one worker counts, since its start.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
            drops: [u64; DropReason::ALL.len()],
        }

        impl Default for Counters {
            fn default() -> Self {
                Self { $($name: 0,)+ drops: [0; DropReason::ALL.len()] }
            }
        }

        impl Counters {
            /// Adds what another worker has counted.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
                for (sum, count) in self.drops.iter_mut().zip(&other.drops) {
                    *sum += count;
                }
            }

            /// Every counter except drops: its name, what it counts in a sentence or more, and how many.
            pub fn described(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name),)+].into_iter()
            }

            /// Every counter except drops, by name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Frames taken from the guest.
    rx_frames,
    /// Bytes of those frames.
    rx_bytes,
    /// Frames given to the guest.
    tx_frames,
    /// Bytes of those frames.
    tx_bytes,
    /// TCP connections opened.
    tcp_opened,
    /// Connections that the host has accepted for the guest.
    tcp_inbound,
    /// TCP connections that ended, however.
    tcp_closed,
    /// TCP resets sent to the guest.
    tcp_resets_sent,
    /// TCP segments sent to the guest again.
    tcp_retransmissions,
    /// Recoveries from loss toward the guest, however seen.
    tcp_recoveries,
    /// Expiries of the retransmission timer.
    tcp_timeouts,
    /// Tail loss probes sent (RFC 8985).
    tcp_tail_probes,
    /// Segments that the guest says it got twice (RFC 2883).
    tcp_duplicates_reported,
    /// Acknowledgements that waited for an answer and went with it.
    tcp_acks_carried,
    /// Acknowledgements that waited for an answer which did not come in time.
    tcp_acks_late,
    /// TCP challenge ACKs sent (RFC 5961).
    tcp_challenge_acks,
    /// Duplicate TCP payload bytes from the guest.
    tcp_duplicate_bytes,
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
    /// UDP flows that a datagram to a published port has begun.
    udp_inbound,
    /// Echo flows opened.
    echo_opened,
    /// UDP and echo flows that ended.
    datagram_closed,
    /// Datagrams that the host's kernel dropped because they were not taken in time.
    udp_host_overflows,
    /// Datagrams that waited for room in their host socket.
    udp_held,
    /// Datagrams that were marked instead of dropped because they had waited too long (ECN, RFC 3168).
    udp_marked,
    /// Questions to the DNS address over UDP.
    dns_questions,
    /// Questions answered from host entries.
    dns_host_entries,
    /// Questions answered from the cache.
    dns_cached,
    /// Questions that joined an equal one which waited already.
    dns_joined,
    /// Queries sent to resolvers, each question's under a random identifier and with letters in random case.
    dns_queries,
    /// Of those, queries to a resolver that does not keep the case of letters, whose answers are told by a
    /// second identifier.
    dns_queries_folding,
    /// Times that another resolver was asked the same question.
    dns_retries,
    /// Questions that nobody has answered: the guest was told SERVFAIL.
    dns_unanswered,
    /// Answers longer than the guest takes over UDP, which it is to ask for over TCP.
    dns_truncated,
    /// Flows evicted because the table was full, or their share of it or of the host's UDP ports was spent.
    flows_evicted,
    /// UDP flows of the guest's among them that went because their share of the host's ephemeral ports was
    /// spent.
    udp_flows_evicted,
    /// Times the link had no credit.
    link_stalls,
    /// Flows that waited for memory and were forgotten, until the watchdog found them: a defect, so always 0.
    lost_wakeups,
}

impl Counters {
    /// Counts one drop.
    pub fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// How often `reason` occurred.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// All drops with a count above zero.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.iter().map(|&r| (r, self.dropped(r))).filter(|&(_, n)| n > 0)
    }
}
