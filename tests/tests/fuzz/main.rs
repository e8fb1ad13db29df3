//! Runs the fuzz targets on the stable toolchain, with their corpus and seeded mutations of it. Nothing may panic, the
//! whole corpus must be parsed, and the input's size must bound how much is read and reported.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

mod corpora;
#[path = "../../../fuzz/entries.rs"]
mod entries;
mod minutes;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use paceline_sidecar::source::ras;

/// Number of mutations of each corpus file.
const MUTATIONS: u64 = 250;
/// Number of mutations for targets in which every input needs a handshake or a whole report.
const FEW: u64 = 40;
const SLOW: [&str; 4] = ["greeting", "sealed", "journal", "http"];
/// The target whose mutations are mostly rejected, because a pickle with a missing or extra byte is unreadable.
const BRITTLE: &str = "flight_recorder";
const LARGEST: usize = 64 << 10;
/// Bytes that tend to break parsers.
const NASTY: [&[u8]; 14] = [
    b"\0",
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b":",
    b",",
    b"\n",
    b"\r",
    b"\x1b[",
    b"\xff",
    b"99999999999999999999",
    b"-1",
];

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(name);
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

/// The xorshift64* generator (<https://doi.org/10.18637/jss.v008.i14>), which gives the same mutations in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }

    fn range(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let from = self.below(bytes.len());
        from..(from + 1 + self.below(64)).min(bytes.len())
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        if bytes.is_empty() {
            bytes.extend(other);
        }
        let place = self.below(bytes.len());
        match self.below(7) {
            0 => bytes[place] ^= 1 << self.below(8),
            1 => bytes[place] = self.below(256) as u8,
            2 => drop(bytes.drain(self.range(bytes))),
            3 => bytes.truncate(place),
            4 => {
                let range = self.range(bytes);
                let copy = bytes[range].repeat(1 + self.below(40));
                bytes.splice(place..place, copy);
            }
            5 => {
                let range = self.range(other);
                bytes.splice(place..place, other[range].iter().copied());
            }
            _ => {
                let nasty = NASTY[self.below(NASTY.len())];
                bytes.splice(place..place, nasty.iter().copied());
            }
        }
        bytes.truncate(LARGEST);
    }
}

#[test]
fn all_of_the_corpus_is_understood() {
    for (name, entry) in entries::ENTRIES {
        let files = corpus(name);
        assert!(!files.is_empty(), "{name}");
        for (path, bytes) in files {
            assert!(entry(&bytes) > 0, "{}", path.display());
        }
    }
}

#[test]
fn damaged_input_is_an_error_and_no_more() {
    for (name, entry) in entries::ENTRIES {
        let files = corpus(name);
        let mutations = if SLOW.contains(&name) { FEW } else { MUTATIONS };
        let mut understood = 0;
        for (seed, (_, bytes)) in (1..).zip(&files) {
            let mut chance = Chance(0x9e37_79b9_7f4a_7c15 ^ seed);
            let mut mutated = bytes.clone();
            for round in 0..mutations {
                if round % 10 == 0 {
                    mutated.clone_from(bytes);
                }
                let other = &files[chance.below(files.len())].1;
                chance.mutate(&mut mutated, other);
                let seen = entry(&mutated);
                // No line counts twice, and no answer has more ranks than the limit.
                let lines = mutated
                    .iter()
                    .filter(|byte| matches!(byte, b'\n' | b'\r'))
                    .count()
                    + 1;
                assert!(seen <= lines.max(33), "{name}: {seen} of {lines} lines");
                understood += seen;
            }
        }
        // Enough mutations must be accepted, because a test with only rejected ones would test nothing.
        let share = if name == BRITTLE { 20 } else { 3 };
        assert!(understood > mutations as usize / share, "{name}: {understood}");
    }
}

/// Tests every truncation of an answer, and answers without every third byte.
#[test]
fn answers_that_are_cut() {
    for (_, bytes) in corpus("ras") {
        for end in 0..bytes.len() {
            entries::ras(&bytes[..end]);
        }
        for place in (0..bytes.len()).step_by(3) {
            let mut less = bytes.clone();
            less.remove(place);
            entries::ras(&less);
        }
    }
}

/// Counts the bytes that a parser reads. No parser may read a byte twice or without a limit.
struct Counted<R>(R, u64);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(buffer)?;
        self.1 += count as u64;
        Ok(count)
    }
}

#[test]
fn endless_answers_are_read_to_their_bound() {
    const BOUND: u64 = 4 << 20;
    let check = |head: &str, body: &str| {
        let mut input = Counted(head.as_bytes().chain(Endless(body.as_bytes(), 0)).take(BOUND), 0);
        assert!(ras::read(&mut input).is_err(), "{head}{body}");
        assert!(input.1 <= BOUND);
    };
    check("", " ");
    check("", "NCCL version 2.28.9\n");
    check(
        "NCCL version 2.24.3 compiled\n#0-0 (1f) MISMATCH\n",
        "  7 ranks have launched up to operation 9\n",
    );
    check(
        "{\"communicators\": [",
        "{\"hash\": \"0x1\", \"size\": 9, \"ranks\": []},",
    );
    check(
        "{\"communicators\": [{\"hash\": \"0x1\", \"size\": 9, \"ranks\": [",
        "{\"rank\": 1},",
    );
    check("{\"a\": ", "[");
    check("{\"a\": \"", "x");
}

struct Endless<'a>(&'a [u8], usize);

impl Read for Endless<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for byte in buffer.iter_mut() {
            *byte = self.0[self.1 % self.0.len()];
            self.1 += 1;
        }
        Ok(buffer.len())
    }
}
