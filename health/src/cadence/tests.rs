//! Sequences of collectives of one rank in typical training programs, and the steps found in them.

use proptest::prelude::*;

use super::*;

const ALL_GATHER: u8 = 3;
const MIB: u64 = 1 << 20;
/// Time from one collective to the next.
const EACH_NS: u64 = 50_000_000;

/// One rank's program: each collective with its optimizer step.
#[derive(Default)]
struct Program {
    did: Vec<(Did, u64)>,
    sequences: BTreeMap<(u64, u8), u64>,
    step: u64,
}

impl Program {
    fn meet(&mut self, comm: u64, ranks: u32, function: u8, bytes: u64) {
        let next = self.sequences.entry((comm, function)).or_default();
        let did = Did {
            comm,
            ranks,
            function,
            bytes,
            sequence: *next,
            ticket: self.did.len() as u32 + 1,
            is_heavy: bytes >= 8 << 10,
        };
        *next += 1;
        self.did.push((did, self.step));
    }

    fn all_reduce(&mut self, comm: u64, ranks: u32, bytes: u64) {
        self.meet(comm, ranks, ALL_REDUCE, bytes);
    }

    /// Returns a cadence that waits for two and a half steps before it reports steps.
    fn patient(&self) -> Cadence {
        let two = self.did.iter().filter(|(_, step)| *step <= 2).count() as u64;
        Cadence::new(two * 5 / 4 * EACH_NS)
    }

    fn steps(mut self, steps: u64, mut one: impl FnMut(&mut Program, u64)) -> Program {
        for step in 1..=steps {
            self.step = step;
            one(&mut self, step);
        }
        self
    }
}

/// Runs the program and returns the steps found: for each step that ended, its number, the program's number for it, and
/// its kind.
fn play(program: &Program, cadence: &mut Cadence, keep: impl Fn(usize) -> bool) -> Vec<(u64, u64, End)> {
    let mut ended = Vec::new();
    for (n, (did, step)) in program.did.iter().enumerate() {
        if !keep(n) {
            continue;
        }
        let place = cadence.see(did, n as u64 * EACH_NS);
        if let Some(end) = place.end {
            ended.push((place.step, *step, end));
        }
    }
    ended
}

/// Checks that steps are found within twenty and that their numbers keep a constant offset from the program's numbers.
/// Returns the offset.
fn check(name: &str, program: &Program) -> i64 {
    let ended = play(program, &mut program.patient(), |_| true);
    let last = program.did.last().unwrap().1;
    let Some(first) = ended.first() else {
        panic!("{name}: no steps are found in {last}")
    };
    assert!(first.1 <= 20, "{name}: found at {first:?}");
    let apart = first.0 as i64 - first.1 as i64;
    for (n, (told, real, _)) in ended.iter().enumerate() {
        assert_eq!(*told as i64 - *real as i64, apart, "{name}: {told} {real}");
        assert_eq!(*told, first.0 + n as u64, "{name}: one after the other");
    }
    assert!(ended.last().unwrap().1 + 1 >= last, "{name}: to the end");
    apart
}

/// Creates a data-parallel program. The buckets of the first step differ because DDP rebuilds them after that step.
fn ddp(steps: u64) -> Program {
    let mut program = Program::default();
    (0..3).for_each(|_| program.meet(7, 8, 4, 30 * MIB));
    program.steps(steps, |program, step| {
        let buckets: &[u64] = if step == 1 { &[4, 25, 11] } else { &[2, 25, 25, 13] };
        buckets.iter().for_each(|mib| program.all_reduce(7, 8, mib * MIB));
        program.all_reduce(7, 8, 4);
    })
}

/// A fully sharded program with identical layers, which calls all-gather in the forward pass, and all-gather and
/// reduce-scatter in the backward pass.
fn fsdp(steps: u64, micro_batches: usize, evaluate: impl Fn(u64) -> bool) -> Program {
    Program::default().steps(steps, |program, step| {
        for micro in 0..micro_batches {
            // The root's own parameters are gathered once.
            program.meet(9, 16, ALL_GATHER, 3 * MIB);
            (0..6).for_each(|_| program.meet(9, 16, ALL_GATHER, 8 * MIB));
            // Gradients are accumulated without communication until the last micro-batch.
            let is_last = micro + 1 == micro_batches;
            for _ in 0..6 {
                program.meet(9, 16, ALL_GATHER, 8 * MIB);
                (0..u32::from(is_last)).for_each(|_| program.meet(9, 16, REDUCE_SCATTER, 8 * MIB));
            }
            (0..u32::from(is_last)).for_each(|_| program.meet(9, 16, REDUCE_SCATTER, 3 * MIB));
        }
        program.all_reduce(9, 16, 4);
        if evaluate(step) {
            for _ in 0..9 {
                program.meet(9, 16, ALL_GATHER, 3 * MIB);
                (0..6).for_each(|_| program.meet(9, 16, ALL_GATHER, 8 * MIB));
            }
            program.all_reduce(9, 16, 8);
        }
    })
}

