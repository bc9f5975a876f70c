//! Stage `landlock`: a Landlock domain without a rule, or with one.
//!
//! Every access that this kernel's Landlock knows is handled and none allowed: files and directories, TCP
//! bind (connect is the work of the process and not handled), connecting to abstract Unix sockets and
//! signalling processes outside of the domain. The rule, on demand, allows TCP bind with port 0 alone
//! ([`TcpBind`]). An older kernel handles fewer; without the file accesses of the first version (Linux 5.13)
//! the stage counts as missing.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use std::io;

/// Permission to bind TCP sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TcpBind {
    /// No address, no port.
    #[default]
    Denied,
    /// An address, with a port of the kernel's choice (port 0): the source of a connection.
    PortZero,
}

/// The newest version whose accesses are known here.
const NEWEST: ABI = ABI::V6;

/// Enters the domain.
pub(crate) fn forbid_all(but: TcpBind) -> io::Result<()> {
    let enter = || {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::BindTcp)?
            .scope(Scope::from_all(NEWEST))?
            .create()?;
        match but {
            TcpBind::Denied => ruleset,
            TcpBind::PortZero => ruleset.add_rule(NetPort::new(0, AccessNet::BindTcp))?,
        }
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
