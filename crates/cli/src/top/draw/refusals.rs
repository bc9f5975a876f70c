//! The last refusals of the policy, the latest first: what was wanted, the reason, and the rule that would
//! allow it, if one can.

use super::super::model::Model;
use super::table::shortened;
use crate::escape::printable;
use brodo_control::policy::{Refusal, Ruling, subject};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Row as Cells, Table};

/// Widths of number, step and reason; the rest is for the destination and the rule.
const COUNT: u16 = 7;
const STEP: u16 = 8;
const REASON: u16 = 20;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let rest = area.width.saturating_sub(COUNT + STEP + REASON + 4);
    let (wanted, rule) = (rest / 2, rest - rest / 2);
    let widths = [COUNT, STEP, wanted, REASON, rule].map(Constraint::Length);
    let number = |text: String| Text::from(text).alignment(Alignment::Right);
    let titles =
        [number("COUNT".to_owned()), "STEP".into(), "WANTED".into(), "REASON".into(), "ALLOWED BY".into()];
    let header = Cells::new(titles).style(Style::new().add_modifier(Modifier::REVERSED | Modifier::DIM));
    let page = usize::from(area.height.saturating_sub(1));
    let shown = model.refusals.iter().rev().take(page).map(|refusal| {
        let cell = |text: &str, width: u16| Text::from(shortened(&printable(text), width.into()));
        Cells::new([
            number(refusal.count.to_string()),
            refusal.stage.name().into(),
            cell(&subject(refusal.protocol.as_deref(), refusal.remote, refusal.name.as_deref()), wanted),
            cell(&reason(refusal), REASON),
            cell(refusal.allow.as_deref().unwrap_or_default(), rule),
        ])
    });
    frame.render_widget(Table::new(shown, widths).header(header).column_spacing(1), area);
    if model.refusals.is_empty() && area.height > 2 {
        let line = Rect { y: area.y + 2, height: 1, ..area };
        let text = "no policy has refused anything";
        frame.render_widget(Line::from(text).alignment(Alignment::Center), line);
    }
}

/// The reason without its first word, or the rule.
fn reason(refusal: &Refusal) -> String {
    let reason = refusal.reason.strip_prefix("policy ").unwrap_or(&refusal.reason);
    if refusal.verdict == Ruling::WouldDeny { format!("({reason})") } else { reason.to_owned() }
}
