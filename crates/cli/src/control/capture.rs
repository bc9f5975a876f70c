//! `capture.start` and `capture.stop`: one capture at a time, of all workers.
//!
//! Workers write to the capture themselves, through a handle each; one more is kept here, for the amount
//! written so far and for the last write after all others are dropped. The file must be an ordinary one: a
//! pipe without a reader would stop this thread, and a slow one the workers.

use super::ask::ask_all;
use super::{Controlled, FirstCapture};
use brodo_control::method::{CaptureStatus, StartCapture};
use brodo_control::rpc::{Error, code};
use brodo_net::capture::{Capture, Filter};
use brodo_net::command::Command;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The current capture.
#[derive(Debug)]
pub(super) struct Captures(Option<Current>);

#[derive(Debug)]
struct Current {
    file: PathBuf,
    filter: Option<String>,
    handle: Capture,
}

impl Captures {
    /// State with the capture of `--pcap`.
    pub(super) fn new(first: Option<FirstCapture>) -> Self {
        Self(first.map(|FirstCapture { file, capture }| Current { file, filter: None, handle: capture }))
    }

    /// The current capture, if it has not failed.
    pub(super) fn status(&self) -> Option<CaptureStatus> {
        self.0.as_ref().filter(|current| !current.handle.has_ended()).map(Current::status)
    }

    pub(super) fn start(
        &mut self,
        controlled: &Controlled,
        wanted: StartCapture,
    ) -> Result<CaptureStatus, Error> {
        if let Some(CaptureStatus { file, .. }) = self.status() {
            let why = format!("a capture into {} is under way: stop it first", file.display());
            return Err(Error::new(code::FAILED, why));
        }
        let invalid = |why: String| Error::new(code::INVALID_PARAMS, why);
        if !wanted.file.is_absolute() {
            return Err(invalid(format!("the file {} has no absolute path", wanted.file.display())));
        }
        let filter: Filter = wanted.filter.as_deref().unwrap_or_default().parse().map_err(invalid)?;
        let handle = create(&wanted.file)
            .and_then(|file| Capture::new(file, &controlled.info.interface, controlled.bus.clock()))
            .map_err(|error| {
                let why = format!("cannot write the capture {}: {error}", wanted.file.display());
                Error::new(code::FAILED, why)
            })?
            .only(filter);
        let shared = handle.clone();
        let current = Current { file: wanted.file, filter: wanted.filter, handle };
        let status = current.status();
        self.0 = Some(current);
        ask_all(&controlled.workers, |reply| Command::StartCapture { capture: shared.clone(), reply })?;
        Ok(status)
    }

    pub(super) fn stop(&mut self, controlled: &Controlled) -> Result<CaptureStatus, Error> {
        let Some(mut current) = self.0.take() else {
            return Err(Error::new(code::NOT_FOUND, "no capture is under way"));
        };
        let stopped = ask_all(&controlled.workers, |reply| Command::StopCapture { reply });
        current.handle.flush();
        stopped.map(|_| current.status())
    }
}

impl Current {
    fn status(&self) -> CaptureStatus {
        let (frames, bytes) = self.handle.written();
        CaptureStatus { file: self.file.clone(), filter: self.filter.clone(), frames, bytes }
    }
}

/// Makes or replaces an ordinary file; a new one has mode 0600, because it holds payload.
fn create(path: &Path) -> io::Result<File> {
    // Without NONBLOCK the opening of a pipe would wait for a reader.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR)?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is no ordinary file"));
    }
    let file = File::from(file);
    file.set_len(0)?;
    Ok(file)
}
