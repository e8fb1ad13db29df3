//! Lists the worlds with mistakes, each with the command that simulates it again.

use super::{Case, cost};

/// A cost estimate is listed as a mistake if its relative error is larger than this.
const FAR_OFF: f64 = 0.10;

/// The mistakes in one world.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::evaluate) struct Failure {
    /// The scenario.
    pub(in crate::evaluate) scenario: String,
    /// One line for each mistake.
    pub(in crate::evaluate) mistakes: Vec<String>,
    /// The command that simulates the world again.
    pub(in crate::evaluate) command: String,
}

/// Returns the mistakes in this world, or `None` if there are none.
pub(in crate::evaluate) fn of(case: &Case<'_>) -> Option<Failure> {
    let mut mistakes = Vec::new();
    for expected in case.required() {
        let name = format!("{} {}", expected.finding, expected.who);
        let (since, last) = case.window(expected);
        match case.answer(expected) {
            None => {
                let last = if last == u64::MAX {
                    "the end".to_owned()
                } else {
                    last.to_string()
                };
                mistakes.push(format!("missed {name}, true from step {since} to {last}"));
            }
            Some(claim) if expected.cause.is_some_and(|cause| cause != claim.cause) => {
                let wanted = expected.cause.map_or("", |cause| cause.name());
                mistakes.push(format!(
                    "cause of {name}: {} and not {wanted}",
                    claim.cause.name()
                ));
            }
            Some(_) => {}
        }
    }
    mistakes.extend(case.wrong().map(|claim| {
        format!(
            "false {} {} ({}, cause {}) in step {}",
            claim.finding,
            claim.who,
            claim.severity.name(),
            claim.cause.name(),
            claim.step
        )
    }));
    // Check the cost only for a single fault. With several simultaneous faults, the truth has no separate share for
    // each.
    let cost = cost::of(case).filter(|_| case.job.spec.faults.len() == 1);
    if let Some((said, lost)) = cost.filter(|(said, lost)| (said - lost).abs() > FAR_OFF * lost) {
        mistakes.push(format!("cost: {said:.0} GPU-s said and {lost:.0} lost"));
    }
    (!mistakes.is_empty()).then(|| Failure {
        scenario: case.scenario.name.clone(),
        mistakes,
        command: case.job.command.clone(),
    })
}
