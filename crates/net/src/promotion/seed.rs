//! The form of a seed in a request to the agent.
//!
//! It has a fixed size, and each sequence of bytes of that size is a valid seed or refused. The checks
//! are those of [`TcpSeed`] and the kernel's own, which it would answer with EINVAL.

use brodo_core::promotion::{SeedFields, TcpSeed, WindowScales};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Both ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ends {
    /// Address and port of the guest.
    pub guest: SocketAddr,
    /// Address and port of the peer as the guest knows it; the kernel socket is bound to it.
    pub remote: SocketAddr,
}

impl Ends {
    /// Those of a seed.
    pub fn of(seed: &TcpSeed) -> Self {
        let SeedFields { guest, remote, .. } = *seed.fields();
        Self { guest, remote }
    }
}

/// Least value of TCP_MAXSEG.
const MSS_MIN: u16 = 88;
/// Bits of the flags.
const IPV6: u8 = 1;
const SACK: u8 = 2;
const SCALED: u8 = 4;

/// Bytes of a seed in a request.
pub(super) const LEN: usize = 4 + 2 * 18 + 2 + 7 * 4;

/// Reads what [`encode`] has written.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn end(&mut self, ipv6: bool) -> Option<SocketAddr> {
        let address: [u8; 16] = self.take()?;
        let port = u16::from_ne_bytes(self.take()?);
        let ip: IpAddr = if ipv6 {
            Ipv6Addr::from(address).into()
        } else {
            Ipv4Addr::from(*address.first_chunk::<4>()?).into()
        };
        Some(SocketAddr::new(ip, port))
    }
}

/// The form in a request. SND.UNA is not in it: a socket begins with nothing unacknowledged.
pub(super) fn encode(seed: &TcpSeed) -> [u8; LEN] {
    let fields = seed.fields();
    let mut bytes = Vec::with_capacity(LEN);
    let scales = fields.scales.unwrap_or(WindowScales { snd: 0, rcv: 0 });
    let flag = |bit, set| if set { bit } else { 0 };
    let flags =
        flag(IPV6, fields.guest.is_ipv6()) | flag(SACK, fields.sack) | flag(SCALED, fields.scales.is_some());
    bytes.extend([flags, scales.snd, scales.rcv, 0]);
    for end in [fields.guest, fields.remote] {
        let mut address = [0; 16];
        match end.ip() {
            IpAddr::V4(v4) => address[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => address = v6.octets(),
        }
        bytes.extend(address);
        bytes.extend(end.port().to_ne_bytes());
    }
    bytes.extend(fields.mss.to_ne_bytes());
    let numbers = [
        fields.snd_nxt,
        fields.snd_wnd,
        fields.wnd_max,
        fields.snd_wl1,
        fields.rcv_nxt,
        fields.rcv_wup,
        fields.rcv_wnd,
    ];
    bytes.extend(numbers.into_iter().flat_map(u32::to_ne_bytes));
    let mut form = [0; LEN];
    form.copy_from_slice(&bytes);
    form
}

/// The seed of a request; `None` if it is not one that a connection of the kernel's can have.
pub(super) fn decode(bytes: &[u8; LEN]) -> Option<TcpSeed> {
    let mut reader = Reader(bytes);
    let [flags, snd, rcv, _] = reader.take()?;
    let ipv6 = flags & IPV6 != 0;
    let (guest, remote) = (reader.end(ipv6)?, reader.end(ipv6)?);
    let mss = u16::from_ne_bytes(reader.take()?);
    let snd_nxt = reader.number()?;
    let fields = SeedFields {
        guest,
        remote,
        snd_una: snd_nxt,
        snd_nxt,
        snd_wnd: reader.number()?,
        wnd_max: reader.number()?,
        snd_wl1: reader.number()?,
        rcv_nxt: reader.number()?,
        rcv_wup: reader.number()?,
        rcv_wnd: reader.number()?,
        mss,
        scales: (flags & SCALED != 0).then_some(WindowScales { snd, rcv }),
        sack: flags & SACK != 0,
    };
    Some(fields).filter(is_the_kernels).and_then(|fields| TcpSeed::new(fields).ok())
}

/// Conditions beside those of [`TcpSeed`]: of addresses, and those of the kernel's on its own values.
fn is_the_kernels(fields: &SeedFields) -> bool {
    let SeedFields { guest, remote, .. } = *fields;
    let unicast = |ip: IpAddr| {
        let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
        !ip.is_unspecified() && !ip.is_multicast() && !broadcast
    };
    // A difference of sequence numbers, which is negative beyond half of their space: no segment came from
    // beyond the window.
    let beyond = fields.rcv_nxt.wrapping_add(fields.rcv_wnd).wrapping_sub(fields.snd_wl1);
    unicast(guest.ip())
        && unicast(remote.ip())
        && guest.ip() != remote.ip()
        && fields.mss >= MSS_MIN
        && beyond <= i32::MAX.cast_unsigned()
}

#[cfg(test)]
mod tests;
