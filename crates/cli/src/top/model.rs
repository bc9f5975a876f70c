//! The model of `brodo top`: samples in, rows with rates and histories out. No clock, no terminal, no socket.
//!
//! An instance counts totals. A rate is the difference of two samples over the time between them; all bytes
//! of a flow without a previous sample count as moved since then. In the first sample nothing has a rate.
//! Flows that are no longer in a sample are forgotten, but for the one in the detail view.

use brodo_control::flow::{Flow, FlowRef, Half, Tcp, TuningStep};
use brodo_control::method::{Counters, FlowDetail, Status};
use brodo_control::policy::Refusal;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

/// Rates kept of each flow, for its sparkline.
pub(super) const HISTORY: usize = 40;
/// Samples kept of the flow in the detail view.
pub(super) const POINTS_MAX: usize = 600;

/// One sample of an instance.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    /// Time of the sample, since the program started.
    pub(super) at: Duration,
    pub(super) status: Status,
    pub(super) counters: Counters,
    pub(super) flows: Vec<Flow>,
    /// The last refusals of the policy, the latest last.
    pub(super) refusals: Vec<Refusal>,
    /// The flow in the detail view, if it is open.
    pub(super) detail: Option<FlowDetail>,
}

/// Rates per second, in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Rates {
    pub(super) from_guest: f64,
    pub(super) to_guest: f64,
}

impl Rates {
    pub(super) fn sum(self) -> f64 {
        self.from_guest + self.to_guest
    }
}

/// One flow.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) flow: Flow,
    /// Bytes of payload per second.
    pub(super) rates: Rates,
    /// The sums of the last rates, the oldest first.
    pub(super) history: VecDeque<u64>,
}

impl Row {
    /// Whether more goes to the guest than comes from it, now or, without traffic, so far.
    pub(super) fn is_to_guest(&self) -> bool {
        let so_far = || self.flow.to_guest.bytes >= self.flow.from_guest.bytes;
        match self.rates.to_guest.total_cmp(&self.rates.from_guest) {
            Ordering::Equal => so_far(),
            order => order == Ordering::Greater,
        }
    }

    /// The busier direction, for TCP.
    pub(super) fn half(&self) -> Option<&Half> {
        let tcp = self.flow.tcp.as_ref()?;
        Some(if self.is_to_guest() { &tcp.to_guest } else { &tcp.from_guest })
    }

    /// The remote end by its name, if the guest has learnt one, else by its address.
    pub(super) fn peer(&self) -> String {
        match &self.flow.name {
            Some(name) => format!("{name}:{}", self.flow.remote.port()),
            None => self.flow.remote.to_string(),
        }
    }

    fn bytes(&self) -> u64 {
        self.flow.from_guest.bytes + self.flow.to_guest.bytes
    }

    pub(super) fn retransmissions(&self) -> u32 {
        self.flow.tcp.as_ref().map_or(0, |tcp| tcp.retransmissions)
    }

    fn contains(&self, text: &str) -> bool {
        let flow = &self.flow;
        let limited = self.half().map_or("", |half| &half.limited_by);
        let words = [
            flow.protocol.name(),
            flow.direction.name(),
            flow.carrier.name(),
            &flow.state,
            limited,
            &self.peer(),
        ];
        let ends = [flow.guest.to_string(), flow.remote.to_string()];
        let words = words.iter().copied().chain(ends.iter().map(String::as_str));
        words.map(str::to_lowercase).any(|word| word.contains(text))
    }
}

/// Sort key of rows; most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sort {
    #[default]
    Rate,
    Bytes,
    Rtt,
    Retransmissions,
    /// Youngest first.
    Age,
    /// Alphabetical order.
    Peer,
}

impl Sort {
    pub(super) const ALL: [Self; 6] =
        [Self::Rate, Self::Bytes, Self::Rtt, Self::Retransmissions, Self::Age, Self::Peer];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Bytes => "bytes",
            Self::Rtt => "rtt",
            Self::Retransmissions => "retransmissions",
            Self::Age => "age",
            Self::Peer => "peer",
        }
    }

    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let most_first = match self {
            Self::Rate => b.rates.sum().total_cmp(&a.rates.sum()),
            Self::Bytes => b.bytes().cmp(&a.bytes()),
            Self::Rtt => b.flow.rtt_us.cmp(&a.flow.rtt_us),
            Self::Retransmissions => b.retransmissions().cmp(&a.retransmissions()),
            Self::Age => a.flow.age_us.cmp(&b.flow.age_us),
            Self::Peer => a.peer().cmp(&b.peer()),
        };
        // A stable order of flows that are alike.
        most_first.then_with(|| a.flow.id.cmp(&b.flow.id))
    }
}

/// Charted values of a flow at one time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) at: Duration,
    pub(super) rates: Rates,
    /// Data of TCP only.
    pub(super) tcp: Option<Tcp>,
}

/// The flow in the detail view.
#[derive(Debug, Clone)]
pub(super) struct Detail {
    pub(super) id: FlowRef,
    /// Its row in the last sample with it.
    pub(super) row: Option<Row>,
    pub(super) points: VecDeque<Point>,
    /// Decisions about its limits, the oldest first, with the time of each.
    pub(super) steps: Vec<(Duration, TuningStep)>,
    pub(super) ended: bool,
}

/// Rates of the whole instance.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Totals {
    /// Bytes of frames on the guest's link.
    pub(super) link: Rates,
    pub(super) retransmissions: f64,
    pub(super) drops: f64,
    /// Of one processor.
    pub(super) cpu: f64,
}

