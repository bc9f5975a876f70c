//! `default = "ask"`: destinations that no rule is about wait for a person's answer, without one of brodo's.

use super::under_policy::{Ruled, policy, under};
use super::*;
use brodo_core::policy::{PolicyRules, Ruleset};

const TO: &str = "203.0.113.5:22";

fn asking(allow: &[&str], deny: &[&str]) -> PolicyRules {
    PolicyRules { asks: true, ..policy(allow, deny) }
}

#[test]
fn a_question_is_answered_after_the_persons_answer() {
    let mut t = Script::new(under(asking(&["tcp://pkg.example.com:443"], &["evil.example"])));
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    let q = question(1, "new.example", A);
    t.ask(5000, &q);
    t.expect_nothing();
    t.expect_all_gone();
    assert_eq!(t.dropped(DropReason::PolicyAsks), 1);
    let asked = shared.asked(t.now());
    assert_eq!(asked[0].decision.name.as_deref(), Some("new.example"));
    let rules = asking(&["tcp://pkg.example.com:443", "new.example"], &["evil.example"]);
    shared.set(t.now(), Ruleset::new(rules).expect("few rules"), false);
    assert_eq!(shared.asked(t.now()), []);
    t.advance_ms(5000);
    t.ask(5000, &q);
    t.says(resolvers()[0], &answer(&q, 0, &[(60, &[203, 0, 113, 5])]));
    t.expect_answer(&q, 0);
    // A name that is denied is not asked about.
    let got = t.asks(&question(2, "evil.example", A)).expect("an answer at once");
    assert_eq!(got[3] & 15, NXDOMAIN);
}

#[test]
fn a_connection_waits_silently_and_is_refused_after_thirty_seconds_or_at_a_word() {
    for refused in [true, false] {
        let mut t = Script::new(under(asking(&[], &[])));
        let shared = t.setup().config.rules.shared.clone().expect("a policy");
        let from = SocketAddr::new(t.addresses().0, 6000);
        t.connection_to(from, TO.parse().expect("an address"));
        t.guest(SYN);
        t.expect_nothing();
        if refused {
            let id = shared.asked(t.now())[0].id;
            assert!(shared.refuse_asked(t.now(), id));
        } else {
            t.advance_ms(29_900);
            t.guest(SYN);
            t.expect_nothing();
            t.advance_ms(200);
        }
        t.guest(SYN);
        t.expect("RST|ACK ack=1");
        assert_eq!(t.refused(), [("policy default".to_owned(), 1)]);
    }
}

#[test]
fn an_allowed_connection_opens_with_its_next_syn() {
    let mut t = Script::new(under(asking(&[], &[])));
    let shared = t.setup().config.rules.shared.clone().expect("a policy");
    let from = SocketAddr::new(t.addresses().0, 6000);
    t.connection_to(from, TO.parse().expect("an address"));
    t.guest(SYN);
    t.expect_nothing();
    let rules = asking(&["tcp://203.0.113.5:22"], &[]);
    shared.set(t.now(), Ruleset::new(rules).expect("few rules"), false);
    t.advance_ms(1000);
    assert!(t.connects(6000, TO));
}
