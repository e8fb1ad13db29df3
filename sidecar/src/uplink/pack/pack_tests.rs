use std::collections::BTreeMap;

use paceline_health::Provenance;
use paceline_health::event::Event;
use paceline_health::frame::{AGGREGATOR, SCHEMA_VERSION};
use paceline_health::sim::{World, WorldSpec};
use proptest::prelude::*;

use super::*;
use crate::uplink::Uplink;
use crate::uplink::spool::last_seq;
use crate::uplink::wire::{Ack, Down, Hello, Up, Welcome, decode_up, encode};

/// The [`fingerprint`] of the dictionary. A changed dictionary needs a new number, because sidecars of other versions
/// have the old one.
const FINGERPRINT: u64 = 5_384_923_642_566_290_054;
/// A message packed with this dictionary.
const PACKED: &str = "c10136629b761e92924f9ffd7d8741e31c91408b8f8d4b080e18f0020000000000007f80b022e0117008b8045c022e0117008b8045c022e0117000";

/// Computes FNV-1a.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Returns every message of a simulated job's sidecars, with its node. There is one step per second, and readings every
/// tenth second.
fn said(spec: &str, provenance: Provenance) -> Vec<(String, Vec<u8>)> {
    let mut messages = Vec::new();
    let mut uplinks: BTreeMap<String, Uplink> = BTreeMap::new();
    for (at, frame) in World::new(WorldSpec::parse(spec).unwrap()).unwrap() {
        let node = frame.node.as_str();
        if frame.agent == AGGREGATOR || is_left_out(&frame.event, at.0, node) {
            continue;
        }
        let job = paceline_health::id::JobId::from("scale");
        // The incarnations are hours apart, unlike those of real sidecars, so that common parts of them are not
        // learned.
        let agent = fingerprint(node.as_bytes());
        let uplink = uplinks.entry(node.to_owned()).or_insert_with(|| {
            let me = Hello {
                v: SCHEMA_VERSION,
                job: job.clone(),
                node: frame.node.clone(),
                agent,
            };
            let mut uplink = Uplink::new(me, 1 << 20);
            let welcome = Welcome {
                v: SCHEMA_VERSION,
                job: job.clone(),
                agent,
                journal: 1,
                upto: 0,
            };
            uplink.welcomed(&welcome, at.0);
            uplink
        });
        uplink.push(provenance, &frame.event, at.0);
        while let Some(message) = uplink.poll_send(at.0) {
            if let Ok(Up::Batch(batch)) = decode_up(&message) {
                let ack = Ack {
                    v: SCHEMA_VERSION,
                    job: job.clone(),
                    agent,
                    upto: last_seq(&batch),
                };
                uplink.received(&encode(&Down::Ack(ack)), at.0);
            }
            messages.push((node.to_owned(), message));
        }
    }
    messages
}

/// Returns true if a reading is left out. GPUs and hosts are read every tenth second, with nodes spread over different
/// seconds.
fn is_left_out(event: &Event, at_ns: u64, node: &str) -> bool {
    let is_slow = matches!(event, Event::Gpu(_) | Event::Host(_) | Event::Port(_));
    is_slow && !(at_ns / 1_000_000_000 + fingerprint(node.as_bytes()) % 10).is_multiple_of(10)
}

/// Makes the dictionary. Rare contents come first, because references to the end are the cheapest.
fn dictionary() -> Vec<u8> {
    let rich = "nodes=2 gpus=2 steps=8 self=1s host=on comms=on seed=3";
    let plain = "nodes=2 gpus=8 steps=12 self=1s host=on seed=4";
    let mut all = Vec::new();
    for (spec, provenance, most) in [(rich, Provenance::Live, 12), (plain, Provenance::Sim, 6)] {
        let messages = said(spec, provenance);
        let of_one = messages.iter().filter(|(node, _)| node == "node0");
        let of_one: Vec<&Vec<u8>> = of_one.map(|(_, message)| message).collect();
        let kept = of_one
            .iter()
            .take(most)
            .chain(of_one.iter().rev().skip(of_one.len().min(4)).take(1));
        kept.for_each(|message| all.extend_from_slice(message));
    }
    all
}

