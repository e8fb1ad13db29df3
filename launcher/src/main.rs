//! The one binary that a user needs. All of it is in the library, so that the tests' copy is two lines too.

fn main() -> std::process::ExitCode {
    paceline::main()
}
