//! A connection's gate in a snapshot: as it was when it released a byte last. Bytes behind that one are held
//! in the connection's queue, and read again where the gate is restored.
//!
//! A gate that has refused its connection is not saved, nor one that only looks on: the bytes that it has
//! read have left, and cannot be read again.

use super::http::HttpGate;
use super::tls::TlsGate;
use super::{CLOSED_MAX, Gate, Reader, Subject};
use crate::policy::{Checks, Class, Named};
use crate::snapshot::saved::{Invalid, Saved, saved_struct, valid};
use crate::snapshot::v1::{ChecksV1, GateReaderV1, GateV1};
use crate::time::Instant;
use std::net::SocketAddr;

saved_struct!(Checks as ChecksV1 { tls, http, quic, private, observed });

impl Gate {
    /// Whether it only looks on: its connection goes on without it.
    pub(crate) fn is_observer(&self) -> bool {
        self.subject.checks.observed
    }

    /// Saved form, if it has one, of a gate whose connection has `released` bytes that may leave.
    pub(crate) fn save(&self, released: u32) -> Option<GateV1<'_>> {
        let Self { subject, deadline, reader, passed, named, refusal } = self;
        let reader = match reader {
            Reader::Tls(TlsGate::Watching(watch)) if *passed => watch.save(),
            Reader::Http(gate) if *passed => gate.save(),
            _ => GateReaderV1::Closed,
        };
        (refusal.is_none() && !self.is_observer()).then(|| GateV1 {
            checks: subject.checks.save(),
            deadline: deadline.save(),
            released,
            named: named.as_ref().map(|named| named.said()),
            reader,
        })
    }

    /// Gate of a saved form, for a connection between these ends.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself.
    pub(crate) fn restore(
        now: Instant,
        guest: SocketAddr,
        remote: SocketAddr,
        saved: &GateV1<'_>,
    ) -> Result<Self, Invalid> {
        let checks = Checks::restore(saved.checks)?;
        valid((checks.tls || checks.http) && !checks.observed)?;
        let named = saved.named.map(Named::restore).transpose()?;
        let class = named.as_ref().map(|named| named.class);
        let deadline: Option<Instant> = Saved::restore(saved.deadline)?;
        let mut gate = Self::new(Subject { guest, remote, checks });
        // No later than that of a gate which begins now.
        gate.deadline = deadline.map(|at| at.min(now + CLOSED_MAX));
        match (saved.reader, &named) {
            (GateReaderV1::Closed, None) => valid(saved.released == 0)?,
            (GateReaderV1::Tls { .. }, Some(named)) if checks.tls && class == Some(Class::Tls) => {
                gate.reader = Reader::Tls(TlsGate::restore(named, saved.reader)?);
                gate.passed = true;
            }
            (GateReaderV1::Http { .. }, Some(named)) if checks.http && class == Some(Class::Http) => {
                gate.reader = Reader::Http(HttpGate::restore(named, saved.reader)?);
                gate.passed = true;
            }
            _ => return Err(Invalid),
        }
        gate.named = named.map(Box::new);
        Ok(gate)
    }
}
