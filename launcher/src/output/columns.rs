//! Formats a table on a terminal. The columns are side by side or, if they do not fit, the cells of a row are below
//! each other.

use std::fmt::Write as _;

use super::{Paint, Style};

/// Indentation of the cells below the first one, if a row takes several lines.
const INDENT: &str = "  ";

/// A column other than the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    head: &'static str,
    /// Width in characters. The last column may be longer. 0 means no padding, after one more space.
    width: usize,
}

impl Column {
    /// Creates a right-aligned column of numbers.
    pub(crate) const fn right(head: &'static str, width: usize) -> Column {
        Column { head, width }
    }

    /// Creates the last column, which contains text.
    pub(crate) const fn words(head: &'static str) -> Column {
        Column { head, width: 0 }
    }

    fn cell(self, text: &str) -> String {
        match self.width {
            0 => format!("  {text}"),
            width => format!(" {text:>width$}"),
        }
    }
}

/// Formats a table. `first` is the heading and width of the first column. A row has the cell of the first column and
/// those of the others.
pub(crate) fn columns<const N: usize>(
    first: (&str, usize),
    others: [Column; N],
    rows: &[(String, [String; N])],
    style: Style,
) -> String {
    let (head, name) = first;
    let beside = |head: &str, cells: [&str; N]| {
        let cells = others.iter().zip(cells).map(|(column, text)| column.cell(text));
        format!("{head:name$}{}", cells.collect::<String>())
    };
    let wide: usize = name + others.iter().map(|column| column.width + 1).sum::<usize>();
    let mut text = String::new();
    if wide <= style.width {
        let heads = beside(head, others.map(|column| column.head));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", style.paint(Paint::Faint, heads.trim_end()));
    }
    for (first, cells) in rows {
        if wide <= style.width {
            let line = beside(first, cells.each_ref().map(String::as_str));
            let _ = writeln!(text, "{}", line.trim_end());
            continue;
        }
        let _ = writeln!(text, "{first}");
        for (column, cell) in others.iter().zip(cells).filter(|(_, cell)| !cell.is_empty()) {
            for line in super::wrap(&format!("{} {cell}", column.head), style.width - INDENT.len()) {
                let _ = writeln!(text, "{INDENT}{line}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_below() {
        let style = |width| Style {
            color: false,
            unicode: true,
            width,
        };
        let rows = [(
            "step".to_owned(),
            ["1.0 ms".to_owned(), "slow, for long".to_owned()],
        )];
        let shown = |width| {
            let others = [Column::right("A", 9), Column::words("what")];
            columns(("", 6), others, &rows, style(width))
        };
        assert_eq!(
            shown(17),
            "               A  what\nstep      1.0 ms  slow, for long\n"
        );
        assert_eq!(shown(16), "step\n  A 1.0 ms\n  what slow, for\n  long\n");
    }
}
