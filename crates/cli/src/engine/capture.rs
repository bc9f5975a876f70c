//! The capture of an engine: frames of all workers into a file that the warden has opened.
//!
//! Workers write to the capture themselves, through a handle each; one more is kept here, for the amount
//! written so far and for the last write after all others are dropped.

use super::ask::ask_all;
use crate::conversation::message::{Captured, Capturing};
use crate::failure::Failure;
use brodo_control::rpc::{Error, code};
use brodo_net::capture::{Capture, Filter, Written};
use brodo_net::clock::Clock;
use brodo_net::command::Command;
use brodo_net::workers::Workers;
use std::fs::File;

/// A capture into `file`.
///
/// # Errors
/// The headers cannot be written; an invalid filter.
pub(super) fn open(
    file: File,
    wanted: &Capturing,
    interface: &str,
    clock: Clock,
) -> Result<Capture, Failure> {
    let filter: Filter = wanted.filter.as_deref().unwrap_or_default().parse().map_err(Failure::Usage)?;
    let capture = Capture::new(file, interface, clock).map_err(Failure::io("write the capture: write"))?;
    Ok(capture.only(filter))
}

/// A capture that another engine has begun.
///
/// # Errors
/// An invalid filter.
pub(super) fn go_on(file: File, wanted: &Capturing, clock: Clock) -> Result<Capture, Failure> {
    let filter: Filter = wanted.filter.as_deref().unwrap_or_default().parse().map_err(Failure::Usage)?;
    Ok(Capture::resume(file, clock).only(filter))
}

/// The current capture.
#[derive(Debug)]
pub(super) struct Current(pub(super) Option<Capture>);

impl Current {
    /// Its amount, if it has not failed.
    pub(super) fn status(&self) -> Option<Captured> {
        self.0.as_ref().filter(|capture| !capture.has_ended()).map(captured)
    }

    /// Replaces it.
    pub(super) fn start(&mut self, workers: &Workers, capture: &Capture) -> Result<(), Error> {
        self.0 = Some(capture.clone());
        ask_all(workers, |reply| Command::StartCapture { capture: capture.clone(), reply }).map(drop)
    }

    /// Ends it, with all frames written.
    pub(super) fn stop(&mut self, workers: &Workers) -> Result<Captured, Error> {
        let Some(mut capture) = self.0.take() else {
            return Err(Error::new(code::NOT_FOUND, "no capture is under way"));
        };
        let stopped = ask_all(workers, |reply| Command::StopCapture { reply });
        capture.flush();
        stopped?;
        if let Some(error) = capture.take_error() {
            return Err(Error::new(
                code::FAILED,
                format!("the end of the capture cannot be written: {error}"),
            ));
        }
        Ok(captured(&capture))
    }
}

fn captured(capture: &Capture) -> Captured {
    let Written { frames, bytes } = capture.written();
    Captured { frames, bytes }
}
