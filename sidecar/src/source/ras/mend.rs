//! Repairs NCCL's JSON, because version 2.28.9 leaves out a comma between two members of an object. Inserts a comma
//! before a string that directly follows a value, which never happens in valid JSON. All other bytes pass through
//! unchanged.

use std::io::{self, Read};

const PIECE: usize = 8 << 10;
/// Maximum length of a string. Real names and addresses are far shorter.
const MAX_STRING: usize = 4 << 10;

/// The repairing reader; see the module.
#[derive(Debug)]
pub struct Mend<R> {
    inner: R,
    out: Vec<u8>,
    at: usize,
    /// Length of the string that is being read; `None` outside of strings.
    string: Option<usize>,
    escaped: bool,
    /// The last byte outside of strings that was not whitespace.
    last: u8,
}

impl<R: Read> Mend<R> {
    /// Repairs the output of `inner`.
    pub fn new(inner: R) -> Mend<R> {
        Mend {
            inner,
            out: Vec::with_capacity(PIECE),
            at: 0,
            string: None,
            escaped: false,
            last: b'{',
        }
    }

    fn take(&mut self, byte: u8) -> io::Result<()> {
        match self.string {
            Some(_) if self.escaped => self.escaped = false,
            Some(_) if byte == b'"' => {
                self.string = None;
                self.last = b'"';
            }
            Some(length) if length >= MAX_STRING => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a string without end"));
            }
            Some(length) => {
                self.escaped = byte == b'\\';
                self.string = Some(length + 1);
            }
            None if byte == b'"' => {
                if !matches!(self.last, b'{' | b'[' | b':' | b',') {
                    self.out.push(b',');
                }
                self.string = Some(0);
            }
            None if !byte.is_ascii_whitespace() => self.last = byte,
            None => {}
        }
        self.out.push(byte);
        Ok(())
    }
}

impl<R: Read> Read for Mend<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.out.len() {
            let mut piece = [0; PIECE];
            let count = self.inner.read(&mut piece)?;
            self.out.clear();
            self.at = 0;
            for byte in piece.get(..count).unwrap_or_default() {
                self.take(*byte)?;
            }
        }
        let rest = self.out.get(self.at..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_whole_stays_as_it_is() {
        let check = |text: &str, wanted: &str| {
            let mut mended = String::new();
            Mend::new(text.as_bytes()).read_to_string(&mut mended).unwrap();
            assert_eq!(mended, wanted);
        };
        for whole in [
            r#"{"a": 1, "b": ["x", "y\" \\"], "c": {"d": true}}"#,
            r#"["a: \"b\" c"]"#,
            "",
        ] {
            check(whole, whole);
        }
        check(
            "{\"nvml_dev\": 0\n  \"status\": {}}",
            "{\"nvml_dev\": 0\n  ,\"status\": {}}",
        );
        check(
            r#"{"a": {} "b": "c" "d": null}"#,
            r#"{"a": {} ,"b": "c" ,"d": null}"#,
        );
        let endless = format!("\"{}\"", "x".repeat(MAX_STRING + 1));
        assert!(
            Mend::new(endless.as_bytes())
                .read_to_end(&mut Vec::new())
                .is_err()
        );
    }
}
