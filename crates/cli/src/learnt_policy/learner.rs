//! `--learn FILE`: the policy of what the guest reaches, learnt while it is served, and written at the end.
//!
//! The file is opened before the guest exists, so that one that cannot be written ends the start.

use super::Learnt;
use crate::failure::{Failure, plain};
use crate::log;
use brodo_control::flow::FlowEnd;
use brodo_core::config::Config;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A policy in the making, with its file.
#[derive(Debug)]
pub(crate) struct Learner {
    /// Absolute path: the working directory of a brodo in the background becomes another.
    path: PathBuf,
    learnt: Mutex<Learnt>,
}

/// The same for the next program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SavedLearner {
    path: PathBuf,
    learnt: Learnt,
}

impl Learner {
    /// One for the file at `path`, which is none of the policy's own, and a guest under this configuration.
    ///
    /// # Errors
    /// It is one of `policies`, or cannot be opened.
    pub(crate) fn open(path: &Path, policies: &[PathBuf], config: &Config) -> Result<Self, Failure> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let same = |other: &&PathBuf| {
            path.canonicalize().is_ok_and(|own| other.canonicalize().is_ok_and(|it| it == own))
        };
        if let Some(policy) = policies.iter().find(same) {
            let policy = policy.display();
            return Err(Failure::Usage(format!(
                "--learn {policy} would replace the policy in force: write to another file and compare them"
            )));
        }
        let opened = File::options().append(true).create(true).mode(0o600).open(&path);
        opened.map_err(Failure::io(format!("write the policy {}: open", path.display())))?;
        Ok(Self { path, learnt: Mutex::new(Learnt::under(config)) })
    }

    /// That of another program of this process.
    pub(crate) fn resume(SavedLearner { path, learnt }: SavedLearner) -> Self {
        Self { path, learnt: Mutex::new(learnt) }
    }

    /// A form for the next program.
    pub(crate) fn save(&self) -> SavedLearner {
        SavedLearner { path: self.path.clone(), learnt: self.learnt().clone() }
    }

    fn learnt(&self) -> MutexGuard<'_, Learnt> {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns from a flow that has ended.
    pub(crate) fn add(&self, flow: &FlowEnd) {
        self.learnt().add(flow);
    }

    /// The policy of what was seen so far; `by` has made it.
    pub(crate) fn text(&self, by: &str, wildcards: Option<usize>) -> String {
        self.learnt().text(by, wildcards)
    }

    /// Writes the file. One that cannot be written is a warning: the guest has come to its end. A guest that
    /// has reached nothing leaves a file with content as it is: a command that was not found, for example.
    pub(crate) fn write(&self) {
        let has_content = || fs::metadata(&self.path).is_ok_and(|file| file.len() > 0);
        if self.learnt().is_empty() && has_content() {
            log::warn(&format!("nothing was learnt: the policy {} stays as it is", self.path.display()), &[]);
            return;
        }
        let text = self.text("brodo --learn", None);
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&self.path);
        let written: io::Result<()> = file.and_then(|mut file| file.write_all(text.as_bytes()));
        if let Err(error) = written {
            log::warn(&format!("cannot write the policy {}: {}", self.path.display(), plain(&error)), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_has_reached_nothing_leaves_a_written_policy_as_it_is() {
        let path = std::env::temp_dir().join(format!("brodo-learner-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let learner = Learner::open(&path, &[], &Config::default()).expect("a file");
        learner.write();
        assert!(fs::read_to_string(&path).expect("a policy").contains("allow = ["));
        fs::write(&path, "version = 1\n").expect("a policy by hand");
        learner.write();
        let text = fs::read_to_string(&path).expect("a policy");
        fs::remove_file(&path).expect("it is there");
        assert_eq!(text, "version = 1\n");
    }
}
