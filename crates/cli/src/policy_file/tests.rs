//! Policy files: every key, and errors with file, line and the form to write instead.

use super::*;
use brodo_core::policy::{FlowRate, Ruleset};

fn source(text: &str) -> PolicySource {
    PolicySource { path: PathBuf::from("p.toml"), text: text.to_owned() }
}

fn parsed(text: &str) -> Policy {
    Policy::parse(&source(text)).unwrap_or_else(|failure| panic!("{failure}"))
}

fn error(text: &str) -> String {
    Policy::parse(&source(text)).expect_err("a malformed policy").to_string()
}

fn united(texts: &[&str]) -> PolicyRules {
    let policies: Vec<_> = texts.iter().map(|text| parsed(text)).collect();
    Policy::unite(&policies, &OnLine::default()).expect("a policy")
}

#[test]
fn every_key_has_its_meaning() {
    let rules = united(&[r#"
        version = 1
        default = "deny"
        private = "deny"
        allow = ["tcp://github.com:22", "10.20.0.0/16:5432"]
        deny = ["gist.example", "0.0.0.0/0:25"]
        [[rule]]
        to = ["tcp://internal.example:443"]
        private = true
        reason = "the registry"
        [names]
        pin = "10m"
        types = ["TXT"]
        questions = "10/s:20"
        names-per-wildcard = 7
    "#]);
    let texts: Vec<&str> = rules.allow.iter().map(|allow| &*allow.rule.text).collect();
    assert_eq!(texts, ["tcp://github.com:22", "10.20.0.0/16:5432", "tcp://internal.example:443"]);
    assert_eq!(rules.allow.iter().map(|allow| allow.private).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(rules.deny.len(), 2);
    assert_eq!((rules.default, rules.private), (Effect::Deny, Effect::Deny));
    assert_eq!((rules.pin, rules.names_per_wildcard), (Duration::from_secs(600), 7));
    assert_eq!(rules.questions, FlowRate { per_second: 10, burst: 20 });
    assert!(rules.types.contains(&16) && rules.types.contains(&1));
}

/// Words come from clients of the control socket too.
#[test]
fn a_period_is_a_number_with_its_unit() {
    let seconds = |word| period(word).map(|period| period.as_secs());
    assert_eq!(["90s", "5m", "1h", "2d"].map(seconds), [90, 300, 3600, 172_800].map(Some));
    for word in ["", "s", "5", "5é", "é", "٣", "5 m", "+5m", "-1s", "1.5h", "99999999999999999999d"] {
        assert_eq!(period(word).filter(|_| word != "s"), None, "{word:?}");
    }
    assert!(error("version = 1\n[names]\npin = \"é\"").contains("line 3"));
}

#[test]
fn an_empty_file_denies_everything() {
    let rules = united(&[""]);
    assert_eq!(rules, PolicyRules { types: rules.types.clone(), ..PolicyRules::default() });
    let rules = Ruleset::new(rules).expect("few rules");
    assert_eq!(trial(&rules, "https://example.com").expect("a destination").effect, Effect::Deny);
}

#[test]
fn files_are_united_and_the_stricter_value_holds() {
    let open = "version = 1\ndefault = \"allow\"\nprivate = \"allow\"\n[names]\npin = \"1d\"\nnames-per-wildcard = 9";
    let strict = "version = 1\ndefault = \"deny\"\nallow = [\"192.0.2.1\"]\n[names]\npin = \"5m\"";
    for order in [[open, strict], [strict, open]] {
        let rules = united(&order);
        assert_eq!((rules.default, rules.private, rules.allow.len()), (Effect::Deny, Effect::Allow, 1));
        assert_eq!((rules.pin, rules.names_per_wildcard), (Duration::from_secs(300), 9));
    }
    assert_eq!(united(&[open]).default, Effect::Allow);
}

#[test]
fn the_command_line_alone() {
    let allow = [rule("tcp://example.com:443", Effect::Allow).expect("a rule")];
    let deny = [rule("evil.example", Effect::Deny).expect("a rule")];
    assert_eq!(Policy::unite(&[], &OnLine::default()), None);
    let only_deny = Policy::unite(&[], &OnLine { allow: &[], deny: &deny }).expect("a policy");
    assert_eq!((only_deny.default, only_deny.private), (Effect::Allow, Effect::Allow));
    let both = Policy::unite(&[], &OnLine { allow: &allow, deny: &deny }).expect("a policy");
    assert_eq!((both.default, both.private), (Effect::Deny, Effect::Deny));
}

#[test]
fn malformed_policies_name_line_and_remedy() {
    for (text, line, hint) in [
        ("allow = []", 1, "write version = 1"),
        ("version = 2", 1, "write version = 1"),
        ("version = \"1\"", 1, "write version = 1"),
        ("version = 1\nalow = []", 2, "did you mean `allow`? expected version, default"),
        ("version = 1\nDefault = \"deny\"", 2, "did you mean `default`?"),
        ("version = 1\nrules = []", 2, "did you mean `rule`?"),
        ("version = 1\n\"allow \" = []", 2, "did you mean `allow`?"),
        ("version = 1\nzzz = 1", 2, "unknown key `zzz`: expected version"),
        ("version = 1\n\ndefault = \"open\"", 3, "\"deny\", \"ask\" or \"allow\""),
        ("version = 1\nprivate = true", 2, "\"allow\" or \"deny\""),
        ("version = 1\nallow = \"a\"", 2, "write [\"...\"]"),
        ("version = 1\nallow = [\n  \"192.0.2.1\",\n  \"a b\",\n]", 4, "one word"),
        ("version = 1\nallow = [1]", 2, "is a string: write \"...\""),
        ("version = 1\nallow = [\"a.*.com\"]", 2, "write *.example.com"),
        ("version = 1\nallow = [\"https://example.com/v1\"]", 2, "write https://example.com"),
        ("version = 1\ndeny = [\"example.com:80\"]", 2, "leave out the port"),
        ("version = 1\nrule = 3", 2, "write [[rule]]"),
        ("version = 1\n[[rule]]\nreason = \"x\"", 2, "write to = "),
        ("version = 1\n[[rule]]\nto = [\"192.0.2.1\"]\nupload = \"5M\"", 4, "expected to, private, ech"),
        ("version = 1\n[[rule]]\nto = [\"192.0.2.1\"]\nprivate = \"yes\"", 4, "true or false"),
        ("version = 1\nnames = 1", 2, "write [names]"),
        ("version = 1\n[names]\npin = \"2d\"", 3, "1s to 1d"),
        ("version = 1\n[names]\npin = 5", 3, "is a string: write pin = \"...\""),
        ("version = 1\n[names]\ntypes = [\"HTTPS\"]", 3, "may add NS"),
        ("version = 1\n[names]\nquestions = \"5\"", 3, "expected N/s"),
        ("version = 1\n[names]\nnames-per-wildcard = 65537", 3, "0 to 65536"),
        ("version = 1\n[names]\nnames-per-wildcard = -1", 3, "0 to 65536"),
        ("version = 1\n[tests]\npass = []", 3, "expected allow, deny"),
        (
            "version = 1\nallow = [\"192.0.2.1\"",
            2,
            "close the list and each text in it: [\"a.example\", \"b.example\"]",
        ),
        ("version = 1\nallow = [\"192.0.2.1\" \"192.0.2.2\"]", 2, "put a comma between entries"),
        ("version = 1\nallow = [\"192.0.2.1]\n", 2, "close the list and each text in it"),
        ("version = 1\ndefault = \"deny\nprivate = \"deny\"", 2, "end text with a quote on its line"),
        ("version = 1\ndefault = deny", 2, "put text in quotes, such as default = \"deny\""),
        ("version = 1\n[[rule]]\nprivate = True", 3, "write true or false"),
        ("version = 1\nversion = 1", 2, "write each key once"),
        ("version = 1\n[names]\n[names]", 3, "write each key once"),
        ("version: 1\ndefault: deny", 1, "write KEY = VALUE"),
        ("{\"version\": 1}", 1, "write lines of KEY = VALUE"),
        ("version = 1\nallow", 2, "write KEY = VALUE"),
        ("version = 1\nallow = [\"C:\\x\"]", 2, "write \\\\ for a backslash"),
        ("version = 1\nallow = [\"C:\\q\"]", 2, "write \\\\ for a backslash"),
        ("version = 1\rallow = []", 1, "end lines with LF or CR LF"),
        // The specification has no byte-order mark (TOML 1.0 and 1.1).
        (
            "\u{feff}version = 1",
            1,
            "a byte-order mark, which TOML does not have: save the file as UTF-8 without",
        ),
        ("\u{feff}", 1, "a byte-order mark"),
        ("version = 1\n\u{feff}allow = []", 2, ""),
    ] {
        let error = error(text);
        assert!(error.starts_with(&format!("p.toml line {line}: ")), "{text}: {error}");
        assert!(error.contains(hint), "{text}: {error}");
    }
}

#[test]
fn a_rule_that_is_written_twice_is_named_with_its_places() {
    let texts = [
        "version = 1\nallow = [\n\"a.example\",\n\"b.example\", \"A.example.\"]\ndeny = [\"a.example\"]\n\
         [[rule]]\nto = [\"c.example\", \"https://a.example:443\"]\nflows = 3\n",
        "version = 1\nallow = [\"a.example\", \"tcp://a.example:443\", \"a.example:444\", \"10.0.0.0/8\"]\n\
         deny = [\"10.0.0.0/8:25\", \"b.example\",\n\"10.0.0.0/8:25\"]",
    ];
    let mut files = PolicyFiles::default();
    for (name, text) in ["p.toml", "q.toml"].iter().zip(texts) {
        files.sources.push(PolicySource { path: name.into(), text: text.to_owned() });
        files.policies.push(parsed(text));
    }
    let found = [
        "allow a.example: written 4 times, at p.toml line 3 and p.toml line 4 and p.toml line 7 and q.toml line 2",
        "deny 10.0.0.0/8:25: written 2 times, at q.toml line 3 and q.toml line 4",
    ];
    assert_eq!(repeated(&files), found);
    files.sources.truncate(0);
    assert_eq!(repeated(&files), [] as [String; 0]);
    // It is a rule like any other.
    let rules = united(&texts);
    assert_eq!(rules.allow.len(), 9);
    Ruleset::new(rules).expect("no error");
}

#[test]
fn names_in_other_scripts_become_a_labels() {
    let rule = rule("tcp://*.B\u{fc}cher.example:443", Effect::Allow).expect("a rule");
    assert_eq!(&*rule.text, "tcp://*.xn--bcher-kva.example:443");
    let full_width =
        super::rule("tcp://pkg\u{ff0e}example:1", Effect::Allow).expect("UTS 46 maps it in a file");
    assert_eq!(&*full_width.text, "tcp://pkg.example:1");
    assert!(super::rule("tcp://\u{2}x\u{fc}:1", Effect::Allow).is_err());
}

#[test]
fn trials_name_rule_or_reason() {
    let rules = united(&[
        "version = 1\nallow = [\"tcp://pkg.example.com:443\", \"checked.example\", \"10.20.0.0/16:5432\"]\n\
                          deny = [\"evil.example\", \"192.0.2.0/24\"]",
    ]);
    let rules = Ruleset::new(rules).expect("few rules");
    for (url, effect, by) in [
        ("https://pkg.example.com/simple/", Effect::Allow, "allow tcp://pkg.example.com:443"),
        ("pkg.example.com", Effect::Allow, "allow tcp://pkg.example.com:443"),
        ("https://checked.example/x", Effect::Allow, "allow checked.example"),
        ("tcp://checked.example:22", Effect::Deny, "no rule allows tcp port 22"),
        ("https://pkg.example.com:8443", Effect::Deny, "no rule allows tcp port 8443"),
        ("ping://checked.example", Effect::Deny, "no rule allows ping"),
        ("https://evil.example", Effect::Deny, "deny evil.example"),
        ("https://other.example", Effect::Deny, "no rule names other.example"),
        ("tcp://10.20.1.1:5432", Effect::Allow, "allow 10.20.0.0/16:5432"),
        ("tcp://10.21.1.1:5432", Effect::Deny, "private"),
        ("http://169.254.169.254/latest", Effect::Deny, "floor link-local"),
        ("https://8.8.8.8", Effect::Deny, "not-given-by-dns"),
        ("udp://8.8.8.8:53", Effect::Deny, "default"),
        ("tcp://192.0.2.5:1", Effect::Deny, "deny 192.0.2.0/24"),
        ("ping://[2001:db8::1]", Effect::Deny, "default"),
    ] {
        let trial = trial(&rules, url).expect(url);
        assert_eq!(trial.effect, effect, "{url}: {}", trial.by);
        assert!(trial.by.contains(by) && !trial.by.contains("port 0"), "{url}: {}", trial.by);
    }
    for url in [
        "tcp://example.com",
        "gopher://x",
        "https://a b",
        "https://x:99999",
        "tcp://[::1",
        "https://[2001:db8::1]8443",
        "https://[::1]é",
    ] {
        assert!(trial(&rules, url).is_err(), "{url}");
    }
}

#[test]
fn used_files_are_read_once_and_not_too_deep() {
    let directory = std::env::temp_dir().join(format!("brodo-policy-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).expect("a file");
    write("a.toml", "version = 1\nuse = [\"b.toml\"]");
    write("b.toml", "version = 1\nuse = [\"a.toml\"]\nallow = [\"192.0.2.1\"]");
    let files = read(&[directory.join("a.toml"), directory.join("b.toml")]).expect("two files");
    assert_eq!((files.sources.len(), files.policies.len()), (2, 2));
    for n in 0..9 {
        write(&format!("d{n}.toml"), &format!("version = 1\nuse = [\"d{}.toml\"]", n + 1));
    }
    let deep = read(&[directory.join("d0.toml")]).expect_err("nine files deep").to_string();
    assert!(deep.contains("more than 8 deep"), "{deep}");
    write("uses.toml", "version = 1\nuse = [\n\"none.toml\"]");
    write("preset.toml", "version = 1\nuse = [\"@none\"]");
    std::fs::write(directory.join("latin.toml"), b"version = 1\n\n# B\xfccher").expect("a file");
    write("long.toml", &"#".repeat(TEXT_MAX + 1));
    for (path, hint) in [
        (directory.join("long.toml"), "more than"),
        (directory.join("none.toml"), "No such file"),
        (directory.join("uses.toml"), "uses.toml line 3 uses: open: No such file"),
        (directory.join("preset.toml"), "preset.toml line 2: there is no preset @none"),
        (directory.join("latin.toml"), "latin.toml line 3: a byte is not UTF-8"),
        (PathBuf::from("@none"), "no preset"),
    ] {
        let failure = read(&[path]).expect_err("unreadable");
        assert_eq!(failure.exit_status(), 2, "{failure}");
        assert!(failure.to_string().contains(hint), "{failure}");
    }
    std::fs::remove_dir_all(&directory).expect("its removal");
}

/// Beyond the bound of rules the first for which there is no room is named, in whichever list, file or option
/// it stands.
#[test]
fn the_first_rule_too_many_is_named() {
    let directory = std::env::temp_dir().join(format!("brodo-policy-many-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let list = |name: &str, count: usize| {
        let rules: Vec<String> = (0..count).map(|n| format!("\"n{n}.example\",\n")).collect();
        let rules = rules.concat();
        format!("{name} = [\n{rules}]\n")
    };
    let file = |name: &str, text: String| {
        let path = directory.join(name);
        std::fs::write(&path, format!("version = 1\n{text}")).expect("a file");
        path
    };
    // Two lines stand above the first rule, and as many between the lists.
    let half = RULES_MAX / 2;
    let most = file("most.toml", list("deny", half) + &list("allow", RULES_MAX - half));
    let files = read(std::slice::from_ref(&most)).expect("as many as there may be");
    let more = file("more.toml", list("deny", half) + &list("allow", RULES_MAX - half + 5));
    let one = file("one.toml", "use = [\"most.toml\"]\n[[rule]]\nto = [\n\"a.example\"]\n".to_owned());
    let place = |name: &str, line: usize| format!("{} line {line}: ", directory.join(name).display());
    for (paths, begins) in [
        (vec![more], place("more.toml", 2 + half + 2 + (RULES_MAX - half) + 1)),
        // The file that uses another is read before it.
        (vec![one.clone()], place("most.toml", 2 + half + 2 + (RULES_MAX - half))),
        (vec![most, one], place("one.toml", 5)),
    ] {
        let failure = read(&paths).expect_err("one rule too many");
        let says = failure.to_string();
        assert_eq!(failure.exit_status(), 2, "{says}");
        assert!(says.starts_with(&begins) && says.contains("write a network"), "{says}, not at {begins}");
    }
    std::fs::remove_dir_all(&directory).expect("its removal");
    let [allow, deny] =
        [Effect::Allow, Effect::Deny].map(|effect| rule("b.example", effect).expect("a rule"));
    let says = |allow: &[Rule], deny: &[Rule], files: &PolicyFiles| OnLine { allow, deny }.too_many(files);
    let (allow, deny) = ([allow], [deny]);
    assert!(says(&allow, &deny, &files).is_some_and(|says| says.starts_with("--allow b.example: ")));
    assert!(says(&[], &deny, &files).is_some_and(|says| says.starts_with("--deny b.example: ")));
    assert_eq!(says(&[], &[], &files), None);
    assert_eq!(says(&allow, &deny, &PolicyFiles::default()), None);
}

#[test]
fn limits_belong_to_their_rule_in_every_file() {
    let limited = |to: &str, limits: &str| format!("version = 1\n[[rule]]\nto = [{to}]\n{limits}\n");
    let texts = [
        "version = 1\nallow = [\"a.example\"]".to_owned(),
        limited("\"b.example\", \"c.example\"", "up = \"50M\"\nflows = 8"),
        limited("\"d.example\"", "down-rate = \"2M/s\"\nmax-age = \"1h\"\nech = \"outer\""),
    ];
    let rules = united(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let places: Vec<_> = rules.allow.iter().map(|allow| allow.limits).collect();
    assert_eq!(places, [None, Some(0), Some(0), Some(1)]);
    assert_eq!((rules.limits[0].bytes, rules.limits[0].flows), ([Some(50 << 20), None], Some(8)));
    assert_eq!(rules.limits[1].rates, [None, Some(2 << 20)]);
    assert_eq!(rules.limits[1].max_age, Some(Duration::from_secs(3600)));
    assert!(rules.allow[3].ech_outer && !rules.allow[2].ech_outer);
    for (line, hint) in [
        ("up = 5", "`up` is a string"),
        ("up = \"0\"", "such as \"50M\""),
        ("up-rate = \"2M\"", "such as \"2M/s\""),
        ("down-rate = \"1/s\"", "1K/s at least"),
        ("flows = 0", "1 to 1048576"),
        ("max-age = \"1y\"", "such as \"1h\""),
        ("ech = \"inner\"", "`ech` of a rule is \"outer\""),
    ] {
        let why = error(&limited("\"a.example\"", line));
        assert!(why.contains("line 4") && why.contains(hint), "{line}: {why}");
    }
}

#[test]
fn asking_yields_to_a_stated_refusal_and_wins_over_permission() {
    let default = |word: &str| format!("version = 1\ndefault = \"{word}\"\n");
    let of = |words: &[&str]| {
        let texts: Vec<String> = words.iter().map(|word| default(word)).collect();
        let rules = united(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        (rules.default, rules.asks)
    };
    assert_eq!(of(&["ask"]), (Effect::Deny, true));
    assert_eq!(of(&["ask", "allow"]), (Effect::Deny, true));
    assert_eq!(of(&["ask", "deny"]), (Effect::Deny, false));
    assert!(error("version = 1\ndefault = \"maybe\"").contains("\"deny\", \"ask\" or \"allow\""));
}
