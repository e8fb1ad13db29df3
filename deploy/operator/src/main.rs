//! `paceline-operator`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    paceline_operator::main()
}
