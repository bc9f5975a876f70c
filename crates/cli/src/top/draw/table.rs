//! The table of flows: as many columns as fit, and the rows around the chosen one. A narrow screen lacks
//! columns, so that the peer, without which a row says nothing, has 16 letters at least from 30 on.

use super::super::model::{Model, Row};
use super::super::screen::Screen;
use super::colour;
use crate::units;
use brodo_control::flow::{Carrier, FlowDirection};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row as Cells, Table};

/// A column of the table.
struct Column {
    title: &'static str,
    /// Width in letters; the peer has the rest.
    width: u16,
    /// Least screen width with this column.
    from: u16,
    below: u16,
    right: bool,
    cell: fn(&Row, usize) -> Text<'static>,
}

/// A column in every screen.
const ALWAYS: Column =
    Column { title: "", width: 0, from: 0, below: u16::MAX, right: false, cell: |_, _| Text::default() };

/// Screen width from which the two directions have a column each.
const WIDE: u16 = 112;

const COLUMNS: &[Column] = &[
    Column { title: "", width: 5, cell: |row, _| kind(row).into(), ..ALWAYS },
    Column { title: "PEER", cell: |row, width| shortened(&row.peer(), width).into(), ..ALWAYS },
    Column {
        title: "GUEST",
        width: 21,
        from: 160,
        cell: |row, width| shortened(&row.flow.guest.to_string(), width).into(),
        ..ALWAYS
    },
    Column {
        title: "STATE",
        width: 12,
        from: 150,
        cell: |row, width| shortened(&row.flow.state, width).into(),
        ..ALWAYS
    },
    Column { title: "RATE", width: 7, below: WIDE, right: true, cell: |row, _| rate(row).into(), ..ALWAYS },
    Column {
        title: "↑ RATE",
        width: 6,
        from: WIDE,
        right: true,
        cell: |row, _| units::bits(row.rates.from_guest).into(),
        ..ALWAYS
    },
    Column {
        title: "↓ RATE",
        width: 6,
        from: WIDE,
        right: true,
        cell: |row, _| units::bits(row.rates.to_guest).into(),
        ..ALWAYS
    },
    Column {
        title: "LAST",
        width: 8,
        from: 67,
        below: WIDE,
        cell: |row, width| units::sparkline(row.history.iter().copied(), width).into(),
        ..ALWAYS
    },
    Column {
        title: "LAST",
        width: 16,
        from: WIDE,
        cell: |row, width| units::sparkline(row.history.iter().copied(), width).into(),
        ..ALWAYS
    },
    Column {
        title: "RTT",
        width: 5,
        from: 36,
        right: true,
        cell: |row, _| row.flow.rtt_us.map(units::time).unwrap_or_default().into(),
        ..ALWAYS
    },
    Column {
        title: "LIMIT",
        width: 8,
        from: 58,
        below: WIDE,
        cell: |row, width| gauge(row, width).into(),
        ..ALWAYS
    },
    Column { title: "LIMIT", width: 10, from: WIDE, cell: |row, width| gauge(row, width).into(), ..ALWAYS },
    Column {
        title: "LIMIT/MAX",
        width: 11,
        from: WIDE,
        right: true,
        cell: |row, _| limit(row).into(),
        ..ALWAYS
    },
    Column { title: "WINDOW", width: 6, from: 124, right: true, cell: |row, _| window(row).into(), ..ALWAYS },
    Column { title: "LIMITED BY", width: 12, from: 49, cell: |row, _| limited(row), ..ALWAYS },
    Column {
        title: "RETRANS",
        width: 7,
        from: 75,
        right: true,
        cell: |row, _| retransmissions(row).into(),
        ..ALWAYS
    },
    Column {
        title: "AGE",
        width: 5,
        from: WIDE,
        right: true,
        cell: |row, _| units::age(row.flow.age_us).into(),
        ..ALWAYS
    },
];

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, screen: &mut Screen) {
    let columns: Vec<_> =
        COLUMNS.iter().filter(|column| (column.from..column.below).contains(&area.width)).collect();
    let between = columns.len() as u16 - 1;
    let taken = between + columns.iter().map(|column| column.width).sum::<u16>();
    let width =
        |column: &Column| if column.width == 0 { area.width.saturating_sub(taken) } else { column.width };

    let rows = model.rows(screen.sort, screen.reversed, &screen.filter);
    let ids: Vec<_> = rows.iter().map(|row| row.flow.id).collect();
    let chosen = screen.settle(&ids);
    let page = usize::from(area.height.saturating_sub(1));
    let top = screen.scroll(chosen.unwrap_or(0), page, rows.len());

    let aligned = |column: &Column, text: Text<'static>| {
        Cell::from(if column.right { text.alignment(Alignment::Right) } else { text })
    };
    let titles = columns.iter().map(|column| aligned(column, column.title.into()));
    let header = Cells::new(titles).style(Style::new().add_modifier(Modifier::REVERSED | Modifier::DIM));
    let shown = rows.iter().enumerate().skip(top).take(page).map(|(place, row)| {
        let cells = columns.iter().map(|column| aligned(column, (column.cell)(row, width(column).into())));
        let style = if chosen == Some(place) { Modifier::REVERSED } else { Modifier::empty() };
        Cells::new(cells).style(Style::new().add_modifier(style))
    });
    let widths: Vec<_> = columns.iter().map(|column| Constraint::Length(width(column))).collect();
    let table = Table::new(shown, widths).header(header).column_spacing(1);
    frame.render_widget(table, area);
    if rows.is_empty() && area.height > 2 {
        let text = match (&model.last, screen.filter.as_str()) {
            (None, _) => "",
            (_, "") => "no flow is open",
            _ => "no flow contains that text",
        };
        let line = Rect { y: area.y + 2, height: 1, ..area };
        frame.render_widget(Line::from(text).alignment(Alignment::Center), line);
    }
}

