//! Tests without a namespace: the set of rows. The end-to-end tests have the rest.

use super::rows;
use std::collections::BTreeSet;

#[test]
fn rows_have_names_of_their_own() {
    let rows = rows::all();
    let names: BTreeSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names.len(), rows.len());
    assert!(rows.iter().all(|row| !row.expected.is_empty()));
}
