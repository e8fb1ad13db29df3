//! Python pickles of basic types, protocols 2 to 5 (<https://docs.python.org/3/library/pickletools.html>). Nothing is
//! imported or called. An opcode that would do so is an error.
//!
//! Shared values are stored once, and no function recurses. We do not use existing pickle libraries, because they copy
//! shared values and recurse on nesting, so that a small file could fill memory or overflow the stack.

use std::collections::BTreeMap;

/// Maximum number of keys of a dict that are searched. The limit is needed because there may be many references to a
/// dict.
const MAX_KEYS: usize = 64;

/// A pickle that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: {what}")]
pub struct PickleError {
    /// The position in bytes.
    pub at: usize,
    /// The error.
    pub what: &'static str,
}

/// A decoded pickle. Its values refer to each other by their index.
#[derive(Debug)]
pub(super) struct Pickle {
    values: Vec<Value>,
    root: usize,
}

#[derive(Debug)]
enum Value {
    /// `None`, and numbers that are not integers.
    Other,
    Bool(bool),
    Int(i64),
    Text(String),
    /// A list or a tuple.
    List(Vec<usize>),
    Dict(Vec<(usize, usize)>),
}

/// A value together with its pickle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    pickle: &'a Pickle,
    value: &'a Value,
}

impl<'a> Node<'a> {
    /// Returns the value of a key. Returns `None` if the node is not a dict or the key is not among the first
    /// `MAX_KEYS`.
    pub(super) fn get(self, key: &str) -> Option<Node<'a>> {
        let mut pairs = self.pairs().take(MAX_KEYS);
        let found = pairs.find(|(name, _)| matches!(&name.value, Value::Text(text) if text == key));
        found.map(|(_, value)| value)
    }

    /// Returns the keys and values of a dict.
    pub(super) fn pairs(self) -> impl Iterator<Item = (Node<'a>, Node<'a>)> {
        let pairs = match self.value {
            Value::Dict(pairs) => pairs.as_slice(),
            _ => &[],
        };
        pairs
            .iter()
            .filter_map(move |(key, value)| Some((self.pickle.node(*key)?, self.pickle.node(*value)?)))
    }

    /// Returns the items of a list or tuple.
    pub(super) fn items(self) -> impl Iterator<Item = Node<'a>> {
        let items = match self.value {
            Value::List(items) => items.as_slice(),
            _ => &[],
        };
        items.iter().filter_map(move |item| self.pickle.node(*item))
    }

    pub(super) fn text(self) -> Option<&'a str> {
        match self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn int(self) -> Option<i64> {
        match self.value {
            Value::Int(int) => Some(*int),
            _ => None,
        }
    }

    pub(super) fn bool(self) -> Option<bool> {
        match self.value {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn is_dict(self) -> bool {
        matches!(self.value, Value::Dict(_))
    }
}

impl Pickle {
    /// Decodes a pickle. Memory use is proportional to `bytes`.
    pub(super) fn decode(bytes: &[u8]) -> Result<Pickle, PickleError> {
        let mut machine = Machine {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: BTreeMap::new(),
        };
        loop {
            let at = machine.at;
            match machine.step() {
                Ok(None) => {}
                Ok(Some(root)) => {
                    return Ok(Pickle {
                        values: machine.values,
                        root,
                    });
                }
                Err(what) => return Err(PickleError { at, what }),
            }
        }
    }

    pub(super) fn root(&self) -> Option<Node<'_>> {
        self.node(self.root)
    }

    fn node(&self, index: usize) -> Option<Node<'_>> {
        let value = self.values.get(index)?;
        Some(Node { pickle: self, value })
    }
}

const CUT_OFF: &str = "the file is cut off";
const EMPTY: &str = "an operation without its operand";

/// Python's pickle machine: a stack of values, with marks in it, and a memo.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<usize>,
    marks: Vec<usize>,
    memo: BTreeMap<u64, usize>,
}

