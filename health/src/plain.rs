//! Text from outside on its way to people. What shows it shows it as text and nothing else; here it gets a length, and what
//! would be invisible, or speak to a terminal, becomes visible.

/// Characters of a name.
pub const NAME: usize = 160;
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

/// A name.
pub fn name(text: &str) -> String {
    clip(text, NAME)
}

fn visible(letter: char) -> char {
    match letter {
        '\t' | '\n' | '\r' => ' ',
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(letter)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}' => '\u{fffd}',
        // Marks that turn the direction of what follows, beyond what the page's own isolation holds.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' => '\u{fffd}',
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
}
