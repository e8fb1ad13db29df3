use super::*;

fn member(id: u64, ranks: u32) -> Member {
    Member {
        id,
        ranks,
        name: [1, 2, 3],
    }
}

#[test]
fn a_context_ends_once_and_is_stale_then() {
    let comms = Box::new(Comms::new());
    let context = comms.join(member(7, 4)).unwrap();
    assert_eq!(comms.of(context).map(|(_, found)| found), Some(member(7, 4)));
    assert_eq!(comms.leave(context), Some(member(7, 4)));
    assert_eq!(comms.leave(context), None);
    assert!(comms.of(context).is_none());
    let next = comms.join(member(8, 4)).unwrap();
    assert_ne!(next, context, "the same place, another generation");
    assert!(comms.of(context).is_none() && comms.of(next).is_some());
    for foreign in [0usize, 1, 0xffff, 0xdead_beef_0001] {
        assert!(comms.of(foreign as *mut c_void).is_none());
    }
}

#[test]
fn the_largest_leads_and_more_than_fit_are_refused() {
    let comms = Box::new(Comms::new());
    let small = comms.join(member(1, 2)).unwrap();
    let large = comms.join(member(2, 8)).unwrap();
    let other = comms.join(member(3, 8)).unwrap();
    for (context, times) in [(small, 3), (large, 5), (other, 7)] {
        (0..times).for_each(|_| comms.of(context).unwrap().0.count());
    }
    assert_eq!(comms.led(), (2, 5), "the first of the largest");
    for id in 4..=COMMS as u64 {
        assert!(comms.join(member(id, 2)).is_some());
    }
    assert_eq!(comms.join(member(999, 2)), None);
    let mut told = 0;
    comms.each(|_| told += 1);
    assert_eq!(told, COMMS);
}

/// A leader that ends, stops making progress, or is not the reader's choice is replaced, with the same result on all
/// members.
#[test]
fn who_leads() {
    let comms = Box::new(Comms::new());
    let join = |id, ranks| comms.join(member(id, ranks)).unwrap();
    let (world, data, tensor) = (join(1, 64), join(2, 16), join(3, 8));
    let count = |context| comms.of(context).unwrap().0.count();
    // The world communicator runs one broadcast at the beginning, and none later.
    count(world);
    (0..9).for_each(|_| count(data));
    comms.look();
    assert_eq!(comms.led(), (1, 1));
    [data, data, tensor].into_iter().for_each(count);
    comms.look();
    assert_eq!(comms.led(), (2, 11), "one that stands still leads no longer");
    comms.look();
    assert_eq!(comms.led(), (2, 11), "nothing moves, nothing changes");
    comms.lead(3);
    assert_eq!(comms.led(), (3, 1), "as the reader says");
    count(data);
    comms.look();
    comms.lead(3);
    assert_eq!(comms.led(), (2, 12), "but not again and again");
    count(tensor);
    comms.lead(3);
    assert_eq!(comms.led(), (3, 2), "unless it moves");
    comms.lead(2);
    comms.leave(data);
    assert_eq!(comms.led(), (3, 2), "nor one that has ended");
    let other = join(9, 2);
    (0..7).for_each(|_| count(other));
    assert_eq!(comms.led(), (3, 2), "whoever has its place");
    comms.lead(3);
    let barrier = join(20, 128);
    assert_eq!(comms.led(), (3, 2), "a larger one leaves the reader's choice");
    comms.leave(barrier);
    assert!(
        [tensor, world]
            .iter()
            .all(|context| comms.leave(*context).is_some())
    );
    assert_eq!(comms.led(), (9, 7));
    comms.leave(other);
    assert_eq!(comms.led(), (0, 0));
    comms.lead(77);
    assert_eq!(comms.led(), (0, 0), "not one of ours");
}

/// One process with several GPUs holds several ranks of one communicator.
#[test]
fn several_ranks_of_one_process() {
    let comms = Box::new(Comms::new());
    let [a, b, other] = [(7, 4), (7, 4), (8, 2)].map(|(id, ranks)| comms.join(member(id, ranks)).unwrap());
    let is_shared = |context| comms.of(context).map(|(comm, _)| comm.is_shared());
    assert_eq!(
        [a, b, other].map(is_shared),
        [Some(true), Some(true), Some(false)]
    );
    let mut told = Vec::new();
    comms.each(|member| told.push(member.id));
    assert_eq!(told, [8]);
    assert!([a, b].iter().all(|context| comms.leave(*context).is_some()));
    let alone = comms.join(member(7, 4)).unwrap();
    assert_eq!(is_shared(alone), Some(false), "the others have ended");
}

#[test]
fn several_ranks_that_join_at_once() {
    for _ in 0..200 {
        let comms = Box::new(Comms::new());
        let barrier = std::sync::Barrier::new(2);
        let join = || {
            barrier.wait();
            comms.join(member(7, 4)).unwrap() as usize
        };
        let (a, b) = std::thread::scope(|scope| {
            let other = scope.spawn(join);
            (join(), other.join().unwrap())
        });
        for context in [a, b] {
            assert!(comms.of(context as *mut c_void).unwrap().0.is_shared());
        }
    }
}
