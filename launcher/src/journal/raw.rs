//! Reads lines of bounded length, before they are parsed.

use std::io::{self, BufRead};

use paceline_health::codec::line::MAX_LINE_BYTES;

/// One line of the file.
pub(super) enum Raw {
    Whole(Vec<u8>),
    /// The last line, which has no newline.
    Open(Vec<u8>),
    TooLong(usize),
}

/// Reads one line. If it is too long, only its length is kept. `read` counts the bytes read so far.
pub(super) fn read_line(reader: &mut impl BufRead, read: &mut u64) -> io::Result<Option<Raw>> {
    let mut line = Vec::new();
    let mut length = 0;
    loop {
        let chunk = match reader.fill_buf() {
            Ok(chunk) => chunk,
            Err(problem) if problem.kind() == io::ErrorKind::Interrupted => continue,
            Err(problem) => return Err(problem),
        };
        let newline = chunk.iter().position(|byte| *byte == b'\n');
        let taken = newline.unwrap_or(chunk.len());
        length += taken;
        if length <= MAX_LINE_BYTES {
            line.extend_from_slice(&chunk[..taken]);
        }
        let end = newline.is_some() || chunk.is_empty();
        let used = taken + usize::from(newline.is_some());
        reader.consume(used);
        *read += used as u64;
        if !end {
            continue;
        }
        return Ok(match (newline, length) {
            (_, MAX_LINE_BYTES..) if length > MAX_LINE_BYTES => Some(Raw::TooLong(length)),
            (Some(_), _) => Some(Raw::Whole(line)),
            (None, 0) => None,
            (None, _) => Some(Raw::Open(line)),
        });
    }
}
