//! Presets: policies that come with brodo, by the name `@NAME` in the place of a file's path.
//!
//! There are few, because lists of hosts rot and hide what they allow; a preset is about the kind of a
//! program, and `brodo policy presets NAME` prints it whole.

use crate::failure::Failure;

/// Name, purpose and text of each.
const PRESETS: [(&str, &str, &str); 2] = [
    (
        "browser",
        "every site by HTTPS and HTTP, each with its name in the audit log; nothing else",
        "# Every site, by name. Browsers send encrypted ClientHellos, most of them without content (GREASE):\n\
         # the outer name counts.\n\
         version = 1\n\
         \n\
         [[rule]]\n\
         to = [\"https://*\", \"http://*\"]\n\
         ech = \"outer\"\n",
    ),
    (
        "ask",
        "a person decides on everything that no other rule is about: brodo policy ask",
        "version = 1\n\
         default = \"ask\"\n",
    ),
];

/// The text of a preset.
///
/// # Errors
/// There is none of this name.
pub(crate) fn text(name: &str) -> Result<&'static str, Failure> {
    let found = PRESETS.iter().find(|(known, ..)| *known == name).map(|(.., text)| *text);
    found.ok_or_else(|| {
        let names: Vec<_> = PRESETS.iter().map(|(name, ..)| format!("@{name}")).collect();
        let names = names.join(", ");
        Failure::Usage(format!("there is no preset @{name}: there are {names}; a file has a path"))
    })
}

/// A line for each preset.
pub(crate) fn list() -> String {
    let lines: Vec<_> = PRESETS.iter().map(|(name, purpose, _)| format!("@{name:<9} {purpose}\n")).collect();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy_file::{OnLine, Policy, trial};
    use brodo_core::policy::{Effect, Ruleset};

    fn rules(name: &str) -> Ruleset {
        let path = format!("@{name}").into();
        let policies = crate::policy_file::read(&[path]).expect("a preset").policies;
        Ruleset::new(Policy::unite(&policies, &OnLine::default()).expect("rules")).expect("few")
    }

    #[test]
    fn every_preset_is_a_policy() {
        for (name, ..) in PRESETS {
            rules(name);
        }
        let browser = rules("browser");
        let effect = |url: &str| trial(&browser, url).expect("a destination").effect;
        assert_eq!(effect("https://any.example"), Effect::Allow);
        assert_eq!(effect("tcp://any.example:22"), Effect::Deny);
        assert!(browser.source().allow.iter().all(|allow| allow.ech_outer));
        assert!(rules("ask").source().asks);
        assert!(text("npm").is_err_and(|failure| failure.to_string().contains("@browser")));
    }
}
