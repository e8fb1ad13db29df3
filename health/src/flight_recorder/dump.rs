//! What PyTorch's flight recorder of one rank has written
//! (<https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html>), formats 2.1 to 2.10.

use std::collections::BTreeMap;

use super::pickle::{Node, Pickle, PickleError};
use crate::event::StackFrame;
use crate::id::Rank;

/// Most entries, members of a group and frames that are read: the recorder keeps 2,000 entries where nothing else is
/// asked for.
const MAX_ENTRIES: usize = 100_000;
const MAX_RANKS: usize = 1 << 17;
const MAX_TENSORS: usize = 4096;
const MAX_DIMENSIONS: usize = 16;
const MAX_FRAMES: usize = 64;

/// The last entries of a group, and the first ones that have not ended, that are kept: where ranks differ. A large job
/// has many dumps.
const KEPT: usize = 64;

/// A dump that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// No pickle, or a pickle of more than basic types.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// A pickle of something else.
    #[error("no dump of PyTorch's flight recorder: it has no version and entries")]
    NoDump,
    /// A format to come.
    #[error("a dump of format {0}: formats 2.1 to 2.x are read")]
    Version(String),
}

/// One rank's collectives, as they were enqueued.
#[derive(Debug)]
pub struct Dump {
    /// By name.
    pub(super) groups: BTreeMap<String, Group>,
    /// The oldest first.
    pub(super) entries: Vec<Entry>,
    /// The recorder has forgotten none.
    pub(super) is_whole: bool,
}

/// A process group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) name: String,
    /// What the program calls it; empty: nothing.
    pub(super) description: String,
    /// Global ranks, by their rank in the group; empty: not known.
    pub(super) members: Vec<Rank>,
}

/// An operation that a rank has enqueued.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The group's name.
    pub(super) group: String,
    /// Its number among the group's collectives; of a message, among the group's messages.
    pub(super) sequence: u64,
    /// `all_reduce`, `send 1->2`.
    pub(super) name: String,
    /// A message from one rank to another, as (sender, receiver), which are ranks of the group.
    pub(super) message: Option<(usize, usize)>,
    /// Bytes of its inputs and of its outputs.
    pub(super) bytes: (u64, u64),
    /// Data types of both.
    pub(super) types: String,
    /// It has ended on the GPU.
    pub(super) is_completed: bool,
    /// The innermost frame of the user's own code from which it was enqueued.
    pub(super) at: Option<StackFrame>,
}

impl Dump {
    /// Decodes one; nothing in it is executed.
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
        // None: nothing was enqueued.
        let entries = root.get("entries").into_iter().flat_map(Node::items);
        let nodes: Vec<Node<'_>> = entries.take(MAX_ENTRIES).collect();
        let mut groups = BTreeMap::new();
        for (name, group) in root.get("pg_config").into_iter().flat_map(Node::pairs) {
            if let Some(name) = name.text() {
                groups.insert(name.to_owned(), configured(name, group));
            }
        }
        let mut entries = Vec::with_capacity(nodes.len());
        for node in &nodes {
            if let Some((entry, description)) = entry(*node) {
                // Older formats do not list groups.
                let group = groups.entry(entry.group.clone());
                group.or_insert_with(|| Group {
                    name: entry.group.clone(),
                    description,
                    members: Vec::new(),
                });
                entries.push(entry);
            }
        }
        let first = nodes.first().and_then(|node| node.get("record_id")?.int());
        Ok(Dump {
            groups,
            entries: kept(entries),
            is_whole: first.is_none_or(|first| first == 0),
        })
    }
}

