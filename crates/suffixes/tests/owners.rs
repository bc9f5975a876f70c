//! Names with one owner, with many, and outside of the list.

use brodo_suffixes::{has_one_owner, is_public_suffix};

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
