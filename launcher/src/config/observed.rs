//! Reads as much as possible of the `[observe]` section of an ignored file. A mistake elsewhere in the file must not
//! turn a finding that is only observed into one that sends notifications or takes out a node.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file::Page;
use super::raw::{Origin, Said};

const SECTION: &str = "observe";

/// The `[observe]` section of an ignored file.
#[derive(Default)]
pub(crate) struct Observed {
    /// The values that could be read, by dotted key.
    pub(crate) values: Vec<(String, Said)>,
    /// True if there may be more values, which could not be read.
    pub(crate) is_cut: bool,
}

impl Observed {
    /// Reads the section from the bytes of a file, valid or not.
    pub(crate) fn of(path: &Path, bytes: &[u8]) -> Observed {
        let text = String::from_utf8_lossy(bytes);
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let mut observed = Observed {
            // A zero byte means another encoding, in which not even single words can be recognized.
            is_cut: text.contains('\0'),
            ..Observed::default()
        };
        match DeTable::parse(text) {
            Ok(document) => observed.section(&Page { path, text }, document.get_ref(), 0),
            Err(_) => observed.lines(path, text),
        }
        observed
    }

    /// Reads the section line by line, because the file as a whole is not valid TOML.
    fn lines(&mut self, path: &Path, text: &str) {
        // Whether the current line is in the section. `None` before the first header, where a line may itself name the
        // section.
        let mut is_in = None;
        for (above, text) in text.lines().enumerate() {
            let page = Page { path, text };
            let is_header = text.trim_start().starts_with('[');
            match DeTable::parse(text) {
                Ok(line) if is_header => {
                    let found = line.get_ref().get(SECTION).map(Spanned::get_ref);
                    let table = found.and_then(DeValue::as_table);
                    is_in = Some(table.is_some_and(|table| table.is_empty()));
                    self.is_cut |= found.is_some() && is_in == Some(false);
                }
                Ok(line) if is_in == Some(true) => self.table(&page, line.get_ref(), above),
                Ok(line) if is_in.is_none() => self.section(&page, line.get_ref(), above),
                Ok(_) => {}
                Err(_) => {
                    self.is_cut |= is_in == Some(true) && !is_header || text.contains(SECTION);
                    is_in = if is_header { Some(false) } else { is_in };
                }
            }
        }
    }

    fn section(&mut self, page: &Page<'_>, document: &DeTable<'_>, above: usize) {
        match document.get(SECTION).map(Spanned::get_ref) {
            Some(DeValue::Table(table)) => self.table(page, table, above),
            other => self.is_cut |= other.is_some(),
        }
    }

    fn table(&mut self, page: &Page<'_>, table: &DeTable<'_>, above: usize) {
        for (name, value) in table.iter() {
            let Ok((key, mut said)) = page.observed(name, value) else {
                self.is_cut = true;
                continue;
            };
            if let Origin::File { line, .. } = &mut said.origin {
                *line += above;
            }
            self.values.push((key, said));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_observed_only_stands_whatever_else_is_wrong() {
        let one = "observe.straggler=1";
        for (text, expected, is_cut) in [
            (
                "[observe]\nstraggler = true\nslow-link = false\n",
                "observe.slow-link=0 observe.straggler=1",
                false,
            ),
            ("colour = 1\n[observe]\nstraggler = true\n", one, false),
            (
                "no toml at all\n[observe]\nstraggler = true\n[more]\nslow-link = true\n",
                one,
                false,
            ),
            ("[observe]\nno toml at all\nstraggler = true\n", one, true),
            (
                "[observe]\nstragler = true\nstall = 1\nslow-link = true\n",
                "observe.slow-link=1",
                true,
            ),
            ("observe = true\n", "", true),
            // Common spellings that can be read although the file is invalid TOML.
            (
                "no toml\n[observe] # my list\nstraggler = true # one\n\n",
                one,
                false,
            ),
            ("no toml\n  [ observe ]\n  straggler = true\n", one, false),
            ("no toml\n[\"observe\"]\n\"straggler\" = true\n", one, false),
            ("observe.straggler = true\nno toml\n", one, false),
            ("no toml\nobserve = { straggler = true }\n", one, false),
            ("\u{feff}[observe]\nstraggler = true\n[no toml\n", one, false),
            ("no toml\n[more]\nobserve.straggler = true\n", "", false),
            // Spellings of which a part or everything is lost.
            ("no toml\nobserve = {\n straggler = true }\n", "", true),
            ("no toml\n[observe\nstraggler = true\n", "", true),
            ("no toml\n[observe.more]\nstraggler = true\n", "", true),
            ("no toml\n[[observe]]\nstraggler = true\n", "", true),
            ("o\0b\0s\0e\0r\0v\0e\0", "", true),
        ] {
            let observed = Observed::of(Path::new("p.toml"), text.as_bytes());
            let mut rows: Vec<String> = observed
                .values
                .iter()
                .map(|(key, said)| format!("{key}={}", said.text))
                .collect();
            rows.sort();
            assert_eq!(
                (rows.join(" ").as_str(), observed.is_cut),
                (expected, is_cut),
                "{text}"
            );
        }
        let bytes = b"# Gr\xfc\xdfe\n[observe]\nstraggler = true\n";
        let observed = Observed::of(Path::new("p.toml"), bytes);
        assert_eq!(observed.values.len(), 1);
        let text = "no toml\n\n[observe]\n  straggler = true\n";
        let observed = Observed::of(Path::new("p.toml"), text.as_bytes());
        assert_eq!(observed.values[0].1.origin.to_string(), "p.toml:4:3");
    }
}
