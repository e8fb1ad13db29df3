//! Formats the preflight's part of the verdict block: its result, the excluded nodes with reasons, and the findings.

use paceline_health::id::NodeId;
use paceline_health::report::Report;

use super::block::Block;
use crate::preflight::show::{Summary, sentence, table};

/// Maximum number of rows of the table, and maximum number of findings.
const ROWS: usize = 8;
const FINDINGS: usize = 4;

impl Block {
    pub(super) fn preflight(&mut self, report: &Report) {
        let Some(section) = &report.preflight else {
            return;
        };
        if section.told.mode.is_empty() {
            self.labelled("preflight", "failed: the job started without it");
        } else {
            let summary = Summary {
                mode: &section.told.mode,
                simulated: section.simulated,
                nodes: section.told.nodes.into(),
                gpus: section.told.gpus.into(),
                seconds: section.told.seconds,
                comparisons: section.told.comparisons,
                outcome: section.told.outcome,
            };
            let line = summary.line(self.style);
            self.raw_line("preflight", &line);
        }
        for out in section.told.left_out.iter().take(FINDINGS) {
            self.labelled("", &format!("{} was excluded: {}", out.node, out.why));
        }
        for noted in section.findings.iter().take(FINDINGS) {
            self.labelled("", &sentence(noted));
        }
        // Leave out the excluded nodes, which were listed already.
        let is_out = |node: &NodeId| section.told.left_out.iter().any(|out| out.node == *node);
        let untold = section.problems.iter();
        let untold: Vec<_> = untold
            .filter(|problem| !problem.node.as_ref().is_some_and(is_out))
            .collect();
        for problem in untold.iter().take(FINDINGS) {
            let node = problem
                .node
                .as_ref()
                .map_or(String::new(), |node| format!("{node}: "));
            self.labelled("", &format!("{node}{} ({})", problem.what, problem.phase));
        }
        let told = [section.told.left_out.len(), section.findings.len(), untold.len()];
        let more: usize = told.iter().map(|count| count.saturating_sub(FINDINGS)).sum();
        if more > 0 {
            self.labelled("", &format!("and {more} more in the report"));
        }
        // Print no table for a single node, because it has nothing to compare with.
        if section.rows.len() > 1 {
            let table = table(&section.rows, &section.findings, ROWS, self.style);
            for line in table.trim_matches('\n').lines() {
                self.raw_line("", line);
            }
        }
    }
}
