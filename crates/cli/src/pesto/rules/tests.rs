//! Specifications as rules and back, for every form of the grammar.

use super::*;

const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;

fn rules(table: TableId, spec: &str) -> Vec<Rule> {
    of_spec(&spec.parse().expect(spec), table, Protocol::Tcp, &EPHEMERAL)
}

fn shown(table: TableId, spec: &str) -> String {
    let all: Vec<_> = rules(table, spec).iter().map(|rule| rule.to_string().trim_end().to_owned()).collect();
    all.join("; ")
}

#[test]
fn a_specification_becomes_the_rules_that_pesto_shows() {
    for (spec, text) in [
        ("none", ""),
        ("8080:80", "TCP [*]:8080  =>  80"),
        ("7000-7002", "TCP [*]:7000-7002  =>  7000-7002"),
        ("0.0.0.0/1234", "TCP [0.0.0.0]:1234  =>  1234"),
        ("[::]/1234", "TCP [::]:1234  =>  1234"),
        ("127.0.0.1/1235:10.0.2.15/5", "TCP [127.0.0.1]:1235  =>  10.0.2.15:5"),
        ("%lo/1237", "TCP [*]%lo:1237  =>  1237"),
        ("20-30:120-130,~25,~30", "TCP [*]:20-24  =>  120-124; TCP [*]:26-29  =>  126-129"),
        ("3000-3010,auto", "TCP [*]:3000-3010  =>  3000-3010  (auto-scan)"),
        (
            "auto,~22",
            "TCP [*]:1-21  =>  1-21  (best effort) (auto-scan); TCP [*]:23-65535  =>  23-65535  (best effort) (auto-scan)",
        ),
        (
            "all",
            "TCP [*]:1-32767  =>  1-32767  (best effort); TCP [*]:61000-65535  =>  61000-65535  (best effort)",
        ),
    ] {
        assert_eq!(shown(TableId::Host, spec), text, "{spec}");
    }
    assert_eq!(shown(TableId::Splice, "5432"), "TCP [*]%lo:5432  =>  5432");
    assert_eq!(shown(TableId::Splice, "127.0.0.1/5432"), "TCP [127.0.0.1]:5432  =>  5432");
}

#[test]
fn rules_become_forwards_with_the_same_rules() {
    for table in TableId::ALL {
        for spec in [
            "8080:80",
            "0.0.0.0/1234",
            "[::]/1234",
            "127.0.0.1/1235:10.0.2.15/5",
            "%eth0/22",
            "3000-3010,auto",
            "auto",
            "auto,~22",
            "all",
            "all,~22,~65535",
            "127.0.0.6/all:192.0.2.6",
            "all:[2001:db8::6],~22",
            "[2001:db8::1]/all",
        ] {
            let before = rules(table, spec);
            let forwards = forwards(table, &before).expect(spec);
            assert_eq!(forwards.len(), 1, "{spec}: {forwards:?}");
            assert_eq!(rules(table, &forwards[0].spec), before, "{spec}: {forwards:?}");
        }
    }
    let apart = forwards(TableId::Host, &rules(TableId::Host, "22,25:26,30-40,~33")).expect("named");
    let specs: Vec<_> = apart.iter().map(|forward| forward.spec.as_str()).collect();
    assert_eq!(specs, ["22", "25:26", "30-32", "34-40"]);
}

#[test]
fn impossible_rules_are_refused_in_a_sentence() {
    let good = rules(TableId::Host, "8080:80").remove(0);
    for (rule, part) in [
        (Rule { first: 0, ..good.clone() }, "outside of 1 to 65535"),
        (Rule { last: 8079, ..good.clone() }, "outside of 1 to 65535"),
        (Rule { to: 0, ..good.clone() }, "outside of 1 to 65535"),
        (Rule { to: u16::MAX, last: 8081, ..good.clone() }, "outside of 1 to 65535"),
        (Rule { protocol: 132, ..good.clone() }, "protocol 132"),
        (Rule { flags: ANY | SCAN, ..good.clone() }, "of the same number"),
        (Rule { flags: ANY | WEAK, ..good.clone() }, "of the same number"),
        (
            Rule { flags: ANY | SCAN, to: 8080, target: Some([10, 0, 2, 15].into()), ..good.clone() },
            "of the same number",
        ),
        (Rule { flags: 0, target: Some([10, 0, 2, 15].into()), ..good.clone() }, "different families"),
    ] {
        let why = forwards(TableId::Host, &[rule]).expect_err(part);
        assert!(why.contains(part), "{why}");
    }
}
