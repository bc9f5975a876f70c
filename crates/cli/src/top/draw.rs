//! The pictures of `brodo top`: a header about the instance, below it all flows or one, a line of keys. A
//! picture depends on the model, the screen's state and the size alone; committed copies of some pictures are
//! compared by the tests.
//!
//! *No colours* (`NO_COLOR`, no-color.org): each cell has the terminal's own. Crossterm writes a change of
//! colour as "ESC \[ ; m" then, which is SGR 0 and would reset bold and reversed letters too.
//!
//! Three lines of header, one of keys and one of titles leave 19 of 24 for flows. With more lines there is a
//! list of drops; with more columns the table has more of them ([`table`]).

mod detail;
mod refusals;
mod table;

use super::model::Model;
use super::screen::{Screen, View};
use crate::units;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

/// Lines from which on drops have a list of their own, and how many lines that has.
const DROPS_FROM: u16 = 32;
const DROPS_LINES: u16 = 6;

/// The keys, for `?`.
const HELP: &[(&str, &str)] = &[
    ("q", "quit"),
    ("Up Down PgUp PgDn", "choose a flow; also k j, Home End, g G"),
    ("Enter", "details of the chosen flow, and back; also Esc"),
    ("s < >", "sort by the next or the one before"),
    ("1 2 3 4 5 6", "sort by rate, bytes, rtt, retransmissions, age, peer"),
    ("r", "reverse the order"),
    ("/", "show what contains a text: Enter keeps it, Esc clears it"),
    ("Tab", "in the details: the other direction"),
    ("p", "refusals of the policy, and back; also Esc"),
    ("", ""),
    ("→ ←", "opened by the guest, or by a peer at a published port"),
    ("↓ ↑", "data to the guest, from the guest, in bits per second"),
    ("RTT", "of the guest's link, smoothed"),
    ("LIMIT", "█ in flight to the guest, or window offered to it"),
    ("", "▒ up to the limit, · up to its maximum; logarithmic"),
    ("LIMITED BY", "limiting factor of the busier direction"),
    ("RETRANS", "segments retransmitted to the guest"),
];

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, screen: &mut Screen) {
    let area = frame.area();
    let has_list = area.height >= DROPS_FROM && screen.view != View::Detail;
    let drops = if has_list { DROPS_LINES } else { 0 };
    let [header, body, list, keys] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Min(0),
        Constraint::Length(drops),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_header(frame, header, model, has_list);
    if screen.view == View::Detail {
        detail::draw(frame, body, model, screen.other_direction);
    } else if screen.view == View::Refusals {
        refusals::draw(frame, body, model);
    } else {
        table::draw(frame, body, model, screen);
    }
    if has_list {
        draw_drops(frame, list, model);
    }
    draw_keys(frame, keys, model, screen);
    if screen.help {
        draw_help(frame, area);
    }
    if screen.plain {
        for cell in &mut frame.buffer_mut().content {
            (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
        }
    }
}

/// A line with a text at each end; the right one is left out if both do not fit.
fn ends(frame: &mut Frame<'_>, area: Rect, left: Line<'_>, right: Line<'_>) {
    let fits = left.width() + right.width() < usize::from(area.width);
    frame.render_widget(left, area);
    if fits {
        frame.render_widget(right.alignment(Alignment::Right), area);
    }
}

fn draw_header(frame: &mut Frame<'_>, area: Rect, model: &Model, has_list: bool) {
    let lines: [Rect; 3] = Layout::vertical([Constraint::Length(1); 3]).areas(area);
    let Some((_, status, _)) = &model.last else {
        let text = model.lost.as_deref().unwrap_or("waiting for brodo");
        frame.render_widget(Line::from(vec![" brodo top ".reversed(), " ".into(), text.into()]), lines[0]);
        return;
    };
    let name = format!(" brodo {} ", status.pid).reversed().bold();
    let right: Line<'_> = match (&model.lost, model.stretched) {
        (Some(_), _) => Line::default(),
        (None, Some(every)) => {
            format!("every {:.0}s  up {}", every.as_secs_f64(), units::age(status.uptime_s * 1_000_000))
                .into()
        }
        (None, None) => format!("up {}", units::age(status.uptime_s * 1_000_000)).into(),
    };
    let room = usize::from(area.width).saturating_sub(name.width() + right.width() + 2);
    let command = || table::shortened(&format!("{} {}", status.command, status.target), room);
    let about = match &model.lost {
        Some(why) => why.clone().fg(Color::Red).bold(),
        None => command().into(),
    };
    ends(frame, lines[0], Line::from(vec![name, " ".into(), about]), right);

    let memory = status.memory;
    let part = if memory.budget > 0 { memory.used as f64 / memory.budget as f64 } else { 0.0 };
    let cells = (part * 10.0).ceil().clamp(0.0, 10.0) as usize;
    let bar = format!("{}{}", "█".repeat(cells), "·".repeat(10 - cells));
    let flows = format!("flows {}/{}", status.flows, status.flows_max);
    let left = format!(
        "cpu {:.1}%  memory {}  {flows}  payload {}/{} {bar}",
        model.totals.cpu * 100.0,
        units::bytes(status.rss_bytes),
        units::bytes(memory.used),
        units::bytes(memory.budget),
    );
    ends(frame, lines[1], left.into(), format!("reserved {}", units::bytes(memory.reserved)).into());

    let link = model.totals.link;
    let mut left = vec![
        Span::from(format!(
            "↓ {} bit/s  ↑ {} bit/s  ",
            units::bits(link.to_guest),
            units::bits(link.from_guest)
        )),
        figure("retrans", model.totals.retransmissions),
        "  ".into(),
        figure("drops", model.totals.drops),
    ];
    if !has_list {
        let drops = model.drops();
        let reasons = drops.iter().map(|(reason, count)| format!("{reason} {count}"));
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        left.push(if reasons.is_empty() { "".into() } else { format!(": {reasons}").into() });
    }
    frame.render_widget(Line::from(left), lines[2]);
}

