//! Addresses, binding, and that the dashboard shows nothing that is not exported.

use super::*;
use crate::engine::exposition::tests::some_text;
use crate::own_process::{CpuTime, Usage};
use std::collections::BTreeSet;

#[test]
fn an_address_without_ip_is_the_loopback_s() {
    for (word, expected) in [
        (":9100", "http://127.0.0.1:9100/metrics"),
        ("127.0.0.1:9100", "http://127.0.0.1:9100/metrics"),
        ("0.0.0.0:80", "http://0.0.0.0:80/metrics"),
        ("[::1]:9100", "http://[::1]:9100/metrics"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
    ] {
        assert_eq!(word.parse::<Address>().map(|address| address.to_string()), Ok(expected.to_owned()));
    }
    for word in ["", ":", "9100", "127.0.0.1", ":65536", "localhost:9100", "unix:", "::1:9100", "/run/x.sock"]
    {
        let refusal = word.parse::<Address>().expect_err(word);
        assert!(refusal.starts_with("expected ") && !refusal.contains('\n'), "{refusal}");
    }
}

#[test]
fn an_address_that_is_taken_is_refused_in_one_sentence() {
    let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = Address::Ip(held.local_addr().expect("bound"));
    let failure = Metrics::bind(&address).expect_err("taken").to_string();
    assert_eq!(failure, format!("cannot serve metrics at {address}: bind: Address already in use"));
}

#[test]
fn the_path_of_a_socket_goes_with_its_service_but_not_another_process_s() {
    let path = std::env::temp_dir().join(format!("brodo-metrics-{}.sock", std::process::id()));
    let serve = || {
        let Metrics { listener, .. } = Metrics::bind(&Address::Unix(path.clone())).expect("free");
        Serving(Arc::new(listener))
    };
    drop(serve());
    assert!(!path.exists());
    let first = serve();
    std::fs::remove_file(&path).expect("there");
    let second = serve();
    drop(first);
    assert!(path.exists(), "the second socket was removed");
    drop(second);
    assert!(!path.exists());
}

/// Everything in a text that may be a metric's name.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("brodo_") || word.starts_with("process_"))
}

#[test]
fn the_dashboard_and_the_documentation_name_only_what_is_exported() {
    let properties = Processes::of(0, CpuTime::default()).properties();
    let text = some_text() + &process_text(&properties, 3, Some(2));
    let exported: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let dashboard = include_str!("../../../../docs/grafana/brodo.json");
    let parsed: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
    let panels = parsed["panels"].as_array().expect("panels");
    let queries: Vec<_> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().expect("a query"))
        .collect();
    assert!(queries.len() > 10, "{queries:?}");
    for query in &queries {
        assert!(names(query).next().is_some(), "{query}");
    }
    let page = include_str!("../../../../docs/src/metrics.md");
    for (place, text) in [("docs/grafana/brodo.json", dashboard), ("docs/src/metrics.md", page)] {
        for name in names(text) {
            assert!(exported.contains(name), "{name} of {place} is not exported");
        }
    }
}

#[test]
fn a_text_of_the_engine_s_is_lines_of_printable_characters() {
    assert!(checked(some_text()).is_some());
    for wrong in ["", "brodo_flows 1", "a\x1b[2J\n", "a\r\n", "a\0\n"] {
        assert_eq!(checked(wrong.to_owned()), None, "{wrong:?}");
    }
}

#[test]
fn figures_of_the_processes_are_exported() {
    let usage = Usage { resident_bytes: 4096, ..Usage::default() };
    let text = process_text(&Properties { usage, ..Properties::default() }, 0, None);
    assert!(text.lines().any(|line| line == "process_resident_memory_bytes 4096"), "{text}");
}
