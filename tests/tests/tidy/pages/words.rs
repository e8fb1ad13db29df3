//! Prose must not contain the words that this project used in place of nouns.

use super::{lines, none, written};
use crate::read;

/// The banned words, as they occur in a sentence, in lower case.
const BANNED: [&str; 6] = ["told", "nobody", "whom", "whoever", "of ours", "mended"];
/// Pages where one of the words is a name.
const NAMES: [(&str, &str); 1] = [("docs/security.md", "nobody")];

/// Returns a line without inline code, in lower case, with blanks in place of punctuation.
fn plain(line: &str) -> String {
    let outside = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    let letters = outside.chars().map(|one| match one.is_alphanumeric() {
        true => one.to_ascii_lowercase(),
        false => ' ',
    });
    let words = letters.collect::<String>();
    format!(" {} ", words.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn banned(name: &str, page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in lines(page).into_iter().filter(|line| !line.is_table()) {
        let text = plain(line.text);
        let words = BANNED
            .iter()
            .filter(|word| text.contains(&format!(" {word} ")) && !NAMES.contains(&(name, **word)));
        found.extend(words.map(|word| format!("{name}:{}: {word:?}", line.number)));
    }
    found
}

#[test]
fn prose_has_no_banned_word() {
    let found: Vec<String> = written()
        .iter()
        .flat_map(|page| banned(page, &read(page)))
        .collect();
    none(&found);
}

#[test]
fn a_banned_word_is_found() {
    let page = "| told |\n`told` retold\n```\nnobody\n```\n(Whom) a code of ours.\n";
    assert_eq!(banned("p", page), ["p:6: \"whom\"", "p:6: \"of ours\""]);
}
