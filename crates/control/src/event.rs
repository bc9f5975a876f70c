//! What a server tells without being asked each time: to clients that have called [`crate::method::Subscribe`], and only
//! what they asked for.
//!
//! Events are not kept: who subscribes is told what comes from then on. If more come than a client reads, those in between
//! are dropped, and [`Event::Lost`] says how many.

use crate::flow::{Flow, FlowEnd};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What may be subscribed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// Flows that begin.
    FlowOpened,
    /// Flows that end, those that were denied among them.
    FlowEnded,
    /// What brodo tells its user.
    Notice,
}

impl Topic {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::FlowOpened, Self::FlowEnded, Self::Notice];

    /// As it is written in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlowOpened => "flow_opened",
            Self::FlowEnded => "flow_ended",
            Self::Notice => "notice",
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Topic {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|topic| topic.name() == word);
        found.ok_or_else(|| "expected flow_opened, flow_ended or notice".to_owned())
    }
}

/// How much a message matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Something is not done.
    Error,
    /// Something is not as it should be.
    Warn,
    /// What people who watch want to know.
    Info,
    /// What those who look for a fault want to know.
    Debug,
}

impl Level {
    /// All of them, the gravest first.
    pub const ALL: [Self; 4] = [Self::Error, Self::Warn, Self::Info, Self::Debug];

    /// As it is written in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|level| level.name() == word);
        found.ok_or_else(|| "expected error, warn, info or debug".to_owned())
    }
}

/// One thing that has happened. In messages `event` says which.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A flow has begun.
    FlowOpened {
        /// The flow as it begins.
        flow: Flow,
    },
    /// A flow has ended.
    FlowEnded {
        /// What it was.
        flow: FlowEnd,
    },
    /// brodo tells its user something.
    Notice {
        /// When, as in [`FlowEnd::time`].
        time: String,
        /// How much it matters.
        level: Level,
        /// The sentence.
        text: String,
    },
    /// Events were dropped because there were too many.
    Lost {
        /// How many since the last time.
        count: u64,
    },
}
