//! Explains a cause by name: its meaning, and the action for each finding that can have it.

use std::collections::BTreeMap;

use paceline_health::Policy;
use paceline_health::text::humanize;
use paceline_health::verdict::{Cause, Finding};
use serde::Serialize;

use super::{SCHEMA_VERSION, table};
use crate::output::{Paint, Style};

/// A cause in the `--json` output.
#[derive(Debug, Serialize)]
pub(super) struct Explained {
    schema_version: u32,
    cause: &'static str,
    means: &'static str,
    /// The recommended action, by finding.
    actions: BTreeMap<&'static str, String>,
}

impl Explained {
    pub(super) fn of(policy: &Policy, cause: Cause) -> Explained {
        let own = Finding::ALL.iter().filter_map(|finding| {
            let action = policy.action(*finding, cause);
            let is_own = action != policy.action(*finding, Cause::Unknown);
            is_own.then(|| (finding.name(), action.to_string()))
        });
        Explained {
            schema_version: SCHEMA_VERSION,
            cause: cause.name(),
            means: humanize::cause(cause),
            actions: own.collect(),
        }
    }

    pub(super) fn render(&self, style: Style) -> String {
        let mut rows = vec![("means", self.means.to_owned())];
        rows.extend(
            self.actions
                .iter()
                .map(|(finding, action)| (*finding, action.clone())),
        );
        let name = style.paint(Paint::Strong, self.cause);
        format!("{name}  a cause\n") + &table(style, &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_says_what_to_do_of_whom_it_slows() {
        let policy = Policy::default();
        let style = Style {
            color: false,
            unicode: false,
            width: 80,
        };
        let heat = Explained::of(&policy, Cause::Thermal).render(style);
        assert!(
            heat.starts_with("thermal  a cause\n") && heat.contains("means"),
            "{heat}"
        );
        assert!(heat.contains("  straggler"), "{heat}");
    }
}
