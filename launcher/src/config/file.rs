//! Parses one configuration file and keeps the positions of its values. Unknown keys are errors, and the message has
//! the file, line, column and the key that was probably meant.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{KEYS, Kind};
use super::policy::SECTIONS;
use super::raw::{Origin, Said};
use crate::output::{Usage, nearest};

/// Returns the values of `text`, by dotted key.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Vec<(String, Said)>, Usage> {
    let page = Page { path, text };
    let document = DeTable::parse(text)
        .map_err(|problem| page.wrong(problem.span().map_or(0, |span| span.start), problem.message()))?;
    let mut values = Vec::new();
    for (key, value) in document.get_ref().iter() {
        match page.policy(key.get_ref(), value, &mut values) {
            Some(taken) => taken?,
            None => values.push((key.get_ref().to_string(), page.setting(key, value)?)),
        }
    }
    Ok(values)
}

pub(super) struct Page<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Page<'_> {
    fn setting(&self, key: &Spanned<impl AsRef<str>>, value: &Spanned<DeValue<'_>>) -> Result<Said, Usage> {
        let name = key.get_ref().as_ref();
        let Some(known) = KEYS.iter().find(|known| known.name == name) else {
            let names = KEYS.iter().map(|known| known.name).chain(SECTIONS);
            return Err(self.unknown(key.span().start, name, "", names));
        };
        let text = match (known.kind, value.get_ref()) {
            (Kind::Text | Kind::Words(_), DeValue::String(text)) => text.to_string(),
            (Kind::Switch, DeValue::Boolean(on)) => on.to_string(),
            (Kind::Number, DeValue::Integer(number)) if number.radix() == 10 => {
                number.as_str().replace('_', "")
            }
            (Kind::Words(between), DeValue::Array(words))
                if words.iter().all(|word| word.get_ref().is_str()) =>
            {
                let words: Vec<&str> = words.iter().filter_map(|word| word.get_ref().as_str()).collect();
                words.join(between)
            }
            (kind, other) => {
                let wants = match kind {
                    Kind::Text => "a string",
                    Kind::Switch => "true or false",
                    Kind::Number => "a whole number",
                    Kind::Words(_) => "a string or a list of strings",
                };
                let message = format!("{name} must be {wants}, not {}", article(other.type_str()));
                return Err(self.wrong(value.span().start, &message));
            }
        };
        Ok(self.said(text, key.span().start))
    }

    pub(super) fn said(&self, text: String, at: usize) -> Said {
        let (line, column) = place(self.text, at);
        Said {
            text,
            origin: Origin::File {
                path: self.path.to_owned(),
                line,
                column,
            },
        }
    }

    pub(super) fn unknown<'n>(
        &self,
        at: usize,
        name: &str,
        within: &str,
        known: impl Iterator<Item = &'n str>,
    ) -> Usage {
        let mut known: Vec<&str> = known.collect();
        known.dedup();
        let hint = match nearest(name, known.iter().copied()) {
            Some(meant) => format!("did you mean `{within}{meant}`?"),
            None => format!("known are: {}", known.join(", ")),
        };
        self.wrong(at, &format!("unknown key `{within}{name}`; {hint}"))
    }

    pub(super) fn wrong(&self, at: usize, message: &str) -> Usage {
        let (line, column) = place(self.text, at);
        Usage(format!("{}:{line}:{column}: {message}", self.path.display()))
    }
}

/// Returns the line and column of a byte offset, both starting at 1. Columns count characters.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

pub(super) fn article(kind: &str) -> String {
    let vowel = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if vowel { "an" } else { "a" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        parse(Path::new("p.toml"), text).unwrap_err().0
    }

    #[test]
    fn values_keep_their_place() {
        let text = "job = \"x\"\n\n[detector.impact]\n  warning_ratio = 0.05\n";
        let values = parse(Path::new("p.toml"), text).unwrap();
        let rows: Vec<String> = values
            .iter()
            .map(|(key, said)| format!("{key}={} {}", said.text, said.origin))
            .collect();
        assert_eq!(
            rows.join("; "),
            "detector.impact.warning_ratio=0.05 p.toml:4:3; job=x p.toml:1:1"
        );
    }

    #[test]
    fn complaints_name_the_place_and_what_was_meant() {
        for (text, expected) in [
            (
                "job = \"x\"\nrun-dir = \"y\"\n",
                "p.toml:2:1: unknown key `run-dir`; did you mean `run_dir`?",
            ),
            (
                "quiet = \"yes\"\n",
                "p.toml:1:9: quiet must be true or false, not a string",
            ),
            ("job = 3\n", "p.toml:1:7: job must be a string, not an integer"),
            (
                "stop_grace = \"1m\"\n",
                "p.toml:1:14: stop_grace must be a whole number, not a string",
            ),
            (
                "notify = [1]\n",
                "p.toml:1:10: notify must be a string or a list of strings, not an array",
            ),
            (
                "[detector.impact]\nwarnin_ratio = 1\n",
                "p.toml:2:1: unknown key `detector.impact.warnin_ratio`; did you mean `detector.impact.warning_ratio`?",
            ),
            (
                "[detector.impct]\nwarning_ratio = 1\n",
                "p.toml:1:11: unknown key `detector.impct`; did you mean `detector.impact`?",
            ),
            (
                "[detector.impact]\nwarning_ratio = true\n",
                "p.toml:2:17: impact.warning_ratio must be a number, not a boolean",
            ),
            (
                "detector = 1\n",
                "p.toml:1:12: detector must be a table of numbers",
            ),
        ] {
            assert_eq!(complaint(text), expected);
        }
        assert!(
            complaint("colour = \"x\"\n").starts_with("p.toml:1:1: unknown key `colour`; known are: job,")
        );
        assert!(complaint("job = \"x\n").starts_with("p.toml:1:"));
    }
}
