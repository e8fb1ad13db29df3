//! Parses and writes host lists such as `n[1-3,07],gpu-[001-002]-ib,login`, from Slurm or written by hand.

/// Limit of names in one list.
pub const MOST: usize = 65_536;

/// Why a list is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host list \"{list}\", column {column}: {what}")]
pub struct HostListError {
    /// The list.
    pub list: String,
    /// The position of the error, from 1.
    pub column: usize,
    /// The error.
    pub what: &'static str,
}

/// Returns the names in a list, in order and without duplicates.
pub fn expand(list: &str) -> Result<Vec<String>, HostListError> {
    let wrong = |column: usize, what| HostListError {
        list: list.chars().take(200).collect(),
        column: column + 1,
        what,
    };
    let mut names: Vec<String> = Vec::new();
    for (begin, item) in items(list).map_err(|(at, what)| wrong(at, what))? {
        let more = expand_one(item).map_err(|(at, what)| wrong(begin + at, what))?;
        if names.len() + more.len() > MOST {
            return Err(wrong(begin, "more than 65,536 names"));
        }
        names.extend(more);
    }
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(names)
}

type Wrong = (usize, &'static str);

/// Returns the items between commas (or white space) outside brackets, with their positions.
fn items(list: &str) -> Result<Vec<(usize, &str)>, Wrong> {
    let (mut pieces, mut begin, mut open) = (Vec::new(), 0, None);
    for (at, c) in list.char_indices() {
        match c {
            '[' if open.is_some() => return Err((at, "a bracket within brackets")),
            '[' => open = Some(at),
            ']' if open.take().is_none() => return Err((at, "a bracket that was not opened")),
            ',' | ' ' | '\n' | '\t' | '\r' if open.is_none() => {
                pieces.push((begin, &list[begin..at]));
                begin = at + 1;
            }
            _ => {}
        }
    }
    if let Some(at) = open {
        return Err((at, "a bracket that is not closed"));
    }
    pieces.push((begin, &list[begin..]));
    pieces.retain(|(_, piece)| !piece.is_empty());
    Ok(pieces)
}

fn expand_one(item: &str) -> Result<Vec<String>, Wrong> {
    let mut names = vec![String::new()];
    let mut at = 0;
    while at < item.len() {
        let rest = &item[at..];
        let literal = rest.find('[').unwrap_or(rest.len());
        for name in &mut names {
            name.push_str(&rest[..literal]);
        }
        at += literal;
        if at >= item.len() {
            break;
        }
        // `items` ensures that every bracket is closed.
        let close = item[at..].find(']').unwrap_or(item.len() - at - 1);
        let numbers = ranges(&item[at + 1..at + close]).map_err(|what| (at, what))?;
        if names.len() * numbers.len() > MOST {
            return Err((at, "more than 65,536 names"));
        }
        names = names
            .iter()
            .flat_map(|name| numbers.iter().map(move |number| format!("{name}{number}")))
            .collect();
        at += close + 1;
    }
    Ok(names)
}

/// Parses ranges such as `1-3,07`. Numbers keep the width of the first number in their range.
fn ranges(text: &str) -> Result<Vec<String>, &'static str> {
    let mut numbers = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<u64>().ok()).flatten()
        };
        let (Some(from), Some(to)) = (number(first), number(last)) else {
            return Err("brackets hold numbers and ranges of numbers");
        };
        if from > to {
            return Err("a range that ends before it begins");
        }
        if to - from >= MOST as u64 || numbers.len() + (to - from) as usize >= MOST {
            return Err("more than 65,536 names");
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

/// Returns the names as one list with ranges. This is the inverse of `expand`.
pub fn compress<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut parts: Vec<String> = Vec::new();
    // The current run has a prefix, a width, and the numbers.
    let mut run: Option<(&str, usize, Vec<u64>)> = None;
    for name in names {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        // 18 digits fit into a u64. Longer numbers are treated as part of the name.
        let digits = if digits > 18 { 0 } else { digits };
        let (prefix, number) = name.split_at(name.len() - digits);
        match (number.parse::<u64>(), &mut run) {
            (Ok(value), Some((known, width, values))) if *known == prefix && *width == number.len() => {
                values.push(value);
            }
            (Ok(value), _) => {
                parts.extend(run.take().map(close));
                run = Some((prefix, number.len(), vec![value]));
            }
            (Err(_), _) => {
                parts.extend(run.take().map(close));
                parts.push(name.to_owned());
            }
        }
    }
    parts.extend(run.map(close));
    parts.join(",")
}

fn close((prefix, width, values): (&str, usize, Vec<u64>)) -> String {
    if let [one] = values[..] {
        return format!("{prefix}{one:0width$}");
    }
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for value in values {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == value => *last = value,
            _ => ranges.push((value, value)),
        }
    }
    let text: Vec<String> = ranges
        .into_iter()
        .map(|(from, to)| {
            if from == to {
                format!("{from:0width$}")
            } else {
                format!("{from:0width$}-{to:0width$}")
            }
        })
        .collect();
    format!("{prefix}[{}]", text.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists() {
        let check = |list: &str, wanted: &[&str]| assert_eq!(expand(list).unwrap(), wanted, "{list}");
        check("", &[]);
        check("n1", &["n1"]);
        check("n1, n2\nn3 n1", &["n1", "n2", "n3"]);
        check("n[1-3,07],x", &["n1", "n2", "n3", "n07", "x"]);
        check(
            "r[1-2]n[08-10]-ib",
            &[
                "r1n08-ib", "r1n09-ib", "r1n10-ib", "r2n08-ib", "r2n09-ib", "r2n10-ib",
            ],
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let check = |list: &str, column, what| {
            let error = expand(list).unwrap_err();
            assert_eq!((error.column, error.what), (column, what), "{list}");
        };
        check("a,n[1-3", 4, "a bracket that is not closed");
        check("n1]", 3, "a bracket that was not opened");
        check("n[1-[2]", 5, "a bracket within brackets");
        check("n[3-1]", 2, "a range that ends before it begins");
        check("n[x]", 2, "brackets hold numbers and ranges of numbers");
        check("n[0-99999999999999999]", 2, "more than 65,536 names");
        check("n[0-999]m[0-999]", 10, "more than 65,536 names");
    }

    #[test]
    fn names_become_ranges() {
        let check = |names: &[&str], wanted: &str| {
            let list = compress(names.iter().copied());
            assert_eq!(list, wanted);
            assert_eq!(expand(&list).unwrap(), names);
        };
        check(&[], "");
        check(&["n1", "n2", "n3", "n5", "login"], "n[1-3,5],login");
        check(&["n08", "n09", "n10"], "n[08-10]");
        check(&["n9", "n10"], "n9,n10");
    }

    proptest! {
        #[test]
        fn nothing_panics(list in "[a-c\\[\\]0-9,\\- ]{0,40}") {
            let _ = expand(&list);
        }
    }
}
