//! The syntax of scripts. A script consists of words and `key=value` pairs separated by blanks. Values that contain
//! blanks are in double quotes.

use std::fmt;

/// Why a script is invalid. Columns count characters from 1.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScriptError {
    /// A quote is not closed.
    #[error("column {column}: the quote is never closed")]
    Unclosed {
        /// The column of the quote.
        column: usize,
    },
    /// A word is unknown.
    #[error("column {column}: unknown word {word:?}; known: {known}")]
    Unknown {
        /// Its column.
        column: usize,
        /// The word, or the key of a pair.
        word: String,
        /// The known words.
        known: &'static str,
    },
    /// A value is invalid.
    #[error("column {column}: {key}={value:?}: expected {expected}")]
    Value {
        /// The column of the value.
        column: usize,
        /// Its key.
        key: String,
        /// The value as written.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// A key occurs twice.
    #[error("column {column}: {key} is given twice")]
    Twice {
        /// The column of the second occurrence.
        column: usize,
        /// The key.
        key: String,
    },
    /// A key is missing.
    #[error("{key}= is missing; {expected}")]
    Missing {
        /// The key.
        key: &'static str,
        /// The valid values.
        expected: &'static str,
    },
}

/// One item of a script: a bare word, or a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Its column, from 1.
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
    /// Returns the value parsed by `read`, which returns `None` for an invalid value.
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

    /// Creates the error for an unknown word.
    pub fn unknown(&self, known: &'static str) -> ScriptError {
        ScriptError::Unknown {
            column: self.column,
            word: self.key.clone(),
            known,
        }
    }

    /// Returns the value as a count or a number of something.
    pub fn number<T: std::str::FromStr>(&self) -> Result<T, ScriptError> {
        self.read("a whole number", |text| text.parse().ok())
    }

    /// Returns the value as a finite decimal number within `range`.
    pub fn decimal(
        &self,
        expected: &'static str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<f64, ScriptError> {
        self.read(expected, |text| {
            text.parse().ok().filter(|value| range.contains(value))
        })
    }

    /// Returns the value as a duration, in seconds.
    pub fn seconds(&self) -> Result<f64, ScriptError> {
        self.read("a time such as 500ms, 6s or 2m", seconds)
    }
}

/// Maximum duration in a script, in seconds. It is one year.
const LONGEST_S: f64 = 366.0 * 86_400.0;

/// Parses durations such as `500ms`, `6s`, `2m` and `1h`.
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

/// Formats a value so that [`words`] parses it back.
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
