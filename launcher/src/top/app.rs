//! The state of the view, and how keys change it.

use std::time::Instant;

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::client::choose::Aside;
use super::client::response::{Ending, Verdict};
use super::job::{Job, Sort};

/// The page that is displayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    /// The answer and the list of all ranks.
    #[default]
    Ranks,
    /// The details of one rank.
    Rank(u32),
    /// All details of the finding in the answer.
    Finding,
    /// The list of keys.
    Keys,
}

/// The state of the connection to the aggregator.
#[derive(Clone, Debug, Default)]
pub(super) enum Link {
    /// The aggregator responds.
    #[default]
    Live,
    /// The aggregator does not respond.
    Away {
        /// The time since the last response, in seconds.
        for_s: u64,
        /// Why the last attempt failed.
        why: String,
    },
    /// The job has ended, and the aggregator with it. The reason is given if it is known.
    Ended(Option<Box<Ending>>),
}

/// The state of the view. See the module.
#[derive(Debug, Default)]
pub(super) struct App {
    pub(super) job: Job,
    pub(super) link: Link,
    /// The aggregator's address.
    pub(super) address: String,
    /// A note about other jobs that are not shown.
    pub(super) aside: Option<Aside>,
    /// Time in seconds since the last step that all ranks finished.
    pub(super) still_s: f64,
    pub(super) page: Page,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    /// True while the user types the filter.
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
    pub(super) is_over: bool,
    /// The displayed ranks, in order.
    pub(super) order: Vec<u32>,
    /// The selected rank, or `None` for the first one.
    pub(super) selected: Option<u32>,
    /// The selected finding, or `None` for the worst one.
    pub(super) finding: Option<u64>,
    /// Index of the first rank on the screen, and number of ranks on it.
    pub(super) first: usize,
    pub(super) rows: usize,
    /// Number of lines of a page that are above the screen.
    pub(super) scrolled: usize,
}

impl App {
    /// Sorts and filters the ranks, after new data or after the view has changed.
    pub(super) fn put_in_order(&mut self) {
        self.order = self.job.order(self.sort, self.is_reversed, &self.filter);
    }

    /// Updates the time since the last step.
    pub(super) fn pass(&mut self, now: Instant) {
        let has_ended = self
            .job
            .report
            .as_ref()
            .is_some_and(|report| report.end.is_some());
        let moves = self.job.step_at.filter(|_| !has_ended && !self.is_paused);
        self.still_s = moves.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
    }

    /// Returns the index of the selected rank in the order.
    pub(super) fn place(&self) -> usize {
        let chosen = self.selected;
        chosen
            .and_then(|rank| self.order.iter().position(|one| *one == rank))
            .unwrap_or(0)
    }

    /// Returns the selected rank.
    pub(super) fn rank(&self) -> Option<u32> {
        self.order.get(self.place()).copied()
    }

    /// Returns the displayed finding, which is the selected one or, if there is none, the worst active one.
    pub(super) fn verdict(&self) -> Option<&Verdict> {
        let chosen = |id: u64| self.job.verdicts().iter().find(|verdict| verdict.id == id);
        self.finding.and_then(chosen).or_else(|| self.job.raised().next())
    }

    /// Handles a key press.
    pub(super) fn press(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.is_over = true;
        } else if self.is_typing {
            self.type_in(key.code);
        } else if self.page == Page::Ranks {
            self.press_on_ranks(key.code);
        } else {
            self.press_on_page(key.code);
        }
    }

    fn type_in(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if self.filter.len() < 64 => self.filter.push(letter),
            _ => return,
        }
        self.first = 0;
        self.put_in_order();
    }

    fn press_on_ranks(&mut self, key: KeyCode) {
        let page = self.rows.max(1) as isize;
        match key {
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::PageDown => self.go(page),
            KeyCode::PageUp => self.go(-page),
            KeyCode::Home | KeyCode::Char('g') => {
                self.selected = None;
                self.first = 0;
            }
            KeyCode::End | KeyCode::Char('G') => self.selected = self.order.last().copied(),
            KeyCode::Char('s') | KeyCode::F(6) => self.sort_by(self.sort.next()),
            KeyCode::Char('S') => {
                self.is_reversed = !self.is_reversed;
                self.first = 0;
                self.put_in_order();
            }
            KeyCode::Char('/') | KeyCode::F(4) => self.is_typing = true,
            KeyCode::Enter => {
                if let Some(rank) = self.rank() {
                    self.turn_to(Page::Rank(rank));
                }
            }
            KeyCode::Esc => {
                self.filter.clear();
                self.finding = None;
                self.put_in_order();
            }
            key => self.press_anywhere(key),
        }
    }

    fn press_on_page(&mut self, key: KeyCode) {
        let page = self.rows.max(1);
        match key {
            KeyCode::Esc | KeyCode::Enter | KeyCode::Left | KeyCode::Char('h') => self.turn_to(Page::Ranks),
            KeyCode::Down | KeyCode::Char('j') => self.scrolled += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown => self.scrolled += page,
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => self.scrolled = 0,
            key => self.press_anywhere(key),
        }
    }

    fn press_anywhere(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('q') | KeyCode::F(10) => self.is_over = true,
            KeyCode::Char('?') | KeyCode::F(1) => {
                let other = if self.page == Page::Keys {
                    Page::Ranks
                } else {
                    Page::Keys
                };
                self.turn_to(other);
            }
            KeyCode::Char('d') if self.verdict().is_some() => self.turn_to(Page::Finding),
            KeyCode::Char('n') => self.walk(1),
            KeyCode::Char('p') => self.walk(-1),
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            _ => {}
        }
    }

    fn turn_to(&mut self, page: Page) {
        self.page = page;
        self.scrolled = 0;
    }

    fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.is_reversed = false;
        self.first = 0;
        self.put_in_order();
    }

    fn go(&mut self, by: isize) {
        let last = self.order.len().saturating_sub(1);
        let place = self.place().saturating_add_signed(by).min(last);
        self.selected = self.order.get(place).copied();
    }

    /// Selects the next or previous finding.
    fn walk(&mut self, by: isize) {
        let ids: Vec<u64> = self.job.verdicts().iter().map(|verdict| verdict.id).collect();
        let shown = self.verdict().map(|verdict| verdict.id);
        let place = ids.iter().position(|id| Some(*id) == shown);
        let next = match place {
            Some(place) => (place as isize + by).rem_euclid(ids.len() as isize) as usize,
            None => 0,
        };
        self.finding = ids.get(next).copied();
        self.scrolled = 0;
    }
}
