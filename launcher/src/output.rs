//! How text reaches people: colour only where it is wanted, boxes only where they can be shown, results on stdout.

use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};

use paceline_sidecar::chain;

/// `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// A mistake in the command line, the environment or a configuration file: exit code 64.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// What the place that text goes to can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    /// ANSI colours.
    pub(crate) color: bool,
    /// Box and block characters.
    pub(crate) unicode: bool,
    /// Columns.
    pub(crate) width: usize,
}

/// What a piece of text is, not how it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// A heading or a name that matters.
    Strong,
    /// Labels, rules, what may be skipped.
    Faint,
    /// All is well.
    Good,
    /// Warning.
    Warn,
    /// Critical, or an error.
    Bad,
}

const WIDTH: usize = 80;
const WIDEST: usize = 100;

impl Style {
    /// For stdout.
    pub(crate) fn stdout(color: Color) -> Style {
        let width = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_col);
        Style::of(color, io::stdout().is_terminal(), usize::from(width))
    }

    /// For stderr.
    pub(crate) fn stderr(color: Color) -> Style {
        let width = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
        Style::of(color, io::stderr().is_terminal(), usize::from(width))
    }

    fn of(color: Color, terminal: bool, columns: usize) -> Style {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == OsStr::new("dumb"));
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => terminal && !dumb && !set("NO_COLOR"),
        };
        let width = if columns == 0 {
            WIDTH
        } else {
            columns.clamp(40, WIDEST)
        };
        Style {
            color,
            unicode: utf8_locale(),
            width,
        }
    }

    /// `text` as `paint` looks here.
    pub(crate) fn paint(self, paint: Paint, text: impl Display) -> String {
        let text = text.to_string();
        if !self.color || text.is_empty() {
            return text;
        }
        let code = match paint {
            Paint::Strong => "1",
            Paint::Faint => "2",
            Paint::Good => "32",
            Paint::Warn => "1;33",
            Paint::Bad => "1;31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// `fancy` where it can be shown, else `plain`.
    pub(crate) fn glyph(self, fancy: &'static str, plain: &'static str) -> &'static str {
        if self.unicode { fancy } else { plain }
    }
}

/// The first of these variables that is set decides, as for every program (POSIX, locale).
fn utf8_locale() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .is_some_and(|value| {
            let value = value.to_ascii_lowercase();
            value.contains("utf-8") || value.contains("utf8")
        })
}

/// Prints a result on stdout. A reader that went away (`| head`) is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(problem) if problem.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Says something on stderr; a stderr that is closed stops nothing.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A warning on stderr.
pub(crate) fn warning(style: Style, text: impl Display) {
    say(format_args!(
        "{} {text}",
        style.paint(Paint::Warn, "paceline: warning:")
    ));
}

/// An error on stderr, with its causes.
pub(crate) fn error(style: Style, problem: &anyhow::Error) {
    say(format_args!(
        "{} {}",
        style.paint(Paint::Bad, "paceline: error:"),
        chain(problem)
    ));
}

/// The word among `known` that is nearest to `word`, if one is near enough to have been meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(word, name), name))
        .filter(|(distance, name)| *distance <= 1.max(name.len().max(word.len()) / 3))
        .min()
        .map(|(_, name)| name)
}

/// `text` in lines of at most `room` characters, cut between words.
pub(crate) fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(line) if used + 1 + length <= room => {
                line.push(' ');
                line.push_str(word);
                used += 1 + length;
            }
            _ => {
                lines.push(word.to_owned());
                used = length;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let io = || std::io::Error::other("no such host");
        let twice = anyhow::Error::new(io()).context("n1 was not reached: no such host");
        assert_eq!(chain(&twice), "n1 was not reached: no such host");
        assert_eq!(chain(&anyhow::Error::new(io()).context("n1")), "n1: no such host");
    }

    #[test]
    fn the_nearest_word_is_one_that_was_meant() {
        let known = ["job", "run_dir", "aggregator"];
        assert_eq!(nearest("run-dir", known), Some("run_dir"));
        assert_eq!(nearest("agregator", known), Some("aggregator"));
        assert_eq!(nearest("jbo", known), Some("job"));
        assert_eq!(nearest("temperature", known), None);
    }
}
