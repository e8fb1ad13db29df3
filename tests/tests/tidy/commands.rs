//! Commands, subcommands and flags in the documentation must exist.

use crate::{files, read};

/// Returns each `paceline ...` of a page, from lines in code blocks and from inline code.
fn shown(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut block: Option<bool> = None;
    let mut text = String::new();
    let mut continued = String::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("```") {
            block = match block {
                None => Some(matches!(name, "sh" | "console")),
                Some(_) => None,
            };
        } else if block == Some(true) {
            continued.push_str(line.split(" # ").next().unwrap_or(line));
            if continued.ends_with('\\') {
                continued.pop();
            } else {
                found.push(std::mem::take(&mut continued));
            }
        } else if block.is_none() {
            text.push_str(line);
            text.push('\n');
        }
    }
    let quoted = text.split('`').skip(1).step_by(2);
    found.extend(quoted.map(|words| words.split_whitespace().collect::<Vec<_>>().join(" ")));
    found
}

/// Returns the unknown part of a command, if it is a paceline command.
fn unknown(words: &str) -> Option<String> {
    let line = paceline::command_line();
    let words: Vec<&str> = words.split_whitespace().collect();
    // Namespaces, releases, packages and containers have the same name, and are no commands.
    let is_named =
        |at: usize| at > 0 && matches!(words[at - 1], "-n" | "-c" | "-p" | "--namespace" | "install");
    let at = (0..words.len()).find(|at| words[*at] == "paceline" && !is_named(*at))?;
    let mut words = words.into_iter().skip(at + 1).peekable();
    let mut command = &line;
    while let Some(sub) = words.peek().and_then(|word| command.find_subcommand(word)) {
        command = sub;
        words.next();
    }
    if command.get_name() == line.get_name() {
        let first = words.next()?;
        // Skips `paceline-...` of a run directory and placeholders, which are not plain lower-case words.
        let is_name = first
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        return (is_name && !first.starts_with("--")).then(|| first.to_owned());
    }
    let flags = words
        .take_while(|word| !matches!(*word, "--" | "|" | "&" | "&&" | ";" | ">"))
        .filter_map(|word| word.trim_matches(['[', ']', ',']).strip_prefix("--"));
    for flag in flags {
        let name = flag.split('=').next().unwrap_or(flag);
        let is_known = command
            .get_arguments()
            .chain(line.get_arguments())
            .any(|arg| arg.get_long() == Some(name));
        if !is_known && !matches!(name, "help" | "version") {
            return Some(format!("--{name}"));
        }
    }
    None
}

#[test]
fn commands_on_pages_are_there() {
    let mut count = 0;
    for page in files(&[".md"]) {
        if page.contains("CHANGELOG") || page.contains("/adr/") {
            continue; // historical
        }
        for words in shown(&read(&page)) {
            if words.split_whitespace().any(|word| word == "paceline") {
                count += 1;
                if let Some(what) = unknown(&words) {
                    panic!("{page}: `{words}`: there is no {what}");
                }
            }
        }
    }
    assert!(count > 100, "{count} commands");
    assert!(unknown("paceline report RUN --htm").is_some() && unknown("paceline reprot RUN").is_some());
}
