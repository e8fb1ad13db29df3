//! Signals must reach the command's process group, exactly once.

use std::time::{Duration, Instant};

use crate::launched::{Place, signal, until};

#[test]
fn signals_are_passed_on_and_the_commands_answer_is_the_exit_code() {
    for (name, code) in [
        ("INT", 11),
        ("TERM", 12),
        ("USR1", 13),
        ("USR2", 14),
        ("HUP", 15),
        ("QUIT", 16),
    ] {
        let place = Place::new();
        let script = format!("trap 'exit {code}' {name}; echo ready; while :; do sleep 0.02; done");
        let running = place.start(&[], &script);
        running.until_printed("ready");
        signal(name, running.pid());
        assert_eq!(running.wait(), code, "{name}");
        assert!(place.path("run/report.json").exists(), "{name}");
    }
}

#[test]
fn a_command_that_does_not_listen_ends_by_the_signal() {
    let place = Place::new();
    let running = place.start(&[], "echo ready; exec sleep 600");
    running.until_printed("ready");
    signal("TERM", running.pid());
    assert_eq!(running.wait(), 143);
}

#[test]
fn a_second_delivery_within_a_second_is_not_doubled() {
    // Retries if the machine is so busy that a second passes in between.
    for _ in 0..5 {
        let place = Place::new();
        let script = "trap 'echo term' TERM; trap 'exit 0' USR1; echo ready; while :; do sleep 0.02; done";
        let running = place.start(&[], script);
        running.until_printed("ready");
        let began = Instant::now();
        signal("TERM", running.pid());
        running.until_printed("term");
        signal("TERM", running.pid());
        let quick = began.elapsed() < Duration::from_millis(900);
        // Signals are forwarded in order, so the end proves that the second TERM was processed.
        signal("USR1", running.pid());
        assert_eq!(running.wait(), 0);
        if quick {
            assert_eq!(place.read("stdout"), "ready\nterm\n");
            return;
        }
    }
    panic!("never quick enough to tell");
}

#[test]
fn a_later_repeat_is_meant() {
    let place = Place::new();
    let script = "trap 'echo term' TERM; trap 'exit 0' USR1; echo ready; while :; do sleep 0.02; done";
    let running = place.start(&[], script);
    running.until_printed("ready");
    let mut sent = 0;
    until("a second TERM", || {
        signal("TERM", running.pid());
        sent += 1;
        (place.read("stdout").matches("term").count() >= 2).then_some(())
    });
    // Most signals were sent within a second of another one, and must have been dropped.
    assert!(sent > 2, "{sent}");
    signal("USR1", running.pid());
    assert_eq!(running.wait(), 0);
}

#[test]
fn the_whole_group_of_the_command_gets_it() {
    let place = Place::new();
    // Sets the outer trap first, because it must be set before the inner shell prints ready.
    let script = "trap 'echo child' USR1; \
                  sh -c 'trap \"echo grandchild; exit 0\" USR1; echo ready; while :; do sleep 0.02; done' & \
                  until wait $!; do :; done; exit 5";
    let running = place.start(&[], script);
    running.until_printed("ready");
    signal("USR1", running.pid());
    running.until_printed("grandchild");
    assert_eq!(running.wait(), 5);
    assert!(place.read("stdout").contains("child\n"));
}

/// A stopped child stays stopped. Outside of a terminal, the launcher must not stop with it.
#[test]
fn a_stopped_command_goes_on() {
    let place = Place::new();
    let script = "trap 'exit 6' TERM; echo $$; while :; do sleep 0.02; done";
    let running = place.start(&[], script);
    let child: u32 = until("the child's number", || place.read("stdout").trim().parse().ok());
    signal("STOP", child);
    let state = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    until("the stop", || state().contains(") T ").then_some(()));
    signal("TERM", running.pid());
    signal("CONT", running.pid());
    assert_eq!(running.wait(), 6);
}
