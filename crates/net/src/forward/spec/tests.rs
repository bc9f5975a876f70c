//! The grammar: the forms of pasta's manual, invalid forms, and the round trip through text.

use super::*;

const EPHEMERAL: PortRange = PortRange { first: 32768, last: 60999 };

fn parse(text: &str) -> Spec {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// `port>to` of each rule, with the target's address if there is one.
fn rules(text: &str) -> String {
    let show = |rule: &PortRule| match rule.to_address {
        Some(address) => format!("{}>{address}/{}", rule.port, rule.to),
        None if rule.port == rule.to => rule.port.to_string(),
        None => format!("{}>{}", rule.port, rule.to),
    };
    parse(text).rules(EPHEMERAL).iter().map(show).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_examples_of_the_manual() {
    let cases = [
        ("none", ""),
        ("auto", ""),
        ("22", "22"),
        ("22:23", "22>23"),
        ("22,25", "22 25"),
        ("22-24", "22 23 24"),
        ("22-24:32-34", "22>32 23>33 24>34"),
        ("192.0.2.1/22", "22"),
        ("192.0.2.1%eth0/22", "22"),
        ("%eth0/22", "22"),
        ("2000-2006,~2002-2004", "2000 2001 2005 2006"),
        ("192.0.2.1/20-22,~21", "20 22"),
        ("8080:10.0.2.15/80", "8080>10.0.2.15/80"),
        ("8080-8081:[fd00::15]/80-81,22", "8080>fd00::15/80 8081>fd00::15/81 22"),
        ("::1/80:fd00::15/81", "80>fd00::15/81"),
        ("65535:1", "65535>1"),
        ("22:10.0.2.15", "22>10.0.2.15/22"),
        ("20-21:[fd00::15],80", "20>fd00::15/20 21>fd00::15/21 80"),
        ("*/22", "22"),
        ("*%eth0/22", "22"),
        ("22,auto", ""),
    ];
    for (text, expected) in cases {
        assert_eq!(rules(text), expected, "{text}");
    }
}

#[test]
fn addresses_and_interfaces_to_listen_on() {
    let place = |text: &str| {
        let spec = parse(text);
        (spec.address.map(|address| address.to_string()), spec.interface)
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(place("127.0.0.1/22"), (some("127.0.0.1"), None));
    assert_eq!(place("::1/22"), (some("::1"), None));
    assert_eq!(place("[::]/22"), (some("::"), None));
    assert_eq!(place("[fe80::1]%eth0/22"), (some("fe80::1"), some("eth0")));
    assert_eq!(place("%eth0/auto"), (None, some("eth0")));
    assert_eq!(place("0.0.0.0/all,~22"), (some("0.0.0.0"), None));
    // An address of IPv6 if it reads as one, and a target otherwise.
    assert_eq!(place("2001:db8::1/80"), (some("2001:db8::1"), None));
    assert_eq!(rules("2001:[db8::1]/80"), "2001>db8::1/80");
}

#[test]
fn all_is_what_is_not_ephemeral() {
    let all = parse("all").rules(EPHEMERAL);
    assert_eq!(all.len(), 65535 - EPHEMERAL.len() as usize);
    assert_eq!(parse("~20-30").rules(EPHEMERAL).len(), all.len() - 11);
    assert_eq!(parse("~20-30"), parse("all,~20-30"));
    assert!(parse("all").is_optional() && parse("auto").is_optional() && !parse("22").is_optional());
}

#[test]
fn contradictions_are_explained_in_one_clause() {
    let cases = [
        ("", "expected"),
        ("/22", "expected"),
        ("0", "port 0"),
        ("65536", "65535"),
        ("99999999", "expected"),
        ("22-", "expected"),
        ("-22", "expected"),
        ("30-20", "before it begins"),
        ("22-24:32-33", "different lengths: 3 and 2"),
        ("22,20-30", "overlap"),
        ("none,22", "stands alone"),
        ("22,none", "stands alone"),
        ("22,all", "is neither"),
        ("auto,all,22", "is neither"),
        ("all:192.0.2.6,all", "leads to one address"),
        ("all:0.0.0.0", "no host"),
        ("all:80", "no address"),
        ("all:", "no address"),
        ("127.0.0.1/all:[::1]", "different families"),
        ("all:192.0.2.6,auto", "leads to another"),
        ("22:23,auto", "leads to another"),
        ("22:0.0.0.0", "no host"),
        ("all,22", "is neither"),
        ("22,", "expected"),
        ("~", "expected"),
        ("1.2.3/22", "no address"),
        ("%/22", "no interface's name"),
        ("%a-very-long-name-indeed/22", "no interface's name"),
        ("224.0.0.1/22", "multicast"),
        ("22:0.0.0.0/22", "no host"),
        ("22:1.2.3/22", "no address"),
        ("127.0.0.1/22:[::1]/22", "different families"),
        ("twenty-two", "expected"),
        ("22:", "expected"),
        ("127.0.0.1/", "expected"),
    ];
    for (text, expected) in cases {
        let error = text.parse::<Spec>().expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.contains('\n') && error.len() < 200, "{text}: {error}");
    }
    assert!("1,".repeat(3000).parse::<Spec>().is_err());
    assert!(vec!["~1"; ITEMS_MAX + 1].join(",").parse::<Spec>().is_err());
}

/// The example of passt(1), with all ports.
#[test]
fn all_may_lead_to_an_address() {
    for (text, written) in [
        ("127.0.0.6/all:192.0.2.6", "127.0.0.6/all:192.0.2.6"),
        ("~22,all:2001:db8::6", "all:[2001:db8::6],~22"),
    ] {
        let spec = parse(text);
        assert_eq!((spec.to_string().as_str(), parse(written)), (written, spec.clone()));
        let to = spec.targets().next();
        let rules = spec.rules(EPHEMERAL);
        assert!(to.is_some() && rules.iter().all(|rule| rule.to_address == to && rule.to == rule.port));
        assert!(spec.is_optional() && rules.len() > 30_000, "{text}");
    }
}

#[test]
fn all_beside_auto_is_auto() {
    for text in ["all,auto", "auto,all", "auto,all,auto"] {
        assert_eq!(parse(text), parse("auto"), "{text}");
    }
    assert_eq!(parse("~22,all,auto"), parse("auto,~22"));
}

#[test]
fn auto_beside_ports_follows_these_alone() {
    for text in ["22,auto", "auto,22", "22,auto,auto"] {
        assert_eq!(parse(text).ports, Ports::AutoOf(vec![PortRange { first: 22, last: 22 }]), "{text}");
    }
    let spec = parse("8000-8010,auto,~8005");
    assert_eq!(spec.to_string(), "8000-8010,auto,~8005");
    assert_eq!(parse(&spec.to_string()), spec);
    assert!(spec.is_auto() && spec.is_optional());
    assert!(spec.covers(8000) && !spec.covers(8005) && !spec.covers(22));
    // A port that is named goes before it.
    assert_eq!(check(&[parse("8000"), spec]), Ok(()));
}

#[test]
fn several_add_up_unless_they_contradict() {
    let check = |texts: &[&str]| check(&texts.iter().map(|text| parse(text)).collect::<Vec<_>>());
    for fine in [
        &["22", "80"][..],
        &["127.0.0.1/22", "192.0.2.1/22"],
        &["0.0.0.0/22", "[::]/22"],
        &["%eth0/22", "%eth1/22"],
        &["22", "auto"],
        &["22:23", "all"],
        &["20-30,~25", "25"],
        &["20-30,~25", "20-30,~20-24,~26-30"],
        &["none"],
        &[],
    ] {
        assert_eq!(check(fine), Ok(()), "{fine:?}");
    }
    for (wrong, expected) in [
        (&["none", "22"][..], "`none`"),
        (&["22", "22:23"], "port 22 is given twice"),
        (&["20-30", "0.0.0.0/25"], "port 25 is given twice"),
        (&["127.0.0.1/22", "%lo/22"], "port 22 is given twice"),
        (&["auto", "all"], "same address"),
    ] {
        let error = check(wrong).expect_err("contradiction");
        assert!(error.contains(expected), "{wrong:?}: {error}");
    }
}

#[test]
fn sets_of_ports_have_what_the_ranges_have() {
    let mut numbers = Numbers(3);
    for _ in 0..200 {
        let mut set = PortSet::default();
        let mut expected = vec![false; 1 << 16];
        for step in 0..6 {
            let first = 1 + numbers.below(65535) as u16;
            // Often within a word, and at its edges.
            let len = numbers.below(if step % 2 == 0 { 130 } else { 65536 }) as u16;
            let range = PortRange { first, last: first.saturating_add(len) };
            let kept = numbers.below(3) > 0;
            if kept {
                set.insert(range);
            } else {
                set.remove(range);
            }
            expected[usize::from(range.first)..=usize::from(range.last)].fill(kept);
        }
        assert!((0..=u16::MAX).all(|port| set.contains(port) == expected[usize::from(port)]));
        let lowest = expected.iter().position(|&is_in| is_in).map(|port| port as u16);
        assert_eq!(set.first_shared(&set), lowest);
        assert_eq!(set.first_shared(&PortSet::default()), None);
    }
    let specs = ["20-30,~25", "all,~22", "auto", "65535"].map(parse);
    let set = named(&specs.each_ref());
    assert_eq!((1..=u16::MAX).filter(|&port| set.contains(port)).count(), 11);
    assert!(set.contains(20) && !set.contains(25) && set.contains(30) && set.contains(65535));
}

/// A small generator, so that the test needs no entropy and repeats itself.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn anything_read_is_written_so_that_it_reads_the_same() {
    const PIECES: &[&str] = &[
        "none",
        "auto",
        "all",
        ",",
        "~",
        "-",
        ":",
        "/",
        "%",
        "eth0",
        "22",
        "80",
        "8080",
        "1",
        "65535",
        "0",
        "[",
        "]",
        "::1",
        "127.0.0.1",
        "fd00::15",
        "10.0.2.15",
        "[::]",
        "é",
        " ",
    ];
    let mut numbers = Numbers(7);
    let mut read = 0;
    for _ in 0..200_000 {
        let pieces = 1 + numbers.below(9);
        let text: String = (0..pieces).map(|_| PIECES[numbers.below(PIECES.len() as u64) as usize]).collect();
        if let Ok(spec) = text.parse::<Spec>() {
            read += 1;
            let written = spec.to_string();
            assert_eq!(written.parse(), Ok(spec.clone()), "{text} was written as {written}");
            assert!(spec.rules(EPHEMERAL).iter().all(|rule| rule.port != 0 && rule.to != 0), "{text}");
        }
    }
    assert!(read > 1000, "{read} made sense");
}