#[test]
#[ignore = "writes what the next dictionary would be to the file PACELINE_DICTIONARY"]
fn made_of_what_is_said() {
    std::fs::write(std::env::var("PACELINE_DICTIONARY").unwrap(), dictionary()).unwrap();
}

/// Returns the bytes per rank step on the wire, plain and packed, including seal and frame of every message.
fn of_a_rank_step(spec: &str, rank_steps: f64) -> (f64, f64) {
    let around = |bytes: usize| 22 + bytes + if bytes > 255 { 9 } else { 2 };
    let messages = said(spec, Provenance::Sim);
    let (mut plain, mut packed) = (0, 0);
    for (_, message) in &messages {
        let small = pack(message.clone());
        assert_eq!(unpack(&small).unwrap(), *message);
        plain += around(message.len());
        packed += around(small.len());
    }
    (plain as f64 / rank_steps, packed as f64 / rank_steps)
}

#[test]
fn a_fresh_job_fits_in_64_bytes_a_rank_step() {
    let (plain, packed) = of_a_rank_step("nodes=16 gpus=8 steps=60 self=1s seed=11", 16.0 * 8.0 * 60.0);
    assert!(plain > 150.0 && packed < 64.0, "{plain} bytes, packed {packed}");
}

#[test]
fn a_dictionary_never_changes() {
    let known = known();
    let of_last = Columns::split(SAID, &mut known.last.clone()).unwrap();
    let made = [known.text.clone(), of_last.bits].concat();
    assert_eq!(
        fingerprint(&made),
        FINGERPRINT,
        "another dictionary needs another number, and the old one to be read on"
    );
}

/// Packed messages stay readable in all later versions.
#[test]
fn what_an_older_sidecar_packed_is_read() {
    let bytes = |hex: &str| -> Vec<u8> {
        let pairs = hex.as_bytes().chunks(2);
        pairs
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    };
    let packed = bytes(PACKED);
    let message = encode(&(1u64 << 40, "train", 0.5f64, 300u16, -5i64, vec![70_000u32; 40]));
    assert_eq!(*unpack(&packed).unwrap(), message);
}

fn real() -> Vec<Vec<u8>> {
    let messages = said("nodes=2 gpus=4 steps=12 self=1s host=on seed=5", Provenance::Live);
    messages.into_iter().map(|(_, message)| message).collect()
}

#[test]
fn a_bomb_is_as_small_as_it_says() {
    // A megabyte and one byte of zeros is deflated to a thousandth of that.
    let check = |claimed: usize, zeros: usize, limit: &str| {
        let mut packed = vec![MARK, DICTIONARY];
        put_number(&mut packed, claimed);
        put_number(&mut packed, claimed);
        packed.reserve(zeros / 100 + 100);
        with_machines(|machines| {
            machines.deflate.reset();
            let plain = vec![0; zeros];
            let ended = machines
                .deflate
                .compress_vec(&plain, &mut packed, FlushCompress::Finish);
            assert_eq!(ended.unwrap(), Status::StreamEnd);
        });
        assert!(packed.len() < zeros / 100);
        let error = unpack(&packed).unwrap_err().to_string();
        assert!(error.contains(limit), "{error}");
        assert!(decode_up(&packed).is_err());
    };
    check(MAX_MESSAGE_BYTES + 1, MAX_MESSAGE_BYTES + 1, "at most");
    check(1000, 1 << 26, "not what was packed");
    check((1 << 28) - 1, 1 << 20, "at most");
    // These are eight-byte numbers that take one byte of skeleton and one of width, so the result is nine times as
    // large as the inflated data.
    let mut many = vec![0xcf; 200_000];
    let skeleton = many.len();
    many.extend(vec![0; skeleton]);
    let mut packed = vec![MARK, DICTIONARY];
    put_number(&mut packed, skeleton);
    put_number(&mut packed, many.len());
    packed.reserve(10_000);
    with_machines(|machines| {
        machines.deflate.reset();
        let ended = machines
            .deflate
            .compress_vec(&many, &mut packed, FlushCompress::Finish);
        assert_eq!(ended.unwrap(), Status::StreamEnd);
    });
    assert!(matches!(unpack(&packed), Err(WireError::Packed)));
}

