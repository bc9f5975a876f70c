//! Public suffixes: names below which each name has another owner, as below `co.uk` or `github.io`
//! (publicsuffix.org).
//!
//! Compile time: `psl` marks its matching, 1.7 MB of machine code, for inlining, and each crate that calls it
//! compiles it anew. Here that happens once, not for the program and again for its unit tests. The tests of
//! this crate are beside it for the same reason.

/// Whether names below `name` (lower case, A-labels) have owners of their own, by an entry of the list.
pub fn is_public_suffix(name: &str) -> bool {
    psl::suffix(name.as_bytes())
        .is_some_and(|suffix| suffix.is_known() && suffix.as_bytes() == name.as_bytes())
}

/// Whether `name` (lower case, A-labels) has one owner: it stands below an entry of the list.
pub fn has_one_owner(name: &str) -> bool {
    psl::domain(name.as_bytes()).is_some_and(|domain| domain.suffix().is_known())
}
