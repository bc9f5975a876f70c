//! Servers that flows have named at gates, as a gate has read them: judged when they are read, and again when
//! the policy changes.

use super::port_table::Class;
use crate::snapshot::saved::saved_enum;

/// The server that a flow has named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The way in which it did.
    pub(crate) class: Class,
    /// The name, as the guest has written it.
    pub(crate) name: Box<[u8]>,
}

saved_enum!(Class { Tcp = 0, Udp = 1, Ping = 2, Tls = 3, Http = 4, Quic = 5 });
