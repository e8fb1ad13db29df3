//! The only binary that users need. Its code is in the library, so that the copy of this file for the tests also has
//! only two lines.

fn main() -> std::process::ExitCode {
    paceline::main()
}
