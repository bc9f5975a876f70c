//! Live values and their saved forms: the trait, the values that records are made of, and the macros by which
//! a type names its fields once for both ways.
//!
//! A value is checked where it is restored, by the type that knows its rules; [`Invalid`] then ends the
//! restoring of the record. Sums that go on being added to have a bound ([`is_count`]), so that no restored
//! one overflows.

use crate::key::{Endpoint, FlowId, FlowKey, Protocol};
use crate::snapshot::v1::{FlowIdV1, FlowKeyV1};
use crate::time::{Duration, Instant};
use crate::wire::tcp::Seq;
use core::num::NonZeroU32;

/// Content that no live value can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Invalid;

/// A live value with the saved form `S`.
pub(crate) trait Saved<S>: Sized {
    /// Its saved form.
    fn save(&self) -> S;

    /// The live value.
    ///
    /// # Errors
    /// [`Invalid`] if none has this form.
    fn restore(saved: S) -> Result<Self, Invalid>;
}

/// `Ok` if a condition of a restored value holds.
pub(crate) fn valid(holds: bool) -> Result<(), Invalid> {
    if holds { Ok(()) } else { Err(Invalid) }
}

/// Whether a count is far enough from overflow to be added to for ever.
pub(crate) const fn is_count(count: u64) -> bool {
    count < 1 << 62
}

/// The same for a count of 32 bits.
pub(crate) const fn is_small_count(count: u32) -> bool {
    count < 1 << 31
}

macro_rules! as_itself {
    ($($kind:ty),+) => {
        $(impl Saved<$kind> for $kind {
            fn save(&self) -> $kind {
                *self
            }
            fn restore(saved: $kind) -> Result<Self, Invalid> {
                Ok(saved)
            }
        })+
    };
}

as_itself!(bool, u8, u16, u32, u64, i32);

impl<T: Saved<S>, S> Saved<Option<S>> for Option<T> {
    fn save(&self) -> Option<S> {
        self.as_ref().map(Saved::save)
    }

    fn restore(saved: Option<S>) -> Result<Self, Invalid> {
        saved.map(T::restore).transpose()
    }
}

impl<A: Saved<X>, B: Saved<Y>, X, Y> Saved<(X, Y)> for (A, B) {
    fn save(&self) -> (X, Y) {
        (self.0.save(), self.1.save())
    }

    fn restore(saved: (X, Y)) -> Result<Self, Invalid> {
        Ok((A::restore(saved.0)?, B::restore(saved.1)?))
    }
}

impl<T: Saved<S> + Copy + Default, S, const N: usize> Saved<[S; N]> for [T; N] {
    fn save(&self) -> [S; N] {
        self.map(|value| value.save())
    }

    fn restore(saved: [S; N]) -> Result<Self, Invalid> {
        let mut values = [T::default(); N];
        for (value, saved) in values.iter_mut().zip(saved) {
            *value = T::restore(saved)?;
        }
        Ok(values)
    }
}

/// Nanoseconds since the driver's zero.
impl Saved<u64> for Instant {
    fn save(&self) -> u64 {
        self.as_ns()
    }

    fn restore(saved: u64) -> Result<Self, Invalid> {
        Ok(Self::from_ns(saved))
    }
}

/// Number of nanoseconds.
impl Saved<u64> for Duration {
    fn save(&self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX)
    }

    fn restore(saved: u64) -> Result<Self, Invalid> {
        Ok(Self::from_nanos(saved))
    }
}

impl Saved<u32> for Seq {
    fn save(&self) -> u32 {
        self.0
    }

    fn restore(saved: u32) -> Result<Self, Invalid> {
        Ok(Self(saved))
    }
}

impl Saved<u32> for NonZeroU32 {
    fn save(&self) -> u32 {
        self.get()
    }

    fn restore(saved: u32) -> Result<Self, Invalid> {
        Self::new(saved).ok_or(Invalid)
    }
}

/// A plain enum with its number in records; numbers are never given twice.
macro_rules! saved_enum {
    ($live:ty { $($variant:ident = $number:literal),+ $(,)? }) => {
        impl $crate::snapshot::saved::Saved<u8> for $live {
            fn save(&self) -> u8 {
                match self { $(Self::$variant => $number,)+ }
            }

            fn restore(saved: u8) -> Result<Self, $crate::snapshot::saved::Invalid> {
                match saved {
                    $($number => Ok(Self::$variant),)+
                    _ => Err($crate::snapshot::saved::Invalid),
                }
            }
        }
    };
}
pub(crate) use saved_enum;

/// A struct whose fields all have the same names in its saved form, and the condition of a restored one.
macro_rules! saved_struct {
    ($live:ident as $saved:ident { $($field:ident),+ $(,)? } if $valid:expr) => {
        impl $crate::snapshot::saved::Saved<$saved> for $live {
            fn save(&self) -> $saved {
                let Self { $($field),+ } = self;
                $saved { $($field: $crate::snapshot::saved::Saved::save($field)),+ }
            }

            fn restore(saved: $saved) -> Result<Self, $crate::snapshot::saved::Invalid> {
                let $saved { $($field),+ } = saved;
                let live = Self { $($field: $crate::snapshot::saved::Saved::restore($field)?),+ };
                let is_valid: fn(&Self) -> bool = $valid;
                $crate::snapshot::saved::valid(is_valid(&live))?;
                Ok(live)
            }
        }
    };
    ($live:ident as $saved:ident { $($field:ident),+ $(,)? }) => {
        $crate::snapshot::saved::saved_struct!($live as $saved { $($field),+ } if |_| true);
    };
}
pub(crate) use saved_struct;

saved_struct!(FlowId as FlowIdV1 { index, generation });
saved_enum!(Protocol { Tcp = 0, Udp = 1, Echo = 2 });

impl Saved<FlowKeyV1> for FlowKey {
    fn save(&self) -> FlowKeyV1 {
        let Self { protocol, guest, remote } = self;
        FlowKeyV1 {
            protocol: protocol.save(),
            guest: (guest.ip(), guest.port()),
            remote: (remote.ip(), remote.port()),
        }
    }

    fn restore(saved: FlowKeyV1) -> Result<Self, Invalid> {
        let FlowKeyV1 { protocol, guest, remote } = saved;
        valid(guest.0.is_ipv4() == remote.0.is_ipv4())?;
        Ok(Self {
            protocol: Protocol::restore(protocol)?,
            guest: Endpoint::new(guest.0, guest.1),
            remote: Endpoint::new(remote.0, remote.1),
        })
    }
}