/// State of the view's data.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) last: Option<(Duration, Status, Counters)>,
    pub(super) totals: Totals,
    /// The error for which there is no new sample.
    pub(super) lost: Option<String>,
    /// Present time between samples, if longer than requested.
    pub(super) stretched: Option<Duration>,
    pub(super) detail: Option<Detail>,
    /// The last refusals of the policy, the latest last.
    pub(super) refusals: Vec<Refusal>,
    rows: HashMap<FlowRef, Row>,
}

impl Model {
    /// Takes a sample.
    pub(super) fn update(&mut self, sample: Sample) {
        let Sample { at, status, counters, flows, refusals, detail } = sample;
        (self.lost, self.refusals) = (None, refusals);
        if self.last.as_ref().is_some_and(|(_, before, _)| before.pid != status.pid) {
            // Another instance: its data starts anew.
            let refusals = std::mem::take(&mut self.refusals);
            *self = Self { stretched: self.stretched, refusals, ..Self::default() };
        }
        let seconds = self.last.as_ref().map(|(before, ..)| at.saturating_sub(*before).as_secs_f64());
        let seconds = seconds.filter(|&seconds| seconds > 0.0);
        self.totals = match (&self.last, seconds) {
            (Some((_, status_before, before)), Some(seconds)) => {
                totals(&counters, before, cpu_us(&status).saturating_sub(cpu_us(status_before)), seconds)
            }
            _ => Totals::default(),
        };
        let mut before = std::mem::take(&mut self.rows);
        self.rows = flows
            .into_iter()
            .map(|flow| {
                let row = before.remove(&flow.id);
                (flow.id, advance(row, flow, seconds))
            })
            .collect();
        if let Some(looked_at) = &mut self.detail {
            looked_at.update(at, self.rows.get(&looked_at.id), detail);
        }
        self.last = Some((at, status, counters));
    }

    /// Opens or closes the detail view of a flow.
    pub(super) fn look_at(&mut self, id: Option<FlowRef>) {
        self.detail = id.map(|id| Detail {
            id,
            row: self.rows.get(&id).cloned(),
            points: VecDeque::new(),
            steps: Vec::new(),
            ended: false,
        });
    }

    /// Open flows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The rows that contain `filter`, in order.
    pub(super) fn rows(&self, sort: Sort, reversed: bool, filter: &str) -> Vec<&Row> {
        let filter = filter.to_lowercase();
        let mut rows: Vec<_> =
            self.rows.values().filter(|row| filter.is_empty() || row.contains(&filter)).collect();
        rows.sort_by(|a, b| if reversed { sort.compare(b, a) } else { sort.compare(a, b) });
        rows
    }

    /// Drops and refusals by rules, by reason; most first.
    pub(super) fn drops(&self) -> Vec<(&str, u64)> {
        let Some((.., counters)) = &self.last else { return Vec::new() };
        let rules = counters.rules.iter();
        let mut drops: Vec<_> =
            counters.drops.iter().chain(rules).map(|(reason, &count)| (reason.as_str(), count)).collect();
        drops.retain(|&(_, count)| count > 0);
        drops.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        drops
    }
}

impl Detail {
    fn update(&mut self, at: Duration, row: Option<&Row>, detail: Option<FlowDetail>) {
        self.ended = row.is_none();
        let Some(row) = row else { return };
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(Point { at, rates: row.rates, tcp: row.flow.tcp.clone() });
        self.row = Some(row.clone());
        if let Some(detail) = detail.filter(|detail| detail.flow.id == self.id) {
            let when = |step: &TuningStep| at.saturating_sub(Duration::from_micros(step.ago_us));
            self.steps = detail.history.into_iter().map(|step| (when(&step), step)).collect();
        }
    }
}

fn cpu_us(status: &Status) -> u64 {
    status.cpu_user_us + status.cpu_system_us
}

fn per_second(now: u64, before: u64, seconds: f64) -> f64 {
    now.saturating_sub(before) as f64 / seconds
}

fn totals(now: &Counters, before: &Counters, cpu_us: u64, seconds: f64) -> Totals {
    let counted = |counters: &Counters, name: &str| counters.counters.get(name).copied().unwrap_or(0);
    let rate = |name: &str| per_second(counted(now, name), counted(before, name), seconds);
    let sum = |drops: &BTreeMap<String, u64>| drops.values().sum();
    Totals {
        link: Rates { from_guest: rate("rx_bytes"), to_guest: rate("tx_bytes") },
        retransmissions: rate("tcp_retransmissions"),
        drops: per_second(sum(&now.drops), sum(&before.drops), seconds),
        cpu: cpu_us as f64 / 1e6 / seconds,
    }
}

/// A row from the one before, if there was one. Without `seconds` there was no sample before.
fn advance(before: Option<Row>, flow: Flow, seconds: Option<f64>) -> Row {
    let (from, to, mut history) = match before {
        Some(row) => (row.flow.from_guest.bytes, row.flow.to_guest.bytes, row.history),
        None => (0, 0, VecDeque::new()),
    };
    let rates = seconds.map_or(Rates::default(), |seconds| Rates {
        from_guest: per_second(flow.from_guest.bytes, from, seconds),
        to_guest: per_second(flow.to_guest.bytes, to, seconds),
    });
    if history.len() == HISTORY {
        history.pop_front();
    }
    if seconds.is_some() {
        history.push_back(rates.sum() as u64);
    }
    Row { flow, rates, history }
}

#[cfg(test)]
pub(super) mod tests;
