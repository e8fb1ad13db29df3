//! Chooses the default job, which is the newest one that responds. A note mentions other jobs that run here, and a
//! newer job that cannot be shown.

use paceline_sidecar::sink::http::visit::{VisitError, Visitor};

use super::link::Line;
use super::place::{self, Target};
use super::response::News;
use crate::output::NoJob;

/// Maximum number of other jobs that are named.
const NAMED: usize = 3;

/// A note about jobs that are not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Aside {
    /// True if a newer job could not be shown, so that this may not be the intended one.
    pub(crate) is_warning: bool,
    pub(crate) text: String,
}

/// A job that is not shown.
#[derive(Debug)]
struct Other {
    name: String,
    /// The job's address or directory, in a form that the user can type.
    typed: String,
    /// Why the job could not be shown, if it is newer than the shown one.
    refused: Option<VisitError>,
}

impl Other {
    fn of(target: &Target, base: &str, refused: Option<VisitError>) -> Other {
        Other {
            name: target.name(),
            typed: base.trim_start_matches("http://").to_owned(),
            refused,
        }
    }
}

/// Returns the newest job that responds, and a note about the others.
pub(crate) fn newest(visitor: Visitor, scheme: &'static str) -> anyhow::Result<(Line, News, Option<Aside>)> {
    let mut line = Line {
        target: Target::At(String::new()),
        visitor,
        scheme,
        base: String::new(),
    };
    let (mut problem, mut others) = (None, Vec::new());
    let mut targets = place::running().into_iter();
    for target in targets.by_ref() {
        let base = match target.base(scheme, line.visitor.has_token()) {
            Ok(base) => base,
            Err(why) => {
                if target.is_alive() {
                    problem.get_or_insert(why);
                }
                continue;
            }
        };
        (line.target, line.base) = (target, base);
        match line.ask() {
            Ok(news) if place::is_of(&line.target, &news) => {
                let rest = targets.filter(Target::is_alive);
                others.extend(rest.filter_map(|target| {
                    let base = target.base(scheme, false).ok()?;
                    Some(Other::of(&target, &base, None))
                }));
                return Ok((line, news, aside(&others)));
            }
            Ok(_) => {}
            Err(error) => {
                let told = format!("{}: {error}{}", line.base, line.target.hint());
                problem.get_or_insert(told);
                // Mention the job only if it is alive, because the file may still have a killed aggregator's address.
                if line.target.is_alive() {
                    others.push(Other::of(&line.target, &line.base, Some(error)));
                }
            }
        }
    }
    let reason = problem.map_or_else(String::new, |problem| format!(" ({problem})"));
    let text = format!(
        "no running job of this user was found on this host{reason}: name its run directory, or its page's address"
    );
    Err(NoJob(text).into())
}

/// Returns the note about the other jobs, if there are any.
fn aside(others: &[Other]) -> Option<Aside> {
    let refused = others
        .iter()
        .find_map(|other| Some((other, other.refused.as_ref()?)));
    let all = others.len() + 1;
    let text = match refused {
        Some((other, VisitError::Token)) => format!(
            "Not your newest job: {} needs a token (paceline top --http-token-file FILE {}). {all} jobs of yours \
             run here.",
            other.name, other.typed
        ),
        Some((other, why)) => format!(
            "Not your newest job: {} at {} does not answer ({why}). {all} jobs of yours run here.",
            other.name, other.typed
        ),
        None if others.is_empty() => return None,
        None => {
            let named = others.iter().take(NAMED);
            let named: Vec<String> = named
                .map(|other| format!("{} ({})", other.typed, other.name))
                .collect();
            let more = if others.len() > NAMED { ", ..." } else { "" };
            format!(
                "The newest of {all} jobs of yours here. Others: paceline top {}{more}",
                named.join(", ")
            )
        }
    };
    Some(Aside {
        is_warning: refused.is_some(),
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(number: u16, refused: Option<VisitError>) -> Other {
        Other {
            name: format!("paceline-{number}"),
            typed: format!("127.0.0.1:{number}"),
            refused,
        }
    }

    #[test]
    fn jobs_that_are_not_shown_are_told() {
        assert_eq!(aside(&[]), None);
        let told = |others: &[Other]| {
            let aside = aside(others).unwrap();
            (aside.is_warning, aside.text)
        };
        assert_eq!(
            told(&[other(1, None)]),
            (
                false,
                "The newest of 2 jobs of yours here. Others: paceline top 127.0.0.1:1 (paceline-1)"
                    .to_owned()
            )
        );
        let (_, many) = told(&[1, 2, 3, 4].map(|number| other(number, None)));
        assert!(
            many.starts_with("The newest of 5 jobs") && many.ends_with("127.0.0.1:3 (paceline-3), ..."),
            "{many}"
        );
        // A newer job that cannot be shown is mentioned first.
        assert_eq!(
            told(&[other(1, Some(VisitError::Token)), other(2, None)]),
            (
                true,
                "Not your newest job: paceline-1 needs a token (paceline top --http-token-file FILE 127.0.0.1:1). 3 jobs of \
                 yours run here."
                    .to_owned()
            )
        );
        let (is_warning, text) = told(&[other(1, Some(VisitError::Full))]);
        assert!(
            is_warning && text.contains("does not answer (it has too many clients)"),
            "{text}"
        );
    }
}
