//! Events: messages of the server to clients that have subscribed ([`crate::method::Subscribe`]).
//!
//! Events are not stored: a subscription begins with the next one. Events that a client does not read in time
//! are dropped, and [`Event::Lost`] has their number.

use crate::flow::{Flow, FlowEnd};
use crate::policy::{Decision, PolicyChange};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// A flow was opened.
    FlowOpened,
    /// A flow has ended, or was denied.
    FlowEnded,
    /// The policy has decided; only of a brodo with `--audit` or `--policy-fail`.
    Decision,
    /// The policy in force was changed.
    PolicyChanged,
    /// A notice to the user.
    Notice,
}

impl Topic {
    /// All topics.
    pub const ALL: [Self; 5] =
        [Self::FlowOpened, Self::FlowEnded, Self::Decision, Self::PolicyChanged, Self::Notice];

    /// Name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlowOpened => "flow_opened",
            Self::FlowEnded => "flow_ended",
            Self::Decision => "decision",
            Self::PolicyChanged => "policy_changed",
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
        found.ok_or_else(|| "expected flow_opened, flow_ended, decision, policy_changed or notice".to_owned())
    }
}

/// Severity of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A failure that ends brodo.
    Error,
    /// A condition that the user should know of.
    Warn,
    /// A step of normal operation.
    Info,
    /// Details for finding a fault.
    Debug,
}

impl Level {
    /// All levels, the most severe first.
    pub const ALL: [Self; 4] = [Self::Error, Self::Warn, Self::Info, Self::Debug];

    /// Name in messages.
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

/// An event. Its kind is the field `event` of the message.
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
        /// The flow, with the cause of its end.
        flow: FlowEnd,
    },
    /// The policy has decided.
    Decision {
        /// Equal decisions.
        decision: Decision,
    },
    /// The policy in force was changed.
    PolicyChanged {
        /// The change.
        change: PolicyChange,
    },
    /// Decisions are missing because there were too many distinct ones in a second.
    DecisionsLost {
        /// Their number.
        count: u64,
    },
    /// A notice to the user.
    Notice {
        /// Time of the notice, as in [`FlowEnd::time`].
        time: String,
        /// Severity of the notice.
        level: Level,
        /// Text of the notice, one sentence.
        text: String,
    },
    /// Events were dropped because there were too many.
    Lost {
        /// Events dropped since the last such event.
        count: u64,
    },
}
