//! The program `paceline-operator`. Its code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    paceline_operator::main()
}
