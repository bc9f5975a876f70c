//! Fixed samples and their pages, byte for byte.

use super::*;
use crate::bench::Part;
use crate::bench::results::{Footprint, Sample};
use crate::idle::Idle;
use crate::report::Machine;
use std::fs;
use std::path::Path;

/// Three rounds of two workloads on three systems, and a few samples of every other part.
fn results() -> Results {
    let workload = |name: &str| name.parse::<Workload>().unwrap();
    let mut samples = Vec::new();
    for round in 1..=3 {
        for (system, gbit) in [(System::Veth, 40.0), (System::Pasta, 1.0), (System::Brodo, 30.0)] {
            let gbit = gbit + f64::from(round) - 2.0;
            let mut figures = vec![(Metric::Throughput, gbit), (Metric::Retransmissions, 0.0)];
            if system.is_forwarder() {
                figures.push((Metric::CpuPerGib, 200.0));
            }
            samples.push(Sample { mtu: 1500, workload: workload("up1"), system, round, figures });
            let figures = vec![(Metric::Loss, if system == System::Pasta { 7.5 } else { 0.0 })];
            samples.push(Sample { mtu: 1500, workload: workload("uup-half"), system, round, figures });
        }
    }
    Results {
        machine: Machine {
            cpus: 2,
            model: "EPYC".into(),
            memory_gib: 8,
            kernel: "6.18".into(),
            load: 0.7,
            ..Machine::default()
        },
        rounds: 3,
        seconds: 2.0,
        mtus: vec![1500],
        workloads: vec![workload("up1"), workload("uup-half")],
        parts: vec![Part::Start, Part::Allocations, Part::Idle],
        systems: vec![System::Veth, System::Pasta, System::Brodo],
        versions: vec!["pasta 1".into(), "brodo 2".into()],
        samples,
        footprints: [(System::Brodo, Some(1024)), (System::BrodoTap, None)]
            .map(|(system, pss_start_kib)| Footprint {
                mtu: 1500,
                system,
                rss_start_kib: 2048,
                pss_start_kib,
                rss_end_kib: 3072,
            })
            .to_vec(),
        starts_ms: vec![(System::Brodo, StartUp::True, 7.0), (System::Brodo, StartUp::True, 9.0)],
        allocations: vec![Allocations { workload: workload("up1"), count: 20, work: 4.0 }],
        idle: vec![Idle { system: System::Brodo, counts: [0, 1000, 2000], rss_kib: [1000, 2000, 4000] }],
        wan: None,
        remarks: vec!["slirp4netns is not installed: left out".into()],
        failures: Vec::new(),
    }
}

/// Compares with the committed file, which `BRODO_BLESS=1` writes.
fn assert_committed(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/pages").join(file);
    if std::env::var_os("BRODO_BLESS").is_some() {
        fs::write(&path, text).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text, "{}", path.display());
}

#[test]
fn the_full_report_is_as_committed() {
    assert_committed("full.md", &full(&results()).markdown());
}

#[test]
fn the_short_table_is_as_committed() {
    assert_committed("short.md", &short(&results()).markdown());
}

#[test]
fn the_page_has_every_bar_and_is_well_formed() {
    let html = full(&results()).html();
    assert_eq!(crate::smoke::malformed_html(&html), None);
    for part in ["brodo 30 Gbit/s · 0.75 × veth", "pasta 1 Gbit/s · 0.025 × veth", "pasta 7.50 %"] {
        assert!(html.contains(part), "{part} is not in\n{html}");
    }
}

#[test]
fn every_sample_and_every_goal_is_in_the_json() {
    let json = json(&results());
    assert_eq!(json["samples"].as_array().map(Vec::len), Some(18));
    assert_eq!(json["samples"][4]["figures"]["cpu_ms_per_gib"], 200.0);
    let goals = json["goals"].as_array().unwrap();
    let missed = goals.iter().filter(|goal| goal["values"][0]["reached"] == false);
    let missed: Vec<_> = missed.map(|goal| goal["goal"].as_str().unwrap()).collect();
    assert_eq!(missed, ["≥ 0.9 of veth", "≤ 1024 bytes"]);
}

#[test]
fn a_figure_that_not_all_rounds_have_says_so() {
    let mut results = results();
    let stands_still = |sample: &Sample| sample.system == System::Pasta && sample.round > 1;
    for sample in results.samples.iter_mut().filter(|sample| stands_still(sample)) {
        sample.figures.retain(|(metric, _)| *metric != Metric::Throughput);
    }
    let text = full(&results).markdown();
    assert!(text.contains("| up1 | 40 (39–41) | 0, 1 of 3 rounds | 30 (29–31) |"), "{text}");
}

#[test]
fn a_goal_names_figures_that_were_to_be_measured_and_are_not() {
    let mut results = results();
    let workload = |name: &str| name.parse::<Workload>().unwrap();
    results.workloads.extend([workload("down1"), workload("crr1")]);
    results.idle.clear();
    let text = full(&results).markdown();
    for row in [
        "| TCP bulk | ≥ 0.9 of veth | 0.75 | up1, MTU 1500 | 0 of 1, 1 not measured |",
        "| CPU of CRR | ≤ 80 us per operation |  | crr1, MTU 1500 | not measured |",
        "| memory of an idle connection | ≤ 1024 bytes |  | an idle connection | not measured |",
    ] {
        assert!(text.contains(row), "{row} is not in\n{text}");
    }
    assert!(!text.contains("| UDP as fast as it goes |"), "nothing of it was to be measured");
    let goals = json(&results)["goals"].clone();
    let goal = |what: &str| goals.as_array().unwrap().iter().find(|goal| goal["what"] == what).cloned();
    let idle = goal("memory of an idle connection").unwrap();
    assert_eq!(idle["not_measured"][0], "an idle connection, bytes");
    let samples = results.samples.iter_mut().filter(|sample| sample.system == System::Brodo);
    samples.for_each(|sample| sample.figures.retain(|(metric, _)| *metric != Metric::Throughput));
    let text = short(&results).markdown();
    assert!(text.contains("| ≥ 0.9 of veth, ≥ 20 × pasta, ≥ 0.75 of veth | not measured |"), "{text}");
}

#[test]
fn variants_of_brodo_are_compared_with_it_round_by_round() {
    let mut results = results();
    results.systems = vec![System::Brodo, System::BrodoRules10];
    results.samples.clear();
    // The machine is twice as fast in the second round, and the medians are of different rounds.
    for (round, [own, of_rules]) in (1..).zip([[10.0, 11.0], [20.0, 21.0], [10.0, 31.0]]) {
        for (system, gbit) in [(System::Brodo, own), (System::BrodoRules10, of_rules)] {
            let figures = vec![(Metric::Throughput, gbit)];
            let workload = "up1".parse().unwrap();
            results.samples.push(Sample { mtu: 1500, workload, system, round, figures });
        }
    }
    let text = full(&results).markdown();
    assert!(text.contains("| workload | brodo-rules-10 / brodo |"), "{text}");
    assert!(text.contains("| up1, throughput | 1.10 |"), "{text}");
}