/// A program with tensor, data and pipeline parallelism. `lengths` gives the sequence length of a micro-batch; `place`
/// selects the communicator ids.
fn megatron(steps: u64, place: u64, layers: usize, lengths: impl Fn(u64) -> u64) -> Program {
    let mut micro = 0;
    Program::default().steps(steps, |program, step| {
        for _ in 0..4 {
            micro += 1;
            (0..4 * layers).for_each(|_| program.all_reduce(100 + place, 4, lengths(micro) * MIB));
        }
        program.meet(200 + place % 4, 4, REDUCE_SCATTER, 300 * MIB);
        program.all_reduce(300, 32, 4);
        program.meet(200 + place % 4, 4, ALL_GATHER, 150 * MIB);
        if step.is_multiple_of(10) {
            program.all_reduce(300, 32, 64);
        }
    })
}

#[test]
fn programs() {
    check("data parallel", &ddp(60));
    check(
        "one bucket",
        &Program::default().steps(60, |p, _| p.all_reduce(7, 8, 9 * MIB)),
    );
    let unlike = |p: &mut Program, _| {
        [4, 4, 4, 4, 9]
            .iter()
            .for_each(|mib| p.all_reduce(7, 8, mib * MIB))
    };
    check(
        "four buckets alike and one not",
        &Program::default().steps(60, unlike),
    );
    check("sharded", &fsdp(40, 1, |_| false));
    check("sharded, gradients accumulated", &fsdp(40, 4, |_| false));
    check("sharded, with evaluation", &fsdp(60, 1, |step| step % 20 == 0));
    check("tensor, data", &megatron(40, 1, 8, |_| 4));
    let program = megatron(20, 1, 337, |_| 4);
    assert!(program.did.len() > 20 * 5_390);
    check("5,400 collectives in a step", &program);
    let lengths = |micro: u64| 1 + micro.wrapping_mul(2_654_435_761) % 13;
    check("sequences of varying lengths", &megatron(40, 1, 8, lengths));
}

/// All ranks report the same step numbers. The ids of their groups and the depth of their stage do not matter.
#[test]
fn ranks_agree() {
    let apart: Vec<i64> = (0..8)
        .map(|place| check("a rank", &megatron(40, place, 4 + place as usize % 3, |_| 4)))
        .collect();
    assert!(apart.iter().all(|a| *a == apart[0]), "{apart:?}");
}

/// Steps with additional collectives are reported as `Unlike`.
#[test]
fn an_evaluation_is_no_usual_step() {
    let program = fsdp(60, 1, |step| step % 20 == 0);
    let ended = play(&program, &mut program.patient(), |_| true);
    let unlike: Vec<u64> = ended
        .iter()
        .skip(1)
        .filter(|(.., end)| *end == End::Unlike)
        .map(|(_, real, _)| *real)
        .collect();
    assert!(
        unlike.len() >= 2 && unlike.iter().all(|step| [20, 21, 40, 41, 60].contains(step)),
        "{unlike:?}"
    );
}

/// A repetition within the first steps is not mistaken for a step before enough steps have ended.
#[test]
fn a_long_step_is_waited_for() {
    let program = megatron(12, 1, 60, |_| 4);
    let mut cadence = program.patient();
    let a_step = program.did.len() / 12;
    for (n, (did, _)) in program.did.iter().enumerate() {
        let place = cadence.see(did, n as u64 * EACH_NS);
        let is_early = n < 4 * a_step;
        assert!(!is_early || place.step == 0, "found in {n}");
    }
    assert!(cadence.memory().is_some());
}

