//! Determines the meaning of a plain word. kubectl reads YAML 1.1 (<https://yaml.org/type/>), as implemented by
//! gopkg.in/yaml.v2. Our output must have the same meaning to a reader of YAML 1.2.

use paceline_health::codec::base64;
use serde_json::Value;

/// Returns the value that a word has for kubectl.
pub(super) fn meaning(word: &str) -> Value {
    match word {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            return true.into();
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            return false.into();
        }
        _ => {}
    }
    number(word).unwrap_or_else(|| Value::from(word))
}

fn number(word: &str) -> Option<Value> {
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    let plain = digits.replace('_', "");
    let sign = if word.starts_with('-') { "-" } else { "" };
    let (radix, rest) = match plain.as_bytes() {
        [b'0', b'x', ..] => (16, &plain[2..]),
        [b'0', b'b', ..] => (2, &plain[2..]),
        [b'0', b'o', ..] => (8, &plain[2..]),
        [b'0', _, ..] if plain.bytes().all(|byte| byte.is_ascii_digit()) => (8, &plain[1..]),
        _ => (10, plain.as_str()),
    };
    if rest.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        if let Ok(number) = i64::from_str_radix(&format!("{sign}{rest}"), radix) {
            return Some(number.into());
        }
        if let Ok(number) = u64::from_str_radix(rest, radix)
            && sign.is_empty()
        {
            return Some(number.into());
        }
    }
    let is_decimal = plain.bytes().any(|byte| byte.is_ascii_digit())
        && plain
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    let number: f64 = format!("{sign}{plain}").parse().ok().filter(|_| is_decimal)?;
    number.is_finite().then(|| number.into())
}

/// Returns the value of a `!!binary`, if it is text.
pub(super) fn decoded(text: &str) -> Option<String> {
    let digits: String = text.split_whitespace().collect();
    String::from_utf8(base64::decode(&digits)?).ok()
}

/// Returns true if every reader takes the text for a string even without quotes.
pub(super) fn can_be_plain(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    let begins_well = match first {
        b'-' => bytes.len() > 1 && bytes[1] != b' ' && text != "---",
        _ => !b"?:,[]{}#&*!|>'\"%@`=<~ ".contains(first),
    };
    begins_well
        && !is_like_number(text)
        && !matches!(last, b' ' | b':')
        && text.chars().all(|c| !is_special(c))
        && !text.contains(": ")
        && !text.contains(" #")
        && text != "..."
        && meaning(text).is_string()
}

/// Returns true for dates, times, base-60 numbers, and numbers that are not finite, which some readers do not take for
/// strings.
fn is_like_number(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let has_only = |more: &[u8]| {
        let mut bytes = digits.bytes();
        bytes.all(|byte| byte.is_ascii_digit() || more.contains(&byte))
    };
    let is_time = digits.starts_with(|first: char| first.is_ascii_digit())
        && has_only(b":-+.TZ_ ")
        && digits.contains([':', '-']);
    let is_huge = has_only(b"._eE+-") && digits.replace('_', "").parse::<f64>().is_ok();
    is_time || is_huge || matches!(digits.to_ascii_lowercase().as_str(), ".inf" | ".nan")
}

/// Returns true if the character must be escaped.
pub(super) fn is_special(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}
