//! Finds torchrun's own options in a command line. They come before the script, and later options are the script's own.
//! NVIDIA's `ft_launcher` takes the same options.

use std::ffi::OsString;
use std::path::Path;

/// torchrun's options that take no value (<https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py>). All
/// others take one.
const BARE: [&str; 8] = [
    "--standalone",
    "-m",
    "--module",
    "--no-python",
    "--run-path",
    "--virtual-local-rank",
    "--use-env",               // From the older torch.distributed.launch.
    "--ft-ignore-missing-cfg", // From ft_launcher.
];

/// The positions of torchrun's own options in a command.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// The option's name with dashes, the index of the word with the value, and true if the value follows a `=` in that
    /// word.
    found: Vec<(String, usize, bool)>,
}

impl Options {
    /// Finds the options.
    pub(crate) fn of(command: &[OsString]) -> Options {
        let words: Vec<&str> = command.iter().map(|word| word.to_str().unwrap_or("")).collect();
        let mut found = Vec::new();
        let Some(mut at) = begin(&words) else {
            return Options { found };
        };
        while let Some(word) = words
            .get(at)
            .filter(|word| word.starts_with('-') && **word != "--")
        {
            let (name, is_inline) = match word.split_once('=') {
                Some((name, _)) if word.starts_with("--") => (name, true),
                _ => (*word, false),
            };
            let name = name.replace('_', "-");
            let takes_next = !is_inline && !BARE.contains(&&*name);
            if is_inline || takes_next {
                found.push((name, at + usize::from(takes_next), is_inline));
            }
            at += 1 + usize::from(takes_next);
        }
        Options { found }
    }

    /// Returns the position of an option. If there are several, the last one counts, as in argparse.
    fn place(&self, option: &str) -> Option<(usize, bool)> {
        let last = self.found.iter().rfind(|(name, ..)| name == option);
        last.map(|(_, at, is_inline)| (*at, *is_inline))
    }

    /// Returns the value of an option.
    pub(crate) fn value(&self, command: &[OsString], option: &str) -> Option<String> {
        let (at, is_inline) = self.place(option)?;
        let word = command.get(at)?.to_str()?;
        let value = if is_inline { word.split_once('=')?.1 } else { word };
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// Changes an option's value, if it has one.
    pub(crate) fn set(&self, command: &mut [OsString], option: &str, value: &str) {
        let Some((at, is_inline)) = self.place(option) else {
            return;
        };
        if let Some(word) = command.get_mut(at) {
            let name = word.to_str().and_then(|word| word.split_once('='));
            *word = match name {
                Some((name, _)) if is_inline => format!("{name}={value}").into(),
                _ => value.into(),
            };
        }
    }
}

/// Returns true if the command starts torchrun, or a launcher with the same options.
pub(crate) fn is_in(command: &[OsString]) -> bool {
    let words: Vec<&str> = command.iter().map(|word| word.to_str().unwrap_or("")).collect();
    begin(&words).is_some()
}

/// Returns the index of the word after torchrun, however it is started.
fn begin(words: &[&str]) -> Option<usize> {
    let is_launcher = |(at, word): (usize, &&str)| {
        let file = Path::new(word).file_name().and_then(|name| name.to_str());
        let module = at > 0 && words[at - 1] == "-m";
        matches!(file, Some("torchrun" | "ft_launcher"))
            || (module && matches!(*word, "torch.distributed.run" | "torch.distributed.launch"))
    };
    words.iter().enumerate().position(is_launcher).map(|at| at + 1)
}
