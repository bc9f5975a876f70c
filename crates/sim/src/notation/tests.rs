//! The notation of scripts, parsed and printed.

use super::*;

fn line(text: &str) -> Line {
    Line::parse(text).expect("a good line")
}

#[test]
fn parsed_lines_are_printed_the_same() {
    for text in [
        "SYN|ACK seq=0 ack=1 win=65535 mss=1460 wscale=7 sackok",
        "ACK|PSH seq=-1 win>=10 data<=1460 sack=1-2,5-9",
        "RST|ACK seq=0 mss=none sack=none sackok=none",
        "ACK nopsh",
        "UDP sport=5 dport=53 data=40",
        "ICMP too-big mtu=1400",
        "-",
    ] {
        assert_eq!(line(text).to_string(), text);
    }
}

#[test]
fn unknown_words_are_named() {
    for text in ["", "SIN", "ACK seq", "ACK seq=x", "ACK foo=1", "ICMP", "ICMP nonsense", "ACK sack=5"] {
        assert!(Line::parse(text).is_err(), "{text}");
    }
}

#[test]
fn only_named_fields_are_compared() {
    let seen = line("ACK|PSH seq=1 ack=1001 win=30000 data=500 nopsh");
    let mut seen = Line { psh: Some(true), ..seen };
    for fits in ["ACK data=500", "ACK|PSH win>=30000 data>=1", "ACK seq=1 ack=1001 data<=500 mss=none"] {
        assert!(line(fits).fits(&seen), "{fits}");
    }
    for other in ["ACK", "ACK data=501", "ACK|FIN data=500", "ACK win>=30001 data=500", "ACK nopsh data=500"]
    {
        assert!(!line(other).fits(&seen), "{other}");
    }
    seen.psh = Some(false);
    assert!(!line("ACK|PSH data=500").fits(&seen));
}
