//! The NVML definitions of each driver. They are in `tables/nvml.tsv`, which `tables/generate.py` writes from NVIDIA's
//! headers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// The table generated from nvml.h.
const TABLE: &str = include_str!("../tables/nvml.tsv");

/// The kind of a row in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A `#define` that is none of the kinds below.
    Constant,
    /// The version number of a structure.
    Structure,
    /// The bit of an event type.
    Event,
    /// The number of a field.
    Field,
    /// A function; its number is 1.
    Function,
}

/// The parsed table.
struct Table {
    /// The first driver version of each column, such as `580.82`.
    drivers: Vec<&'static str>,
    /// Numbers by kind and name, one number per column.
    rows: BTreeMap<(Kind, &'static str), Vec<Option<u64>>>,
    /// Names by column and field number. The index is needed because GPUs are queried for many fields each second.
    fields: BTreeMap<(usize, u64), Vec<&'static str>>,
}

static READ: LazyLock<Table> = LazyLock::new(|| {
    let mut lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let head = lines.next().unwrap_or_default();
    let rows = lines.filter_map(|line| {
        let mut cells = line.split('\t');
        let kind = match cells.next()? {
            "constant" => Kind::Constant,
            "structure" => Kind::Structure,
            "event" => Kind::Event,
            "field" => Kind::Field,
            "function" => Kind::Function,
            _ => return None,
        };
        let name = cells.next()?;
        Some(((kind, name), cells.map(|cell| cell.parse().ok()).collect()))
    });
    let rows: BTreeMap<(Kind, &str), Vec<Option<u64>>> = rows.collect();
    let mut fields: BTreeMap<(usize, u64), Vec<&str>> = BTreeMap::new();
    for ((_, name), row) in rows.iter().filter(|((kind, _), _)| *kind == Kind::Field) {
        for (column, number) in row.iter().enumerate() {
            if let Some(number) = number {
                fields.entry((column, *number)).or_default().push(name);
            }
        }
    }
    Table {
        drivers: head.split('\t').skip(2).collect(),
        rows,
        fields,
    }
});

/// Returns the major and minor number of a driver's version; zero for missing parts.
fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map_while(|part| part.parse().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Returns the first driver version of each column of the table, oldest first.
pub fn all() -> &'static [&'static str] {
    &READ.drivers
}

/// One driver, given by its column in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver(usize);

impl Driver {
    /// Returns the newest driver of the table that is not newer than this version, such as `580.82.07`. If the version
    /// is older than all of them, returns the oldest.
    pub fn of(text: &str) -> Driver {
        let wanted = version(text);
        let newest = READ.drivers.iter().rposition(|driver| version(driver) <= wanted);
        Driver(newest.unwrap_or(0))
    }

    /// Returns the number that this driver's header has for a name, or `None` if it does not define the name.
    pub fn number(self, kind: Kind, name: &str) -> Option<u64> {
        READ.rows.get(&(kind, name)).and_then(|row| *row.get(self.0)?)
    }

    /// Returns every name of a kind that this driver's header defines, with its number.
    pub fn names(self, kind: Kind) -> impl Iterator<Item = (&'static str, u64)> {
        let of_kind = READ.rows.iter().filter(move |((of, _), _)| *of == kind);
        of_kind.filter_map(move |((_, name), row)| Some((*name, (*row.get(self.0)?)?)))
    }

    /// Returns the names that a field number has in this driver's header. One number may have several names.
    pub fn fields(self, id: u32) -> &'static [&'static str] {
        let names = READ.fields.get(&(self.0, u64::from(id)));
        names.map_or(&[], Vec::as_slice)
    }

    /// Returns true if this driver's header declares a function.
    pub fn declares(self, function: &str) -> bool {
        self.number(Kind::Function, function).is_some()
    }

    /// Returns this library's file, changed for the driver: it lacks the functions that the driver's header does not
    /// declare.
    ///
    /// A library's symbols cannot change while it is loaded, so those names are changed in the file, in the string
    /// table of its symbols. The hash table still contains the old names, and the subsequent comparison of names fails.
    pub fn library(self, mut file: Vec<u8>) -> Vec<u8> {
        let functions = READ.rows.iter().filter(|((kind, _), _)| *kind == Kind::Function);
        let missing: BTreeSet<&[u8]> = functions
            .filter(|(_, row)| row.get(self.0).is_some_and(Option::is_none))
            .map(|((_, name), _)| name.as_bytes())
            .collect();
        for text in file.split_mut(|byte| *byte == 0) {
            if text.starts_with(b"nvml") && missing.contains(&*text) {
                text[0] = b'-';
            }
        }
        file
    }
}
