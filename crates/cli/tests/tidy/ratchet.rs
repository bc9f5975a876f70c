//! Ratchets: rules that do not hold everywhere yet. The number of a rule's offences in the whole workspace
//! stands in [`LIMITS`]; it is lowered when it falls and never raised. A rule with limit 0 needs no entry.

/// Offences that each rule still has. Aim: an empty table.
const LIMITS: &[(&str, usize)] = &[];

/// Fails if `rule` has more offences than are allowed, and says so if it has fewer.
#[track_caller]
pub(crate) fn hold(rule: &str, offences: &[String]) {
    if let Some(failure) = excess(LIMITS, rule, offences) {
        panic!("{failure}");
    }
}

fn excess(limits: &[(&str, usize)], rule: &str, offences: &[String]) -> Option<String> {
    let limit = limits.iter().find(|(name, _)| *name == rule).map_or(0, |(_, limit)| *limit);
    let found = offences.len();
    if found < limit {
        println!("{rule}: {found} offences, {limit} allowed: lower its entry in LIMITS of ratchet.rs");
    }
    (found > limit).then(|| {
        let offences = offences.join("\n");
        format!("{offences}\n{rule}: {found} offences, {limit} allowed; files written last come last")
    })
}

#[test]
fn notices_growth() {
    let limits = &[("width", 2)];
    let offences = |n: usize| vec!["a.rs:1: too wide".to_owned(); n];
    assert_eq!(excess(limits, "width", &offences(1)), None);
    assert_eq!(excess(limits, "width", &offences(2)), None);
    assert!(excess(limits, "width", &offences(3)).is_some_and(|text| text.contains("3 offences, 2 allowed")));
    assert!(excess(limits, "another rule", &offences(1)).is_some());
}
