//! Sanitizes external text for display: clips it to a length, and makes invisible characters and terminal control
//! characters visible. Escaping for HTML and other formats is up to the output.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Maximum number of characters of a name.
pub const NAME: usize = 160;
/// Maximum number of characters of a name that programs compare. It is the limit of the command line for names of jobs
/// and nodes.
pub const LABEL: usize = 256;
/// Maximum number of characters of a sentence.
pub const SENTENCE: usize = 600;

/// Returns at most `most` characters of a text, with control characters as visible symbols (U+2400 and on).
pub fn clip(text: &str, most: usize) -> String {
    let mut clipped: String = text.chars().take(most).map(visible).collect();
    if text.chars().nth(most).is_some() {
        clipped.push('…');
    }
    clipped
}

/// Returns the last `most` bytes of a text. It is for paths, whose end is more informative than their start.
pub fn end(text: &str, most: usize) -> &str {
    let excess = text.len().saturating_sub(most);
    let begin = (excess..=text.len()).find(|at| text.is_char_boundary(*at));
    text.get(begin.unwrap_or(0)..).unwrap_or("")
}

/// Sanitizes a name.
pub fn name(text: &str) -> String {
    clip(text, NAME)
}

/// Sanitizes a name for programs. Harmless names stay unchanged, and short visible ones are not copied.
pub fn label(text: &str) -> Cow<'_, str> {
    let is_plain = text.len() <= LABEL && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if is_plain {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(clip(text, LABEL))
    }
}

/// All characters except the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Encodes a value for a URL query.
pub fn query(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Like [`clip`], but keeps line breaks.
pub fn lines(text: &str, most: usize) -> String {
    let mut clipped: String = text
        .chars()
        .take(most)
        .map(|letter| if letter == '\n' { letter } else { visible(letter) })
        .collect();
    if text.chars().nth(most).is_some() {
        clipped.push('…');
    }
    clipped
}

/// Returns the displayed form of a character, which is the character itself, or a symbol if it is invisible.
pub fn visible(letter: char) -> char {
    match letter {
        '\t' | '\n' | '\r' => ' ',
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(letter)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}' => '\u{fffd}',
        // These are bidirectional control characters, which could escape the page's own isolation.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' => '\u{fffd}',
        // Some programs treat these as line separators.
        '\u{2028}' | '\u{2029}' => ' ',
        _ => letter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_short_and_visible() {
        assert_eq!(name("\x1b[31mred\x07"), "␛[31mred␇");
        assert_eq!(name("two\nlines\r\n"), "two lines  ");
        assert_eq!(name("a\u{202e}b"), "a\u{fffd}b");
        assert_eq!(name("<b>&\"'"), "<b>&\"'");
        let long = name(&"é".repeat(1 << 20));
        assert_eq!(long.chars().count(), NAME + 1);
        assert!(long.ends_with('…'));
        assert_eq!(name(&"x".repeat(NAME)), "x".repeat(NAME));
    }

    #[test]
    fn a_label_is_copied_only_when_it_must_be() {
        assert!(matches!(label("node-7"), Cow::Borrowed("node-7")));
        assert_eq!(label("a\u{202e}b\x1b\r"), "a\u{fffd}b␛ ");
        assert_eq!(label("Knoten-ä"), "Knoten-ä");
        assert_eq!(label(&"x".repeat(LABEL + 9)).chars().count(), LABEL + 1);
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(lines("one\n\ttwo\r\n\x1b[2J", 100), "one\n two \n␛[2J");
        assert_eq!(lines("one\ntwo", 3), "one…");
    }
}
