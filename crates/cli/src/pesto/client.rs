//! The client's part: steps that change the tables of a running server, and their listing.

use super::wire::{self, Rule, Table, TableId};
use crate::escape::printable;
use crate::failure::plain;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for the server; opening all ports takes it a second or two.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest sentence of a server, in bytes.
const SENTENCE_MAX: u64 = 16 << 10;

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Removes all rules of a table.
    Clear(TableId),
    /// Adds rules; one that is there already is no change.
    Add(TableId, Vec<Rule>),
    /// Removes rules, which have to be there.
    Delete(TableId, Vec<Rule>),
}

/// Work for one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// The server's socket.
    pub(crate) path: PathBuf,
    /// Whether the tables are listed before and after a change.
    pub(crate) show: bool,
    /// Changes in order; without any the tables are listed.
    pub(crate) steps: Vec<Step>,
}

/// Carries a request out; the text is for standard output.
///
/// # Errors
/// The server is not there or of another kind, a rule to remove is not there, or the change is not in force.
pub(crate) fn execute(Request { path, show, steps }: &Request) -> Result<String, String> {
    let failed = |error: io::Error| format!("Failed to connect to {}: {}", path.display(), plain(&error));
    let mut server = UnixStream::connect(path).map_err(failed)?;
    let set = server.set_read_timeout(Some(PATIENCE)).and_then(|()| server.set_write_timeout(Some(PATIENCE)));
    set.map_err(failed)?;
    let mut tables = wire::read_greeting(&mut server).map_err(|error| plain(&error))?;
    let mut text = String::new();
    if steps.is_empty() {
        list(&mut text, "passt/pasta configuration", path, &tables);
        return Ok(text);
    }
    if *show {
        list(&mut text, "Previous configuration", path, &tables);
    }
    steps.iter().try_for_each(|step| apply(&mut tables, step))?;
    let lost = |error: io::Error| format!("Failed to change {}: {}", path.display(), plain(&error));
    server.write_all(&wire::answer(&tables)).map_err(lost)?;
    server.shutdown(Shutdown::Write).map_err(lost)?;
    let mut refusal = Vec::new();
    server.take(SENTENCE_MAX).read_to_end(&mut refusal).map_err(lost)?;
    if !refusal.is_empty() {
        return Err(printable(&String::from_utf8_lossy(&refusal)));
    }
    if *show {
        list(&mut text, "Updated configuration", path, &tables);
    }
    Ok(text)
}

/// Makes one change in the tables.
fn apply(tables: &mut Vec<Table>, step: &Step) -> Result<(), String> {
    let id = match step {
        Step::Clear(id) | Step::Add(id, _) | Step::Delete(id, _) => *id,
    };
    if !tables.iter().any(|table| table.id == id) {
        tables.push(Table { id, rules: Vec::new() });
    }
    let Some(Table { rules, .. }) = tables.iter_mut().find(|table| table.id == id) else { return Ok(()) };
    match step {
        Step::Clear(_) => rules.clear(),
        Step::Add(_, added) => {
            let new: Vec<_> = added.iter().filter(|rule| !rules.contains(rule)).cloned().collect();
            rules.extend(new);
        }
        Step::Delete(_, gone) => {
            for rule in gone {
                let at = rules.iter().position(|other| other == rule);
                let at = at.ok_or_else(|| {
                    format!("Couldn't find forwarding rule to delete: {rule}\nUnable to delete rule {rule}")
                })?;
                rules.remove(at);
            }
        }
    }
    Ok(())
}

/// The tables as text below a title.
fn list(text: &mut String, title: &str, path: &Path, tables: &[Table]) {
    // Infallible: a string grows.
    let _ = writeln!(text, "{title} ({})", path.display());
    for Table { id, rules } in tables {
        let _ = writeln!(text, "  {}", id.name());
        for rule in rules {
            let _ = writeln!(text, "    {rule}");
        }
    }
}

#[cfg(test)]
mod tests;
