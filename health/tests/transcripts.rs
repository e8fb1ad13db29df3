//! Transcripts. Each is a script of commands, `----`, and the detector's output. `REWRITE=1 cargo test -p
//! paceline-health --test transcripts` rewrites the output. Review the diff afterwards. Each script begins with its
//! purpose.

#![allow(clippy::disallowed_methods)] // A test may read its scripts; the crate may not.

mod harness;

use harness::Harness;

#[test]
fn transcripts() {
    datadriven::walk(
        &format!("{}/tests/transcripts", env!("CARGO_MANIFEST_DIR")),
        |file| {
            let script = std::fs::read_to_string(&file.filename).expect("the script");
            assert!(
                script.starts_with("# "),
                "{} opens with why it exists",
                file.filename
            );
            let mut harness = Harness::default();
            file.run(|case| harness.run(case));
        },
    );
}

/// A detector that is repeatedly saved and restored reports the same as one that never was.
#[test]
fn transcripts_with_cuts() {
    if std::env::var_os("REWRITE").is_some() {
        // Skip this test, because the other test rewrites the transcripts at the same time.
        return;
    }
    datadriven::walk(
        &format!("{}/tests/transcripts", env!("CARGO_MANIFEST_DIR")),
        |file| {
            let mut harness = Harness::with_cuts();
            file.run(|case| harness.run(case));
        },
    );
}
