//! Servers that flows have named at gates, as a gate has read them: judged when they are read, and again when
//! the policy changes.

use super::port_table::Class;

/// The server that a flow has named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The way in which it did.
    pub(crate) class: Class,
    /// The name, as the guest has written it.
    pub(crate) name: Box<[u8]>,
}
