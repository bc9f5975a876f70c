//! Version 2 of records, each with its conversion from version 1. They are never changed either.

use super::v1::NamedServerV1;
use serde::{Deserialize, Serialize};

/// Server that a flow has named at a gate. A name that was not encrypted is still saved in version 1, which
/// versions of brodo without this one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedServerV2<'a> {
    #[serde(borrow)]
    pub(crate) named: NamedServerV1<'a>,
    /// It is the outer name of an encrypted ClientHello.
    pub(crate) encrypted: bool,
}

impl<'a> From<NamedServerV1<'a>> for NamedServerV2<'a> {
    fn from(named: NamedServerV1<'a>) -> Self {
        Self { named, encrypted: false }
    }
}
