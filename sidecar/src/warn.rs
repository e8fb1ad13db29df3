//! Warnings on stderr. At most one line per kind is printed, so that a long job does not fill its log.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::sync::Mutex;

use paceline_health::text::sanitize;

/// Maximum length of a warning, characters.
const LONGEST: usize = 4000;

static SAID: Mutex<BTreeSet<Cow<'static, str>>> = Mutex::new(BTreeSet::new());

/// Prints a message each time. Use it only for responses to a user's request, because automatic messages must not fill
/// the log.
pub fn answer(message: impl Display) {
    say(message);
}

/// Prints a sanitized message, because the text may contain untrusted input and may be displayed in a terminal.
fn say(message: impl Display) {
    let text = sanitize::lines(&message.to_string(), LONGEST);
    // Ignore the result: a closed stderr is no reason to stop.
    let _ = writeln!(std::io::stderr(), "paceline sidecar: {text}");
}

/// Returns the error and its causes as one text. Omits a cause that the text already contains.
pub fn chain(problem: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in problem.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Prints the message, unless one of this kind was already printed.
pub fn once(kind: impl Into<Cow<'static, str>>, message: impl Display) {
    let kind = kind.into();
    let first = SAID.lock().is_ok_and(|mut said| said.insert(kind));
    if first {
        say(message);
    }
}
