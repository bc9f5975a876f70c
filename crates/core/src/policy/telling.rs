//! Telling: the words that a refused program gets about the reason, in the protocol that it speaks: an
//! extended error of DNS, an answer 403, a TXT record. The guest's owner chooses how much it may know of the
//! rules.

use super::reason;

/// Longest text of the owner's, in bytes: it fits an extended error beside a long name.
pub const NOTE_LEN_MAX: usize = 200;

/// Report to a refused program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Tell {
    /// Only that it is refused.
    Nothing,
    /// The reason, without the texts of rules.
    #[default]
    Reason,
    /// The text of a deny rule as well.
    Rule,
}

/// Words for refused programs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Telling {
    /// Extent of the report.
    pub tell: Tell,
    /// Text of the owner's that is added, at most [`NOTE_LEN_MAX`] bytes without control characters.
    pub note: String,
}

impl Telling {
    /// The words about a refusal by this rule or reason; none if nothing is reported.
    pub(crate) fn reason<'a>(&self, by: &'a str) -> Option<&'a str> {
        match (self.tell, by.strip_prefix(reason::PREFIX)) {
            (Tell::Nothing, _) => None,
            (_, Some(reason)) => Some(reason),
            (Tell::Reason, None) => by.split(' ').next(),
            (Tell::Rule, None) => Some(by),
        }
    }
}

/// The first `most` bytes of a text, or less where that would split a character.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_stay_whole() {
        assert_eq!([cut("aé", 2), cut("aé", 3), cut("aé", 9), cut("", 1)], ["a", "aé", "aé", ""]);
    }

    #[test]
    fn rules_are_reported_on_demand_only() {
        let words = |tell, by| Telling { tell, ..Telling::default() }.reason(by);
        for (tell, rule, reason) in [
            (Tell::Nothing, None, None),
            (Tell::Reason, Some("deny"), Some("question")),
            (Tell::Rule, Some("deny evil.example"), Some("question")),
        ] {
            assert_eq!((words(tell, "deny evil.example"), words(tell, "policy question")), (rule, reason));
        }
    }
}