/// Direction in which the flow was opened, and protocol.
pub(super) fn kind(row: &Row) -> String {
    let arrow = match row.flow.direction {
        FlowDirection::Outbound => '→',
        FlowDirection::Inbound => '←',
    };
    format!("{arrow}{}", row.flow.protocol)
}

/// Both rates as one, with the busier direction.
fn rate(row: &Row) -> String {
    match row.rates.sum() {
        sum if sum * 8.0 < 0.5 => "-".to_owned(),
        sum => format!("{}{}", if row.is_to_guest() { '↓' } else { '↑' }, units::bits(sum)),
    }
}

/// Gauge of the busier direction: use within the limit, and the limit within its maximum.
fn gauge(row: &Row, width: usize) -> String {
    row.half().map_or(String::new(), |half| {
        let used = if row.is_to_guest() { half.in_flight } else { half.window };
        units::gauge(used, half.limit, half.limit_max, width)
    })
}

fn limit(row: &Row) -> String {
    row.half().map_or(String::new(), |half| {
        format!("{}/{}", units::bytes(half.limit.into()), units::bytes(half.limit_max.into()))
    })
}

fn window(row: &Row) -> String {
    row.half().map_or(String::new(), |half| units::bytes(half.window.into()))
}

/// The limiting factor, or the carrier of a flow that bypasses the link.
fn limited(row: &Row) -> Text<'static> {
    match (row.half(), row.flow.carrier) {
        (Some(half), _) => Text::styled(half.limited_by.clone(), colour(&half.limited_by)),
        (None, Carrier::Stack) => Text::default(),
        (None, carrier) => carrier.name().into(),
    }
}

fn retransmissions(row: &Row) -> String {
    let count = row.retransmissions();
    if count == 0 { String::new() } else { count.to_string() }
}

/// A long text without its middle: of an address both ends tell the most.
pub(super) fn shortened(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= width || width < 3 {
        return text.to_owned();
    }
    let tail = (width - 1) / 2;
    let head = width - 1 - tail;
    let (head, tail) = (&letters[..head], &letters[letters.len() - tail..]);
    head.iter().chain(&['…']).chain(tail).collect()
}