#[test]
fn another_dictionary_is_refused_by_name() {
    let mut packed = pack(real().pop().unwrap());
    assert_eq!(packed[0], MARK);
    packed[1] = 2;
    let error = decode_up(&packed).unwrap_err().to_string();
    assert_eq!(
        error,
        "packed with dictionary 2, which this version does not have"
    );
    assert!(decode_up(&[MARK]).is_err() && decode_up(&[MARK, DICTIONARY]).is_err());
}

#[test]
fn what_is_no_message_stays_as_it_is() {
    for bytes in [vec![0xc7; 300], vec![0xdb; 300], Vec::new(), vec![0x81; 20]] {
        assert_eq!(pack(bytes.clone()), bytes);
    }
}

#[test]
fn packs_only_for_who_reads_it() {
    use crate::uplink::wire::Reads;
    let me = Hello {
        v: SCHEMA_VERSION,
        job: "j".into(),
        node: "n".into(),
        agent: 7,
    };
    let welcome = Welcome {
        v: SCHEMA_VERSION,
        job: "j".into(),
        agent: 7,
        journal: 1,
        upto: 0,
    };
    let mut uplink = Uplink::new(me, 1 << 20);
    let mut first_byte = |reads: Option<(u64, u8)>| {
        uplink.broken();
        uplink.connected(0);
        uplink.welcomed(&welcome, 0);
        if let Some((agent, dictionary)) = reads {
            let reads = Reads {
                job: "j".into(),
                agent,
                dictionary,
            };
            uplink.received(&encode(&Down::Reads(reads)), 0);
        }
        (0..20).for_each(|_| {
            let beat = Event::Beat(paceline_health::event::Beat::default());
            _ = uplink.push(Provenance::Live, &beat, 0);
        });
        uplink.poll_send(1 << 40).unwrap()[0]
    };
    assert_ne!(first_byte(None), MARK, "an older aggregator says nothing");
    assert_eq!(first_byte(Some((7, DICTIONARY))), MARK);
    assert_ne!(first_byte(None), MARK, "the next one may be older");
    assert_ne!(first_byte(Some((8, DICTIONARY))), MARK, "said to another");
    assert_ne!(first_byte(Some((7, DICTIONARY - 1))), MARK, "knows none of ours");
    assert_eq!(first_byte(Some((7, DICTIONARY + 1))), MARK);
}

proptest! {
    /// Any MessagePack is restored exactly.
    #[test]
    fn every_byte_comes_back(
        numbers in proptest::collection::vec((any::<u64>(), 0u32..64, any::<f64>(), any::<f32>(), any::<i32>()), 4..60),
        text in "[a-z]{0,40}",
    ) {
        let numbers: Vec<_> = numbers
            .into_iter()
            .map(|(whole, shift, double, single, small)| (whole >> shift, double, single, small, text.as_str()))
            .collect();
        let message = encode(&numbers);
        let packed = squeeze(&message).unwrap();
        prop_assert_eq!(&*unpack(&packed).unwrap(), &message[..]);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        skeleton in 0u8..100,
        whole in 0u8..100,
    ) {
        if let Some(packed) = squeeze(&bytes) {
            prop_assert_eq!(&*unpack(&packed).unwrap(), &bytes[..]);
        }
        let claimed = [&[MARK, DICTIONARY, skeleton, whole][..], &bytes].concat();
        let _ = decode_up(&claimed);
        let mut last = Last::default();
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        let (second, third) = rest.split_at(rest.len() / 2);
        let made = Columns::join(first, second, third, &mut last, 1 << 10);
        prop_assert!(made.is_none_or(|made| made.len() <= 1 << 10));
    }

    /// A message damaged in one place is rejected or read as another, without a panic and within the size limit.
    #[test]
    fn damaged_bytes_never_panic(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut packed = pack(real().pop().unwrap());
        let at = at.index(packed.len());
        packed[at] ^= 1 << bit;
        if let Ok(message) = unpack(&packed) {
            prop_assert!(message.len() <= MAX_MESSAGE_BYTES);
        }
        let _ = decode_up(&packed);
    }
}
