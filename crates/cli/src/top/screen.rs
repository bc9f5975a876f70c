//! The state of the screen of `brodo top`: order of rows, filter, chosen row, view. Keys in, changes out; no
//! terminal.

use super::model::{Model, Sort};
use brodo_control::flow::FlowRef;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Longest filter, in letters.
const FILTER_MAX: usize = 60;
/// Rows that Page Up and Page Down move by, before the first picture.
const PAGE: usize = 10;

/// The displayed view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum View {
    /// All flows.
    #[default]
    Flows,
    /// The flow of [`Model::detail`].
    Detail,
    /// The last refusals of the policy.
    Refusals,
}

/// Effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Draw the picture anew.
    Draw,
    /// Show the details of this flow, or of none.
    LookAt(Option<FlowRef>),
    Quit,
}

/// The state of the screen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    pub(super) view: View,
    /// Whether the picture is to have no colours, only bold, dim and reversed letters.
    pub(super) plain: bool,
    /// Whether the keys lie over it.
    pub(super) help: bool,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) filter: String,
    /// Whether the filter is being typed.
    pub(super) typing: bool,
    /// Whether the detail view shows the less busy direction.
    pub(super) other_direction: bool,
    /// The chosen row: by its flow, so that it stays chosen when it moves, and by its index after the flow's
    /// end.
    chosen: Option<FlowRef>,
    place: usize,
    /// Rows that fit, as of the last picture.
    pub(super) page: usize,
    /// The first row on the screen.
    pub(super) top: usize,
}

impl Screen {
    /// The first one, without colours if it is to be `plain`.
    pub(super) fn new(plain: bool) -> Self {
        Self { plain, ..Self::default() }
    }

    /// Acts on a key.
    pub(super) fn key(&mut self, key: KeyEvent, model: &Model) -> Outcome {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Outcome::Quit;
        }
        if self.typing {
            self.type_filter(key.code);
            return Outcome::Draw;
        }
        if self.help {
            self.help = false;
            return Outcome::Draw;
        }
        match (self.view, key.code) {
            (_, KeyCode::Char('q')) => Outcome::Quit,
            (_, KeyCode::Char('?' | 'h')) => {
                self.help = true;
                Outcome::Draw
            }
            (View::Detail, KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace | KeyCode::Left) => {
                self.view = View::Flows;
                Outcome::LookAt(None)
            }
            (View::Detail, KeyCode::Tab | KeyCode::Char('d')) => {
                self.other_direction = !self.other_direction;
                Outcome::Draw
            }
            (View::Refusals, KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace | KeyCode::Char('p')) => {
                self.view = View::Flows;
                Outcome::Draw
            }
            (View::Detail | View::Refusals, _) => Outcome::Draw,
            (View::Flows, code) => self.key_in_flows(code, model),
        }
    }

    /// Leaves the details of a flow that `model` does not have any more: another instance has taken over.
    /// Whether it was there.
    pub(super) fn leave_lost_flow(&mut self, model: &Model) -> bool {
        let is_lost = self.view == View::Detail && model.detail.is_none();
        if is_lost {
            self.view = View::Flows;
        }
        is_lost
    }

    fn key_in_flows(&mut self, code: KeyCode, model: &Model) -> Outcome {
        let by = Sort::ALL.iter().position(|sort| *sort == self.sort).unwrap_or(0);
        let count = Sort::ALL.len();
        match code {
            KeyCode::Char('s' | '>') => self.sort = Sort::ALL[(by + 1) % count],
            KeyCode::Char('<') => self.sort = Sort::ALL[(by + count - 1) % count],
            KeyCode::Char(digit @ '1'..='6') => self.sort = Sort::ALL[digit as usize - '1' as usize],
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('p') => self.view = View::Refusals,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Enter | KeyCode::Right => {
                let rows = model.rows(self.sort, self.reversed, &self.filter);
                let ids: Vec<_> = rows.iter().map(|row| row.flow.id).collect();
                let Some(place) = self.settle(&ids) else { return Outcome::Draw };
                (self.view, self.other_direction) = (View::Detail, false);
                return Outcome::LookAt(Some(ids[place]));
            }
            _ => self.move_choice(code, model),
        }
        Outcome::Draw
    }

    fn move_choice(&mut self, code: KeyCode, model: &Model) {
        let rows = model.rows(self.sort, self.reversed, &self.filter);
        let ids: Vec<_> = rows.iter().map(|row| row.flow.id).collect();
        let Some(place) = self.settle(&ids) else { return };
        let page = if self.page == 0 { PAGE } else { self.page };
        let place = match code {
            KeyCode::Up | KeyCode::Char('k') => place.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => place + 1,
            KeyCode::PageUp => place.saturating_sub(page),
            KeyCode::PageDown => place + page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => usize::MAX,
            _ => return,
        };
        self.place = place.min(ids.len() - 1);
        self.chosen = Some(ids[self.place]);
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.filter.chars().count() < FILTER_MAX => self.filter.push(letter),
            _ => {}
        }
    }

    /// Index of the chosen row among these; the nearest if the row is gone, none without rows.
    pub(super) fn settle(&mut self, ids: &[FlowRef]) -> Option<usize> {
        let last = ids.len().checked_sub(1)?;
        let found = self.chosen.and_then(|chosen| ids.iter().position(|id| *id == chosen));
        self.place = found.unwrap_or(self.place.min(last));
        if found.is_none() && self.chosen.is_some() {
            self.chosen = Some(ids[self.place]);
        }
        Some(self.place)
    }

    /// Scrolls so that row `place` is among the `page` visible rows; returns the first visible row.
    pub(super) fn scroll(&mut self, place: usize, page: usize, count: usize) -> usize {
        self.page = page;
        self.top = self.top.min(place).max((place + 1).saturating_sub(page)).min(count.saturating_sub(page));
        self.top
    }
}

#[cfg(test)]
mod tests;
