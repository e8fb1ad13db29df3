//! The only binary that users need. Its code is in the library, so that the tests' copy is also two lines.

fn main() -> std::process::ExitCode {
    paceline::main()
}