/// A step with one lost record is reported as `InPart`, and all others as `Usual`.
#[test]
fn a_loss_is_no_evaluation() {
    let a_step = |program: &mut Program, _| {
        (0..6).for_each(|_| program.all_reduce(3, 4, 2 * MIB));
        program.meet(2, 16, REDUCE_SCATTER, 25 * MIB);
        program.all_reduce(3, 4, 4);
    };
    let program = Program::default().steps(40, a_step);
    for lost in 8 * 30..8 * 31 {
        let ended = play(&program, &mut program.patient(), |n| n != lost);
        let unusual = ended.iter().skip(1).filter(|(.., end)| *end != End::Usual);
        let unusual: Vec<End> = unusual.map(|(.., end)| *end).collect();
        assert_eq!(unusual, [End::InPart], "{lost} of {ended:?}");
    }
}

/// The reported communicator is the largest one of the repeated step, even if an earlier phase had a larger one.
#[test]
fn the_largest_of_a_step_leads() {
    let mut before = Program::default();
    (0..5).for_each(|_| before.meet(1, 64, 4, 9 * MIB));
    let program = before.steps(40, |program, _| {
        (0..6).for_each(|_| program.all_reduce(3, 4, 2 * MIB));
        [4, 25, 11]
            .iter()
            .for_each(|mib| program.all_reduce(2, 16, mib * MIB));
    });
    let mut cadence = program.patient();
    play(&program, &mut cadence, |_| true);
    assert_eq!(cadence.led(), Led { comm: 2, of_step: 3 });
}

/// After the program changes to another phase, steps are found again and the count continues.
#[test]
fn another_phase_of_training() {
    let program = ddp(40).steps(3000, |program, _| {
        [3, 5].iter().for_each(|mib| program.all_reduce(8, 8, mib * MIB));
    });
    let ended = play(&program, &mut program.patient(), |_| true);
    let numbers: Vec<u64> = ended.iter().map(|(told, ..)| *told).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b));
    assert!(*numbers.last().unwrap() >= 3_030, "{:?}", numbers.last());
}

/// A new reader continues the first reader's count, even if some records in between were never read.
#[test]
fn another_reader_counts_on() {
    for program in [ddp(200), fsdp(200, 2, |_| false), megatron(100, 1, 4, |_| 4)] {
        let whole = play(&program, &mut program.patient(), |_| true);
        let half = program.did.len() / 2;
        let mut first = program.patient();
        play(&program, &mut first, |n| n < half);
        let mut second = Cadence::new(0);
        second.resume(first.memory().unwrap());
        let rest = play(&program, &mut second, |n| n >= half + half / 7);
        assert!(
            rest.len() > 20 && rest.iter().skip(1).all(|end| whole.contains(end)),
            "{rest:?}"
        );
        let mut stranger = Cadence::new(0);
        stranger.comes_late();
        assert_eq!(play(&program, &mut stranger, |n| n >= half), []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whichever records are lost, step numbers are those of the complete sequence, and a step with lost records is not
    /// `Usual`.
    #[test]
    fn lost_records_do_not_shift_steps(from in 400usize..700, lost in 1usize..300, sharded: bool) {
        let program = if sharded { fsdp(80, 1, |_| false) } else { ddp(400) };
        let whole = play(&program, &mut program.patient(), |_| true);
        let told = play(&program, &mut program.patient(), |n| n < from || n >= from + lost);
        prop_assert!(told.len() > 10);
        let by_real: BTreeMap<u64, u64> = whole.iter().map(|(told, real, _)| (*real, *told)).collect();
        for (number, real, end) in told {
            prop_assert_ne!(end, End::Unlike, "{} was only seen in part", number);
            prop_assert_eq!(Some(&number), by_real.get(&real));
        }
    }

    /// No input causes a panic, and numbers never go back.
    #[test]
    fn any_sequence(all in proptest::collection::vec((0u64..5, 0u8..6, 0u64..4, 0u64..3), 1..3000)) {
        let mut cadence = Cadence::new(0);
        let mut sequence = 0;
        let mut latest = 0;
        for (n, (comm, function, size, skip)) in all.into_iter().enumerate() {
            sequence += skip;
            let bytes = 1 << (8 * size.min(2) + 4);
            let did = Did { comm, ranks: 2 + comm as u32, function, bytes, sequence, ticket: n as u32, is_heavy: bytes >= 8 << 10 };
            let place = cadence.see(&did, n as u64 * 1_000_000);
            prop_assert!(place.step == 0 || place.step >= latest);
            latest = place.step.max(latest);
        }
    }
}
