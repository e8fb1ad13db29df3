//! Tests that the detector's memory does not grow in a long job. The test is a separate program, because its allocator
//! counts all allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use paceline_health::sim::{World, WorldSpec};
use paceline_health::{Detector, Policy};

struct Counting;

static HELD: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call is forwarded unchanged to the system allocator, and the counter touches none of its memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
#[ignore = "a million frames: run it with --release -- --ignored"]
fn a_million_frames_of_64_ranks_do_not_grow_it() {
    let text = "nodes=8 gpus=8 steps=100000 sigma=0.02";
    let mut spec = WorldSpec::parse(text).expect(text);
    spec.faults = [
        "slow rank=9 factor=1.2 from=500",
        "loss share=0.05",
        "repeat share=0.05",
        "heat gpu=33 from=300s",
    ]
    .map(|fault| fault.parse().expect(fault))
    .to_vec();
    let mut world = World::new(spec).expect("a world");
    let mut detector = Detector::new(Policy::default());
    let mut held = Vec::new();
    for _ in 0..10 {
        for (at, frame) in world.by_ref().take(100_000) {
            detector.observe(at, &frame);
            while detector.poll().is_some() {}
        }
        held.push(HELD.load(Ordering::Relaxed));
    }
    let report = detector.report();
    assert!(report.steps > 10_000, "{} steps", report.steps);
    assert!(report.verdicts.len() >= 2, "{:?}", report.verdicts);
    let (early, late) = (held[2], held[9]);
    assert!(
        late < early + early / 20,
        "bytes held after each 100,000 frames: {held:?}"
    );
}
