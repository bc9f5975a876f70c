//! Words for refused programs: extended errors, answers 403, and the last refusals as TXT records.

use super::gates::{Gated, NAME};
use super::over_tcp::OverTcp;
use super::under_policy::{ALLOWED, Ruled, policy, under};
use super::*;
use brodo_core::policy::{PolicyRules, Tell, Telling};
use brodo_core::wire::dns::message::Records;
use brodo_core::wire::dns::{Header, Question};

const TXT: u16 = 16;
const DENIED: &str = "denied.brodo.internal";

fn rules(tell: Tell, note: &str) -> PolicyRules {
    let telling = Telling { tell, note: note.to_owned() };
    PolicyRules { telling, ..policy(&[NAME, "http://pkg.example.com"], &["evil.example"]) }
}

/// The texts of an answer.
fn texts(message: &[u8]) -> Vec<String> {
    let header = Header::parse(message).expect("a message");
    let end = Question::parse(message).expect("a question").end;
    let records = Records::new(message, &header, end).map(|record| record.expect("readable"));
    let texts = records.filter(|record| record.kind == TXT).inspect(|record| assert_eq!(record.ttl, 0));
    texts.map(|record| String::from_utf8(record.data[1..].to_vec()).expect("a text")).collect()
}

fn contains(message: &[u8], text: &str) -> bool {
    message.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn the_last_refusals_are_txt_records() {
    for v6 in [false, true] {
        let t = &mut Script::new(Setup { v6, ..under(rules(Tell::Reason, "")) });
        let q = question(1, "Denied.Brodo.Internal", TXT);
        assert_eq!(texts(&t.asks(&q).expect("an answer at once")), ["nothing was refused"]);
        for name in ["a.example", "evil.example", "a.example"] {
            t.asks(&question(1, name, A));
        }
        let metadata = if v6 { "[fd00:ec2::254]:80" } else { "169.254.169.254:80" };
        assert!(!t.connects(6000, metadata));
        let first = format!("1x tcp {metadata}: floor");
        let lines = [&first, "2x question a.example: question", "1x question evil.example: deny"];
        assert_eq!(texts(&t.asks(&q).expect("an answer")), lines);
        // Other types of the name do not exist, and other names there have no texts.
        assert_eq!(t.asks(&question(1, DENIED, A)).expect("an answer")[3] & 15, NXDOMAIN);
        let other = t.asks(&question(1, "x.denied.brodo.internal", TXT)).expect("an answer");
        assert_eq!(texts(&other), [""; 0]);
    }
}

#[test]
fn many_refusals_fit_into_one_answer_or_come_over_tcp() {
    let mut t = Script::new(under(rules(Tell::Reason, "")));
    let name = |n: usize| format!("{}.{n:02}.example", "x".repeat(60));
    for n in 0..20 {
        t.asks(&question(1, &name(n), A));
    }
    let q = question(1, DENIED, TXT);
    let got = t.asks(&q).expect("an answer");
    assert!(got.len() <= 512 && texts(&got).len() > 2, "{}", got.len());
    assert_eq!(texts(&got)[0], format!("1x question {}: question", name(19)));
    t.connects_to_dns(6000);
    t.asks_over_tcp(&[&q]);
    let answers = t.answers();
    assert_eq!(texts(&answers[0]).len(), 10);
}

#[test]
fn the_owner_of_the_policy_chooses_the_words() {
    for (tell, note, error, refusals) in [
        (Tell::Nothing, "", None, None),
        (Tell::Nothing, "see go/egress", None, None),
        (Tell::Reason, "", Some("brodo: evil.example is denied"), Some(vec!["deny"])),
        (
            Tell::Rule,
            "see go/egress",
            Some("brodo: evil.example is denied by evil.example: see go/egress"),
            Some(vec!["see go/egress", "deny evil.example"]),
        ),
    ] {
        let mut t = Script::new(under(rules(tell, note)));
        let refused = t.asks(&edns(question(1, "evil.example", A), 1232)).expect("an answer");
        assert_eq!(contains(&refused, "brodo: "), error.is_some());
        assert!(error.is_none_or(|error| refused.ends_with(error.as_bytes())), "{tell:?}");
        let got = t.asks(&edns(question(2, DENIED, TXT), 1232)).expect("an answer");
        match refusals {
            None => assert_eq!(texts(&got), [""; 0]),
            Some(ends) => {
                let texts = texts(&got);
                assert_eq!(texts.len(), ends.len());
                assert!(texts.iter().zip(ends).all(|(text, end)| text.ends_with(end)), "{texts:?}");
            }
        }
        // A request without TLS for another host.
        t.resolves(&question(1, NAME, A), &[(600, &ALLOWED)]);
        t.connection_to(
            SocketAddr::new(t.addresses().0, 6001),
            "203.0.113.5:80".parse().expect("an address"),
        );
        t.establish();
        t.sends(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        let answer = String::from_utf8(t.take_payload()).expect("a text");
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
        assert_eq!(answer.contains("X-Brodo-Policy: deny"), tell != Tell::Nothing, "{answer}");
        assert!(answer.contains(note), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{answer}");
    }
}