impl Machine<'_> {
    /// Executes one opcode. Returns the index of the pickle's value if the opcode was the last one.
    fn step(&mut self) -> Result<Option<usize>, &'static str> {
        match self.take(1)?[0] {
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'.' => return self.pop().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Value::Other),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'K' => self.push_int::<1>()?,
            b'M' => self.push_int::<2>()?,
            b'J' => {
                let int = self.number::<4>()? as u32 as i32;
                self.push(Value::Int(int.into()));
            }
            0x8a => self.long()?,
            b'G' => {
                self.take(8)?;
                self.push(Value::Other);
            }
            0x8c => self.push_text::<1>()?,
            b'X' => self.push_text::<4>()?,
            0x8d => self.push_text::<8>()?,
            b']' | b')' => self.push(Value::List(Vec::new())),
            b'}' => self.push(Value::Dict(Vec::new())),
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b't' | b'l' => {
                let items = self.pop_to_mark()?;
                self.push(Value::List(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' => {
                let items = self.pop_to_mark()?;
                self.append(&items)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])?;
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.set(&items)?;
            }
            b'q' => self.remember::<1>()?,
            b'r' => self.remember::<4>()?,
            0x94 => {
                let top = *self.stack.last().ok_or(EMPTY)?;
                self.memo.insert(self.memo.len() as u64, top);
            }
            b'h' => self.recall::<1>()?,
            b'j' => self.recall::<4>()?,
            _ => return Err("not a pickle of basic types"),
        }
        Ok(None)
    }

    fn take(&mut self, count: usize) -> Result<&[u8], &'static str> {
        let end = self.at.checked_add(count).ok_or(CUT_OFF)?;
        let taken = self.bytes.get(self.at..end).ok_or(CUT_OFF)?;
        self.at = end;
        Ok(taken)
    }

    /// Reads a little-endian number of `N` bytes.
    fn number<const N: usize>(&mut self) -> Result<u64, &'static str> {
        let mut number = [0; 8];
        number[..N].copy_from_slice(self.take(N)?);
        Ok(u64::from_le_bytes(number))
    }

    fn push(&mut self, value: Value) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    fn push_int<const N: usize>(&mut self) -> Result<(), &'static str> {
        let int = self.number::<N>()?;
        self.push(Value::Int(int as i64));
        Ok(())
    }

    /// Reads and pushes a text with a length field of `N` bytes.
    fn push_text<const N: usize>(&mut self) -> Result<(), &'static str> {
        let length = self.number::<N>()?.try_into().map_err(|_| CUT_OFF)?;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.push(Value::Text(text));
        Ok(())
    }

    /// Reads an integer in the format for any length. Longer ones than 64 bits are rejected, because PyTorch writes
    /// none.
    fn long(&mut self) -> Result<(), &'static str> {
        let length = usize::from(self.take(1)?[0]);
        let bytes = self.take(length)?;
        let is_negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut number = [if is_negative { 0xff } else { 0 }; 8];
        let value = match number.get_mut(..length) {
            Some(low) => {
                low.copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(number))
            }
            None => Value::Other,
        };
        self.push(value);
        Ok(())
    }

    /// Pops a value above the last mark. The values below the mark do not belong to the collection that the mark
    /// started.
    fn pop(&mut self) -> Result<usize, &'static str> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(EMPTY);
        }
        self.stack.pop().ok_or(EMPTY)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<usize>, &'static str> {
        let mark = self.marks.pop().ok_or("an end without its beginning")?;
        Ok(self.stack.split_off(mark))
    }

    fn tuple(&mut self, length: usize) -> Result<(), &'static str> {
        let mut items = Vec::with_capacity(length);
        for _ in 0..length {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Value::List(items));
        Ok(())
    }

    fn append(&mut self, items: &[usize]) -> Result<(), &'static str> {
        let list = *self.stack.last().ok_or(EMPTY)?;
        match self.values.get_mut(list) {
            Some(Value::List(list)) => list.extend(items),
            _ => return Err("an item of what is no list"),
        }
        Ok(())
    }

    fn set(&mut self, items: &[usize]) -> Result<(), &'static str> {
        let dict = *self.stack.last().ok_or(EMPTY)?;
        let (pairs, rest) = items.as_chunks::<2>();
        match self.values.get_mut(dict) {
            Some(Value::Dict(dict)) if rest.is_empty() => {
                dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
            }
            _ => return Err("a pair of what is no dict"),
        }
        Ok(())
    }

    fn remember<const N: usize>(&mut self) -> Result<(), &'static str> {
        let key = self.number::<N>()?;
        self.memo.insert(key, *self.stack.last().ok_or(EMPTY)?);
        Ok(())
    }

    fn recall<const N: usize>(&mut self) -> Result<(), &'static str> {
        let key = self.number::<N>()?;
        let known = self.memo.get(&key).ok_or("a value that was not kept")?;
        self.stack.push(*known);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pickle.dumps({"a": [1, -2, 70000, 1 << 40, True, None, 0.5], "b": ("x", "x")}, protocol)`
    const PROTOCOL_2: &[u8] = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffJp\x11\x01\x00\
        \x8a\x06\x00\x00\x00\x00\x00\x01\x88NG?\xe0\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00bq\x03X\x01\x00\x00\x00x\
        q\x04h\x04\x86q\x05u.";
    const PROTOCOL_4: &[u8] = b"\x80\x04\x958\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\
        \xffJp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x88NG?\xe0\x00\x00\x00\x00\x00\x00e\x8c\x01b\x94\x8c\x01x\
        \x94h\x04\x86\x94u.";

    #[test]
    fn what_python_writes() {
        for bytes in [PROTOCOL_2, PROTOCOL_4] {
            let pickle = Pickle::decode(bytes).unwrap();
            let root = pickle.root().unwrap();
            let a: Vec<Option<i64>> = root.get("a").unwrap().items().map(Node::int).collect();
            assert_eq!(
                a,
                [Some(1), Some(-2), Some(70000), Some(1 << 40), None, None, None]
            );
            let b: Vec<Option<&str>> = root.get("b").unwrap().items().map(Node::text).collect();
            assert_eq!(b, [Some("x"), Some("x")]);
            // A pickle that is cut off at any position must give an error with a valid position.
            for end in 0..bytes.len() {
                assert!(Pickle::decode(&bytes[..end]).unwrap_err().at <= end);
            }
        }
    }

    #[test]
    fn nothing_is_called() {
        // pickle.dumps(os.getcwd)
        let error = Pickle::decode(b"\x80\x02cposix\ngetcwd\nq\x00.").unwrap_err();
        assert_eq!(error.to_string(), "byte 2: not a pickle of basic types");
    }

    #[test]
    fn nested_or_referred_to_without_end() {
        let mut deep = vec![b']'; 1 << 20];
        deep.extend(vec![b'a'; (1 << 20) - 1]);
        deep.push(b'.');
        assert!(Pickle::decode(&deep).is_ok());
        // A list that contains itself.
        assert!(Pickle::decode(b"]q\x00h\x00a.").is_ok());
        // Each list contains the previous one ten times.
        let mut wide = b"]q\x00".to_vec();
        for level in 1..200_u8 {
            wide.extend([b']', b'q', level, b'(']);
            wide.extend([b'h', level - 1].repeat(10));
            wide.push(b'e');
        }
        wide.push(b'.');
        assert!(Pickle::decode(&wide).is_ok());
    }
}
