//! The envelope: JSON-RPC 2.0, one message per line.
//!
//! A request is an object with `jsonrpc`, `method`, perhaps `params` (an object) and an `id` (a number or a
//! string). One without `id` is carried out and not answered. Batches (arrays of requests) are not offered. A
//! reply bears the request's `id` and either `result` or `error`. Events are messages of the server's with a
//! method and no `id`.
//!
//! [`Request::parse`] accepts arbitrary bytes and never panics; its error is the reply to send.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

/// The number of the protocol.
pub const PROTOCOL: u32 = 1;
/// Longest request, in bytes, the end of the line not counted: room for the longest policy, 1 MiB of text, in
/// JSON. A longer one ends the connection.
pub const REQUEST_MAX: usize = 2 << 20;
/// Longest message that a server sends, in bytes: a client may take a longer line for an error.
pub const MESSAGE_MAX: usize = 4 << 20;
/// The method of events.
pub const EVENT: &str = "event";

/// Id of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Id {
    /// A number.
    Number(i64),
    /// Any string.
    Text(String),
}

/// The reason for which a request was not carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Error {
    /// One of [`code`].
    pub code: i64,
    /// One sentence for people.
    pub message: String,
}

/// Error codes of JSON-RPC, and of brodo (above 0).
pub mod code {
    /// Not JSON, not UTF-8, or too long. The connection is closed.
    pub const PARSE: i64 = -32700;
    /// JSON, but no request. The connection is closed.
    pub const INVALID_REQUEST: i64 = -32600;
    /// No such method.
    pub const NO_METHOD: i64 = -32601;
    /// The method has other parameters.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The request could not be carried out: a file that cannot be written, a port that is taken.
    pub const FAILED: i64 = 1;
    /// The object does not exist: a flow that has ended, a forward.
    pub const NOT_FOUND: i64 = 2;
    /// This instance cannot do it.
    pub const UNSUPPORTED: i64 = 3;
    /// The worker did not answer in time, or brodo is about to end.
    pub const BUSY: i64 = 4;
    /// The client is not authorized. The connection is closed.
    pub const DENIED: i64 = 5;
    /// The policy takes no change any more.
    pub const SEALED: i64 = 6;
}

impl Error {
    /// An error with one of [`code`].
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// A request as it was sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Version of JSON-RPC: "2.0".
    pub jsonrpc: String,
    /// Id of the reply; without it there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    /// Name of the method.
    pub method: String,
    /// Parameters of the method, an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
}

impl Request {
    /// Takes a line, without its end.
    ///
    /// # Errors
    /// The error to send for a line that is no request; the connection should then be closed.
    pub fn parse(line: &[u8]) -> Result<Self, Error> {
        if line.len() > REQUEST_MAX {
            return Err(Error::new(code::PARSE, format!("a request has at most {REQUEST_MAX} bytes")));
        }
        let text =
            std::str::from_utf8(line).map_err(|e| Error::new(code::PARSE, format!("not UTF-8: {e}")))?;
        let value: Value =
            serde_json::from_str(text).map_err(|e| Error::new(code::PARSE, format!("not JSON: {e}")))?;
        let invalid = |why: String| Error::new(code::INVALID_REQUEST, why);
        if value.is_array() {
            return Err(invalid("batches are not offered: send one request per line".into()));
        }
        let request: Self =
            serde_json::from_value(value).map_err(|e| invalid(format!("not a request: {e}")))?;
        if request.jsonrpc != "2.0" {
            return Err(invalid("jsonrpc must be \"2.0\"".into()));
        }
        if request.params.as_ref().is_some_and(|params| !params.is_object()) {
            return Err(invalid("params must be an object".into()));
        }
        Ok(request)
    }

    /// The parameters of a method.
    ///
    /// # Errors
    /// The method has other parameters.
    pub fn params<P: DeserializeOwned>(self) -> Result<P, Error> {
        let params = self.params.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
        serde_json::from_value(params)
            .map_err(|e| Error::new(code::INVALID_PARAMS, format!("the parameters of {}: {e}", self.method)))
    }
}

/// Message of a server: a reply, or an event. `R` is the result type of the called method; raw JSON where
/// that is unknown.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "R: Deserialize<'de>"))]
pub struct Message<R = Box<RawValue>> {
    /// Version of JSON-RPC: "2.0".
    pub jsonrpc: String,
    /// Id of the answered request; none if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    /// Result of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<R>,
    /// Error of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// [`EVENT`], if this is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// To be read as a [`crate::event::Event`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Reply<'a, R> {
    jsonrpc: &'static str,
    id: Option<&'a Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Error>,
}

#[derive(Serialize)]
struct Notification<'a, P> {
    jsonrpc: &'static str,
    method: &'a str,
    params: P,
}

fn line(message: &impl Serialize) -> Vec<u8> {
    // Serialisation of these messages cannot fail: their maps have strings as keys.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The line of a reply with a result.
pub fn result(id: &Id, result: &impl Serialize) -> Vec<u8> {
    line(&Reply { jsonrpc: "2.0", id: Some(id), result: Some(result), error: None })
}

/// The line of an error reply; without `id` for a request that could not be read.
pub fn error(id: Option<&Id>, error: &Error) -> Vec<u8> {
    line(&Reply::<()> { jsonrpc: "2.0", id, result: None, error: Some(error) })
}

/// The line of an event.
pub fn event(event: &crate::event::Event) -> Vec<u8> {
    line(&Notification { jsonrpc: "2.0", method: EVENT, params: event })
}

/// The line of a request without an id, which has no reply.
pub fn notification(method: &str, params: &impl Serialize) -> Vec<u8> {
    line(&Notification { jsonrpc: "2.0", method, params })
}

/// The line of a request.
pub fn request(id: i64, method: &str, params: &impl Serialize) -> Vec<u8> {
    #[derive(Serialize)]
    struct Sent<'a, P> {
        jsonrpc: &'static str,
        id: i64,
        method: &'a str,
        params: P,
    }
    line(&Sent { jsonrpc: "2.0", id, method, params })
}

#[cfg(test)]
mod tests;