/// A rate that would better be nought.
fn figure(what: &str, per_second: f64) -> Span<'static> {
    let text = format!("{what} {per_second:.0}/s");
    if per_second >= 0.5 { text.fg(Color::Yellow) } else { text.into() }
}

fn draw_drops(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let block = Block::bordered().title(" dropped so far, and why ").border_style(Style::new().dim());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let drops = model.drops();
    let columns = usize::from(inner.width / 36).max(1);
    let columns: Vec<Rect> =
        Layout::horizontal(vec![Constraint::Fill(1); columns]).split(inner).iter().copied().collect();
    let rows = usize::from(inner.height).max(1);
    if drops.is_empty() {
        frame.render_widget("nothing".dim(), inner);
    }
    for (column, drops) in columns.iter().zip(drops.chunks(rows)) {
        let lines: Vec<Line<'_>> =
            drops.iter().map(|(reason, count)| format!("{count:>10} {reason}").into()).collect();
        frame.render_widget(Paragraph::new(lines), *column);
    }
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, model: &Model, screen: &Screen) {
    if screen.typing {
        let line = vec![" / ".reversed(), " ".into(), screen.filter.as_str().into(), "▏".into()];
        return frame.render_widget(Line::from(line), area);
    }
    let key = |key: &'static str, what: String| [key.bold(), Span::from(format!(" {what}  "))];
    let keys = match screen.view {
        _ if screen.help => vec![key("any key", "back".into())],
        View::Detail => vec![
            key("q", "quit".into()),
            key("Esc", "back".into()),
            key("Tab", "other direction".into()),
            key("?", "help".into()),
        ],
        View::Refusals => vec![key("q", "quit".into()), key("Esc", "back".into()), key("?", "help".into())],
        View::Flows => {
            let order = if screen.reversed { "sort (reversed): " } else { "sort: " };
            let mut keys = vec![
                key("q", "quit".into()),
                key("Enter", "details".into()),
                key("s", format!("{order}{}", screen.sort.name())),
                key("/", "filter".into()),
            ];
            if !model.refusals.is_empty() {
                keys.push(key("p", "refusals".into()));
            }
            keys.push(key("?", "help".into()));
            keys
        }
    };
    let filter = match screen.filter.as_str() {
        "" => format!("{} flows", model.len()),
        filter => format!("only {filter}"),
    };
    let right = if screen.view == View::Detail { Line::default() } else { filter.into() };
    ends(frame, area, keys.into_iter().flatten().collect::<Vec<_>>().into(), right);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|(key, what)| Line::from(vec![format!(" {key:<18}").bold(), Span::from(*what)]))
        .collect();
    let size = Rect { width: area.width.min(78), height: area.height.min(lines.len() as u16 + 2), ..area };
    let place = Rect {
        x: area.x + (area.width - size.width) / 2,
        y: area.y + (area.height - size.height) / 2,
        ..size
    };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" keys and columns ");
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

/// Colour of a limiting factor.
fn colour(limited_by: &str) -> Style {
    match limited_by {
        "application" => Style::new().add_modifier(Modifier::DIM),
        "our-limit" => Style::new().fg(Color::Yellow),
        "loss" | "memory" => Style::new().fg(Color::Red),
        "guest-window" => Style::new().fg(Color::Cyan),
        _ => Style::new().fg(Color::Magenta),
    }
}

#[cfg(test)]
mod tests;
