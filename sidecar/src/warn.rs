//! Warnings for people, on stderr: at most one line per kind, so that a log never grows with the job.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::sync::Mutex;

use paceline_health::text::sanitize;

/// Characters of a warning.
const LONGEST: usize = 4000;

static SAID: Mutex<BTreeSet<Cow<'static, str>>> = Mutex::new(BTreeSet::new());

/// Says it. For what a person asked for: nothing that comes by itself may grow a log.
pub fn answer(message: impl Display) {
    say(message);
}

/// What it is about comes from elsewhere, and may be read in a terminal.
fn say(message: impl Display) {
    let text = sanitize::lines(&message.to_string(), LONGEST);
    // Nobody may read it; that is no reason to stop.
    let _ = writeln!(std::io::stderr(), "paceline sidecar: {text}");
}

/// What went wrong and why; a cause that was told with what it caused is not told again.
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

/// Says it, unless something of this kind was said before.
pub fn once(kind: impl Into<Cow<'static, str>>, message: impl Display) {
    let kind = kind.into();
    let first = SAID.lock().is_ok_and(|mut said| said.insert(kind));
    if first {
        say(message);
    }
}
