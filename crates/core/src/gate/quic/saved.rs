//! The gate of a flow of datagrams in a snapshot, with the datagrams that it holds. Keys are made anew from
//! the connection IDs.

use super::{
    ATTEMPTS_MAX, Attempt, BYTES_MAX, DATAGRAMS_MAX, HELD_MAX, Held, HelloStream, QuicGate, STREAM_MAX,
};
use crate::gate::Subject;
use crate::host::IpHeaderFields;
use crate::policy::{Checks, Class, Named};
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::{AttemptV1, Bytes, HeldV1, QuicGateV1};
use crate::time::Instant;
use crate::wire::quic::protection::ClientKeys;
use crate::wire::quic::{CONNECTION_ID_LEN_MAX, Version};
use std::net::SocketAddr;
use std::num::NonZeroU8;

impl QuicGate {
    /// Saved form. A flow that the gate has refused is over.
    pub(crate) fn save(&self) -> QuicGateV1<'_> {
        let Self { subject, attempts, name, named, held, noted, deadline, refusal: _ } = self;
        QuicGateV1 {
            checks: subject.checks.save(),
            deadline: deadline.save(),
            named: named.as_ref().map(|named| named.said()),
            name: name.as_ref().map(|(name, outer)| (Bytes(name), *outer)),
            attempts: attempts.iter().map(Attempt::save).collect(),
            held: held.iter().map(Held::save).collect(),
            noted: *noted,
        }
    }

    /// Gate of a saved form, for a flow between these ends.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself, or is beyond the bounds of a gate.
    pub(crate) fn restore(
        now: Instant,
        guest: SocketAddr,
        remote: SocketAddr,
        saved: &QuicGateV1<'_>,
    ) -> Result<Self, Invalid> {
        let QuicGateV1 { checks, deadline, named, name, attempts, held, noted } = saved;
        let checks = Checks::restore(*checks)?;
        let bytes: usize = held.iter().map(|held| held.payload.0.len()).sum();
        valid(checks.quic && attempts.len() <= ATTEMPTS_MAX)?;
        valid(held.len() <= DATAGRAMS_MAX && bytes <= BYTES_MAX && held.is_empty() == deadline.is_none())?;
        let named = named.map(Named::restore).transpose()?;
        let is_said = |name: &Bytes<'_>| named.as_ref().is_some_and(|named| *named.name == *name.0);
        valid(named.as_ref().is_none_or(|named| named.class == Class::Quic))?;
        valid(name.is_none_or(|(name, _)| !attempts.is_empty() && (checks.observed || is_said(&name))))?;
        let deadline: Option<Instant> = Saved::restore(*deadline)?;
        Ok(Self {
            subject: Subject { guest, remote, checks },
            attempts: attempts.iter().map(Attempt::restore).collect::<Result<_, _>>()?,
            name: name.map(|(name, outer)| (name.0.into(), outer)),
            named: named.map(Box::new),
            held: held.iter().map(Held::restore).collect(),
            noted: *noted,
            deadline: deadline.map(|at| at.min(now + HELD_MAX)),
            refusal: None,
        })
    }
}

impl Attempt {
    fn save(&self) -> AttemptV1<'_> {
        let Self { version, destination, keys: _, stream } = self;
        let HelloStream { bytes, has_come, whole: _, judged } = stream;
        AttemptV1 {
            version: version.number(),
            destination: Bytes(destination),
            bytes: Bytes(bytes),
            has_come: has_come.clone(),
            judged: *judged as u32,
        }
    }

    fn restore(saved: &AttemptV1<'_>) -> Result<Self, Invalid> {
        let AttemptV1 { version, destination, bytes, has_come, judged } = saved;
        let version = Version::of(*version).ok_or(Invalid)?;
        let whole = has_come.iter().take_while(|&&come| come).count();
        let judged = *judged as usize;
        valid(destination.0.len() <= CONNECTION_ID_LEN_MAX)?;
        valid(bytes.0.len() <= STREAM_MAX && has_come.len() == bytes.0.len() && judged <= whole)?;
        let stream = HelloStream { bytes: bytes.0.to_vec(), has_come: has_come.clone(), whole, judged };
        let keys = ClientKeys::new(version, destination.0);
        Ok(Self { version, destination: destination.0.into(), keys, stream })
    }
}

impl Held {
    fn save(&self) -> HeldV1<'_> {
        let IpHeaderFields { tos, ttl, dont_fragment } = self.fields;
        HeldV1 { tos, ttl: ttl.map_or(0, NonZeroU8::get), dont_fragment, payload: Bytes(&self.payload) }
    }

    fn restore(saved: &HeldV1<'_>) -> Self {
        let HeldV1 { tos, ttl, dont_fragment, payload } = *saved;
        let fields = IpHeaderFields { tos, ttl: NonZeroU8::new(ttl), dont_fragment };
        Self { payload: payload.0.into(), fields }
    }
}
