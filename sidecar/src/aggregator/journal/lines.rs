//! Reads a journal as a stream of lines. Memory is bounded, whatever the file contains.

use std::io::{self, BufRead};

use paceline_health::Entry;
use paceline_health::codec::line::{self, LineError, MAX_LINE_BYTES};

/// One line of a journal.
#[derive(Debug)]
pub enum Line {
    /// An entry.
    Entry(Box<Entry>),
    /// An invalid line in the middle of the file.
    Broken {
        /// The number of the line, counted from 1.
        number: u64,
        /// Why the line is invalid.
        error: LineError,
    },
    /// The last line is incomplete, because its writer was interrupted.
    Torn {
        /// The byte offset at which the line starts.
        offset: u64,
    },
}

/// The lines of a journal. Empty lines are skipped.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    number: u64,
    offset: u64,
    buffer: Vec<u8>,
    at_end: bool,
}

impl<R: BufRead> Lines<R> {
    /// Reads from the beginning.
    pub fn new(reader: R) -> Lines<R> {
        Lines {
            reader,
            number: 0,
            offset: 0,
            buffer: Vec::new(),
            at_end: false,
        }
    }

    /// Returns true if everything was read.
    pub fn is_at_end(&self) -> bool {
        self.at_end
    }

    /// Reads the next line and returns its length including the newline, or zero at the end. Of an oversized line, only
    /// the beginning is kept.
    fn read_line(&mut self) -> io::Result<u64> {
        self.buffer.clear();
        let mut length = 0u64;
        loop {
            let chunk = match self.reader.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let end = chunk.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let take = end.unwrap_or(chunk.len());
            let room = (MAX_LINE_BYTES + 2).saturating_sub(self.buffer.len());
            self.buffer.extend_from_slice(&chunk[..take.min(room)]);
            if end.is_some() && take > room {
                self.buffer.push(b'\n');
            }
            self.reader.consume(take);
            length += take as u64;
            if end.is_some() || take == 0 {
                return Ok(length);
            }
        }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = io::Result<Line>;

    fn next(&mut self) -> Option<io::Result<Line>> {
        while !self.at_end {
            let offset = self.offset;
            let length = match self.read_line() {
                Ok(length) => length,
                Err(error) => {
                    self.at_end = true;
                    return Some(Err(error));
                }
            };
            self.offset += length;
            self.number += 1;
            if length == 0 {
                self.at_end = true;
                return None;
            }
            let Some(text) = self.buffer.strip_suffix(b"\n") else {
                self.at_end = true;
                return Some(Ok(Line::Torn { offset }));
            };
            if text.trim_ascii().is_empty() {
                continue;
            }
            return Some(Ok(match decode(text, length) {
                Ok(entry) => Line::Entry(Box::new(entry)),
                Err(error) => Line::Broken {
                    number: self.number,
                    error,
                },
            }));
        }
        None
    }
}

fn decode(text: &[u8], length: u64) -> Result<Entry, LineError> {
    if text.len() > MAX_LINE_BYTES {
        return Err(LineError::TooLong {
            bytes: (length - 1) as usize,
        });
    }
    match std::str::from_utf8(text) {
        Ok(text) => line::decode(text),
        Err(error) => Err(LineError::Malformed {
            column: error.valid_up_to() + 1,
            message: "not UTF-8".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use paceline_health::event::{Event, Exit};
    use paceline_health::{Frame, Provenance, Time};

    use super::*;

    #[test]
    fn entries_broken_lines_and_a_torn_end() {
        let event = Event::Exit(Exit { code: 3 });
        let frame = Frame {
            v: 1,
            node: "n".into(),
            agent: 1,
            seq: 1,
            provenance: Provenance::Live,
            event,
        };
        let good = line::encode(&Entry {
            n: 1,
            at_ns: Time(5),
            frame,
        });
        let mut file = format!("{good}\n\nnonsense\n").into_bytes();
        file.extend(vec![b'x'; 10 << 20]);
        file.extend(b"\n\xff\n");
        file.extend(format!("{good}\n{}", &good[..20]).into_bytes());
        let torn_at = file.len() - 20;
        let seen: Vec<String> = Lines::new(io::BufReader::new(&file[..]))
            .map(|line| match line.unwrap() {
                Line::Entry(entry) => format!("entry {}", entry.n),
                Line::Broken { number, error } => format!("{number}: {error}"),
                Line::Torn { offset } => format!("torn at {offset}"),
            })
            .collect();
        let too_long = LineError::TooLong { bytes: 10 << 20 };
        assert_eq!(seen[0], "entry 1");
        assert!(seen[1].starts_with("3: column 2"), "{}", seen[1]);
        assert_eq!(seen[2], format!("4: {too_long}"));
        assert_eq!(
            seen[3..],
            ["5: column 1: not UTF-8", "entry 1", &format!("torn at {torn_at}")]
        );
    }
}
