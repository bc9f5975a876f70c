//! States as bytes: of the first format, of another, and those that are none.

use super::*;

/// A state as version 0.1 writes it. It must stay readable as long as the format has this number.
const FORMAT_1: &str = r#"{"format":1,
"origin":{"words":[{"Unix":[98]},{"Unix":[114,117,110]}],"ipv6":true,"names":{"resolvers":["192.0.2.53:53"],"search":[]}},
"clock":{"start_ns":5,"unix_ns":6,"suspended_ns":7},
"guest":{"Command":{"pid":12,"handoff":20,"signals":21}},
"interface":{"taps":[22],"watch":23,"own_sockets":[]},
"engine":{"keeper":24,"pid":13,"requests":{"socket":25,"pending":[]},"last_id":9,
 "records":{"socket":26,"pending":[123]},"listen":27,"crashes":1,
 "names":{"resolvers":[],"search":["example.org"]},"flows_max":100,"confinement":"full"},
"desired":{"forwards":[{"side":"host","protocol":"tcp","spec":"8080"}],
 "record":{"openings":false,"ends":true},"capture":null},
"broker":{"pid":14,"channel":28},
"metrics":{"socket":29,"file":null},
"control":{"socket":30,"file":{"path":"/run/x","device":1,"inode":2}},
"log_level":"info",
"upgrades":{"count":1,"last":{"time":"t","version":"0.1.0","pause_us":7,"flows_lost":0},"failure":null}}"#;

#[test]
fn a_state_of_format_1_is_read() {
    let state = State::parse(FORMAT_1.as_bytes()).expect("a state");
    assert_eq!(state.origin.words, ["b", "run"]);
    assert_eq!(state.upgrades.count, 1);
    assert_eq!(state.desired.forwards.len(), 1);
    let again = serde_json::to_string(&state).expect("string keys only");
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    assert_eq!(value(&again), value(FORMAT_1));
}

#[test]
fn another_format_and_what_is_no_state_are_named() {
    let other = FORMAT_1.replacen("\"format\":1", "\"format\":2", 1);
    let why = State::parse(other.as_bytes()).expect_err("another format");
    assert!(why.contains("has format 2, this one reads 1"), "{why}");
    for strange in ["", "{}", "[1]", "{\"format\":1}"] {
        let why = State::parse(strange.as_bytes()).expect_err(strange);
        assert!(why.starts_with("the state of the other brodo is strange"), "{why}");
    }
}

#[test]
fn a_descriptor_that_is_not_sealed_is_no_state() {
    for number in ["", "x", "-1,3", "2,2", "1000000,1000001"] {
        assert!(read(number).is_err(), "{number}");
    }
}
