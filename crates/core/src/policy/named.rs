//! Servers that flows have named at gates, as a gate has read them: judged when they are read, and again when
//! the policy changes.

use super::port_table::Class;
use crate::snapshot::saved::{Invalid, Saved, saved_enum, valid};
use crate::snapshot::v1::{Bytes, SaidV1};
use crate::time::Duration;

/// Longest name that a gate can have read, in bytes: a ClientHello and a head of HTTP are no longer.
const SAID_MAX: usize = 16 << 10;

/// The server that a flow has named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The way in which it did.
    pub(crate) class: Class,
    /// The name, as the guest has written it.
    pub(crate) name: Box<[u8]>,
    /// It is the outer name of an encrypted ClientHello: the server may be another.
    pub(crate) encrypted: bool,
}

saved_enum!(Class { Tcp = 0, Udp = 1, Ping = 2, Tls = 3, Http = 4, Quic = 5 });

/// For a snapshot.
impl Named {
    /// Saved form of a name that a gate has read.
    pub(crate) fn said(&self) -> SaidV1<'_> {
        let Self { class, name, encrypted } = self;
        SaidV1 { class: class.save(), encrypted: *encrypted, name: Bytes(name) }
    }

    /// Name of a saved form.
    ///
    /// # Errors
    /// [`Invalid`] if it cannot have been said.
    pub(crate) fn restore(saved: SaidV1<'_>) -> Result<Self, Invalid> {
        let SaidV1 { class, encrypted, name } = saved;
        valid(name.0.len() <= SAID_MAX)?;
        Ok(Self { class: Class::restore(class)?, name: name.0.into(), encrypted })
    }
}

/// A name as a flow says it at a gate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Said<'a> {
    pub(crate) named: &'a Named,
    /// The first name of its flow.
    pub(crate) opens: bool,
    /// Time for which its gate has been closed.
    pub(crate) held: Duration,
}

impl<'a> Said<'a> {
    /// A name that was allowed before, judged again.
    pub(crate) const fn again(named: &'a Named) -> Self {
        Self { named, opens: false, held: Duration::ZERO }
    }
}
