//! Text of lines, their rate limit, and times.

use super::*;
use serde_json::json;
use std::time::Duration;

/// 2001-02-03 04:05:06.000789 UTC.
fn some_time() -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(981_173_106_000_789)
}

#[test]
fn a_line_of_text_is_one_line_whatever_it_says() {
    let fields =
        [("interface", json!("eth0")), ("addresses", json!(["10.0.2.15", "fd00::15"])), ("mtu", json!(1500))];
    let text = line(Format::Text, some_time(), Level::Info, "the network is there", &fields);
    assert_eq!(text, "brodo: the network is there: interface eth0, addresses 10.0.2.15 fd00::15, mtu 1500\n");
    let evil = line(Format::Text, some_time(), Level::Info, "a\nb", &[("name", json!("\u{1b}[2J\r\u{9b}x"))]);
    assert_eq!(evil, "brodo: a\\nb: name \\u{1b}[2J\\r\\u{9b}x\n");
}

#[test]
fn a_line_of_json_is_an_object_of_four() {
    let fields = [("count", json!(3)), ("name", json!("\u{9b}2J\u{202e}"))];
    let text = line(Format::Json, some_time(), Level::Warn, "a \"b\"\n\u{1b}", &fields);
    let parsed: Value = serde_json::from_str(&text).expect("JSON");
    let expected = json!({
        "time": "2001-02-03T04:05:06.000789Z", "level": "warn", "message": "a \"b\"\n\u{1b}",
        "fields": {"count": 3, "name": "\u{9b}2J\u{202e}"},
    });
    assert_eq!(parsed, expected);
    assert!(
        text.ends_with("}\n") && text.lines().count() == 1 && text.is_ascii() && !text.contains('\u{1b}'),
        "{text}"
    );
    assert!(
        text.starts_with("{\"time\":\"2001-02-03T04:05:06.000789Z\",\"level\":\"warn\",\"message\":"),
        "{text}"
    );
}

#[test]
fn a_flood_is_bounded_and_ends_when_it_ends() {
    let mut gate = Gate::new();
    let start = Instant::now();
    let passed = |gate: &mut Gate, at| (0..10_000).filter(|_| gate.admits(at)).count() as u32;
    assert_eq!(passed(&mut gate, start), BURST);
    assert_eq!(passed(&mut gate, start + Duration::from_millis(99)), 0);
    assert_eq!(passed(&mut gate, start + Duration::from_secs(1)), PER_SECOND);
    assert_eq!(passed(&mut gate, start + Duration::from_secs(3)), 2 * PER_SECOND);
    assert_eq!(passed(&mut gate, start + Duration::from_secs(3600)), BURST);
    // A clock that goes back gives no tokens.
    assert_eq!(passed(&mut gate, start), 0);
}

#[test]
fn levels_have_names_and_options() {
    for level in Level::ALL {
        assert_eq!(level.name().parse(), Ok(level));
    }
    assert!("loud".parse::<Level>().is_err());
    let asked = [(true, 0), (false, 0), (false, 1), (false, 2), (false, 9)].map(|(q, v)| asked(q, v));
    assert_eq!(asked, [Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Debug]);
}
