//! Fuzzes without nightly: runs the same mutations for any length of time, with a different seed each time.
//!
//! `PACELINE_FUZZ_SECONDS=600 PACELINE_FUZZ_TARGET=sealed cargo test -p paceline-tests --test fuzz -- --ignored fuzz_for`

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{Chance, corpus, entries};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Set PACELINE_FUZZ_SEED to repeat a run.
#[test]
#[ignore = "as long as PACELINE_FUZZ_SECONDS says for each target"]
fn fuzz_for() {
    let each = Duration::from_secs(number("PACELINE_FUZZ_SECONDS").unwrap_or(60));
    let chosen = std::env::var("PACELINE_FUZZ_TARGET").ok();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = number("PACELINE_FUZZ_SEED").unwrap_or_else(now).max(1);
    for (name, entry) in entries::ENTRIES {
        if chosen.as_ref().is_some_and(|chosen| chosen != name) {
            continue;
        }
        let files = corpus(name);
        let mut chance = Chance(seed);
        let (began, mut rounds, mut understood) = (Instant::now(), 0_u64, 0);
        let mut bytes = Vec::new();
        while began.elapsed() < each {
            if rounds % 8 == 0 {
                bytes.clone_from(&files[chance.below(files.len())].1);
            }
            let other = &files[chance.below(files.len())].1;
            chance.mutate(&mut bytes, other);
            match catch_unwind(AssertUnwindSafe(|| entry(&bytes))) {
                Ok(seen) => understood += u64::from(seen > 0),
                Err(_) => {
                    let kept = std::env::temp_dir().join(format!("paceline-fuzz-{name}-{seed}-{rounds}"));
                    std::fs::write(&kept, &bytes).unwrap();
                    panic!(
                        "{name}: PACELINE_FUZZ_SEED={seed}, round {rounds}: {}",
                        kept.display()
                    );
                }
            }
            rounds += 1;
        }
        println!(
            "{name}: {rounds} inputs in {:.0} s, {understood} of them understood",
            began.elapsed().as_secs_f64()
        );
    }
}
