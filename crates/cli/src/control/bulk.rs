//! Method `bulk`: the carrier of bulk flows, shown or changed.

use super::Controlled;
use crate::conversation::message::{Bulked, EngineBulk, GetEngineStatus};
use brodo_control::method::{Bulk, BulkCarrier};
use brodo_control::rpc::{Error, code};

/// The carrier for the status; `engine` is that of an engine which can promote.
pub(super) fn status(controlled: &Controlled, engine: Option<EngineBulk>) -> Bulk {
    match engine {
        Some(EngineBulk { carrier, promoted, agent_gone }) => Bulk {
            carrier,
            promoted,
            unavailable: agent_gone.then(|| "the promotion agent has ended".to_owned()),
        },
        None => Bulk { unavailable: controlled.info.no_promotion.clone(), ..Bulk::default() },
    }
}

/// Sets the carrier, if one is given.
pub(super) fn set(controlled: &Controlled, carrier: Option<BulkCarrier>) -> Result<Bulk, Error> {
    let before = controlled.engine.call(&GetEngineStatus {})?.bulk;
    match (carrier, before) {
        (Some(carrier), Some(_)) => {
            let mut engine = controlled.engine.hold();
            engine.call_in_time(&Bulked { carrier }, None)?;
            controlled.desired().bulk = Some(carrier);
        }
        (Some(BulkCarrier::Kernel), None) => {
            let why = controlled.info.no_promotion.as_deref();
            let why = why.unwrap_or(
                "brodo was started with --bulk tap, or serves an interface or machine that has none",
            );
            return Err(Error::new(code::FAILED, format!("no kernel sockets for bulk flows: {why}")));
        }
        (Some(BulkCarrier::Tap) | None, _) => {}
    }
    Ok(status(controlled, controlled.engine.call(&GetEngineStatus {})?.bulk))
}
