//! Changes in tables, and servers that are none.

use super::*;
use crate::pesto::rules::of_spec;
use brodo_control::flow::Protocol;

fn host(spec: &str) -> Vec<Rule> {
    of_spec(&spec.parse().expect(spec), TableId::Host, Protocol::Tcp, &(32768..=60999))
}

#[test]
fn a_rule_to_delete_has_to_be_there() {
    let mut tables = vec![Table { id: TableId::Host, rules: host("80,81") }];
    apply(&mut tables, &Step::Delete(TableId::Host, host("80"))).expect("it is there");
    assert_eq!(tables[0].rules, host("81"));
    let why = apply(&mut tables, &Step::Delete(TableId::Host, host("80"))).expect_err("it is gone");
    assert!(why.starts_with("Couldn't find forwarding rule to delete: TCP [*]:80  =>  80 \n"), "{why}");
    apply(&mut tables, &Step::Add(TableId::Splice, host("5"))).expect("a table that was not listed");
    assert_eq!(tables.len(), 2);
}

#[test]
fn a_missing_server_is_named() {
    let path = PathBuf::from("/nonexistent/socket");
    let why = execute(&Request { path, show: false, steps: Vec::new() }).expect_err("no server");
    assert_eq!(why, "Failed to connect to /nonexistent/socket: No such file or directory");
}
