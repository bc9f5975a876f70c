//! Throughput of one bulk flow beside refused datagrams, as a share of its throughput alone.
//!
//! Alone and beside by turns, so that the share is of the same minute; of several rounds the median counts.
//! The control's share has the cost of the flood itself, for which there is no goal.

use super::{BULK_PORT, KINDS, Kind, beside};
use crate::idle::LIMIT;
use crate::process::{Failure, Result};
use crate::report::{Spread, Table, number};
use crate::system::Guest;
use crate::world::{HOST_V4, World};
use serde_json::{Value, json};
use std::time::Duration;

/// The flood.
const FLOOD: &Kind = &KINDS[0];
/// Least share that the flow has beside refusals by the policy.
const SHARE_MIN: f64 = 0.95;
/// Guests of the flow, and whether the goal is about it there.
const GUESTS: [(&str, bool); 3] = [("control", false), ("policy", true), ("apart", true)];
/// Directions of the flow: the probe's words.
const DIRECTIONS: [&str; 2] = ["up", "down"];

/// Gbit/s in one round.
#[derive(Debug, Clone, Copy)]
struct FlowRates {
    alone: f64,
    beside: f64,
}

/// Rounds by direction and guest.
#[derive(Debug, Default)]
pub(super) struct BulkShares([[Vec<FlowRates>; GUESTS.len()]; DIRECTIONS.len()]);

impl BulkShares {
    /// Measures one round: of each pair of guests the first has the flow, the second the flood.
    pub(super) fn round(
        &mut self,
        world: &World,
        guests: [(&Guest, &Guest); GUESTS.len()],
        seconds: f64,
    ) -> Result<()> {
        for (of_direction, word) in self.0.iter_mut().zip(DIRECTIONS) {
            for (pairs, ((guest, flooded), (name, _))) in
                of_direction.iter_mut().zip(guests.into_iter().zip(GUESTS))
            {
                let gbit = |flood| {
                    let measure = |seconds| throughput(world, guest, word, seconds);
                    beside(world, guest, flood, seconds, measure).map(|(gbit, _)| gbit)
                };
                let pair = FlowRates { alone: gbit(None)?, beside: gbit(Some((flooded, FLOOD)))? };
                eprintln!("bulk {word}, {name}: {pair:?}");
                pairs.push(pair);
            }
        }
        Ok(())
    }

    /// Medians of both, and of their ratios.
    pub(super) fn table(&self) -> Table {
        let caption = format!("One bulk flow beside {}, Gbit/s, and the share that it has", FLOOD.name);
        let mut table = Table::new(caption, ["flow", "alone", "beside", "beside / alone", "goal", "reached"]);
        for (of_direction, word) in self.0.iter().zip(DIRECTIONS) {
            for (pairs, (name, is_judged)) in of_direction.iter().zip(GUESTS) {
                let median = |of: fn(&FlowRates) -> f64| {
                    Spread::of(pairs.iter().map(of)).map_or(f64::NAN, |spread| spread.median)
                };
                let share = median(|pair| pair.beside / pair.alone);
                let figures = [median(|pair| pair.alone), median(|pair| pair.beside)].map(number);
                let goal = if is_judged {
                    let reached = if share >= SHARE_MIN { "yes" } else { "no" };
                    [format!("≥ {SHARE_MIN}"), reached.to_owned()]
                } else {
                    [String::new(), String::new()]
                };
                let cells = [format!("{word}, {name}")].into_iter().chain(figures);
                table.row(cells.chain([format!("{share:.3}")]).chain(goal));
            }
        }
        table
    }

    pub(super) fn json(&self) -> Value {
        let of =
            |pairs: &Vec<FlowRates>| pairs.iter().map(|it| json!([it.alone, it.beside])).collect::<Value>();
        let of_guests = |all: &[Vec<FlowRates>; GUESTS.len()]| {
            GUESTS
                .iter()
                .zip(all)
                .map(|((name, _), pairs)| ((*name).to_owned(), of(pairs)))
                .collect::<Value>()
        };
        DIRECTIONS.iter().zip(&self.0).map(|(word, all)| ((*word).to_owned(), of_guests(all))).collect()
    }
}

/// Gbit/s of one flow from or to `guest`.
fn throughput(world: &World, guest: &Guest, word: &str, seconds: f64) -> Result<f64> {
    let [probe, name] = world.probe();
    let (port, length) = (BULK_PORT.to_string(), seconds.to_string());
    let words = [&*probe, &*name, word, HOST_V4, &*port, "1", &*length];
    let limit = LIMIT + Duration::from_secs_f64(seconds);
    let found = world.run(&guest.enter, words, limit)?.success()?.json()?;
    found["gbit_per_second"].as_f64().ok_or_else(|| Failure(format!("the probe printed {found}")))
}

#[cfg(test)]
mod tests {
    //! Shares of throughput, and the goal.

    use super::*;

    #[test]
    fn a_share_is_the_median_of_the_rounds() {
        let mut bulk = BulkShares::default();
        // The machine is slower in the second round: the medians' ratio would be 0.75.
        let rounds = [(20.0, 19.0), (10.0, 9.7), (40.0, 15.0)];
        for pairs in bulk.0.iter_mut().flatten() {
            pairs.extend(rounds.map(|(alone, beside)| FlowRates { alone, beside }));
        }
        bulk.0[1][1] = vec![FlowRates { alone: 20.0, beside: 18.8 }];
        let rows = bulk.table().rows;
        assert_eq!(rows[0], ["up, control", "20", "15", "0.950", "", ""], "no goal");
        assert_eq!(rows[1], ["up, policy", "20", "15", "0.950", "≥ 0.95", "yes"]);
        assert_eq!(rows[4], ["down, policy", "20", "18.8", "0.940", "≥ 0.95", "no"]);
        assert_eq!(bulk.json()["down"]["policy"], json!([[20.0, 18.8]]));
    }
}
