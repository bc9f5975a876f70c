//! Reasons under which the shared policy and its gates count refusals, besides the texts of deny rules: a
//! closed list.

/// Begins all of them.
pub(crate) const PREFIX: &str = "policy ";

pub(crate) const PRIVATE: &str = "policy private";
pub(crate) const DEFAULT: &str = "policy default";
pub(crate) const NOT_GIVEN_BY_DNS: &str = "policy not-given-by-dns";
pub(crate) const QUESTION: &str = "policy question";
pub(crate) const NAMES_PER_WILDCARD: &str = "policy names-per-wildcard";
pub(crate) const QUESTION_RATE: &str = "policy question-rate";
/// A type that is not asked about.
pub(crate) const QUESTION_TYPE: &str = "policy question-type";
/// Another class than IN, or another operation than a query.
pub(crate) const QUESTION_FORM: &str = "policy question-form";
pub(crate) const DNS_OVER_TCP: &str = "policy dns-over-tcp";
pub(crate) const GATE_OVERLOAD: &str = "policy gate-overload";
/// The quota of the rule is used up.
pub(crate) const QUOTA: &str = "policy quota";
/// The rule has as many flows as it may have.
pub(crate) const FLOWS: &str = "policy flows";
/// A message of an echo flow that is allowed by name alone, too long or too soon.
pub(crate) const PING: &str = "policy ping";
/// Everything is refused.
pub(crate) const LOCKDOWN: &str = "policy lockdown";
/// Every one, in the order in which they are listed.
pub(crate) const ALL: [&str; 14] = [
    PRIVATE,
    DEFAULT,
    NOT_GIVEN_BY_DNS,
    QUESTION,
    NAMES_PER_WILDCARD,
    QUESTION_RATE,
    QUESTION_TYPE,
    QUESTION_FORM,
    DNS_OVER_TCP,
    GATE_OVERLOAD,
    QUOTA,
    FLOWS,
    PING,
    LOCKDOWN,
];

/// The name is not allowed at this port.
pub(crate) const NAME: &str = "policy name";
/// The name is allowed, but DNS gave another address for it.
pub(crate) const NAME_ELSEWHERE: &str = "policy name-elsewhere";
/// A second ClientHello, or a later request, has another name.
pub(crate) const NAME_CHANGED: &str = "policy name-changed";
/// A ClientHello or request without a name.
pub(crate) const NO_NAME: &str = "policy no-name";
/// Another protocol than TLS.
pub(crate) const NOT_TLS: &str = "policy not-tls";
/// Another protocol than HTTP.
pub(crate) const NOT_HTTP: &str = "policy not-http";
/// Another protocol than QUIC, or another version, or not the beginning of a connection.
pub(crate) const NOT_QUIC: &str = "policy not-quic";
/// A ClientHello that contradicts itself, is too long or ends too early.
pub(crate) const HELLO: &str = "policy hello";
/// A request that can be read in two ways, is too long, ends too early, or asks for another protocol.
pub(crate) const REQUEST: &str = "policy request";
/// An encrypted name.
pub(crate) const ECH: &str = "policy ech";
/// No whole ClientHello or request in time.
pub(crate) const TIMEOUT: &str = "policy timeout";
/// Every one of a gate.
pub(crate) const AT_GATE: [&str; 11] =
    [NAME, NAME_ELSEWHERE, NAME_CHANGED, NO_NAME, NOT_TLS, NOT_HTTP, NOT_QUIC, HELLO, REQUEST, ECH, TIMEOUT];
