//! Reads one rank's dump of PyTorch's flight recorder
//! (<https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html>), formats 2.1 to 2.10. Strings and
//! lists are bounded, because even a small file can contain many references to them.

use std::collections::BTreeMap;

use super::pickle::{Node, Pickle, PickleError};
use crate::event::StackFrame;
use crate::id::Rank;
use crate::text::sanitize;

/// Maximum number of entries that are read. The latest ones are used. By default the recorder keeps 2,000.
const MAX_ENTRIES: usize = 100_000;
const MAX_GROUPS: usize = 4096;
/// Maximum number of members of all groups together.
const MAX_MEMBERS: usize = 1 << 20;
const MAX_TENSORS: usize = 256;
const MAX_DIMENSIONS: usize = 16;
const MAX_FRAMES: usize = 64;
/// Maximum number of characters of a name, and of a rank number with its separator.
const MAX_NAME: usize = 160;
const MAX_RANK: usize = 12;
/// How many of the last collectives and of the first pending collectives are kept per group, and as many messages.
/// Ranks differ only in these. The rest is dropped, because large jobs have many dumps.
const KEPT: usize = 64;

/// Why a dump cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// The bytes are not a pickle, or are a pickle with other than basic types.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// The pickle is not a dump.
    #[error("no dump of PyTorch's flight recorder: it has no version and entries")]
    NoDump,
    /// The entries have an unknown form.
    #[error("none of its {0} entries could be read")]
    Entries(usize),
    /// The dump has a newer format.
    #[error("a dump of format {0}: formats 2.x are read")]
    Version(String),
}

/// One rank's operations in the order of enqueueing.
#[derive(Debug)]
pub struct Dump {
    /// Groups by name.
    pub(super) groups: BTreeMap<String, Group>,
    /// Entries, oldest first.
    pub(super) entries: Vec<Entry>,
    /// Number of messages of each kind, if the recorder has overwritten none.
    pub(super) messages: BTreeMap<(String, Message), usize>,
    /// True if the recorder has overwritten no entry.
    pub(super) is_whole: bool,
    /// Time at which the last operation was enqueued, in nanoseconds since 1970. Zero if not known.
    pub last_ns: u64,
}

/// A process group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) name: String,
    /// The program's name for the group. Empty if there is none.
    pub(super) description: String,
    /// Global ranks in the order of their rank in the group. Empty if not known.
    pub(super) members: Vec<Rank>,
}

/// An operation that a rank has enqueued.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The group's name.
    pub(super) group: String,
    /// Its sequence number among the group's collectives. For a message, its number among the group's messages.
    pub(super) sequence: u64,
    /// The operation's name, for example `all_reduce` or `send 1->2`.
    pub(super) name: String,
    pub(super) message: Option<Message>,
    pub(super) input: Tensors,
    pub(super) output: Tensors,
    /// True if the operation has completed on the GPU.
    pub(super) is_completed: bool,
    /// The innermost frame of the user's code that enqueued the operation.
    pub(super) at: Option<StackFrame>,
}

/// A message between two ranks, given by their rank in the group. `None` means any rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Message {
    pub(super) sender: Option<usize>,
    pub(super) receiver: Option<usize>,
}

/// The tensors of an operation's input or output.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tensors {
    pub(super) bytes: u64,
    /// Their data types.
    pub(super) types: String,
}

impl Dump {
    /// Decodes a dump. Nothing in it is executed.
    pub fn decode(bytes: &[u8]) -> Result<Dump, DumpError> {
        let pickle = Pickle::decode(bytes)?;
        let root = pickle
            .root()
            .filter(|root| root.is_dict())
            .ok_or(DumpError::NoDump)?;
        let version = root
            .get("version")
            .and_then(Node::text)
            .ok_or(DumpError::NoDump)?;
        if !version.starts_with("2.") {
            return Err(DumpError::Version(version.chars().take(16).collect()));
        }
        // There are no entries if nothing was enqueued.
        let nodes: Vec<Node<'_>> = root.get("entries").into_iter().flat_map(Node::items).collect();
        let first = nodes.first().and_then(|node| node.get("record_id")?.int());
        let latest = nodes
            .get(nodes.len().saturating_sub(MAX_ENTRIES)..)
            .unwrap_or(&nodes);
        let mut groups = groups(root);
        let mut entries: Vec<Entry> = Vec::with_capacity(latest.len());
        for node in latest {
            let Some(raw) = raw(*node) else { continue };
            if groups.len() < MAX_GROUPS && !groups.contains_key(&raw.entry.group) {
                // Older formats do not list groups.
                let group = Group {
                    name: raw.entry.group.clone(),
                    description: raw.description.clone(),
                    members: Vec::new(),
                };
                groups.insert(group.name.clone(), group);
            }
            add(&mut entries, raw);
        }
        if entries.is_empty() && !latest.is_empty() {
            return Err(DumpError::Entries(latest.len()));
        }
        let mut messages: BTreeMap<(String, Message), usize> = BTreeMap::new();
        for entry in &entries {
            if let Some(message) = entry.message {
                *messages.entry((entry.group.clone(), message)).or_default() += 1;
            }
        }
        let last_ns = latest.last().and_then(|node| number(*node, "time_created_ns"));
        Ok(Dump {
            groups,
            entries: kept(entries),
            messages,
            is_whole: first.is_none_or(|first| first == 0) && latest.len() == nodes.len(),
            last_ns: last_ns.unwrap_or(0),
        })
    }

