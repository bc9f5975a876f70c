//! `brodo upgrade`: asks an instance for an upgrade in place, and looks whether the other program answers.
//!
//! The reply comes from the program before, when the engine is exchanged; it then executes the other program,
//! which closes this connection, and listens at the same path. Should that have failed, the connection stays,
//! and the status says so.

use super::args::UpgradeOptions;
use super::{connect, connect_within, json, path_of, print, refused, show};
use crate::failure::Failure;
use brodo_control::client::{Client, ClientError};
use brodo_control::method::{GetStatus, Status, Upgrade, Upgraded};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for the exchange of engines: more than the instance's own bounds together, which are 3 s for
/// the proof of the program, 3 for its start, 6 for the passage of the flows, and 2 of pause.
const EXCHANGE: Duration = Duration::from_secs(30);
/// Longest wait for the other program.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval of looks at a program that has not replaced itself yet.
const LOOK: Duration = Duration::from_millis(200);

/// Upgrades the selected instance.
pub(crate) fn upgrade(options: &UpgradeOptions) -> Result<u8, Failure> {
    let absolute = |path: &std::path::PathBuf| {
        std::path::absolute(path)
            .map_err(Failure::io(format!("find the place of {}: getcwd", path.display())))
    };
    let program = options.to.as_ref().map(absolute).transpose()?;
    let path = path_of(options.instance.instance.as_ref())?;
    let mut client = connect_within(&path, EXCHANGE)?;
    let upgraded = client.call(&Upgrade { program }).map_err(|error| refused(&error))?;
    let status = status_after(client, &path)?;
    print(&if options.instance.json { json(&upgraded) } else { words(&upgraded, &status) })?;
    Ok(0)
}

/// The status that the other program gives.
fn status_after(mut client: Client, path: &Path) -> Result<Status, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        match client.next_event(Some(LOOK)) {
            Err(ClientError::Closed) => break,
            Err(error) => return Err(refused(&error)),
            Ok(_) => {}
        }
        let status = match client.call(&GetStatus {}) {
            Err(ClientError::Closed) => break,
            other => other.map_err(|error| refused(&error))?,
        };
        if let Some(failed) = status.upgrades.and_then(|upgrades| upgrades.failure) {
            return Err(Failure::Remote(failed.reason));
        }
        if Instant::now() >= until {
            return Err(Failure::Remote("the program has not replaced itself".to_owned()));
        }
    }
    connect(path)?.call(&GetStatus {}).map_err(|error| refused(&error))
}

fn words(upgraded: &Upgraded, status: &Status) -> String {
    let lost = match upgraded.flows_lost {
        0 => String::new(),
        lost => format!("; {lost} could not go on and were reset"),
    };
    let pause = show::pause(upgraded.pause_us);
    let flows = if status.flows == 1 { "1 flow".to_owned() } else { format!("{} flows", status.flows) };
    format!("brodo {}: version {}, {flows}{lost}; pause {pause}\n", status.pid, status.version)
}
