//! What the hooks and NCCL plugins of ranks report that they do not see or do not do. The report has one line for all
//! ranks with the same note.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::Mark;
use crate::id::Rank;

/// A mark event of this kind is a note. The text follows the prefix.
const KIND: &str = "note: ";
/// Prefix of the plugin's notes. Notes without it are the hook's.
const PLUGIN: &str = "NCCL plugin: ";
/// Maximum number of topics. Notes on further topics are dropped.
const MOST: usize = 16;
/// Maximum number of ranks listed in a line.
const NAMED: usize = 4;

/// The latest note of each rank on each topic.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct HookNotes(BTreeMap<Arc<str>, BTreeMap<Rank, Arc<str>>>);

impl HookNotes {
    /// Drops all notes, because a new group of ranks starts.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes a mark event if it is a note. A later note of a rank on the same topic (its first two words) replaces the
    /// earlier one.
    pub fn take(&mut self, mark: &Mark) {
        let Some(text) = mark.kind.strip_prefix(KIND) else {
            return;
        };
        let words = text.trim_start_matches(PLUGIN).split([' ', ':']);
        let about: Vec<&str> = words.filter(|word| !word.is_empty()).take(2).collect();
        let about: Arc<str> = about.join(" ").into();
        if self.0.len() < MOST || self.0.contains_key(&about) {
            self.0.entry(about).or_default().insert(mark.rank, text.into());
        }
    }

    /// Returns a line for each note, those from the most ranks first. `all` is the number of ranks in the job.
    pub fn lines(&self, all: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for said in self.0.values() {
            let mut by_text: BTreeMap<&str, Vec<Rank>> = BTreeMap::new();
            for (rank, text) in said {
                by_text.entry(text).or_default().push(*rank);
            }
            lines.extend(
                by_text
                    .iter()
                    .map(|(text, ranks)| (ranks.len(), text.to_string(), who(ranks, all))),
            );
        }
        lines.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        lines.truncate(MOST);
        lines
            .into_iter()
            .map(|(_, text, who)| line(&text, &who))
            .collect()
    }
}

fn line(text: &str, who: &str) -> String {
    let of = if text.starts_with(PLUGIN) { "" } else { "hook: " };
    format!("{of}{text} ({who})")
}

fn who(ranks: &[Rank], all: usize) -> String {
    match ranks {
        [rank] => format!("rank {}", rank.0),
        _ if ranks.len() == all => format!("all {all} ranks"),
        _ if ranks.len() <= NAMED => {
            let names: Vec<String> = ranks.iter().map(|rank| rank.0.to_string()).collect();
            format!("ranks {}", names.join(", "))
        }
        [first, ..] => format!("{} of {all} ranks, first {}", ranks.len(), first.0),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(notes: &mut HookNotes, rank: u32, text: &str) {
        notes.take(&Mark {
            rank: Rank(rank),
            step: 1,
            kind: text.into(),
            value: 0,
        });
    }

    /// Ranks with the same note share a line. A rank's new note on the same topic replaces the earlier one. The user's
    /// mark events are no notes.
    #[test]
    fn a_line_for_all_ranks_that_say_the_same() {
        let mut notes = HookNotes::default();
        for rank in 0..8 {
            noted(&mut notes, rank, "note: no phases: steps on several streams");
            noted(
                &mut notes,
                rank,
                "note: phases of 1 step in 32, to spare the host",
            );
        }
        noted(&mut notes, 3, "note: phases of 1 step in 64, to spare the host");
        noted(
            &mut notes,
            5,
            "note: NCCL plugin: CUDA graph: no GPU times from now",
        );
        noted(&mut notes, 5, "checkpoint");
        let expected = [
            "hook: no phases: steps on several streams (all 8 ranks)",
            "hook: phases of 1 step in 32, to spare the host (7 of 8 ranks, first 0)",
            "NCCL plugin: CUDA graph: no GPU times from now (rank 5)",
            "hook: phases of 1 step in 64, to spare the host (rank 3)",
        ];
        assert_eq!(notes.lines(8), expected);
        notes.clear();
        assert!(notes.lines(8).is_empty());
    }

    /// However many different notes a hook writes, the report stays short.
    #[test]
    fn what_is_said_is_bounded() {
        let mut notes = HookNotes::default();
        for rank in 0..1000 {
            noted(&mut notes, rank, &format!("note: trouble{rank}: {rank}"));
            noted(&mut notes, rank, &format!("note: DDP's buckets: {rank}"));
        }
        assert_eq!(notes.lines(1000).len(), MOST);
    }
}
