//! Checks the newest running job on this machine: whether its phases are known and, if not, why.

use super::{Check, Light, Subject};
use crate::output::NoJob;
use crate::top::{self, Seen};

const NAME: &str = "job";
/// Prefix of the hook's notes in the report's coverage (`health/src/detect/report/notes/hook.rs`).
const OF_HOOK: &str = "hook: ";
/// Prefix of the note that only some of the steps are timed, which is not a problem.
const SAMPLED: &str = "hook: phases of ";

pub(super) fn seen(_: &Subject) -> Check {
    match top::newest() {
        Ok(seen) => of(&seen),
        Err(error) if error.is::<NoJob>() => Check::green(NAME, "no job of this user runs on this host"),
        Err(error) => Check::of(
            NAME,
            Light::Yellow,
            format!("{error:#}"),
            "run paceline top with its address and token",
        ),
    }
}

fn of(seen: &Seen) -> Check {
    let Seen {
        job, steps, notes, ..
    } = seen;
    if *steps == 0 {
        return Check::green(NAME, format!("{job}: no step has ended yet"));
    }
    let has_phases = seen.signals.iter().any(|signal| signal == "S2");
    let of_hook = notes.iter().filter(|note| note.starts_with(OF_HOOK));
    let (sampled, troubles): (Vec<&String>, Vec<&String>) =
        of_hook.partition(|note| note.starts_with(SAMPLED));
    let said = |notes: &[&String]| notes.iter().map(|note| format!("; {note}")).collect::<String>();
    if has_phases && troubles.is_empty() {
        let said = said(&sampled);
        return Check::green(NAME, format!("{job}, step {steps}: phases are known{said}"));
    }
    let known = match has_phases {
        true => "phases are known for some steps",
        false => "phases are not known",
    };
    // If the hook left no notes, there is no hook. Show the other limits of the verdicts, which say more.
    let reasons = match troubles.is_empty() {
        true => said(&notes.iter().collect::<Vec<_>>()),
        false => said(&troubles),
    };
    Check::of(
        NAME,
        Light::Yellow,
        format!("{job}, step {steps}: {known}{reasons}"),
        "make sure that the trainers load the hook (checks Python and PyTorch above); without it, ranks are \
         compared by collectives and step times",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(steps: u64, signals: &[&str], notes: &[&str]) -> (Light, String) {
        let strings = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let check = of(&Seen {
            job: "4711".to_owned(),
            steps,
            signals: strings(signals),
            notes: strings(notes),
        });
        (check.light, check.says)
    }

    #[test]
    fn phases_are_known_or_the_reason_is_said() {
        let (light, says) = check(0, &[], &[]);
        assert_eq!(
            (light, says.as_str()),
            (Light::Green, "4711: no step has ended yet")
        );
        let sampled = "hook: phases of 1 step in 32, to spare the host (all 4 ranks)";
        let (light, says) = check(900, &["S0", "S2"], &["low coverage", sampled]);
        assert_eq!(light, Light::Green);
        assert_eq!(says, format!("4711, step 900: phases are known; {sampled}"));
        let graphs = "hook: steps in CUDA graphs are not seen (all 4 ranks)";
        let (light, says) = check(900, &["S2"], &[graphs, "low coverage"]);
        assert_eq!(light, Light::Yellow);
        assert_eq!(
            says,
            format!("4711, step 900: phases are known for some steps; {graphs}")
        );
        let (light, says) = check(9, &["S0"], &["only wall step times were reported (S0)"]);
        assert_eq!(light, Light::Yellow);
        assert!(
            says.ends_with("phases are not known; only wall step times were reported (S0)"),
            "{says}"
        );
    }
}
