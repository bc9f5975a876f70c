//! `capture.start` and `capture.stop`: one capture at a time, of all workers.
//!
//! The warden opens the file and keeps it, for the next engine to go on with; the engine writes. The file
//! must be an ordinary one: a pipe without a reader would stop this thread, and a slow one the workers.

use super::Controlled;
use crate::conversation::message::{Captured, Capturing, GetEngineStatus, StopCapturing};
use crate::warden::desired::DesiredCapture;
use brodo_control::method::{CaptureStatus, StartCapture};
use brodo_control::rpc::{Error, code};
use brodo_net::capture::Filter;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// The capture under way, whose amount the engine has given.
pub(super) fn status(controlled: &Controlled, captured: Option<Captured>) -> Option<CaptureStatus> {
    let desired = controlled.desired();
    let DesiredCapture { path, filter, .. } = desired.capture.as_ref()?;
    let Captured { frames, bytes } = captured?;
    Some(CaptureStatus { file: path.clone(), filter: filter.clone(), frames, bytes })
}

pub(super) fn start(controlled: &Controlled, wanted: StartCapture) -> Result<CaptureStatus, Error> {
    let captured = controlled.engine.call(&GetEngineStatus {})?.capture;
    if let Some(CaptureStatus { file, .. }) = status(controlled, captured) {
        let why = format!("a capture into {} is under way: stop it first", file.display());
        return Err(Error::new(code::FAILED, why));
    }
    let StartCapture { file: path, filter } = wanted;
    let invalid = |why: String| Error::new(code::INVALID_PARAMS, why);
    if !path.is_absolute() {
        return Err(invalid(format!("the file {} has no absolute path", path.display())));
    }
    filter.as_deref().unwrap_or_default().parse::<Filter>().map_err(invalid)?;
    if !controlled.desired().has_room_for_filter(filter.as_deref()) {
        return Err(Error::new(code::FAILED, "the filter is too long"));
    }
    let failed = |error: io::Error| {
        Error::new(code::FAILED, format!("cannot write the capture {}: {error}", path.display()))
    };
    let file = create(&path).map_err(failed)?;
    let mut engine = controlled.engine.hold();
    engine.call_in_time(&Capturing { filter: filter.clone() }, Some(file.as_fd()))?;
    controlled.desired().capture = Some(DesiredCapture { path: path.clone(), filter: filter.clone(), file });
    Ok(CaptureStatus { file: path, filter, frames: 0, bytes: 0 })
}

pub(super) fn stop(controlled: &Controlled) -> Result<CaptureStatus, Error> {
    let mut engine = controlled.engine.hold();
    let stopped = engine.call_in_time(&StopCapturing {}, None);
    // Also after an error: no later engine goes on with a capture that was stopped, or has ended by itself.
    let desired = controlled.desired().capture.take();
    let Captured { frames, bytes } = stopped?;
    let none = || Error::new(code::NOT_FOUND, "no capture is under way");
    let DesiredCapture { path, filter, .. } = desired.ok_or_else(none)?;
    Ok(CaptureStatus { file: path, filter, frames, bytes })
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
