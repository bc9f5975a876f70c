//! Stage `capabilities`: every set empty, and no way back.
//!
//! The bounding set too, and the secure bits locked: an execve by user 0 of some namespace would gain
//! nothing. Dropping from the bounding set takes CAP_SETPCAP, which the user namespace of stage `namespaces`
//! gives; without that stage an ordinary user has no capability, and the bounding set stays as it is.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits,
};
use std::io;

/// Empties the sets, but for what is held of `kept`.
pub(crate) fn keep(kept: CapabilitySet) -> io::Result<()> {
    clear_ambient_capability_set()?;
    remove_from_bounding_set(CapabilitySet::all() - kept)?;
    rustix::thread::set_no_new_privs(true)?;
    let held = rustix::thread::capabilities(None)?.permitted & kept;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: held, permitted: held, inheritable: none })?)
}

/// Empties the sets.
pub(crate) fn drop_all() -> io::Result<()> {
    clear_ambient_capability_set()?;
    remove_from_bounding_set(CapabilitySet::all())?;
    allow_eperm(set_capabilities_secure_bits(
        CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
            | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED,
    ))?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

/// Drops capabilities from the bounding set.
fn remove_from_bounding_set(capabilities: CapabilitySet) -> io::Result<()> {
    for capability in capabilities.iter() {
        match capability_is_in_bounding_set(capability) {
            Ok(true) => allow_eperm(remove_capability_from_bounding_set(capability))?,
            // EINVAL: younger than this kernel.
            Ok(false) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// EPERM means that CAP_SETPCAP is not held: there is nothing to lose then.
fn allow_eperm(result: Result<(), Errno>) -> io::Result<()> {
    match result {
        Err(Errno::PERM) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
