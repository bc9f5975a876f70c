//! The state that the user has asked for up to now, which every engine starts with: forwards, the capture,
//! the kinds of events.

use crate::conversation::forwards;
use crate::conversation::message::{Capturing, Recorded};
use crate::engine::launch;
use crate::policy_in_force::PolicyInForce;
use crate::resume::descriptor::Keep;
use crate::resume::state::{SavedCapture, SavedDesired};
use brodo_control::method::BulkCarrier;
use brodo_net::forward::{Forward, Opening};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// The capture under way.
#[derive(Debug)]
pub(crate) struct DesiredCapture {
    pub(crate) path: PathBuf,
    pub(crate) filter: Option<String>,
    /// Open file, whose offset an engine and its successors share.
    pub(crate) file: File,
}

/// State of an instance that outlives its engine.
#[derive(Debug, Default)]
pub(crate) struct Desired {
    /// Forwards in force, and those that are being put in force: listening sockets are opened for no others.
    pub(crate) forwards: Vec<Forward>,
    /// Addresses at which they may listen, and the owner of their sockets.
    pub(crate) opening: Opening,
    pub(crate) record: Recorded,
    pub(crate) capture: Option<DesiredCapture>,
    /// Carrier of bulk flows, if it was changed.
    pub(crate) bulk: Option<BulkCarrier>,
    /// The policy in force, of an instance that has one.
    pub(crate) policy: Option<PolicyInForce>,
    /// Whether no engine has confirmed yet that it has judged the open flows by that policy.
    pub(crate) unreviewed: bool,
}

/// As much of the state as an engine gets only at its start.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    forwards: Vec<Forward>,
    capture: Option<PathBuf>,
    bulk: Option<BulkCarrier>,
    policy: Option<u64>,
}

impl Desired {
    /// The saved form, with its descriptors noted in `kept`.
    pub(crate) fn save<'a>(&'a self, kept: &mut Keep<'a>) -> SavedDesired {
        let capture = self.capture.as_ref().map(|capture| SavedCapture {
            path: capture.path.clone(),
            filter: capture.filter.clone(),
            file: kept.note(capture.file.as_fd()),
        });
        let forwards = self.forwards.iter().map(forwards::request).collect();
        let (record, bulk, policy, unreviewed) =
            (self.record, self.bulk, self.policy.clone(), self.unreviewed);
        SavedDesired { forwards, record, capture, bulk, policy, unreviewed }
    }

    /// The state that another program has saved.
    ///
    /// # Errors
    /// A forward or a descriptor is none.
    pub(crate) fn resume(saved: &SavedDesired) -> io::Result<Self> {
        let forwards = saved.forwards.iter().map(forwards::parse).collect::<Result<_, _>>();
        let capture = saved.capture.as_ref().map(|SavedCapture { path, filter, file }| {
            let file = File::from(file.take()?);
            Ok::<_, io::Error>(DesiredCapture { path: path.clone(), filter: filter.clone(), file })
        });
        Ok(Self {
            forwards: forwards.map_err(io::Error::other)?,
            // An option, and no state.
            opening: Opening::default(),
            record: saved.record,
            capture: capture.transpose()?,
            bulk: saved.bulk,
            policy: saved.policy.clone(),
            unreviewed: saved.unreviewed,
        })
    }

    /// The part that an engine gets that starts now.
    pub(super) fn asked(&self) -> Asked {
        let capture = self.capture.as_ref().map(|capture| capture.path.clone());
        let policy = self.policy.as_ref().map(PolicyInForce::generation);
        Asked { forwards: self.forwards.clone(), capture, bulk: self.bulk, policy }
    }

    /// Whether the next engine can be given another forward too.
    pub(super) fn has_room_for(&self, forward: &Forward) -> bool {
        let filter = self.capture.as_ref().and_then(|capture| capture.filter.as_deref());
        self.forwards.contains(forward) || launch::holds(&self.forwards, Some(forward), filter)
    }

    /// Whether the next engine can be given a capture with this filter, beside the forwards.
    pub(crate) fn has_room_for_filter(&self, filter: Option<&str>) -> bool {
        filter.is_none() || launch::holds(&self.forwards, None, filter)
    }

    /// The engine has judged the open flows by the policy of this generation. It may have been another since,
    /// by which they are still to be judged.
    pub(super) fn reviewed(&mut self, generation: u64) {
        if self.policy.as_ref().is_some_and(|policy| policy.generation() == generation) {
            self.unreviewed = false;
        }
    }

    /// Adds a forward; false if it was there.
    pub(crate) fn add_forward(&mut self, forward: &Forward) -> bool {
        let new = !self.forwards.contains(forward);
        if new {
            self.forwards.push(forward.clone());
        }
        new
    }

    /// Removes a forward.
    pub(crate) fn remove_forward(&mut self, forward: &Forward) {
        self.forwards.retain(|it| it != forward);
    }

    /// The options of the capture.
    pub(super) fn capturing(&self) -> Option<Capturing> {
        self.capture.as_ref().map(|capture| Capturing { filter: capture.filter.clone() })
    }

    /// The policy for an engine, if it is another than that of the options.
    pub(super) fn policy_file(&self) -> io::Result<Option<File>> {
        let changed = self.policy.as_ref().filter(|policy| policy.generation() > 1);
        changed.map(|policy| policy.in_force().to_file()).transpose()
    }

    /// The file of the capture, for an engine.
    pub(super) fn capture_file(&self) -> io::Result<Option<File>> {
        self.capture.as_ref().map(|capture| capture.file.try_clone()).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_core::policy::{PolicyRules, Ruleset, SharedPolicy};

    #[test]
    fn a_review_is_over_once_an_engine_has_judged_by_the_policy_in_force() {
        let rules = Ruleset::new(PolicyRules::default()).expect("no rules");
        let mut policy = PolicyInForce::new(&SharedPolicy::new(rules, &[], [7; 16]));
        policy.lock(true).expect("no seal");
        let generation = policy.generation();
        let mut desired = Desired { policy: Some(policy), unreviewed: true, ..Desired::default() };
        desired.reviewed(generation - 1);
        assert!(desired.unreviewed, "the policy has changed since");
        desired.reviewed(generation);
        assert!(!desired.unreviewed);
    }
}
