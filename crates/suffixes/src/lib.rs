//! Public suffixes: names below which each name has another owner, as below `co.uk` or `github.io`
//! (publicsuffix.org).
//!
//! Compile time: `psl` marks its matching, 1.7 MB of machine code, for inlining, and each crate that calls it
//! compiles it anew. Here that happens once, and not also for the program and for its unit tests.

/// Whether names below `name` (lower case, A-labels) have owners of their own, by an entry of the list.
pub fn is_public_suffix(name: &str) -> bool {
    psl::suffix(name.as_bytes())
        .is_some_and(|suffix| suffix.is_known() && suffix.as_bytes() == name.as_bytes())
}

/// Whether `name` (lower case, A-labels) has one owner: it stands below an entry of the list.
pub fn has_one_owner(name: &str) -> bool {
    psl::domain(name.as_bytes()).is_some_and(|domain| domain.suffix().is_known())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_owner_or_many_or_are_not_in_the_list() {
        for name in ["co.uk", "github.io", "s3.amazonaws.com", "com"] {
            assert!(is_public_suffix(name) && !has_one_owner(name), "{name}");
        }
        for name in ["example.co.uk", "a.example.co.uk", "someone.github.io", "example.com"] {
            assert!(!is_public_suffix(name) && has_one_owner(name), "{name}");
        }
        for name in ["internal", "svc.cluster.internal-name", ""] {
            assert!(!is_public_suffix(name) && !has_one_owner(name), "{name}");
        }
    }
}
