//! Parses the table of nccl-tests. Output of NCCL, MPI and Slurm may be interleaved.

use std::collections::BTreeMap;

use super::{ImportError, dtype, of_program, report, timing};
use crate::collective::Collective;
use crate::measure::{RankPlace, Report, Row, Timing};
use crate::transport::nccl::version_text;

/// Number of the columns size, count, type, reduction and root.
const HEAD: usize = 5;
/// Number of the columns time, algbw, busbw and wrong elements.
const SIDE: usize = 4;
/// Number of these columns together with the per-iteration columns minimum, maximum, p99 and variation.
const LONG_SIDE: usize = 8;

/// Parses the text.
pub(super) fn read(text: &str, collective: Option<Collective>) -> Result<Report, ImportError> {
    let (mut said, mut side, mut ranks, mut results) = (None, SIDE, Vec::new(), Vec::new());
    let mut version = "nccl-tests".to_owned();
    let mut details = BTreeMap::from([("imported".to_owned(), "text".to_owned())]);
    for (line, text) in (1..).zip(text.lines()) {
        let text = untagged(text);
        let broken = |what| ImportError::Line { line, what };
        if let Some(comment) = text.strip_prefix('#') {
            let words: Vec<&str> = comment.split_whitespace().collect();
            match words.as_slice() {
                ["nccl-tests", "version", number, rest @ ..] => {
                    version = format!("nccl-tests {number}");
                    let library = rest.iter().find_map(|word| word.strip_prefix("nccl-library="));
                    details.extend(
                        library
                            .and_then(version_text)
                            .map(|text| ("nccl".to_owned(), text)),
                    );
                }
                ["Collective", "test", "starting:", program] => said = of_program(program).or(said),
                ["Rank", rest @ ..] => ranks.extend(rank(rest)),
                ["size", ..] if words.contains(&"i_min") => side = LONG_SIDE,
                _ => {}
            }
            continue;
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let is_row = words
            .first()
            .is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
        if is_row {
            results.push(row(&words, side).map_err(broken)?);
        }
    }
    report(version, details, (said, collective), ranks, results)
}

/// Removes the prefixes of MPI (`[1,0]<stdout>:`) and Slurm (`0: `).
fn untagged(line: &str) -> &str {
    let line = line.trim_start();
    if let Some((_, rest)) = line
        .split_once("]<stdout>:")
        .filter(|(tag, _)| tag.starts_with('['))
    {
        return rest.trim_start();
    }
    match line.split_once(": ") {
        Some((tag, rest)) if !tag.is_empty() && tag.bytes().all(|byte| byte.is_ascii_digit()) => {
            rest.trim_start()
        }
        _ => line,
    }
}

/// Parses a rank's line, such as `0 Group 0 Pid 6899 on host device 0 [0000:04:00] NVIDIA H100 80GB HBM3`. Before
/// version 2.13 the line has no group.
fn rank(words: &[&str]) -> Option<RankPlace> {
    let after = |word: &str| Some(*words.get(words.iter().position(|known| *known == word)? + 1)?);
    let device = words.iter().position(|word| *word == "device")? + 2;
    Some(RankPlace {
        rank: words.first()?.parse().ok()?,
        host: after("on")?.to_owned(),
        pid: after("Pid")?.parse().ok()?,
        device: words.get(device..)?.join(" "),
    })
}

fn row(words: &[&str], side: usize) -> Result<Row, String> {
    let needed = HEAD + 2 * side;
    if words.len() < needed {
        return Err(format!("{} columns in the place of {needed}", words.len()));
    }
    let (out_of_place, in_place) = (&words[HEAD..HEAD + side], &words[HEAD + side..needed]);
    Ok(Row {
        size: number("size", words[0])?,
        count: number("count", words[1])?,
        dtype: dtype(words[2])?,
        redop: words[3].to_owned(),
        root: number("root", words[4])?,
        out_of_place: half("out-of-place", out_of_place)?,
        in_place: half("in-place", in_place)?,
    })
}

fn number<T: std::str::FromStr>(column: &str, word: &str) -> Result<T, String> {
    word.parse()
        .map_err(|_| format!("{column} is {word}, which is not a number"))
}

/// Parses one half of a row. Returns `None` if it was not measured, which is the case for an all-to-all in place.
fn half(name: &str, words: &[&str]) -> Result<Option<Timing>, String> {
    if words[0] == "N/A" {
        return Ok(None);
    }
    let column = |at: usize, column: &str| -> Result<f64, String> {
        let value: f64 = number(&format!("{name} {column}"), words[at])?;
        let is_sound = value.is_finite() && value >= 0.0;
        if is_sound {
            Ok(value)
        } else {
            Err(format!("{name} {column} is {value}"))
        }
    };
    let values = [column(0, "time")?, column(1, "algbw")?, column(2, "busbw")?];
    // The number of wrong elements is printed as a float, such as `1e+06`.
    let wrong = if words[3] == "N/A" {
        None
    } else {
        Some(column(3, "#wrong")? as u64)
    };
    let mut timing = timing(values, wrong);
    if words.len() == LONG_SIDE {
        timing.p99 = column(6, "i_p99")?;
    }
    Ok(Some(timing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_put_before_a_line_is_taken_off() {
        for (line, rest) in [
            ("[1,0]<stdout>:#  Rank  0", "#  Rank  0"),
            ("[1,12]<stdout>:      8  2", "8  2"),
            ("0:  1048576  262144", "1048576  262144"),
            ("   8  2 float", "8  2 float"),
            ("# Avg bus bandwidth    : 106.5", "# Avg bus bandwidth    : 106.5"),
        ] {
            assert_eq!(untagged(line), rest);
        }
    }
}
