//! Scans of `auto`: listening sockets of the other side are listed, and listeners opened and closed
//! accordingly.
//!
//! A port that cannot be bound is reported once and retried in every scan, because it may become free; one of
//! a family that the host lacks is not reported. If the kernel does not list sockets, nothing changes.

use super::auto::{self, Places, Rule};
use super::listen::ListenSpec;
use super::{ForwardDirection, ForwardError, Forwards, Transport, spec};
use crate::sock_diag::{Listener, SockDiag};
use crate::socket_broker::Kind;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// TCP listeners of one side, as one scan has found them: TCP ports and UDP ports follow the same list.
type TcpListeners = Option<(ForwardDirection, Vec<Listener>)>;

/// Sockets for which ports of a protocol are opened. UDP ports also follow TCP listeners: a server such as
/// iperf3's binds its UDP port when a client has come, whose datagrams do not wait for the next scan.
fn listeners(
    diag: &SockDiag,
    direction: ForwardDirection,
    transport: Transport,
    known: &mut TcpListeners,
) -> Result<Vec<Listener>, Errno> {
    let mut tcp = match known.take() {
        Some((of, tcp)) if of == direction => tcp,
        _ => diag.listeners(true)?,
    };
    if transport == Transport::Udp {
        tcp.append(&mut diag.listeners(false)?);
    } else {
        *known = Some((direction, tcp.clone()));
    }
    Ok(tcp)
}

impl Forwards {
    /// Looks once for all entries, each side and protocol with one dump; UDP also with that of TCP.
    pub(super) fn scan(&mut self) {
        let autos = self.entries.iter().filter(|entry| entry.forward.spec.is_auto());
        let kinds: BTreeSet<_> =
            autos.map(|entry| (entry.forward.direction, entry.forward.transport)).collect();
        let mut known = None;
        // TCP of a side comes before its UDP.
        for (direction, transport) in kinds {
            // Failures are reported when a forward is added, and a later scan may succeed.
            let _ = self.scan_kind(direction, transport, &mut known);
        }
    }

    /// Looks for all entries of one kind.
    ///
    /// # Errors
    /// The sockets of the other side cannot be listed.
    pub(super) fn scan_all(
        &mut self,
        direction: ForwardDirection,
        transport: Transport,
    ) -> Result<(), ForwardError> {
        self.scan_kind(direction, transport, &mut None)
    }

    fn scan_kind(
        &mut self,
        direction: ForwardDirection,
        transport: Transport,
        known: &mut TcpListeners,
    ) -> Result<(), ForwardError> {
        let found = self.diag(direction).and_then(|diag| {
            let found = listeners(&diag, direction, transport, known);
            self.diag[usize::from(direction == ForwardDirection::In)] = Some(diag);
            found
        });
        let found = found.map_err(|errno| {
            let option = super::option(direction, transport);
            ForwardError::Invalid(format!(
                "{option} auto: cannot list listening sockets: sendto SOCK_DIAG_BY_FAMILY: {}",
                std::io::Error::from(errno)
            ))
        })?;
        let named = spec::named(&self.specs(direction, transport));
        let autos = self.entries.iter().map(|entry| (entry.id, &entry.forward)).filter(|(_, forward)| {
            (forward.direction, forward.transport) == (direction, transport) && forward.spec.is_auto()
        });
        let autos: Vec<_> = autos.map(|(id, forward)| (id, forward.spec.clone())).collect();
        for (id, spec) in autos {
            let (address, excluded) = (spec.address, &spec.excluded[..]);
            let (ephemeral, guest) = (self.ephemeral, &self.guest);
            let among = spec.among();
            let rule = Rule { direction, transport, address, among, excluded, ephemeral, guest };
            let places = auto::places(&rule, &found, self.listeners.own(), |port| named.contains(port));
            self.follow(id, &places, spec.interface.as_deref(), direction, transport);
        }
        Ok(())
    }

    /// The socket that lists those of the side from which ports are taken.
    fn diag(&mut self, direction: ForwardDirection) -> Result<SockDiag, Errno> {
        let guests = direction == ForwardDirection::In;
        if let Some(diag) = self.diag[usize::from(guests)].take() {
            return Ok(diag);
        }
        let socket = match (&mut self.broker, guests) {
            (Some(broker), true) => broker.socket(Kind::Diag),
            (None, true) => Err(Errno::PIPE),
            // Opened at the start; lost only by an error of the host's kernel.
            (_, false) => Kind::Diag.open(),
        };
        socket.map(SockDiag::new)
    }

    /// Listens at these places for an entry, and at no others.
    fn follow(
        &mut self,
        id: u32,
        places: &Places,
        interface: Option<&str>,
        direction: ForwardDirection,
        transport: Transport,
    ) {
        let mut there = BTreeSet::new();
        for slot in self.listeners.slots_of(id) {
            let Some(listener) = self.listeners.get(slot) else { continue };
            if places.get(&listener.at) == Some(&listener.to_address) {
                there.insert(listener.at);
            } else {
                self.listeners.close(slot);
            }
        }
        self.end_orphans();
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) else { return };
        entry.failed.retain(|at| places.contains_key(at));
        for (&(address, port), &to) in places.iter().filter(|(at, _)| !there.contains(*at)) {
            let interface = interface.map(str::to_owned);
            let shared = self.sharing(direction, transport, address, port);
            let place = ListenSpec { direction, transport, address, port, interface, shared };
            self.try_place(id, &place, to);
        }
    }

    pub(super) fn try_place(&mut self, id: u32, place: &ListenSpec, to: Option<IpAddr>) {
        let &ListenSpec { address, port, .. } = place;
        let result = self.listen(id, place, to, port);
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) else { return };
        match result {
            Ok(()) => {
                entry.failed.remove(&(address, port));
            }
            // A host may be without one of the families.
            Err(error) if entry.forward.spec.address.is_none() && error.is_absence() => {}
            Err(error) => {
                if entry.failed.insert((address, port)) {
                    self.notice(error.to_string());
                }
            }
        }
    }
}
