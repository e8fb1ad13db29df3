//! Policy as data: the tables in `policy/`, read once. Code finds, tables decide.

/// The tables.
#[derive(Clone, Debug, Default)]
pub struct Policy {}
