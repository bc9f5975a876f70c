//! One flow in detail: its ends, traffic, limiting factors, and the decisions about its limits.

use super::super::model::{Detail, Model, Point, Row};
use super::colour;
use super::table::kind;
use crate::units;
use brodo_control::flow::Half;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph};
use std::time::Duration;

/// Least time that a chart shows, in seconds.
const SPAN_MIN: f64 = 30.0;
/// Lines of decisions about limits, at least and at most.
const STEPS_MIN: u16 = 4;
const STEPS_MAX: u16 = 12;
/// From this width on the charts are side by side.
const SIDE_BY_SIDE: u16 = 120;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, other_direction: bool) {
    let Some((detail, row)) = model.detail.as_ref().and_then(|detail| Some((detail, detail.row.as_ref()?)))
    else {
        return frame.render_widget("waiting for the flow", area);
    };
    let to_guest = row.is_to_guest() != other_direction;
    let now = model.last.as_ref().map_or(Duration::ZERO, |(at, ..)| *at);
    let about = about(detail, row, to_guest);
    let is_tcp = row.flow.tcp.is_some();
    let steps = if is_tcp { (area.height / 4).clamp(STEPS_MIN, STEPS_MAX) } else { 0 };
    let [text, charts, list] = Layout::vertical([
        Constraint::Length(about.len() as u16),
        Constraint::Min(0),
        Constraint::Length(steps),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(about), text);
    if is_tcp {
        let layout = if area.width >= SIDE_BY_SIDE {
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)])
        } else {
            Layout::vertical([Constraint::Fill(3), Constraint::Fill(2)])
        };
        let [limits, rates] = layout.areas(charts);
        draw_limits(frame, limits, detail, now, to_guest);
        draw_rates(frame, rates, detail, now, to_guest);
        draw_steps(frame, list, detail, now, to_guest);
    } else {
        draw_rates(frame, charts, detail, now, to_guest);
    }
}

fn half(point: &Point, to_guest: bool) -> Option<&Half> {
    let tcp = point.tcp.as_ref()?;
    Some(if to_guest { &tcp.to_guest } else { &tcp.from_guest })
}

/// The flow in lines.
fn about(detail: &Detail, row: &Row, to_guest: bool) -> Vec<Line<'static>> {
    let flow = &row.flow;
    let address = flow.name.as_ref().map_or(String::new(), |_| format!(" ({})", flow.remote));
    let state = if detail.ended { "ended".fg(Color::Red).bold() } else { flow.state.clone().bold() };
    let who = format!("{} {} with {}{address}  ", kind(row), flow.guest, row.peer());
    let mut times = format!("open {}  idle {}", units::age(flow.age_us), units::time(flow.idle_us));
    for (what, us) in [("rtt", flow.rtt_us), ("rtt beyond the host", flow.remote_rtt_us)] {
        times.extend(us.map(|us| format!("  {what} {}", units::time(us))));
    }
    times.extend(flow.tcp.as_ref().map(|tcp| format!("  mss {}  retrans {}", tcp.mss, tcp.retransmissions)));
    let traffic = [("↑", flow.from_guest, row.rates.from_guest), ("↓", flow.to_guest, row.rates.to_guest)];
    let traffic = traffic.map(|(arrow, sum, rate)| {
        let packets = sum.packets;
        format!("{arrow} {} in {packets} packets, {} bit/s", units::bytes(sum.bytes), units::bits(rate))
    });
    let mut lines = vec![Line::from(vec![who.into(), state]), times.into(), traffic.join("   ").into()];
    let tcp = flow.tcp.as_ref().map(|tcp| if to_guest { &tcp.to_guest } else { &tcp.from_guest });
    lines.extend(tcp.into_iter().flat_map(|half| [limits(half, to_guest), held_back(half)]));
    lines
}

fn limits(half: &Half, to_guest: bool) -> Line<'static> {
    let used = if to_guest { half.in_flight } else { half.window };
    let size = |bytes: u32| units::bytes(bytes.into());
    let mut text = format!(
        "{} limit {} of {} {} window {}",
        if to_guest { "↓" } else { "↑" },
        size(half.limit),
        size(half.limit_max),
        units::gauge(used, half.limit, half.limit_max, 8),
        size(half.window),
    );
    text.extend(to_guest.then(|| format!(" in flight {}", size(half.in_flight))));
    text.extend([format!(" held {} grown {} shrunk {}", size(half.held), half.grows, half.shrinks)]);
    text.into()
}

