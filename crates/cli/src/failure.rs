//! Failures of brodo: one sentence, and an exit status that is not mistaken for the command's.

use brodo_link::tap::TapError;
use brodo_net::forward::ForwardError;
use brodo_netns::setup::SetupError;
use std::fmt;
use std::io;

/// Failure that ends brodo.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The options contradict each other or the host; nothing was started.
    Usage(String),
    /// Set-up of a namespace, an interface or the command failed.
    Setup(SetupError),
    /// The TAP cannot be served.
    Tap(TapError),
    /// The command line is not one of the program in whose place brodo runs: that program's text.
    Foreign(String),
    /// A running brodo was not found, or refused a request.
    Remote(String),
    /// A port cannot be forwarded.
    Forward(ForwardError),
    /// The engine failed, with its sentence.
    Engine(String),
    /// A limit of the host is too low for the options.
    Limit(String),
    /// Another one, with advice.
    Advised(Box<Failure>, String),
    /// Any other failure, with the attempted step and the system call.
    Io(String, io::Error),
}

impl Failure {
    /// Failure for an error of the system during `what`, which ends in the system call.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io(what, error)
    }

    /// The failure of a command that cannot be run, with advice if there is any.
    pub(crate) fn of_command(self, advice: impl FnOnce() -> Option<String>) -> Self {
        match &self {
            Self::Setup(error) if matches!(error.exit_status(), 126 | 127) => match advice() {
                Some(advice) => Self::Advised(Box::new(self), advice),
                None => self,
            },
            _ => self,
        }
    }

    /// Exit status: 1 for a refused request; 2 for usage, as clap has it; 126 and 127 for a command that
    /// cannot be run, as shells have it; 125 for the rest, as env and podman have it.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Remote(_) | Self::Foreign(_) => 1,
            Self::Usage(_) => 2,
            Self::Setup(error) => error.exit_status(),
            Self::Advised(failure, _) => failure.exit_status(),
            Self::Tap(_) | Self::Forward(_) | Self::Engine(_) | Self::Limit(_) | Self::Io(..) => 125,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(sentence)
            | Self::Remote(sentence)
            | Self::Limit(sentence)
            | Self::Foreign(sentence)
            | Self::Engine(sentence) => f.write_str(sentence),
            Self::Setup(error) => error.fmt(f),
            Self::Tap(error) => error.fmt(f),
            Self::Forward(error) => error.fmt(f),
            Self::Advised(failure, advice) => write!(f, "{failure} ({advice})"),
            Self::Io(what, error) => write!(f, "cannot {what}: {}", plain(error)),
        }
    }
}

/// An error of the system without its number: `File too large`.
pub(crate) fn plain(error: &io::Error) -> String {
    let words = error.to_string();
    words.split(" (os error").next().unwrap_or_default().to_owned()
}

impl From<SetupError> for Failure {
    fn from(error: SetupError) -> Self {
        Self::Setup(error)
    }
}
