//! Forged answers: unpredictable queries, equal questions as one query, and resolvers that fold letters.

use super::*;

/// ID and letters are hidden from the guest, as a program there could pass them to a forger outside.
#[test]
fn identifier_and_letters_of_a_query_are_none_of_the_guests_choice() {
    Script::each_with(&setup(1), |t| {
        let resolver = resolvers()[0];
        let name = |n: u16| format!("name-of-many-letters-{n}.test");
        let questions: Vec<_> = (0..64).map(|n| question(7, &name(n), A)).collect();
        for q in &questions {
            t.ask(5000, q);
        }
        let queries = t.queries(resolver);
        assert_eq!(queries.len(), 64);
        let mut ids: Vec<_> = queries.iter().map(|query| [query[0], query[1]]).collect();
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() > 60, "{} of 64 differ", ids.len());
        // As good as each has letters of its own: a dozen of them upper, the same ones in none.
        let mut letters: Vec<_> = queries.iter().map(|query| query[12..30].to_vec()).collect();
        letters.sort_unstable();
        letters.dedup();
        assert!(letters.len() > 60, "{} of 64 differ", letters.len());
        for (q, query) in questions.iter().zip(&queries) {
            assert_eq!(canonical(query), canonical(q));
            // A blind forgery, from the guest's question alone.
            t.says_raw(resolver, &answer(q, 0, &[(86_400, &[6; 4])]));
        }
        t.expect_nothing();
        for q in &questions {
            t.says(resolver, &answer(q, 0, &[(60, &[1; 4])]));
            t.expect_answer(q, 0);
        }
        t.expect_all_gone();
        assert_eq!(t.driver.stack.counters().dns_queries, 64);
    });
}

/// Otherwise many identifiers would be valid at once, and one of a few hundred forged answers would match.
#[test]
fn a_thousand_equal_questions_are_one_query_and_all_have_its_answer() {
    let mut t = Script::new(setup(1));
    let resolver = resolvers()[0];
    // In letters of their own, each from a port of its own, under the same identifier.
    let names = ["victim.test", "VICTIM.test", "victim.TEST"];
    let asked = |n: u16| question(7, names[usize::from(n % 3)], A);
    for n in 0..1024 {
        t.ask(5000 + n, &asked(n));
    }
    assert_eq!((t.asked().len(), t.queries(resolver).len(), t.driver.stack.flows()), (1, 1, 1));
    let counters = t.driver.stack.counters();
    assert_eq!((counters.dns_queries, counters.dns_joined), (1, 1023));
    for id in 0..200 {
        let forged = question(id, "victim.test", A);
        t.says_raw(resolver, &answer(&forged, 0, &[(86_400, &[6; 4])]));
    }
    assert_eq!(t.take_all().len(), 0);
    t.says(resolver, &answer(&asked(0), 0, &[(60, &[1; 4])]));
    for n in 0..1024 {
        let got = t.expect_datagram();
        assert_eq!(got.data[12..25], asked(n)[12..25], "each in its own letters");
        assert_eq!((&got.data[..2], &got.data[got.data.len() - 4..]), (&[0, 7][..], &[1; 4][..]));
    }
    t.expect_all_gone();
    assert_eq!(t.dropped(DropReason::DnsUnsolicited) + t.dropped(DropReason::DnsCaseMismatch), 200);
}

#[test]
fn other_questions_of_the_same_name_are_not_joined() {
    Script::each_with(&setup(1), |t| {
        let q = question(7, "a.test", A);
        let (signed, other_type) = (edns(question(8, "a.test", A), 1232), question(9, "a.test", AAAA));
        for (port, q) in [(5000, &q), (5001, &signed), (5002, &other_type)] {
            t.ask(port, q);
        }
        assert_eq!(t.asked().len(), 3);
        assert_eq!(t.driver.stack.counters().dns_joined, 0);
    });
}

#[test]
fn a_resolver_that_does_not_keep_the_case_of_letters_is_asked_once_more() {
    Script::each_with(&setup(1), |t| {
        let resolver = resolvers()[0];
        let q = question(7, "Some-Name.test", A);
        t.ask(5000, &q);
        let folded = |query: &[u8]| {
            let lower = canonical(query);
            answer(&[&query[..2], &lower[2..]].concat(), 0, &[(0, &[1; 4])])
        };
        let first = t.queries(resolver)[0].clone();
        assert_ne!(first[12..], canonical(&first)[12..], "some letter is upper");
        for _ in 0..3 {
            t.says_raw(resolver, &folded(&first));
            t.expect_nothing();
        }
        assert_eq!(t.dropped(DropReason::DnsCaseMismatch), 3);
        let queries = t.queries(resolver);
        assert_eq!(queries.len(), 2, "once more, whatever comes");
        assert_ne!(queries[1][..2], first[..2], "under another identifier");
        t.says_raw(resolver, &folded(&queries[1]));
        assert_eq!(t.expect_datagram().data, answer(&q, 0, &[(0, &[1; 4])]), "the guest's letters");
        t.expect_all_gone();
        // The resolver is known to fold; the first identifier of a question is not sent.
        let q = question(8, "Other-Name.test", A);
        t.ask(5000, &q);
        let queries = t.queries(resolver);
        t.says_raw(resolver, &folded(&queries[0]));
        t.expect_answer(&q, 0);
        assert_eq!(t.driver.stack.counters().dns_queries_folding, 2);
        // And after some minutes it may have been replaced.
        t.advance_ms(601_000);
        t.ask(5000, &q);
        let queries = t.queries(resolver);
        t.says_raw(resolver, &folded(&queries[0]));
        t.expect_nothing();
        assert_eq!(t.dropped(DropReason::DnsCaseMismatch), 4);
    });
}
