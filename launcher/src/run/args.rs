//! The command line of `paceline run`.

use std::ffi::OsString;

use clap::Args;
use paceline_sidecar::remedy::RemedyOptions;

use crate::cli::SettingArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "While the command runs, stderr gets one line for each finding that is raised, changes or ends (five at once, \
then one each ten seconds; --quiet: none). The command sees PACELINE_RING_DIR, PACELINE_JOB, PACELINE_NODE and a PYTHONPATH with the \
hook's directory in front. It gets stdin, stdout, stderr and signals as if it had been started alone; its exit code \
is returned (128 + n for a signal, 127 not found, 126 not executable).\n\nExample: paceline run -- torchrun \
--nproc-per-node=8 train.py"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    #[command(flatten, next_help_heading = "Preflight")]
    pub(crate) gate: crate::preflight::GateArgs,
    #[command(flatten, next_help_heading = "Actions on findings")]
    pub(crate) remedy: RemedyOptions,
    /// Print what would be set and started, and exit.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::CommandFactory as _;

    use crate::cli::Cli;

    /// Options that `paceline run` does not have. They belong to the sidecar's own command, which `--help` does not
    /// show, or to another program.
    const OTHERS: [&str; 2] = ["relay", "policy"];

    /// Checks this because users read about options to pass them to `paceline run`, not to the sidecar.
    #[test]
    fn run_takes_what_the_docs_name_of_the_sidecars_options() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
        let pages = fs::read_dir(docs).unwrap().flatten().map(|entry| entry.path());
        let text: String = pages.filter_map(|path| fs::read_to_string(path).ok()).collect();
        let cli = Cli::command();
        let takes = |command: &str, option: &str| {
            let command = cli.find_subcommand(command).unwrap();
            command.get_arguments().any(|arg| arg.get_long() == Some(option))
        };
        let sidecar = cli.find_subcommand("sidecar").unwrap();
        let options: Vec<&str> = sidecar.get_arguments().filter_map(|arg| arg.get_long()).collect();
        let is_named = |option: &&&str| {
            let flag = format!("--{option}");
            text.match_indices(&flag).any(|(at, _)| {
                !text[at + flag.len()..].starts_with(|c: char| c == '-' || c.is_alphanumeric())
            })
        };
        let named: Vec<&&str> = options.iter().filter(is_named).collect();
        assert!(named.len() > 10, "{named:?}");
        for option in named {
            assert!(
                takes("run", option) || OTHERS.contains(option),
                "docs name --{option}, and `paceline run` does not take it"
            );
        }
    }
}
