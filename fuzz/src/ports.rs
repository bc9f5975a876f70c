//! The grammar of forwarded ports: parsing inverts printing, and the ports are those of the text.

use brodo_net::forward::spec::{PortRange, Ports, Spec, check};

const EPHEMERAL: PortRange = PortRange { first: 32768, last: 60999 };

/// Lines are values of one option, as repeated on a command line.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut specs: Vec<Spec> = Vec::new();
    for line in text.lines().take(4) {
        match line.parse::<Spec>() {
            Ok(spec) => specs.push(spec),
            Err(why) => assert!(!why.is_empty() && !why.contains('\n'), "{line:?}: {why:?}"),
        }
    }
    for spec in &specs {
        let written = spec.to_string();
        assert_eq!(written.parse().as_ref(), Ok(spec), "written as {written}");
        let rules = spec.rules(EPHEMERAL);
        let excluded = |port| spec.excluded.iter().any(|range| range.contains(port));
        assert!(rules.iter().all(|rule| rule.port > 0 && rule.to > 0 && !excluded(rule.port)), "{written}");
        assert!(rules.is_empty() || !matches!(spec.ports, Ports::None | Ports::Auto), "{written}");
        assert!(rules.windows(2).all(|pair| pair[0].port != pair[1].port), "{written}");
    }
    // Whether they contradict each other does not depend on the order.
    let forwards = check(&specs).is_ok();
    specs.reverse();
    assert_eq!(check(&specs).is_ok(), forwards, "{specs:?}");
}
