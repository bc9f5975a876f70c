//! The server's part: the forwards in force as tables, and the change to what a client wants instead.

use super::rules::{forwards, of_forward, table_of, tables};
use super::wire::{self, Rule, Table, TableId};
use crate::warden::forwarding::Forwards;
use brodo_control::method::{AddForward, Forward};
use brodo_control::rpc::Error;
use brodo_net::ephemeral_ports::ephemeral_ports;
use std::io::{self, ErrorKind, Read, Write};

/// Families of the guest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Families {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

/// Serves one client. `change` is called around the change, to hold off others.
///
/// # Errors
/// The client has gone, is too slow, or does not keep to the protocol.
pub(crate) fn serve<T>(
    forwards: &impl Forwards,
    Families { v4, v6 }: Families,
    hold: impl FnOnce() -> T,
    client: &mut (impl Read + Write),
) -> io::Result<()> {
    let listed = forwards.list().map_err(|error| io::Error::other(error.message))?;
    let families = if v4 { wire::IPV4 } else { 0 } | if v6 { wire::IPV6 } else { 0 };
    client.write_all(&wire::greeting(&tables(&listed, &ephemeral_ports()), families))?;
    let wanted = match wire::read_answer(client) {
        Ok(None) => return Ok(()),
        Ok(Some(wanted)) => wanted,
        Err(error) if error.kind() == ErrorKind::InvalidData => return refuse(client, &error.to_string()),
        Err(error) => return Err(error),
    };
    let held = hold();
    let changed = change(forwards, &wanted);
    drop(held);
    changed.or_else(|why| refuse(client, &why))
}

/// The reason for which the wanted tables are not in force. The client may have gone already.
fn refuse(client: &mut impl Write, why: &str) -> io::Result<()> {
    client.write_all(why.as_bytes())
}

/// Changes the forwards to the wanted tables; one that is not among these stays. Forwards that have all their
/// rules in the wanted tables stay too. After a failure those before are in force again.
fn change(all: &impl Forwards, wanted: &[Table]) -> Result<(), String> {
    let sentence = |error: Error| error.message;
    let mut missing: Vec<(TableId, Vec<Rule>)> =
        wanted.iter().map(|table| (table.id, table.rules.clone())).collect();
    let ephemeral = ephemeral_ports();
    let mut leaving: Vec<Forward> = Vec::new();
    for forward in all.list().map_err(sentence)? {
        let id = table_of(forward.side);
        let Some((_, rules)) = missing.iter_mut().find(|(table, _)| *table == id) else { continue };
        let own = of_forward(&forward, &ephemeral);
        if own.iter().all(|rule| rules.contains(rule)) {
            rules.retain(|rule| !own.contains(rule));
        } else {
            leaving.push(forward);
        }
    }
    let mut coming: Vec<AddForward> = Vec::new();
    for (id, rules) in &missing {
        coming.extend(forwards(*id, rules)?);
    }
    let mut undo = Undo { all, added: Vec::new(), removed: Vec::new() };
    undo.advance(leaving, &coming).map_err(|error| {
        undo.undo();
        sentence(error)
    })
}

/// Steps of a change so far.
struct Undo<'a, F> {
    all: &'a F,
    added: Vec<u64>,
    removed: Vec<Forward>,
}

impl<F: Forwards> Undo<'_, F> {
    /// Removes and adds, up to the first failure.
    fn advance(&mut self, leaving: Vec<Forward>, coming: &[AddForward]) -> Result<(), Error> {
        for forward in leaving {
            self.all.remove(forward.id)?;
            self.removed.push(forward);
        }
        for wanted in coming {
            self.added.push(self.all.add(wanted)?.id);
        }
        Ok(())
    }

    /// Goes back, as far as that is possible: a port may have been taken meanwhile.
    fn undo(&mut self) {
        for id in self.added.drain(..) {
            let _ = self.all.remove(id);
        }
        for Forward { side, protocol, spec, .. } in self.removed.drain(..) {
            let _ = self.all.add(&AddForward { side, protocol, spec });
        }
    }
}

#[cfg(test)]
mod tests;
