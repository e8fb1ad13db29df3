//! Tab-separated tables with `#` comments, a header with column names, and rows. Cells are looked up by column name.

use std::collections::BTreeMap;

/// Why a table cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{table}, line {line}: {what}")]
pub struct TableError {
    /// The table's file.
    pub table: &'static str,
    /// Its line, from 1.
    pub line: usize,
    /// The error.
    pub what: String,
}

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct Row<'a> {
    table: &'static str,
    line: usize,
    cells: BTreeMap<&'a str, &'a str>,
}

impl<'a> Row<'a> {
    /// Returns the cell of a column.
    pub fn text(&self, column: &str) -> Result<&'a str, TableError> {
        let missing = || self.error(format!("no column \"{column}\""));
        self.cells.get(column).copied().ok_or_else(missing)
    }

    /// Returns the cell parsed by `parse`.
    pub fn cell<T>(&self, column: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, TableError> {
        let text = self.text(column)?;
        parse(text).ok_or_else(|| self.error(format!("{column}: \"{text}\" is not understood")))
    }

    /// Returns the cell as the variant of that name.
    pub fn name<T: serde::de::DeserializeOwned>(&self, column: &str) -> Result<T, TableError> {
        self.cell(column, |text| {
            serde_json::from_value(serde_json::Value::String(text.to_owned())).ok()
        })
    }

    /// Creates an error in this row.
    pub fn error(&self, what: String) -> TableError {
        let (table, line) = (self.table, self.line);
        TableError { table, line, what }
    }
}

/// Returns the rows of `text`, in order. Missing cells at the end of a line are empty.
pub(crate) fn rows<'a>(table: &'static str, text: &'a str) -> Result<Vec<Row<'a>>, TableError> {
    let mut lines = (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty());
    let head: Vec<&str> = lines.next().map_or("", |(_, head)| head).split('\t').collect();
    let row = |(line, text): (usize, &'a str)| {
        let cells: Vec<&str> = text.split('\t').collect();
        if cells.len() > head.len() {
            let what = format!("{} cells in {} columns", cells.len(), head.len());
            return Err(TableError { table, line, what });
        }
        let rest = std::iter::repeat("");
        let cells = head.iter().copied().zip(cells.into_iter().chain(rest)).collect();
        Ok(Row { table, line, cells })
    };
    lines.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_by_name_and_errors_with_their_place() {
        let text = "# why\na\tb\n1\tx\n\n2\n";
        let rows = super::rows("t.tsv", text).unwrap();
        let number = |text: &str| text.parse::<u32>().ok();
        assert_eq!(rows[0].cell("a", number), Ok(1));
        assert_eq!(rows[1].text("b"), Ok(""));
        let told = |error: TableError| error.to_string();
        assert_eq!(
            rows[0].cell("b", number).map_err(told),
            Err("t.tsv, line 3: b: \"x\" is not understood".to_owned())
        );
        assert_eq!(
            rows[1].text("c").map_err(told),
            Err("t.tsv, line 5: no column \"c\"".to_owned())
        );
        assert!(super::rows("t.tsv", "a\n1\t2\n").is_err());
    }
}
