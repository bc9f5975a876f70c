//! Stage `landlock`: a Landlock domain without a rule.
//!
//! Every access that this kernel's Landlock knows is handled and none allowed: files and directories, TCP
//! bind (connect is the work of the process and not handled), connecting to abstract Unix sockets and
//! signalling processes outside of the domain. An older kernel handles fewer; without the file accesses of
//! the first version (Linux 5.13) the stage counts as missing.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus, Scope,
};
use std::io;

/// The newest version whose accesses are known here.
const NEWEST: ABI = ABI::V6;

/// Enters the domain.
pub(crate) fn forbid_all() -> io::Result<()> {
    let enter = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::BindTcp)?
            .scope(Scope::from_all(NEWEST))?
            .create()?
            .restrict_self()
    };
    match enter() {
        Ok(status) if status.ruleset == RulesetStatus::NotEnforced => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "not in this kernel, or disabled"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    }
}
