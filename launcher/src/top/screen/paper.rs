//! Lines of styled text, and their output on a screen. They are cut by displayed width, not by bytes.

use std::borrow::Cow;
use std::fmt::Write as _;

use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Color, Modifier, Style as Ink};
use ratatui_core::text::Span;

use crate::output::{Paint, Style};

/// A line, as pieces of text from left to right.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Line {
    pieces: Vec<(Option<Paint>, String)>,
    /// True if this is the selected line.
    pub(super) is_selected: bool,
}

impl Line {
    pub(super) fn new() -> Line {
        Line::default()
    }

    /// Creates a line of plain text.
    pub(super) fn of(text: impl Into<String>) -> Line {
        Line::new().plain(text)
    }

    pub(super) fn plain(mut self, text: impl Into<String>) -> Line {
        self.pieces.push((None, text.into()));
        self
    }

    pub(super) fn painted(mut self, paint: Paint, text: impl Into<String>) -> Line {
        self.pieces.push((Some(paint), text.into()));
        self
    }

    /// Returns the width of the line in columns.
    pub(super) fn width(&self) -> usize {
        self.pieces.iter().map(|(_, text)| width(text)).sum()
    }

    /// Adds `end`, right-aligned, on a screen of `columns`. The text before it is cut to fit.
    pub(super) fn with_end(mut self, paint: Option<Paint>, end: &str, columns: usize, style: Style) -> Line {
        let room = columns.saturating_sub(width(end) + 1);
        self.cut(room, style);
        let blanks = columns.saturating_sub(self.width() + width(end));
        self.pieces.push((None, " ".repeat(blanks)));
        self.pieces.push((paint, end.to_owned()));
        self
    }

    /// Cuts the line to at most `columns`.
    pub(super) fn cut(&mut self, columns: usize, style: Style) {
        let mut left = columns;
        for (_, text) in &mut self.pieces {
            let own = width(text);
            if own > left {
                *text = clip(text, left, style);
            }
            left = left.saturating_sub(own);
        }
    }
}

/// Returns the width of a text on a terminal.
pub(crate) fn width(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    Span::raw(&*visible(text)).width()
}

/// Removes characters without width: combining marks, joiners, zero-width spaces.
fn visible(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut buffer = [0; 4];
    let kept = text
        .chars()
        .filter(|letter| !letter.is_control() && Span::raw(&*letter.encode_utf8(&mut buffer)).width() > 0);
    Cow::Owned(kept.collect())
}

/// Cuts a text to at most `columns`. A text that was cut ends with a mark.
pub(super) fn clip(text: &str, columns: usize, style: Style) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let Some(room) = columns.checked_sub(1) else {
        return String::new();
    };
    let (mut kept, mut used) = (String::new(), 0);
    for letter in visible(text).chars() {
        let own = width(letter.encode_utf8(&mut [0; 4]));
        if used + own > room {
            break;
        }
        kept.push(letter);
        used += own;
    }
    kept + style.glyph("…", "~")
}

/// Returns a text that is exactly `columns` wide, left-aligned.
pub(super) fn left(text: &str, columns: usize, style: Style) -> String {
    let mut text = clip(text, columns, style);
    let blanks = columns.saturating_sub(width(&text));
    text.extend(std::iter::repeat_n(' ', blanks));
    text
}

/// Returns a text that is exactly `columns` wide, right-aligned.
pub(super) fn right(text: &str, columns: usize, style: Style) -> String {
    let text = clip(text, columns, style);
    " ".repeat(columns.saturating_sub(width(&text))) + &text
}

