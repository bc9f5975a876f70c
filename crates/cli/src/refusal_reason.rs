//! Reasons of refusals as sentences, for people: `brodo policy explain`, and reports.

/// The reason as a sentence; `None`: its text says it, as that of a rule does.
pub(crate) fn sentence(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "policy question" => "no rule names it",
        "policy question-rate" => "too many questions",
        "policy question-type" => "records of this type are not asked for: `types` of the policy",
        "policy question-form" => "another class than IN, or another operation than a query",
        "policy names-per-wildcard" => "too many names of one wildcard within an hour",
        "policy ping" => "allowed by name alone: 64 bytes, ten in a second",
        "policy default" => "no rule fits",
        "policy private" => "a private address: no rule lifts it",
        "policy not-given-by-dns" => {
            "not given by DNS for an allowed name: a fixed address, or a resolver of the guest's own"
        }
        "policy name" => "the name is not allowed here",
        "policy name-elsewhere" => "DNS gave the guest another address for this name",
        "policy name-changed" => "the flow has named another server before",
        "policy no-name" => "it names no server",
        "policy ech" => "its name is encrypted (ECH)",
        "policy lockdown" => "everything is refused",
        _ => return None,
    })
}
