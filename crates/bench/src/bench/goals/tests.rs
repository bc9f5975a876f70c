//! Goals of brodo's variants, and bounds that are other figures of the same run.

use super::*;
use crate::bench::results::Sample;
use crate::report::Machine;

/// Results at MTU 1500 of these systems and workloads, without a sample.
fn results(systems: &[System], workloads: &[&str]) -> Results {
    let (cpus, model, kernel) = (2, String::new(), String::new());
    Results {
        machine: Machine { cpus, model, memory_gib: 8, kernel, ..Machine::default() },
        rounds: 3,
        seconds: 1.0,
        mtus: vec![1500],
        workloads: workloads.iter().map(|name| workload(name)).collect(),
        parts: Vec::new(),
        systems: systems.to_vec(),
        versions: Vec::new(),
        samples: Vec::new(),
        footprints: Vec::new(),
        starts_ms: Vec::new(),
        allocations: Vec::new(),
        idle: Vec::new(),
        wan: None,
        remarks: Vec::new(),
        failures: Vec::new(),
    }
}

fn workload(name: &str) -> Workload {
    name.parse().expect("a workload")
}

/// Adds the figures of one round each.
fn add(results: &mut Results, system: System, name: &str, metric: Metric, figures: [f64; 3]) {
    for (round, figure) in (1..).zip(figures) {
        let (workload, figures) = (workload(name), vec![(metric, figure)]);
        results.samples.push(Sample { mtu: 1500, workload, system, round, figures });
    }
}

/// Rows of the table of goals: subject, bound, worst value, and whether it is reached.
fn rows(results: &Results) -> Vec<[String; 4]> {
    let rows = table(&verdicts(results)).rows;
    rows.into_iter()
        .filter_map(|row| <[String; 5]>::try_from(row).ok())
        .map(|[a, b, c, _, e]| [a, b, c, e])
        .collect()
}

/// Value and judgement of the row of a subject and a bound.
fn row(results: &Results, subject: &str, bound: &str) -> String {
    let found = rows(results).into_iter().find(|row| row[0] == subject && row[1] == bound);
    found.map_or_else(|| "no row".to_owned(), |[_, _, value, reached]| format!("{value}: {reached}"))
}

#[test]
fn delay_beside_bulk_is_a_multiple_of_the_systems_own() {
    let systems = [System::Veth, System::Brodo, System::BrodoTap];
    let mut results = results(&systems, &["mix-none", "mix-up", "mix-down"]);
    for (system, none, up, down) in
        [(System::Brodo, 50.0, 200.0, 201.0), (System::BrodoTap, 60.0, 240.0, 481.0)]
    {
        for (name, delay) in [("mix-none", none), ("mix-up", up), ("mix-down", down)] {
            add(&mut results, system, name, Metric::P50, [delay - 1.0, delay, delay + 1.0]);
        }
    }
    assert_eq!(row(&results, "delay beside bulk", "≤ 4 × mix-none"), "4.02: 1 of 2");
    assert_eq!(row(&results, "delay beside bulk, brodo-tap", "≤ 8 × mix-none"), "8.02: 1 of 2");
    assert_eq!(row(&results, "delay beside bulk", "≤ 20 × mix-none"), ": not measured", "no p99");
    let about = about(&verdicts(&results), Figure::Run(workload("mix-down"), 1500, Metric::P50));
    assert_eq!(about, ("≤ 4 × mix-none".into(), "no: 4.02 of mix-none".into()), "of brodo alone");
    results.workloads.retain(|other| *other != workload("mix-none"));
    results.samples.retain(|sample| sample.workload != workload("mix-none"));
    assert_eq!(row(&results, "delay beside bulk", "≤ 4 × mix-none"), "no row", "nothing to compare with");
}

