//! Rules of a policy as values of `--allow` and `--deny`: a name or URL is a rule of the policy, a network
//! without a scheme an address rule, which holds without a policy too.

use crate::option_values::deny_address;
use crate::policy_file;
use brodo_core::policy::{Deny, Effect, Rule};

/// A deny rule: by address for all protocols, or any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Denied {
    Address(Deny),
    Rule(Rule),
}

/// A rule of `--deny`: a form of [`deny_address`], or one with a scheme or a name.
pub(crate) fn deny(word: &str) -> Result<Denied, String> {
    let rule = policy_file::rule(word, Effect::Deny);
    match (rule, deny_address(word)) {
        (_, Ok(address)) => Ok(Denied::Address(address)),
        (Ok(rule), _) => Ok(Denied::Rule(rule)),
        (Err(why), Err(_)) if word.contains(|c: char| c.is_ascii_alphabetic() || c == '*') => Err(why),
        (Err(_), Err(why)) => Err(why),
    }
}

/// A rule of `--allow`.
pub(crate) fn allow(word: &str) -> Result<Rule, String> {
    policy_file::rule(word, Effect::Allow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deny_rules_by_name_or_protocol() {
        assert!(matches!(deny("10.0.0.0/8:25"), Ok(Denied::Address(_))));
        assert!(matches!(deny("host:22"), Ok(Denied::Address(_))));
        assert!(matches!(deny("private"), Ok(Denied::Address(_))));
        for text in
            ["example.org", "*.example.org", "https://example.org", "tcp://10.0.0.0/8:25", "tcp://host:22"]
        {
            let Ok(Denied::Rule(rule)) = deny(text) else { panic!("{text} is no rule") };
            assert_eq!(&*rule.text, text);
        }
        for (text, hint) in [
            ("example.org:25", "leave out the port"),
            ("*example.org", "write *.example.org"),
            ("https://example.org/x", "write https://example.org"),
            ("10.0.0.1/8", "the network is 10.0.0.0/8"),
            ("", "expected CIDR"),
        ] {
            let why = deny(text).expect_err(text);
            assert!(why.contains(hint), "{text}: {why}");
        }
        assert!(allow("http://example.org").is_ok() && allow("quic://example.org").is_ok());
        assert!(allow("example.org").is_ok() && allow("tcp://example.org:443").is_ok());
    }
}
