//! `pages OUT`: writes man pages and shell completions, generated from the command line's definition, in the layout of
//! an install prefix. Not in the program: packages ship them as files.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use clap_complete::Shell;

fn main() -> io::Result<()> {
    let out = env::args_os().nth(1).map(PathBuf::from);
    let out = out.ok_or_else(|| io::Error::other("usage: pages OUT"))?;
    write(&out)
}

/// Writes each file to its standard location.
pub fn write(out: &Path) -> io::Result<()> {
    let share = |place: &str| {
        let folder = out.join("share").join(place);
        fs::create_dir_all(&folder).map(|()| folder)
    };
    clap_mangen::generate_to(paceline::command_line(), share("man/man1")?)?;
    let bash = share("bash-completion/completions")?.join("paceline");
    let zsh = share("zsh/site-functions")?.join("_paceline");
    let fish = share("fish/vendor_completions.d")?.join("paceline.fish");
    for (shell, path) in [(Shell::Bash, bash), (Shell::Zsh, zsh), (Shell::Fish, fish)] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut paceline::command_line(), "paceline", &mut text);
        fs::write(path, text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        let names = entries.map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        });
        names.collect()
    }

    /// Whether the program succeeds without output; true if it is not installed.
    fn accepts(program: &str, words: &[&str], file: &Path) -> bool {
        let mut command = Command::new(program);
        command
            .args(words)
            .arg(file)
            .env("MANROFFSEQ", "")
            .env("MANWIDTH", "80");
        match command.output() {
            Ok(said) if said.status.success() && said.stderr.is_empty() => true,
            Ok(said) => panic!(
                "{program} of {}: {}",
                file.display(),
                String::from_utf8_lossy(&said.stderr)
            ),
            Err(_) => true,
        }
    }

    #[test]
    fn man_and_the_shells_take_what_is_made() {
        let out = tempfile::tempdir().expect("a folder");
        write(out.path()).expect("pages");
        let share = out.path().join("share");
        assert!(accepts(
            "bash",
            &["-n"],
            &share.join("bash-completion/completions/paceline")
        ));
        assert!(accepts(
            "zsh",
            &["-n"],
            &share.join("zsh/site-functions/_paceline")
        ));
        assert!(accepts(
            "fish",
            &["--no-execute"],
            &share.join("fish/vendor_completions.d/paceline.fish")
        ));
        let man = share.join("man/man1");
        for name in names(&man) {
            assert!(accepts("man", &["--warnings", "--local-file"], &man.join(name)));
        }
    }

    #[test]
    fn people_get_a_page_for_each_command_that_they_see() {
        let out = tempfile::tempdir().expect("a folder");
        write(out.path()).expect("pages");
        let pages = names(&out.path().join("share/man/man1"));
        for wanted in ["paceline.1", "paceline-run.1", "paceline-config-set.1"] {
            assert!(pages.iter().any(|page| page == wanted), "{wanted} of {pages:?}");
        }
        assert!(
            !pages.iter().any(|page| page.starts_with("paceline-sidecar")),
            "{pages:?}"
        );
    }
}