#[test]
fn a_few_per_cent_are_judged_round_by_round() {
    let systems = [System::Brodo, System::BrodoTap, System::BrodoRules10, System::BrodoGate];
    let mut results = results(&systems, &["crr1", "http1"]);
    // The machine is slow in the second round; the medians are of different ones.
    add(&mut results, System::BrodoTap, "crr1", Metric::P50, [100.0, 200.0, 100.0]);
    add(&mut results, System::Brodo, "crr1", Metric::P50, [102.0, 204.0, 190.0]);
    add(&mut results, System::BrodoRules10, "crr1", Metric::P50, [107.0, 212.0, 190.0]);
    add(&mut results, System::Brodo, "http1", Metric::P50, [100.0; 3]);
    add(&mut results, System::BrodoGate, "http1", Metric::P50, [103.0; 3]);
    let in_kernel = row(&results, "CRR where bulk is in the kernel", "≤ 1.03 × brodo-tap");
    assert_eq!(in_kernel, "1.02: yes", "by the medians 1.9");
    assert_eq!(row(&results, "CRR under a policy, brodo-rules-10", "≤ 1.03 × brodo"), "1.04: no");
    assert_eq!(row(&results, "HTTP behind a gate, brodo-gate", "≤ 1.03 × brodo"), "1.03: yes");
    assert_eq!(
        row(&results, "CRR under a policy, brodo-rules-16384", "≤ 1.03 × brodo"),
        "no row",
        "not in the run"
    );
}

#[test]
fn bulk_in_the_kernel_costs_a_share_of_what_the_interface_does() {
    let systems = [System::Veth, System::Brodo, System::BrodoTap];
    let mut results = results(&systems, &["up1", "down1", "up4", "down4"]);
    for (name, own) in [("up1", 105.0), ("down1", 105.0), ("up4", 105.0), ("down4", 106.0)] {
        add(&mut results, System::Brodo, name, Metric::CpuPerGib, [own; 3]);
        add(&mut results, System::BrodoTap, name, Metric::CpuPerGib, [300.0; 3]);
    }
    for (name, own) in [("up1", 30.0), ("down1", 29.0), ("up4", 24.0), ("down4", 24.0)] {
        add(&mut results, System::Veth, name, Metric::Throughput, [40.0; 3]);
        add(&mut results, System::Brodo, name, Metric::Throughput, [own; 3]);
    }
    assert_eq!(row(&results, "CPU of bulk in the kernel", "≤ 0.35 of brodo-tap"), "0.35: 3 of 4");
    assert_eq!(row(&results, "bulk in the kernel, one flow", "≥ 0.75 of veth"), "0.72: 1 of 2");
    assert_eq!(row(&results, "bulk in the kernel, four flows", "≥ 0.6 of veth"), "0.60: yes");
}

#[test]
fn machines_are_judged_beside_passt_without_brodo_on_an_interface() {
    let systems = [System::PasstStream, System::PasstVhostUser, System::BrodoStream, System::BrodoVhostUser];
    let mut results = results(&systems, &["up1", "down1", "rr1", "crr1"]);
    let mut of = |systems: [System; 2], name, metric, [other, own]: [f64; 2]| {
        add(&mut results, systems[0], name, metric, [other; 3]);
        add(&mut results, systems[1], name, metric, [own; 3]);
    };
    let vhost_user = [System::PasstVhostUser, System::BrodoVhostUser];
    of(vhost_user, "up1", Metric::Throughput, [0.5, 20.0]);
    of(vhost_user, "down1", Metric::Throughput, [5.0, 15.0]);
    of(vhost_user, "rr1", Metric::P50, [100.0, 60.0]);
    of(vhost_user, "crr1", Metric::P50, [300.0, 180.0]);
    of(vhost_user, "up1", Metric::CpuPerGib, [1000.0, 251.0]);
    of([System::PasstStream, System::BrodoStream], "up1", Metric::Throughput, [2.0, 2.5]);
    let rows = rows(&results);
    let judged: Vec<_> = rows.iter().map(|row| row.each_ref().map(String::as_str)).collect();
    assert_eq!(
        judged,
        [
            ["TCP upload, MTU 1500, brodo-vhost-user", "≥ 30 × passt-vhost-user", "40", "yes"],
            ["TCP download, MTU 1500, brodo-vhost-user", "≥ 4 × passt-vhost-user", "3", "no"],
            ["request-response (RR), brodo-vhost-user", "≤ 0.6 of passt-vhost-user", "0.60", "yes"],
            ["connect-request-response (CRR), brodo-vhost-user", "≤ 0.5 of passt-vhost-user", "0.60", "no"],
            ["CPU of bulk, brodo-vhost-user", "≤ 250 ms per GiB", "251", "0 of 1, 1 not measured"],
            ["retransmissions of uploads, brodo-vhost-user", "0 segments per run", "", "not measured"],
            ["TCP bulk, MTU 1500, brodo-stream", "≥ 1.3 × passt-stream", "1.25", "0 of 1, 1 not measured"],
        ]
    );
}