fn held_back(half: &Half) -> Line<'static> {
    let sum: u64 = half.limited_us.values().sum();
    let mut parts: Vec<_> = half.limited_us.iter().map(|(by, us)| (*us, by)).collect();
    parts.sort_by(|a, b| b.cmp(a));
    let parts = parts.iter().map(|(us, by)| format!("{by} {:.0}%", *us as f64 / sum.max(1) as f64 * 100.0));
    let so_far = parts.collect::<Vec<_>>().join(", ");
    let now = Span::styled(half.limited_by.clone(), colour(&half.limited_by));
    vec!["limited by ".into(), now, format!("  so far {so_far}").into()].into()
}

/// Seconds before now.
fn ago(now: Duration, at: Duration) -> f64 {
    at.as_secs_f64() - now.as_secs_f64()
}

/// The limit as it was decided and as it was seen, and what was used of it.
fn draw_limits(frame: &mut Frame<'_>, area: Rect, detail: &Detail, now: Duration, to_guest: bool) {
    let first = detail.points.front().map_or(now, |point| point.at);
    let mut limit = Vec::new();
    for (at, step) in detail.steps.iter().filter(|(at, step)| *at < first && step.from_guest != to_guest) {
        limit.extend([step.from, step.to].map(|bytes| (ago(now, *at), f64::from(bytes))));
    }
    let mut used = Vec::new();
    for point in &detail.points {
        let Some(half) = half(point, to_guest) else { continue };
        let x = ago(now, point.at);
        // Step function: the limit keeps its previous value up to the sample that shows another.
        limit.extend(limit.last().map(|&(_, y)| (x, y)));
        limit.push((x, half.limit.into()));
        used.push((x, if to_guest { half.in_flight } else { half.window }.into()));
    }
    let series = [
        ("limit", limit, Color::Yellow, Marker::Braille),
        (if to_guest { "in flight" } else { "window" }, used, Color::Cyan, Marker::Dot),
    ];
    chart(frame, area, "bytes", &series, |max| units::bytes(max as u64));
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, detail: &Detail, now: Duration, to_guest: bool) {
    let rate = |point: &Point| if to_guest { point.rates.to_guest } else { point.rates.from_guest };
    let rates = detail.points.iter().map(|point| (ago(now, point.at), rate(point))).collect();
    let name = if to_guest { "to the guest" } else { "from the guest" };
    chart(frame, area, "bit/s", &[(name, rates, Color::Green, Marker::Braille)], units::bits);
}

type Series<'a> = (&'a str, Vec<(f64, f64)>, Color, Marker);

fn chart(
    frame: &mut Frame<'_>,
    area: Rect,
    unit: &str,
    series: &[Series<'_>],
    label: impl Fn(f64) -> String,
) {
    let points = || series.iter().flat_map(|(_, points, ..)| points);
    let span = points().map(|&(x, _)| -x).fold(SPAN_MIN, f64::max);
    // Some room above, and no chart of nothing.
    let max = points().map(|&(_, y)| y).fold(1.0, f64::max) * 1.05;
    let sets = series
        .iter()
        .map(|(_, points, colour, marker)| {
            let set = Dataset::default().data(points).style(Style::new().fg(*colour)).marker(*marker);
            set.graph_type(GraphType::Line)
        })
        .collect();
    let mut title = vec![Span::from(format!(" {unit}:"))];
    title.extend(series.iter().map(|(name, _, colour, marker)| {
        let sign = if *marker == Marker::Dot { "•" } else { "⠒" };
        format!(" {sign} {name} ").fg(*colour)
    }));
    let grey = Style::new().dim();
    let x =
        Axis::default().bounds([-span, 0.0]).labels([format!("-{span:.0}s"), "now".to_owned()]).style(grey);
    let y = Axis::default().bounds([0.0, max]).labels(["0".to_owned(), label(max / 1.05)]).style(grey);
    let block = Block::new().title(Line::from(title));
    frame.render_widget(Chart::new(sets).block(block).x_axis(x).y_axis(y).legend_position(None), area);
}

/// The last decisions about the limit, the newest first.
fn draw_steps(frame: &mut Frame<'_>, area: Rect, detail: &Detail, now: Duration, to_guest: bool) {
    let steps = detail.steps.iter().rev().filter(|(_, step)| step.from_guest != to_guest);
    let mut lines = vec![Line::from("DECISIONS        LIMIT         WHY           PER ROUND TRIP".dim())];
    lines.extend(steps.take(usize::from(area.height)).map(|(at, step)| {
        let size = |bytes: u32| units::bytes(bytes.into());
        let when = format!("{} ago", units::time(now.saturating_sub(*at).as_micros() as u64));
        let change = format!("{} → {}", size(step.from), size(step.to));
        let moved = format!("{} in {}", size(step.per_rtt), units::time(step.rtt_us.into()));
        Line::from(format!("{when:<12} {change:>15}   {:<13} {moved}", step.cause))
    }));
    frame.render_widget(Paragraph::new(lines), area);
}