/// The last ones of each group, and the first that have not ended.
fn kept(mut entries: Vec<Entry>) -> Vec<Entry> {
    fn count<'a>(counts: &mut BTreeMap<&'a str, usize>, entry: &'a Entry) -> usize {
        let count = counts.entry(&entry.group).or_default();
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

fn configured(name: &str, group: Node<'_>) -> Group {
    let ranks = group.get("ranks").and_then(Node::text).unwrap_or("");
    let ranks = ranks
        .trim_matches(['[', ']'])
        .split(',')
        .filter_map(|rank| rank.trim().parse().ok());
    let description = group.get("desc").and_then(Node::text).unwrap_or("");
    Group {
        name: name.to_owned(),
        description: described(description),
        members: ranks.take(MAX_RANKS).map(Rank).collect(),
    }
}

/// What PyTorch writes where a program names nothing says nothing.
fn described(description: &str) -> String {
    match description {
        "undefined" | "default_pg" => String::new(),
        named => named.to_owned(),
    }
}

/// With its group's description.
fn entry(node: Node<'_>) -> Option<(Entry, String)> {
    let number = |key| {
        node.get(key)
            .and_then(Node::int)
            .and_then(|int| u64::try_from(int).ok())
    };
    let mut group = node.get("process_group")?.items();
    let (group, description) = (group.next()?.text()?, group.next().and_then(Node::text));
    let profiled = node.get("profiling_name").and_then(Node::text)?;
    let name = plain(profiled.rsplit_once(':').map_or(profiled, |(_, name)| name));
    let is_message = node
        .get("is_p2p")
        .and_then(Node::bool)
        .unwrap_or_else(|| name.starts_with("send ") || name.starts_with("recv "));
    // Format 2.1 has one number for both.
    let sequence = match is_message {
        true => number("p2p_seq_id"),
        false => number("collective_seq_id"),
    };
    let frames = node.get("frames").into_iter().flat_map(Node::items);
    let mut frames = frames.take(MAX_FRAMES).filter_map(frame);
    let types = |key| {
        let types = node.get(key).into_iter().flat_map(Node::items);
        types.filter_map(Node::text).take(MAX_TENSORS).collect::<Vec<_>>()
    };
    let (input_types, output_types) = (types("input_dtypes"), types("output_dtypes"));
    let mut distinct: Vec<&str> = [&*input_types, &*output_types].concat();
    distinct.sort_unstable();
    distinct.dedup();
    let entry = Entry {
        group: group.to_owned(),
        sequence: sequence.or_else(|| number("seq_id"))?,
        message: if is_message { ends(&name) } else { None },
        bytes: (
            bytes(node.get("input_sizes"), &input_types),
            bytes(node.get("output_sizes"), &output_types),
        ),
        types: distinct.join(", "),
        is_completed: node.get("state").and_then(Node::text) == Some("completed"),
        at: frames.find(StackFrame::is_own),
        name,
    };
    Some((entry, described(description.unwrap_or(""))))
}

/// `_all_gather_base`, `ALLGATHER_coalesced` and `all_reduce_barrier`, as programs call them.
fn plain(name: &str) -> String {
    let name = name.trim_start_matches('_').trim_end_matches("_base");
    let name = name.to_ascii_lowercase();
    match name.strip_prefix("allgather") {
        Some(rest) => format!("all_gather{rest}"),
        None if name == "all_reduce_barrier" => "barrier".to_owned(),
        None => name,
    }
}

/// Sender and receiver of `send 1->2` and `recv 2<-1`.
pub(super) fn ends(name: &str) -> Option<(usize, usize)> {
    let ends = name.split_once(' ')?.1;
    if let Some((sender, receiver)) = ends.split_once("->") {
        return Some((sender.parse().ok()?, receiver.parse().ok()?));
    }
    let (receiver, sender) = ends.split_once("<-")?;
    Some((sender.parse().ok()?, receiver.parse().ok()?))
}

fn frame(node: Node<'_>) -> Option<StackFrame> {
    let line = node
        .get("line")
        .and_then(Node::int)
        .and_then(|line| line.try_into().ok());
    Some(StackFrame {
        function: node.get("name")?.text()?.into(),
        file: node.get("filename")?.text()?.into(),
        line: line.unwrap_or(0),
    })
}

/// Of tensors with these sizes, by dimension.
fn bytes(sizes: Option<Node<'_>>, types: &[&str]) -> u64 {
    let tensors = sizes.into_iter().flat_map(Node::items).take(MAX_TENSORS);
    let of_tensor = |(index, tensor): (usize, Node<'_>)| {
        let dimensions = tensor.items().take(MAX_DIMENSIONS).filter_map(Node::int);
        let count = dimensions.fold(1_u64, |count, size| {
            count.saturating_mul(u64::try_from(size).unwrap_or(0))
        });
        // Of lists of tensors the types are those of the first.
        let data_type = types.get(index).or(types.first());
        count.saturating_mul(data_type.map_or(1, |name| size_of_type(name)))
    };
    tensors.enumerate().map(of_tensor).fold(0, u64::saturating_add)
}

/// Bytes of an element, by PyTorch's names of types.
fn size_of_type(name: &str) -> u64 {
    match name {
        "Double" | "Long" | "UInt64" | "ComplexFloat" => 8,
        "Float" | "Int" | "UInt32" | "ComplexHalf" => 4,
        "Half" | "BFloat16" | "Short" | "UInt16" => 2,
        "ComplexDouble" => 16,
        _ => 1,
    }
}