    /// Returns true if the rank is blocked in any operation.
    pub(super) fn is_waiting(&self) -> bool {
        self.entries.iter().any(|entry| !entry.is_completed)
    }
}

fn groups(root: Node<'_>) -> BTreeMap<String, Group> {
    let mut members = MAX_MEMBERS;
    let configured = root
        .get("pg_config")
        .into_iter()
        .flat_map(Node::pairs)
        .take(MAX_GROUPS);
    let group = |(name, group): (Node<'_>, Node<'_>)| {
        let name = clipped(name.text()?);
        let ranks = group.get("ranks").and_then(Node::text).unwrap_or("");
        // Cuts off text beyond the longest possible list of members.
        let ranks = ranks.get(..ranks.len().min(members * MAX_RANK)).unwrap_or("");
        let ranks = ranks.trim_matches(['[', ']']).split(',');
        let ranks = ranks.take(members).filter_map(|rank| rank.trim().parse().ok());
        let ranks: Vec<Rank> = ranks.map(Rank).collect();
        members -= ranks.len();
        let description = group.get("desc").and_then(Node::text).unwrap_or("");
        let group = Group {
            name: name.clone(),
            description: described(description),
            members: ranks,
        };
        Some((name, group))
    };
    configured.filter_map(group).collect()
}

/// Keeps the last entries and the first pending entries of each group.
fn kept(mut entries: Vec<Entry>) -> Vec<Entry> {
    fn count<'a>(counts: &mut BTreeMap<(&'a str, bool), usize>, entry: &'a Entry) -> usize {
        let key = (&*entry.group, entry.message.is_some());
        let count = counts.entry(key).or_default();
        *count += 1;
        *count
    }
    let (mut of_last, mut of_pending) = (BTreeMap::new(), BTreeMap::new());
    let mut is_kept: Vec<bool> = entries
        .iter()
        .rev()
        .map(|entry| count(&mut of_last, entry) <= KEPT)
        .collect();
    is_kept.reverse();
    for (entry, is_kept) in entries.iter().zip(&mut is_kept) {
        *is_kept |= !entry.is_completed && count(&mut of_pending, entry) <= KEPT;
    }
    let mut is_kept = is_kept.into_iter();
    entries.retain(|_| is_kept.next().unwrap_or(false));
    entries
}

/// Drops PyTorch's placeholders for groups without a description.
fn described(description: &str) -> String {
    match description {
        "undefined" | "default_pg" => String::new(),
        named => clipped(named),
    }
}

fn clipped(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}

/// An entry, with data that is needed only while reading.
pub(super) struct Raw {
    pub(super) entry: Entry,
    /// The group's description.
    pub(super) description: String,
    /// Its sequence number among the group's messages.
    pub(super) of_messages: Option<u64>,
}

fn raw(node: Node<'_>) -> Option<Raw> {
    let group = node.get("process_group")?;
    let mut parts = group.items();
    let group = group.text().or_else(|| parts.next()?.text())?;
    let description = parts.next().and_then(Node::text);
    let profiled = clipped(node.get("profiling_name").and_then(Node::text)?);
    let name = plain(profiled.rsplit_once(':').map_or(&*profiled, |(_, name)| name));
    let has_ends = || name.starts_with("send ") || name.starts_with("recv ");
    let is_message = node.get("is_p2p").and_then(Node::bool).unwrap_or_else(has_ends);
    // Format 2.1 has a common number for both.
    let (of_messages, of_collectives) = (number(node, "p2p_seq_id"), number(node, "collective_seq_id"));
    let sequence = if is_message { of_messages } else { of_collectives };
    let frames = node
        .get("frames")
        .into_iter()
        .flat_map(Node::items)
        .take(MAX_FRAMES);
    let mut frames = frames.filter_map(frame);
    // Gloo's entries are marked as retired when they complete; their state stays "scheduled".
    let is_retired = node.get("retired").and_then(Node::bool) == Some(true);
    let entry = Entry {
        group: clipped(group),
        sequence: sequence.or_else(|| number(node, "seq_id"))?,
        message: is_message.then(|| ends(&name)),
        input: tensors(node, "input_sizes", "input_dtypes"),
        output: tensors(node, "output_sizes", "output_dtypes"),
        is_completed: is_retired || node.get("state").and_then(Node::text) == Some("completed"),
        at: frames.find(StackFrame::is_own),
        name,
    };
    Some(Raw {
        entry,
        description: described(description.unwrap_or("")),
        of_messages,
    })
}