/// Wraps a text into lines of at most `columns`. It is broken between words, and within words that are too long.
pub(super) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines: Vec<String> = Vec::new();
    let mut used = columns;
    for word in text.split_whitespace() {
        let own = width(word);
        if used + 1 + own <= columns
            && let Some(line) = lines.last_mut()
        {
            line.push(' ');
            line.push_str(word);
            used += 1 + own;
            continue;
        }
        lines.push(String::new());
        used = 0;
        for letter in visible(word).chars() {
            let own = width(letter.encode_utf8(&mut [0; 4]));
            if used + own > columns {
                lines.push(String::new());
                used = 0;
            }
            if let Some(line) = lines.last_mut() {
                line.push(letter);
            }
            used += own;
        }
    }
    lines
}

/// Returns the style of a text on a screen. Words or signs next to the text have the same meaning as its color.
fn ink(paint: Option<Paint>, style: Style) -> Ink {
    let plain = Ink::new();
    let colour = |ink: Ink, colour| if style.color { ink.fg(colour) } else { ink };
    match paint {
        None => plain,
        Some(Paint::Strong) => plain.add_modifier(Modifier::BOLD),
        Some(Paint::Faint) => plain.add_modifier(Modifier::DIM),
        Some(Paint::Good) => colour(plain, Color::Green),
        Some(Paint::Warn) => colour(plain.add_modifier(Modifier::BOLD), Color::Yellow),
        Some(Paint::Bad) => colour(plain.add_modifier(Modifier::BOLD), Color::Red),
    }
}

/// Draws lines on a screen from its top. Lines that do not fit are omitted.
pub(crate) fn draw(lines: &[Line], style: Style, screen: &mut Buffer) {
    let area = screen.area;
    for (line, y) in lines.iter().zip(area.top()..area.bottom()) {
        let mut x = area.left();
        for (paint, text) in &line.pieces {
            let room = area.right().saturating_sub(x);
            let text = clip(text, usize::from(room), style);
            (x, _) = screen.set_stringn(x, y, visible(&text), usize::from(room), ink(*paint, style));
        }
        if line.is_selected {
            for x in area.left()..area.right() {
                screen[(x, y)].set_style(Ink::new().add_modifier(Modifier::REVERSED));
            }
        }
    }
}

/// Returns lines as text, for output without a screen.
pub(crate) fn print(lines: &[Line], style: Style) -> String {
    let mut text = String::new();
    for line in lines {
        let mut own = String::new();
        for (paint, piece) in &line.pieces {
            let piece = visible(piece);
            match paint {
                Some(paint) => {
                    let _ = write!(own, "{}", style.paint(*paint, piece));
                }
                None => own.push_str(&piece),
            }
        }
        text.push_str(own.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: Style = Style {
        color: false,
        unicode: true,
        width: 80,
    };

    #[test]
    fn text_is_measured_as_a_terminal_shows_it() {
        let zalgo = format!("a{}b", "\u{301}".repeat(1 << 20));
        for (text, columns) in [
            ("abc", 3),
            ("é", 1),
            ("日本", 4),
            ("e\u{301}", 1),
            (&*zalgo, 2),
            ("a\u{200b}b", 2),
        ] {
            assert_eq!(width(text), columns);
            assert_eq!(width(&left(text, 9, STYLE)), 9);
            assert_eq!(width(&right(text, 9, STYLE)), 9);
        }
        assert_eq!(clip("日本語", 5, STYLE), "日本…");
        assert_eq!(clip("日本語", 4, STYLE), "日…");
        assert_eq!(clip("abc", 0, STYLE), "");
        assert_eq!(left("日本語", 4, STYLE), "日… ");
        assert_eq!(visible(&zalgo), "ab");
    }

    #[test]
    fn lines_break_between_words_and_within_those_that_have_no_room() {
        assert_eq!(wrap("one two  three", 8), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap("日本語", 4), ["日本", "語"]);
        assert!(wrap("  ", 4).is_empty());
    }

    #[test]
    fn what_stands_at_the_right_is_seen_first() {
        let line = Line::of("a long name of a job").with_end(None, "live", 16, STYLE);
        assert_eq!(print(&[line], STYLE), "a long nam… live\n");
    }
}
