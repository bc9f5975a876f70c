//! HTTP without TLS at a gate: every request of a connection names its host ([`crate::wire::http`]).
//!
//! Heads are held until they are judged, bodies pass. All requests of one connection name the same host: no
//! client mixes them, and a name that was allowed once needs no second look at the policy. A first request is
//! refused by an answer with the reason; a later one by a reset, because an answer might fall into one of the
//! server's that is under way.

use super::Outcome;
use crate::policy::{DomainName, Named, Telling, reason};
use crate::snapshot::saved::Invalid;
use crate::snapshot::v1::GateReaderV1;
use crate::wire::http::{Malformed, Progress, RequestPlace, RequestReader};
use std::sync::Arc;

/// Reader of a connection's requests.
#[derive(Debug, Default)]
pub(super) struct HttpGate {
    reader: RequestReader,
    /// Host of the first request.
    host: Option<DomainName>,
}

impl HttpGate {
    /// Takes bytes of the guest's from the front of `bytes`; `allowed` judges a name.
    ///
    /// # Errors
    /// The rule or reason that refuses the connection.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        allowed: impl FnOnce(&[u8]) -> Result<(), Arc<str>>,
    ) -> Result<(usize, Outcome), Arc<str>> {
        let (taken, progress) = self.reader.read(bytes).map_err(|malformed| match malformed {
            Malformed::NotHttp => reason::NOT_HTTP,
            Malformed::Request => reason::REQUEST,
        })?;
        let host = match progress {
            Progress::More => return Ok((taken, Outcome::Hold)),
            Progress::Body => return Ok((taken, Outcome::Release)),
            Progress::Head(host) => host.filter(|host| !host.is_empty()).ok_or(reason::NO_NAME)?,
        };
        match &self.host {
            Some(first) if DomainName::parse(&host).as_ref() == Some(first) => {}
            Some(_) => return Err(reason::NAME_CHANGED.into()),
            None => {
                allowed(&host)?;
                self.host = DomainName::parse(&host);
            }
        }
        Ok((taken, Outcome::Release))
    }
}

/// For a snapshot.
impl HttpGate {
    /// Saved form of the place behind the last part that was whole. Lines of one that is not are held.
    pub(super) fn save(&self) -> GateReaderV1 {
        let (place, left) = match self.reader.place() {
            RequestPlace::Head => (0, 0),
            RequestPlace::Body(left) => (1, left),
            RequestPlace::ChunkLine => (2, 0),
            RequestPlace::Chunk(left) => (3, left),
            RequestPlace::ChunkEnd => (4, 0),
            RequestPlace::Trailers => (5, 0),
        };
        GateReaderV1::Http { place, left }
    }

    /// A gate behind a first request to this server.
    pub(super) fn restore(named: &Named, saved: GateReaderV1) -> Result<Self, Invalid> {
        let place = match saved {
            GateReaderV1::Http { place: 0, left: 0 } => RequestPlace::Head,
            GateReaderV1::Http { place: 1, left: left @ 1.. } => RequestPlace::Body(left),
            GateReaderV1::Http { place: 2, left: 0 } => RequestPlace::ChunkLine,
            GateReaderV1::Http { place: 3, left: left @ 1.. } => RequestPlace::Chunk(left),
            GateReaderV1::Http { place: 4, left: 0 } => RequestPlace::ChunkEnd,
            GateReaderV1::Http { place: 5, left: 0 } => RequestPlace::Trailers,
            _ => return Err(Invalid),
        };
        let host = DomainName::parse(&named.name).ok_or(Invalid)?;
        Ok(Self { reader: RequestReader::at(place), host: Some(host) })
    }
}

/// Answer to a first request that is refused by `refusal`, with as much of it as is reported.
pub(super) fn forbidden(refusal: &str, telling: &Telling) -> Vec<u8> {
    let (mut header, mut text) = (String::new(), String::new());
    if let Some(reason) = telling.reason(refusal) {
        header = format!("X-Brodo-Policy: {reason}\r\n");
        text = format!("brodo: the policy refuses this request: {reason}\n");
    }
    if !telling.note.is_empty() {
        text = format!("{text}{}\n", telling.note);
    }
    let head = format!(
        "HTTP/1.1 403 Forbidden\r\n{header}Content-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        text.len()
    );
    (head + &text).into_bytes()
}