/// Adds an entry, or applies its state to earlier ones. The latter is for coalesced operations: each of them has an
/// entry that stays "scheduled", and the entry that follows them completes when they do.
pub(super) fn add(
    entries: &mut Vec<Entry>,
    Raw {
        entry, of_messages, ..
    }: Raw,
) {
    if !entry.name.ends_with("coalesced") {
        entries.push(entry);
        return;
    }
    let is_of_group = |other: &&mut Entry| other.group == entry.group;
    let messages = entries
        .iter_mut()
        .rev()
        .take_while(is_of_group)
        .take_while(|other| other.message.is_some() && Some(other.sequence) == of_messages);
    let mut is_of_messages = false;
    for message in messages {
        message.is_completed = entry.is_completed;
        is_of_messages = true;
    }
    if is_of_messages {
        return;
    }
    while entries.last().is_some_and(|last| {
        last.group == entry.group && last.message.is_none() && last.sequence == entry.sequence
    }) {
        entries.pop();
    }
    entries.push(entry);
}

fn number(node: Node<'_>, key: &str) -> Option<u64> {
    u64::try_from(node.get(key)?.int()?).ok()
}

/// Converts names such as `_all_gather_base`, `ALLGATHER_coalesced` and `all_reduce_barrier` to the names that programs
/// use.
fn plain(name: &str) -> String {
    let name = name.trim_start_matches('_').trim_end_matches("_base");
    let name = name.to_ascii_lowercase();
    match name.strip_prefix("allgather") {
        Some(rest) => format!("all_gather{rest}"),
        None if name == "all_reduce_barrier" => "barrier".to_owned(),
        None => name,
    }
}

/// Returns the sender and receiver of names such as `send 1->2` and `recv 2<-1`.
pub(super) fn ends(name: &str) -> Message {
    let ends = name.split_once(' ').map_or("", |(_, ends)| ends);
    let (sender, receiver) = match (ends.split_once("->"), ends.split_once("<-")) {
        (Some((sender, receiver)), _) | (_, Some((receiver, sender))) => (sender, receiver),
        _ => ("", ""),
    };
    Message {
        sender: sender.parse().ok(),
        receiver: receiver.parse().ok(),
    }
}

fn frame(node: Node<'_>) -> Option<StackFrame> {
    let line = node
        .get("line")
        .and_then(Node::int)
        .and_then(|line| line.try_into().ok());
    Some(StackFrame {
        function: clipped(node.get("name")?.text()?).into(),
        file: sanitize::end(node.get("filename")?.text()?, MAX_NAME).into(),
        line: line.unwrap_or(0),
    })
}

fn tensors(node: Node<'_>, sizes: &str, types: &str) -> Tensors {
    let types = node
        .get(types)
        .into_iter()
        .flat_map(Node::items)
        .take(MAX_TENSORS);
    let types = types.filter_map(Node::text).filter(|name| name.len() <= MAX_NAME);
    let types: Vec<&str> = types.collect();
    let sizes = node
        .get(sizes)
        .into_iter()
        .flat_map(Node::items)
        .take(MAX_TENSORS);
    let of_tensor = |(index, tensor): (usize, Node<'_>)| {
        let dimensions = tensor.items().take(MAX_DIMENSIONS).filter_map(Node::int);
        let count = dimensions.fold(1_u64, |count, size| {
            count.saturating_mul(u64::try_from(size).unwrap_or(0))
        });
        // For a list of tensors, only the type of the first one is recorded.
        let data_type = types.get(index).or(types.first());
        count.saturating_mul(data_type.map_or(1, |name| size_of_type(name)))
    };
    let bytes = sizes.enumerate().map(of_tensor).fold(0, u64::saturating_add);
    // Ranks without a tensor, such as ranks that are not the root, have no type.
    let mut distinct: Vec<&str> = types
        .into_iter()
        .filter(|name| !matches!(*name, "UNKNOWN_SCALAR" | "Undefined"))
        .collect();
    distinct.sort_unstable();
    distinct.dedup();
    Tensors {
        bytes,
        types: clipped(&distinct.join(" and ")),
    }
}

/// Returns the element size in bytes of a data type, given PyTorch's name for it.
fn size_of_type(name: &str) -> u64 {
    match name {
        "Double" | "Long" | "UInt64" | "ComplexFloat" => 8,
        "Float" | "Int" | "UInt32" | "ComplexHalf" => 4,
        "Half" | "BFloat16" | "Short" | "UInt16" => 2,
        "ComplexDouble" => 16,
        _ => 1,
    }
}
