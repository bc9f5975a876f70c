//! Metrics: what is known of a number besides its value, and the macro that declares a set of counters.
//!
//! Every layer counts: stack, loop, forwards, splices, link. Each declares its counters once, by
//! [`counters!`], one documented line for each; readers (metrics, control socket, the report at the end) walk
//! the set and name no counter themselves. A set is plain integers, owned by one worker; readers copy or add
//! sets.
//!
//! [`counters!`]: crate::counters!

/// Behaviour of a number over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, from zero at the start.
    Counter,
    /// It may fall.
    Gauge,
}

impl Kind {
    /// Name, as metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// Unit of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Number of things: the name says which.
    Count,
    /// Number of bytes.
    Bytes,
}

/// Description of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Name in reports and on the control socket, in snake case; that of a counter of bytes ends with its
    /// unit.
    pub name: &'static str,
    /// Its behaviour over time.
    pub kind: Kind,
    /// Unit of the value.
    pub unit: Unit,
    /// A sentence or more.
    pub help: &'static str,
}

/// Declares a set of counters: a structure of `u64`, one field for each documented line.
///
/// `named` gives the prefix of their names in reports. A line is a field, with `in bytes` if it counts bytes.
/// After the lines, `and` declares a further set within this one, whose counters are listed behind its own,
/// and `with` one that is added up but not listed.
///
/// ```
/// brodo_core::counters! {
///     /// What a baker counts.
///     #[derive(Debug, Default)]
///     pub struct Bakery named "bakery_" {
///         /// Loaves baked.
///         loaves,
///         /// Flour used.
///         flour_bytes in bytes,
///     }
/// }
/// let mut bakery = Bakery { loaves: 2, ..Bakery::default() };
/// bakery.add(&Bakery { loaves: 1, flour_bytes: 1000 });
/// assert_eq!(bakery.named().collect::<Vec<_>>(), [("bakery_loaves", 3), ("bakery_flour_bytes", 1000)]);
/// assert_eq!(bakery.described().next().map(|(metric, _)| metric.help), Some("Loaves baked."));
/// ```
#[macro_export]
macro_rules! counters {
    (@unit) => { $crate::metric::Unit::Count };
    (@unit bytes) => { $crate::metric::Unit::Bytes };
    (
        $(#[$meta:meta])*
        pub struct $set:ident named $prefix:literal {
            $($(#[doc = $doc:literal])+ $name:ident $(in $unit:ident)?,)+
        }
        $(and $(#[doc = $also_doc:literal])+ $also:ident: $also_set:ty;)?
        $(with $hidden:ident: $hidden_set:ty;)?
    ) => {
        $(#[$meta])*
        pub struct $set {
            $($(#[doc = $doc])+ pub $name: u64,)+
            $($(#[doc = $also_doc])+ pub $also: $also_set,)?
            $($hidden: $hidden_set,)?
        }

        impl $set {
            /// Adds the counters of another set.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
                $(self.$also.add(&other.$also);)?
                $(self.$hidden.add(&other.$hidden);)?
            }

            /// Every counter with its description.
            pub fn described(&self) -> impl Iterator<Item = ($crate::metric::Metric, u64)> + use<> {
                let counters = [$((
                    $crate::metric::Metric {
                        name: concat!($prefix, stringify!($name)),
                        kind: $crate::metric::Kind::Counter,
                        unit: $crate::counters!(@unit $($unit)?),
                        help: concat!($($doc),+).trim_ascii(),
                    },
                    self.$name,
                ),)+];
                counters.into_iter()$(.chain(self.$also.described()))?
            }

            /// Sets the counter of this name, if the set has one: for a hand-over to another process.
            pub fn set(&mut self, name: &str, value: u64) {
                match name {
                    $(concat!($prefix, stringify!($name)) => self.$name = value,)+
                    _ => { $(self.$also.set(name, value);)? }
                }
            }

            /// Every counter's name and value.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                self.described().map(|(metric, value)| (metric.name, value))
            }
        }
    };
}
