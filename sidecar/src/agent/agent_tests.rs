use std::sync::{Arc, Mutex};

use paceline_health::event::Pulse;
use paceline_health::frame::SCHEMA_VERSION;

use super::*;
use crate::source::Send;
use crate::uplink::Intake;
use crate::uplink::wire::{Ack, Down, Hello, Up, Welcome, decode_up, encode};

const S: u64 = 1_000_000_000;

#[derive(Clone, Debug, Default)]
struct Log {
    busy: bool,
    polls: u64,
    introduced: u64,
    settled: u64,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Log>>);

impl Source for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }
    fn poll(&mut self, _now_ns: u64, send: &mut Send<'_>) {
        self.0.lock().unwrap().polls += 1;
        send(Provenance::Live, Event::Exit(event::Exit { code: 77 }));
    }
    fn settled(&mut self, seq: u64) {
        self.0.lock().unwrap().settled = seq;
    }
    fn pulses(&mut self, _now_ns: u64, _out: &mut Vec<Pulse>) {}
    fn introduce(&mut self, _send: &mut Send<'_>) {
        self.0.lock().unwrap().introduced += 1;
    }
    fn is_idle(&mut self) -> bool {
        !self.0.lock().unwrap().busy
    }
}

/// An agent, and a fake aggregator that accepts everything when the test asks it to.
struct Bench {
    agent: Agent,
    fake: Fake,
    intake: Intake,
    seen: Vec<&'static str>,
}

impl Bench {
    fn new() -> Bench {
        let fake = Fake::default();
        let me = Hello {
            v: SCHEMA_VERSION,
            job: "j".into(),
            node: "n".into(),
            agent: 1,
        };
        let agent = Agent::new(Uplink::new(me, 1 << 20), vec![Box::new(fake.clone())]);
        Bench {
            agent,
            fake,
            intake: Intake::default(),
            seen: Vec::new(),
        }
    }

    fn link(&mut self, journal: u64, now_ns: u64) {
        let welcome = Welcome {
            v: SCHEMA_VERSION,
            job: "j".into(),
            agent: 1,
            journal,
            upto: self.intake.upto(&"n".into(), 1),
        };
        let crate::uplink::Heard::Welcome { new_journal } = self.agent.uplink().welcomed(&welcome, now_ns)
        else {
            panic!("not welcome")
        };
        self.agent.linked(new_journal, None, now_ns);
    }

    fn exchange(&mut self, now_ns: u64) {
        while let Some(bytes) = self.agent.uplink().poll_send(now_ns) {
            let Ok(Up::Batch(batch)) = decode_up(&bytes) else {
                panic!("no batch")
            };
            let taken = self.intake.offer(&batch);
            self.seen
                .extend(taken.frames.iter().map(|frame| match frame.event {
                    Event::Agent(_) => "agent",
                    Event::Beat(_) => "beat",
                    Event::Exit(event::Exit { code: 77 }) => "polled",
                    Event::Exit(_) => "exit",
                    Event::Bye(_) => "bye",
                    _ => "other",
                }));
            let ack = Ack {
                v: SCHEMA_VERSION,
                job: "j".into(),
                agent: 1,
                upto: taken.upto,
            };
            self.agent.uplink().received(&encode(&Down::Ack(ack)), now_ns);
        }
        self.agent.settle(now_ns);
    }

    fn log(&self) -> Log {
        self.fake.0.lock().unwrap().clone()
    }
}

#[test]
fn a_life_in_order() {
    let mut bench = Bench::new();
    bench.agent.tick(S);
    assert_eq!(
        (bench.agent.stage(), bench.log().polls),
        (Stage::Waiting, 0),
        "the rings keep it"
    );
    bench.link(1, S);
    bench.agent.tick(S);
    bench.agent.tick(S + S / 10);
    bench.exchange(S);
    assert_eq!(bench.seen, ["agent", "polled", "beat", "polled"]);
    assert_eq!(bench.log().settled, 4);
    bench.fake.0.lock().unwrap().busy = true;
    bench.agent.control(Control::Exit(3), 2 * S);
    bench.agent.control(Control::Exit(4), 2 * S);
    bench.agent.tick(2 * S);
    bench.exchange(2 * S);
    assert!(
        matches!(bench.agent.stage(), Stage::Draining { .. }),
        "a trainer still runs"
    );
    bench.fake.0.lock().unwrap().busy = false;
    bench.agent.tick(2 * S + S / 10);
    assert!(matches!(bench.agent.stage(), Stage::Leaving { .. }));
    bench.exchange(2 * S + S / 10);
    assert_eq!(
        bench.seen[4..],
        ["polled", "beat", "polled", "exit", "beat", "bye"],
        "what was left is read before its ranks are over"
    );
    assert_eq!(bench.agent.stage(), Stage::Gone);
}

#[test]
fn an_end_that_nobody_acknowledges_is_an_end() {
    let mut bench = Bench::new();
    bench.fake.0.lock().unwrap().busy = true;
    bench.agent.control(Control::Exit(0), S);
    let mut now_ns = S;
    while bench.agent.stage() != Stage::Gone {
        now_ns += S / 10;
        bench.agent.tick(now_ns);
        assert!(now_ns < 4 * S, "the launcher waits");
    }
    bench.intake = Intake::default();
    bench.link(1, now_ns);
    bench.exchange(now_ns);
    assert_eq!(bench.seen[0], "agent", "its name comes first all the same");
    assert!(bench.seen.contains(&"exit"));
}

#[test]
fn a_new_journal_hears_every_name_again() {
    let mut bench = Bench::new();
    bench.link(1, S);
    bench.agent.tick(S);
    bench.exchange(S);
    bench.link(1, S);
    assert_eq!(bench.log().introduced, 0, "the same one knows us");
    bench.link(2, S);
    bench.exchange(S);
    assert_eq!((bench.log().introduced, bench.seen.last()), (1, Some(&"agent")));
}

#[test]
fn without_a_launcher_the_watch_lasts_as_long_as_the_child() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let mut bench = Bench::new();
    bench.link(1, S);
    bench.agent.control(Control::Child(child.id()), S);
    bench.agent.control(Control::Eof, S);
    bench.agent.tick(100 * S);
    assert_eq!(bench.agent.stage(), Stage::Watching);
    child.kill().unwrap();
    child.wait().unwrap();
    bench.agent.tick(101 * S);
    assert!(matches!(bench.agent.stage(), Stage::Draining { .. }));

    let mut childless = Bench::new();
    childless.link(1, S);
    childless.agent.control(Control::Eof, S);
    childless.agent.tick(2 * S);
    assert_eq!(childless.agent.stage(), Stage::Watching);
    childless.agent.tick(12 * S);
    assert!(matches!(childless.agent.stage(), Stage::Draining { .. }));
}
