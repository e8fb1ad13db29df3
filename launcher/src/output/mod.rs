//! Prints text for users. Colors and box characters are used only where they are wanted and supported. Results go to
//! stdout.

mod background;
mod columns;
pub(crate) mod progress;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use paceline_health::text::sanitize;
use paceline_sidecar::chain;

pub(crate) use background::{Background, Passed};
pub(crate) use columns::{Column, columns};

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

/// A mistake in the command line, the environment or a configuration file. The exit code is 64.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// There is no job to query, because none runs here or its aggregator does not answer. The exit code is 3.
#[derive(Debug)]
pub(crate) struct NoJob(pub(crate) String);

impl Display for NoJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoJob {}

/// Checks that a file can be written, before the long work whose result will go there.
pub(crate) fn check_writable(flag: &str, path: &Path) -> Result<(), Usage> {
    let was_there = path.exists();
    // Opening for append does not change an existing file.
    let opened = File::options().append(true).create(true).open(path);
    if opened.is_ok() && !was_there {
        let _ = std::fs::remove_file(path);
    }
    opened
        .map(drop)
        .map_err(|problem| Usage(format!("{flag} {}: cannot be written: {problem}", path.display())))
}

/// What the output supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    /// True if ANSI colors are used.
    pub(crate) color: bool,
    /// True if box and block characters are used.
    pub(crate) unicode: bool,
    /// Width in columns.
    pub(crate) width: usize,
}

/// The role of a piece of text, independent of how it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// A heading or a name that matters.
    Strong,
    /// Labels, rules, secondary text.
    Faint,
    /// Healthy.
    Good,
    /// Warning.
    Warn,
    /// Critical, or an error.
    Bad,
}

const WIDTH: usize = 80;
const WIDEST: usize = 100;

impl Style {
    /// Returns the style of stdout.
    pub(crate) fn stdout(color: Color) -> Style {
        let width = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_col);
        Style::of(color, io::stdout().is_terminal(), usize::from(width))
    }

    /// Returns the style of stderr.
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

    /// Returns `text` in the style of `paint`.
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

    /// Returns `fancy` if the output supports it, else `plain`.
    pub(crate) fn glyph(self, fancy: &'static str, plain: &'static str) -> &'static str {
        if self.unicode { fancy } else { plain }
    }
}

/// Returns true if the locale is UTF-8. The first of these variables that is set decides (POSIX, locale).
fn utf8_locale() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .is_some_and(|value| {
            let value = value.to_ascii_lowercase();
            value.contains("utf-8") || value.contains("utf8")
        })
}

/// Maximum number of characters of a warning or an error.
const LONGEST: usize = 4000;
/// The codes that [`Style::paint`] writes between escape and `m`.
const PAINTS: [&str; 6] = ["0", "1", "2", "32", "1;33", "1;31"];

/// Removes terminal control sequences from a text for users, except for our own colors. Names of files, nodes and GPU
/// models come from outside and could contain such sequences.
fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(|letter: char| letter != '\n' && sanitize::visible(letter) != letter) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let own = rest.strip_prefix("\x1b[").and_then(|code| {
            let end = code.find('m')?;
            PAINTS.contains(&&code[..end]).then_some(end + 3)
        });
        let length = own.unwrap_or(letter.len_utf8());
        match (own, letter) {
            (Some(_), _) => shown.push_str(&rest[..length]),
            (None, '\n') => shown.push('\n'),
            (None, letter) => shown.push(sanitize::visible(letter)),
        }
        rest = &rest[length..];
    }
    Cow::Owned(shown)
}

/// Escapes those characters of a JSON text that [`sanitize::visible`] would change (`\u202e`). The result is equivalent
/// for a program, but does not change the direction of text in a terminal. In JSON, such characters occur only within
/// strings.
pub(crate) fn escaped(json: &str) -> Cow<'_, str> {
    if json.is_ascii() && !json.contains('\x7f') {
        return Cow::Borrowed(json);
    }
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        if sanitize::visible(letter) == letter {
            text.push(letter);
        } else {
            // All these characters are in the Basic Multilingual Plane, so each is one 16-bit number.
            let _ = std::fmt::Write::write_fmt(&mut text, format_args!("\\u{:04x}", u32::from(letter)));
        }
    }
    Cow::Owned(text)
}

/// Prints text for users on stdout. For results that programs read, use [`print`].
pub(crate) fn show(text: &str) -> io::Result<()> {
    print(&harmless(text))
}

/// Prints a result on stdout. It is not an error if the reader has exited (`| head`).
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(problem) if problem.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Prints a line on stderr in one write, because the command writes there too. While the command runs, a separate
/// thread writes the line ([`Background`]). A closed stderr is ignored.
pub(crate) fn say(line: impl Display) {
    let whole = format!("{}\n", harmless(&line.to_string()));
    if !background::take(&whole) {
        let _ = io::stderr().write_all(whole.as_bytes());
    }
}

/// Prints a warning on stderr.
pub(crate) fn warning(style: Style, text: impl Display) {
    say(format_args!(
        "{} {}",
        style.paint(Paint::Warn, "paceline: warning:"),
        sanitize::lines(&text.to_string(), LONGEST)
    ));
}

/// Prints an error with its causes on stderr.
pub(crate) fn error(style: Style, problem: &anyhow::Error) {
    say(format_args!(
        "{} {}",
        style.paint(Paint::Bad, "paceline: error:"),
        sanitize::lines(&chain(problem), LONGEST)
    ));
}

/// Returns the word in `known` that is nearest to `word`, if it is near enough to be the one that was meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(word, name), name))
        .filter(|(distance, name)| *distance <= 1.max(name.len().max(word.len()) / 3))
        .min()
        .map(|(_, name)| name)
}

/// Splits `text` into lines of at most `room` characters, between words.
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
    fn only_our_own_colours_reach_the_terminal() {
        for (text, shown) in [
            ("plain\nlines\n", "plain\nlines\n"),
            ("\x1b[1;31mpaceline:\x1b[0m x", "\x1b[1;31mpaceline:\x1b[0m x"),
            ("\x1b]0;title\x07", "␛]0;title␇"),
            ("\x1b[2J\x1b[7mm\r\0", "␛[2J␛[7mm ␀"),
            ("\u{9b}2J\u{202e}", "\u{fffd}2J\u{fffd}"),
            ("\x1b[", "␛["),
        ] {
            assert_eq!(harmless(text), shown);
        }
    }

    #[test]
    fn json_says_the_same_in_plain_letters() {
        let told = serde_json::json!({ "job": "a\u{202e}\u{9b}\x7f\x1b\u{2028}é\n" });
        let text = told.to_string();
        assert_eq!(escaped(&text), r#"{"job":"a\u202e\u009b\u007f\u001b\u2028é\n"}"#);
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&escaped(&text)).unwrap(),
            told
        );
    }

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
