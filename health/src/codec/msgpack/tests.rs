use std::collections::BTreeMap;
use std::fmt::Debug;

use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Unit;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Each {
    Bare,
    One(Option<u8>),
    Two(i8, i64),
    Named { a: bool, list: Vec<f32> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Told {
    Number(f64),
    Word(Each),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Empty {},
    Full { at: u64, told: Told },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Flat {
    own: char,
    #[serde(flatten)]
    rest: BTreeMap<String, i32>,
}

fn back<T: Serialize + for<'de> Deserialize<'de> + PartialEq + Debug>(value: &T) {
    let mut bytes = rmp_serde::to_vec(value).unwrap();
    assert_eq!(&from_slice::<T>(&bytes).unwrap(), value);
    for len in 0..bytes.len() {
        assert!(
            from_slice::<T>(&bytes[..len]).is_err(),
            "{value:?}, {len} bytes of it"
        );
    }
    bytes.push(0x2a);
    let (_, rest) = from_prefix::<IgnoredAny>(&bytes).unwrap();
    assert_eq!(rest, [0x2a], "what is skipped of {value:?}");
}

#[test]
fn what_is_written_is_read() {
    for number in [
        0,
        1,
        127,
        128,
        255,
        256,
        65_535,
        65_536,
        u64::from(u32::MAX),
        1 << 32,
        u64::MAX,
    ] {
        back(&number);
    }
    for number in [
        0,
        -1,
        -32,
        -33,
        -128,
        -129,
        127,
        -32_768,
        -32_769,
        -1 << 31,
        (-1 << 31) - 1,
        i64::MIN,
        i64::MAX,
    ] {
        back(&number);
    }
    for number in [0.0, -0.0, 0.1, f64::INFINITY, f64::MIN_POSITIVE] {
        back(&number);
        back(&(number as f32));
    }
    for len in [0, 15, 16, 31, 32, 255, 256, 65_535, 65_536] {
        let text = "x".repeat(len);
        assert_eq!(
            from_slice::<&str>(&rmp_serde::to_vec(&text).unwrap()).unwrap(),
            text
        );
        let many = vec![true; len];
        assert_eq!(
            from_slice::<Vec<bool>>(&rmp_serde::to_vec(&many).unwrap()).unwrap(),
            many
        );
        let pairs: BTreeMap<usize, ()> = (0..len).map(|n| (n, ())).collect();
        assert_eq!(
            from_slice::<BTreeMap<usize, ()>>(&rmp_serde::to_vec(&pairs).unwrap()).unwrap(),
            pairs
        );
    }
    let named = Each::Named {
        a: true,
        list: vec![1.5, -2.0],
    };
    for each in [
        Each::Bare,
        Each::One(None),
        Each::One(Some(200)),
        Each::Two(-1, -1 << 40),
        named,
    ] {
        back(&each);
        back(&(Some(each.clone()), Told::Word(each.clone()), 'é'));
        back(&Tagged::Full {
            at: 7,
            told: Told::Word(each),
        });
    }
    back(&(Tagged::Empty {}, Told::Number(0.5), Unit, ()));
    back(&Flat {
        own: 'f',
        rest: BTreeMap::from([("a".to_owned(), -70_000)]),
    });
}

#[test]
fn another_shape_is_refused() {
    let said = |bytes: &[u8]| from_slice::<(u32, String)>(bytes).unwrap_err().to_string();
    assert_eq!(
        said(&[0x92, 0xff, 0xa0]),
        "an integer in place of a number without sign"
    );
    assert_eq!(said(&[0x92, 0x01, 0xc0]), "nothing in place of a text");
    assert_eq!(said(&[0x93, 0x01, 0xa0, 0x02]), "1 more than are known");
    assert_eq!(said(&[0x82, 0x01]), "a map in place of an array");
    assert_eq!(said(&[0x92, 0xc1]), "an unknown marker");
    assert!(from_slice::<u8>(&rmp_serde::to_vec(&256).unwrap()).is_err());
    assert!(from_slice::<Each>(&rmp_serde::to_vec("One").unwrap()).is_err());
    assert!(from_slice::<String>(&[0xa1, 0xff]).is_err());
}

/// Deep nesting or a large stated length does not make the decoder use more memory than the bytes that encode it.
#[test]
fn what_is_stated_is_not_believed() {
    #[derive(Debug, Deserialize)]
    struct Deeper(#[expect(dead_code)] Vec<Deeper>);
    let deep = [0x91].repeat(100_000);
    assert_eq!(from_slice::<Deeper>(&deep).unwrap_err().to_string(), "too deep");
    assert_eq!(
        from_slice::<IgnoredAny>(&deep).unwrap_err().to_string(),
        "cut short"
    );
    let long = [0xdd, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(
        from_slice::<Vec<[u64; 32]>>(&long).unwrap_err().to_string(),
        "cut short"
    );
    assert!(from_slice::<IgnoredAny>(&[0xc6, 0xff, 0xff, 0xff, 0xff]).is_err());
}

proptest! {
    #[test]
    fn bytes_are_read_as_by_rmp_serde(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        type Any = (Option<Each>, Told, Vec<Tagged>);
        if let Ok(read) = from_slice::<Any>(&bytes) {
            prop_assert_eq!(rmp_serde::from_slice::<Any>(&bytes).ok(), Some(read));
        }
    }
}
