//! State of a connection from which the kernel continues it, and its form in a request.
//!
//! The form has a fixed size, and every sequence of bytes of that size is either a valid seed or refused: the
//! kernel's own conditions, which it answers with EINVAL, are checked before a socket is made.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Both ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The guest's.
    pub guest: SocketAddr,
    /// The one that the guest takes for its peer; the kernel socket is bound to it.
    pub remote: SocketAddr,
}

/// Shift counts of the windows (RFC 7323): of the one that the guest advertises, and of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scales {
    /// Of windows that the guest sends.
    pub snd: u8,
    /// Of windows sent to the guest.
    pub rcv: u8,
}

/// State of a connection in terms of RFC 9293, with nothing unacknowledged and nothing unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed {
    /// Its ends.
    pub ends: Ends,
    /// SND.NXT, and SND.UNA as well.
    pub snd_nxt: u32,
    /// SND.WND: window of the guest.
    pub snd_wnd: u32,
    /// The largest window that the guest has advertised.
    pub snd_wnd_max: u32,
    /// SND.WL1: number of the segment of its last update.
    pub snd_wl1: u32,
    /// RCV.NXT: next number to receive.
    pub rcv_nxt: u32,
    /// Number that the advertised window begins with: the last acknowledgement sent.
    pub rcv_wup: u32,
    /// Window advertised from there on.
    pub rcv_wnd: u32,
    /// Largest segment to the guest, without options.
    pub mss: u16,
    /// Window scale option, if both sides have sent it.
    pub scales: Option<Scales>,
    /// Selective acknowledgements are permitted.
    pub sack: bool,
}

/// Largest shift count (RFC 7323 section 2.2).
const SCALE_MAX: u8 = 14;
/// Least maximum segment size that the kernel takes.
const MSS_MIN: u16 = 88;
/// Bits of the flags.
const IPV6: u8 = 1;
const SACK: u8 = 2;
const SCALED: u8 = 4;

/// Bytes of a seed in a request.
pub(super) const LEN: usize = 4 + 2 * 18 + 2 + 7 * 4;

/// Reads what [`Seed::encode`] has written.
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

impl Seed {
    /// The form in a request.
    pub(super) fn encode(&self) -> [u8; LEN] {
        let mut bytes = Vec::with_capacity(LEN);
        let scales = self.scales.unwrap_or(Scales { snd: 0, rcv: 0 });
        let flag = |bit, set| if set { bit } else { 0 };
        let flags = flag(IPV6, self.ends.guest.is_ipv6())
            | flag(SACK, self.sack)
            | flag(SCALED, self.scales.is_some());
        bytes.extend([flags, scales.snd, scales.rcv, 0]);
        for end in [self.ends.guest, self.ends.remote] {
            let mut address = [0; 16];
            match end.ip() {
                IpAddr::V4(v4) => address[..4].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => address = v6.octets(),
            }
            bytes.extend(address);
            bytes.extend(end.port().to_ne_bytes());
        }
        bytes.extend(self.mss.to_ne_bytes());
        let numbers = [
            self.snd_nxt,
            self.snd_wnd,
            self.snd_wnd_max,
            self.snd_wl1,
            self.rcv_nxt,
            self.rcv_wup,
            self.rcv_wnd,
        ];
        bytes.extend(numbers.into_iter().flat_map(u32::to_ne_bytes));
        let mut form = [0; LEN];
        form.copy_from_slice(&bytes);
        form
    }

    /// The seed of a request; `None` if it is not one that a connection can have.
    pub(super) fn decode(bytes: &[u8; LEN]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [flags, snd, rcv, _] = reader.take()?;
        let ipv6 = flags & IPV6 != 0;
        let ends = Ends { guest: reader.end(ipv6)?, remote: reader.end(ipv6)? };
        let seed = Self {
            ends,
            mss: u16::from_ne_bytes(reader.take()?),
            snd_nxt: reader.number()?,
            snd_wnd: reader.number()?,
            snd_wnd_max: reader.number()?,
            snd_wl1: reader.number()?,
            rcv_nxt: reader.number()?,
            rcv_wup: reader.number()?,
            rcv_wnd: reader.number()?,
            scales: (flags & SCALED != 0).then_some(Scales { snd, rcv }),
            sack: flags & SACK != 0,
        };
        seed.is_valid().then_some(seed)
    }

    /// Whether a connection can have this state.
    fn is_valid(&self) -> bool {
        let Ends { guest, remote } = self.ends;
        let unicast = |ip: IpAddr| {
            let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
            !ip.is_unspecified() && !ip.is_multicast() && !broadcast
        };
        let scales = self.scales.unwrap_or(Scales { snd: 0, rcv: 0 });
        let window_max = |shift: u8| u32::from(u16::MAX) << shift;
        unicast(guest.ip())
            && unicast(remote.ip())
            && guest.is_ipv4() == remote.is_ipv4()
            && guest.ip() != remote.ip()
            && guest.port() != 0
            && remote.port() != 0
            && self.mss >= MSS_MIN
            && scales.snd.max(scales.rcv) <= SCALE_MAX
            && self.snd_wnd <= self.snd_wnd_max
            && self.snd_wnd_max <= window_max(scales.snd)
            && self.rcv_wnd <= window_max(scales.rcv)
            // Differences of sequence numbers, which are negative beyond half of their space: what has
            // arrived is within the window, and no segment came from beyond it.
            && self.rcv_nxt.wrapping_sub(self.rcv_wup) <= self.rcv_wnd
            && self.rcv_nxt.wrapping_add(self.rcv_wnd).wrapping_sub(self.snd_wl1) <= i32::MAX.cast_unsigned()
    }
}

#[cfg(test)]
mod tests;
