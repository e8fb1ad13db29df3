//! Tests that wrong results are detected. One byte is changed between two ranks.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use paceline_nccl_bench::collective::{Collective, Plan};
use paceline_nccl_bench::dtype::Dtype;
use paceline_nccl_bench::measure::{Rounds, time};
use paceline_nccl_bench::net::{Handshake, Role, Seat, loopback};
use paceline_nccl_bench::transport::tcp::{Tcp, TcpOptions};

use crate::{each, long};

/// Offset of the changed byte in a stream. The star's messages never reach this offset.
const FLIPPED: usize = 200_001;

/// Returns a handshake that inserts a proxy into each connection. The proxy changes one byte, at a late offset.
fn meddler() -> Handshake {
    Arc::new(|theirs: TcpStream, role, _: &_| {
        if role == Role::Accepted {
            return Ok(theirs);
        }
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let ours = TcpStream::connect(listener.local_addr()?)?;
        let (middle, _) = listener.accept()?;
        theirs.set_read_timeout(None)?;
        let (theirs_too, middle_too) = (theirs.try_clone()?, middle.try_clone()?);
        thread::spawn(move || pass(middle, theirs, Some(FLIPPED)));
        thread::spawn(move || pass(theirs_too, middle_too, None));
        Ok(ours)
    })
}

fn pass(mut from: TcpStream, mut to: TcpStream, flipped: Option<usize>) {
    let (mut bytes, mut passed) = (vec![0; 65536], 0);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if let Some(at) = flipped
            .and_then(|at| at.checked_sub(passed))
            .filter(|at| *at < count)
        {
            bytes[at] ^= 0x40;
        }
        passed += count;
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

#[test]
fn one_byte_on_the_wire_is_one_wrong_element_for_each_who_got_it() {
    let check = |dtype: Dtype, bytes: u64, wrong: u64| {
        let timings = each(loopback(2, Some(meddler())).unwrap(), |place| {
            let seat = Seat::take(place).unwrap();
            let mut tcp = Tcp::join(seat, TcpOptions::default(), &long("join")).unwrap();
            let plan = Plan::new(Collective::AllGather, dtype, bytes, 2).unwrap();
            // There are no warm-ups, so that the first bytes on the links are those of the verification.
            let rounds = Rounds {
                iterations: 1,
                warm_ups: 0,
                checks: 1,
                ..Rounds::default()
            };
            let rounds = Rounds {
                checks: if wrong > 0 { 3 } else { 1 },
                ..rounds
            };
            time(&mut tcp, &plan, &rounds).unwrap()
        });
        let timing = timings.into_iter().flatten().next().unwrap();
        assert_eq!(timing.nwrong, Some(wrong), "{dtype}");
        let of_ranks: Vec<Option<u64>> = timing.ranks.iter().map(|rank| rank.nwrong).collect();
        assert_eq!(
            of_ranks,
            [Some(wrong), Some(0)],
            "only rank 0 got it: rank 1 dialled"
        );
    };
    for dtype in Dtype::ALL {
        check(dtype, 100_000, 0); // Two times 50,000 bytes do not reach the changed byte.
        check(dtype, 160_000, 1); // The changed byte is in the third of four times 80,000 bytes.
    }
}
