//! Sanitizes text from outside before people see it: clips it to a length, and makes invisible characters and terminal
//! control characters visible. Escaping for HTML and the like is up to the output.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters of a name.
pub const NAME: usize = 160;
/// Characters of a name that programs compare: as long as the command line takes one for a job or a node.
pub const LABEL: usize = 256;
/// Characters of a sentence.
pub const SENTENCE: usize = 600;

/// At most `most` characters of a text, with control characters as their pictures (U+2400 and on).
pub fn clip(text: &str, most: usize) -> String {
    let mut clipped: String = text.chars().take(most).map(visible).collect();
    if text.chars().nth(most).is_some() {
        clipped.push('…');
    }
    clipped
}

/// At most `most` bytes of a text, its end: of a path that says more than its beginning.
pub fn end(text: &str, most: usize) -> &str {
    let excess = text.len().saturating_sub(most);
    let begin = (excess..=text.len()).find(|at| text.is_char_boundary(*at));
    text.get(begin.unwrap_or(0)..).unwrap_or("")
}

/// A name.
pub fn name(text: &str) -> String {
    clip(text, NAME)
}

/// A name for programs: as it is, whenever that does no harm. Nothing is copied of one that is short and visible.
pub fn label(text: &str) -> Cow<'_, str> {
    let is_plain = text.len() <= LABEL && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if is_plain {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(clip(text, LABEL))
    }
}

/// All but what RFC 3986 calls unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// As a value in an address's query.
pub fn query(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// [`clip`] for text of several lines, which it stays.
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

/// A character as it is shown: itself, or what stands for one that nobody would see.
pub fn visible(letter: char) -> char {
    match letter {
        '\t' | '\n' | '\r' => ' ',
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(letter)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}' => '\u{fffd}',
        // Marks that turn the direction of what follows, beyond what the page's own isolation holds.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' => '\u{fffd}',
        // Ends of lines to some.
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
