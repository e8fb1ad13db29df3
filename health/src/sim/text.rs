//! The text of scripts: words and `key=value` pairs parted by blanks, values in double quotes when they hold one.

use std::fmt;

/// Why a script is not one. Columns count characters from 1.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScriptError {
    /// A quote that nothing closes.
    #[error("column {column}: the quote is never closed")]
    Unclosed {
        /// Where it opens.
        column: usize,
    },
    /// A word that means nothing here.
    #[error("column {column}: unknown word {word:?}; known: {known}")]
    Unknown {
        /// Where it stands.
        column: usize,
        /// The word, or the key of a pair.
        word: String,
        /// What could stand there.
        known: &'static str,
    },
    /// A value of the wrong form.
    #[error("column {column}: {key}={value:?}: expected {expected}")]
    Value {
        /// Where the value stands.
        column: usize,
        /// Its key.
        key: String,
        /// The value as written.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The same key twice.
    #[error("column {column}: {key} is given twice")]
    Twice {
        /// Where the second stands.
        column: usize,
        /// The key.
        key: String,
    },
    /// Something that must be said and is not.
    #[error("{key}= is missing; {expected}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What it should be.
        expected: &'static str,
    },
}

/// One word: bare, or a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Where it begins, characters from 1.
    pub column: usize,
    /// The word, or the key of the pair.
    pub key: String,
    /// The value of the pair.
    pub value: Option<String>,
}

/// Splits a script into its words.
pub(super) fn words(text: &str) -> Result<Vec<Word>, ScriptError> {
    let mut found = Vec::new();
    let mut chars = text.chars().enumerate().peekable();
    while let Some(&(at, first)) = chars.peek() {
        if first.is_whitespace() {
            chars.next();
            continue;
        }
        let mut word = Word {
            column: at + 1,
            key: String::new(),
            value: None,
        };
        let mut quote = None;
        while let Some(&(at, c)) = chars.peek() {
            if quote.is_none() && c.is_whitespace() {
                break;
            }
            chars.next();
            match (c, &mut word.value) {
                ('"', _) if quote.is_some() => quote = None,
                ('"', _) => quote = Some(at + 1),
                ('=', value @ None) if quote.is_none() => *value = Some(String::new()),
                (_, None) => word.key.push(c),
                (_, Some(value)) => value.push(c),
            }
        }
        if let Some(column) = quote {
            return Err(ScriptError::Unclosed { column });
        }
        found.push(word);
    }
    Ok(found)
}

impl Word {
    /// The value, read by `read`, which gives nothing for a value of the wrong form.
    pub fn read<T>(
        &self,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ScriptError> {
        self.value
            .as_deref()
            .and_then(read)
            .ok_or_else(|| ScriptError::Value {
                column: self.column + self.key.chars().count() + 1,
                key: self.key.clone(),
                value: self.value.clone().unwrap_or_default(),
                expected,
            })
    }

    /// The error that says that this word means nothing here.
    pub fn unknown(&self, known: &'static str) -> ScriptError {
        ScriptError::Unknown {
            column: self.column,
            word: self.key.clone(),
            known,
        }
    }

    /// The value as a count or a number of something.
    pub fn number<T: std::str::FromStr>(&self) -> Result<T, ScriptError> {
        self.read("a whole number", |text| text.parse().ok())
    }

    /// The value as a finite decimal number within `range`.
    pub fn decimal(
        &self,
        expected: &'static str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<f64, ScriptError> {
        self.read(expected, |text| {
            text.parse().ok().filter(|value| range.contains(value))
        })
    }

    /// The value as a span of time, seconds.
    pub fn seconds(&self) -> Result<f64, ScriptError> {
        self.read("a time such as 500ms, 6s or 2m", seconds)
    }
}

/// Longest span that a script can name: a year, seconds.
const LONGEST_S: f64 = 366.0 * 86_400.0;

/// Reads `500ms`, `6s`, `2m`, `1h`.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let scale = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let number: f64 = text[..text.len() - unit.len()].parse().ok()?;
    Some(number * scale).filter(|span| (0.0..=LONGEST_S).contains(span))
}

/// Writes a value so that [`words`] reads it back.
pub(super) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() || self.0.contains(char::is_whitespace) {
            write!(f, "\"{}\"", self.0)
        } else {
            f.write_str(self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(text: &str) -> Result<Vec<(usize, String, Option<String>)>, ScriptError> {
        Ok(words(text)?
            .into_iter()
            .map(|word| (word.column, word.key, word.value))
            .collect())
    }

    #[test]
    fn words_keep_their_place() {
        let read = flat(r#" slow  rank=3 model="Simulated H100" x=a=b"#);
        let pair = |at, key: &str, value: &str| (at, key.to_owned(), Some(value.to_owned()));
        assert_eq!(
            read,
            Ok(vec![
                (2, "slow".to_owned(), None),
                pair(8, "rank", "3"),
                pair(15, "model", "Simulated H100"),
                pair(38, "x", "a=b"),
            ])
        );
        assert_eq!(flat(r#"a="b c"#), Err(ScriptError::Unclosed { column: 3 }));
    }

    #[test]
    fn times_need_a_unit() {
        for (text, expected) in [
            ("6s", Some(6.0)),
            ("500ms", Some(0.5)),
            ("1.5m", Some(90.0)),
            ("1h", Some(3600.0)),
            ("6", None),
            ("s", None),
            ("-1s", None),
            ("1e9s", None),
            ("9999999h", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
