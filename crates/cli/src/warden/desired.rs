//! The state that the user has asked for up to now, which every engine starts with: forwards, the capture,
//! the kinds of events.

use crate::conversation::message::{Capturing, Recorded};
use brodo_net::forward::Forward;
use std::fs::File;
use std::io;
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
    pub(crate) record: Recorded,
    pub(crate) capture: Option<DesiredCapture>,
}

impl Desired {
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

    /// The file of the capture, for an engine.
    pub(super) fn capture_file(&self) -> io::Result<Option<File>> {
        self.capture.as_ref().map(|capture| capture.file.try_clone()).transpose()
    }
}
