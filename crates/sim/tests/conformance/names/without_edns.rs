//! Resolvers without EDNS (RFC 6891, section 7): the same query without its OPT record.

use super::under_policy::{policy, under};
use super::*;

const FORMERR: u8 = 1;
const NOTIMP: u8 = 4;

fn refusal(question: &[u8], rcode: u8) -> Vec<u8> {
    answer(question, rcode, &[])
}

/// Without the question, as resolvers answer that cannot read what is behind it.
fn header_alone(t: &mut Script) {
    let query = t.queries(resolvers()[0]).pop().expect("a query");
    let mut message = refusal(&query, FORMERR)[..12].to_vec();
    message[4..].fill(0);
    t.says_raw(resolvers()[0], &message);
}

#[test]
fn a_query_that_is_refused_is_sent_without_edns_and_the_next_ones_at_once() {
    let mut t = Script::new(under(policy(&["tcp://a.example.com:443", "tcp://b.example.com:443"], &[])));
    // A successor finds out which resolvers are without.
    t.driver.handovers.switch_off();
    let resolver = resolvers()[0];
    for refuse in [
        |t: &mut Script| t.says(resolvers()[0], &refusal(&question(0, "a.example.com", A), FORMERR)),
        |t: &mut Script| t.says(resolvers()[0], &refusal(&question(0, "a.example.com", A), NOTIMP)),
        header_alone,
    ] {
        let (a, b) = (question(7, "a.example.com", A), question(8, "b.example.com", A));
        t.ask(5000, &a);
        assert_eq!(t.gets(resolver), [edns(canonical(&a), 4096)]);
        refuse(&mut t);
        assert_eq!(t.gets(resolver), [edns(canonical(&a), 4096), canonical(&a)]);
        t.says(resolver, &answer(&a, 0, &[(0, &[1; 4])]));
        t.expect_answer(&a, 0);
        t.expect_all_gone();
        t.ask(5000, &b);
        assert_eq!(t.gets(resolver), [canonical(&b)]);
        t.says(resolver, &answer(&b, 0, &[(0, &[1; 4])]));
        t.expect_answer(&b, 0);
        t.expect_all_gone();
        // It may have learnt.
        t.advance_ms(601_000);
    }
}

#[test]
fn a_query_that_is_refused_without_edns_too_is_refused() {
    Script::each_with(&setup(1), |t| {
        for (id, name) in [(7, "a.example.com"), (8, "b.example.com")] {
            let q = edns(question(id, name, A), 1232);
            t.ask(5000, &q);
            assert_eq!(t.gets(resolvers()[0]), [canonical(&q)], "it was the name, perhaps");
            for _ in 0..2 {
                t.expect_nothing();
                t.says(resolvers()[0], &refusal(&question(id, name, A), FORMERR));
            }
            t.expect_answer(&question(id, name, A), FORMERR);
            t.expect_all_gone();
        }
        // Without EDNS from the start: that is not the reason.
        let q = question(9, "c.test", A);
        t.ask(5000, &q);
        t.says(resolvers()[0], &refusal(&q, FORMERR));
        t.expect_answer(&q, FORMERR);
        t.expect_all_gone();
    });
}

#[test]
fn a_query_without_an_answer_is_repeated_without_edns_unless_signatures_are_wanted() {
    Script::each_with(&setup(1), |t| {
        for signed in [false, true] {
            let plain = question(7, "a.example.com", A);
            let mut q = edns(plain.clone(), 1232);
            let flags = q.len() - 4;
            q[flags] = if signed { 0x80 } else { 0 };
            t.ask(5000, &q);
            t.advance_ms(1_010);
            let again = canonical(if signed { &q } else { &plain });
            assert_eq!(t.gets(resolvers()[0]), [canonical(&q), again]);
            t.says(resolvers()[0], &answer(&plain, 0, &[(0, &[1; 4])]));
            t.expect_answer(&plain, 0);
            t.expect_all_gone();
        }
    });
}

/// The refusal comes after the repetition: it is that of the first query.
#[test]
fn a_late_refusal_is_not_one_of_the_query_without_edns() {
    Script::each_with(&setup(1), |t| {
        t.driver.handovers.switch_off();
        let plain = question(7, "a.test", A);
        let q = edns(plain.clone(), 1232);
        t.ask(5000, &q);
        t.advance_ms(1_010);
        assert_eq!(t.gets(resolvers()[0]), [canonical(&q), canonical(&plain)]);
        t.says(resolvers()[0], &refusal(&plain, FORMERR));
        t.expect_nothing();
        t.says(resolvers()[0], &answer(&plain, 0, &[(0, &[1; 4])]));
        t.expect_answer(&plain, 0);
        t.expect_all_gone();
        // It is known from then on.
        t.ask(5000, &q);
        assert_eq!(t.gets(resolvers()[0]), [canonical(&plain)]);
    });
}
