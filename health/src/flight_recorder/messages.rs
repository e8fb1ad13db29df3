//! Messages between two ranks, as in pipeline parallelism.

use std::collections::BTreeMap;

use super::compare::{Finding, called};
use super::dump::{Dump, Entry, Group};
use crate::id::Rank;
use crate::verdict::Cause;

/// A message that is pending on one of its two ranks.
pub(super) struct OneSided<'a> {
    waits: Rank,
    peer: Rank,
    /// True if the rank `waits` is the receiver.
    is_receiver: bool,
    group: &'a Group,
    /// True if the other rank has not entered the message. `None` if not known.
    is_missing: Option<bool>,
}

/// Returns the first pending message of each rank, if its peer is known.
pub(super) fn one_sided(dumps: &BTreeMap<Rank, Dump>) -> Vec<OneSided<'_>> {
    let of_rank = |(rank, dump): (&Rank, &'_ Dump)| -> Option<(Rank, usize)> {
        let pending = dump
            .entries
            .iter()
            .position(|entry| !entry.is_completed && entry.message.is_some());
        Some((*rank, pending?))
    };
    let waiting: Vec<(Rank, usize)> = dumps.iter().filter_map(of_rank).collect();
    waiting
        .into_iter()
        .filter_map(|(rank, index)| {
            let dump = dumps.get(&rank)?;
            let entry = dump.entries.get(index)?;
            let group = dump.groups.get(&entry.group)?;
            let message = entry.message?;
            let end = |end: Option<usize>| group.members.get(end?).copied();
            let (sender, receiver) = (end(message.sender)?, end(message.receiver)?);
            let peer = if sender == rank { receiver } else { sender };
            Some(OneSided {
                waits: rank,
                peer,
                is_receiver: receiver == rank && sender != rank,
                group,
                is_missing: dumps
                    .get(&peer)
                    .and_then(|of_peer| is_missing(dump, entry, index, of_peer)),
            })
        })
        .collect()
}

/// Returns true if the other rank has not entered the message. The numbers of messages in this direction on both ranks
/// show this, provided that neither recorder has overwritten any. Returns `None` otherwise.
fn is_missing(dump: &Dump, entry: &Entry, index: usize, of_peer: &Dump) -> Option<bool> {
    if !dump.is_whole || !of_peer.is_whole {
        return None;
    }
    let key = (entry.group.clone(), entry.message?);
    let later = dump.entries.iter().skip(index + 1);
    let later = later.filter(|later| later.message == entry.message && later.group == entry.group);
    let number = dump.messages.get(&key)?.checked_sub(later.count())?;
    Some(of_peer.messages.get(&key).copied().unwrap_or(0) < number)
}

/// Finds a rank that has not entered a message for which another rank waits, and that does not wait in another
/// operation itself.
pub(super) fn missing(messages: &[OneSided<'_>], dumps: &BTreeMap<Rank, Dump>) -> Option<Finding> {
    let is_idle = |rank: &Rank| dumps.get(rank).is_some_and(|dump| !dump.is_waiting());
    let found = messages
        .iter()
        .find(|message| message.is_missing == Some(true) && is_idle(&message.peer))?;
    let what = if found.is_receiver {
        "has not sent it"
    } else {
        "does not receive it"
    };
    Some((
        format!("{}, which {what}", says(found)),
        vec![found.peer],
        Cause::Unknown,
    ))
}

/// Describes a wait to report if no rank is known to be missing. A rank that waits for a rank without a dump is
/// preferred; otherwise any waiting rank is reported.
pub(super) fn waiting(messages: &[OneSided<'_>], dumps: &BTreeMap<Rank, Dump>) -> Option<String> {
    let lost = messages.iter().find(|message| !dumps.contains_key(&message.peer));
    let found = lost.or(messages.first())?;
    let more = match found.is_missing {
        Some(false) => ", which has entered it too",
        _ => "",
    };
    Some(format!("{}{more}", says(found)))
}

fn says(message: &OneSided<'_>) -> String {
    let what = if message.is_receiver { "from" } else { "to" };
    let (waits, group, peer) = (message.waits, called(message.group), message.peer);
    format!("rank {waits} waits in {group} for a message {what} rank {peer}")
}
