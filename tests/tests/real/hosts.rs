//! Why a rank is slow, as its host tells it.

use std::process::{Child, Command, Stdio};

use crate::job::torchrun;

/// The CPU that rank 2 must share.
const CPU: &str = "1";
/// Programs that want all of it.
const NEIGHBOURS: usize = 3;

/// Busy loops on one CPU, until they are dropped.
struct Neighbours(Vec<Child>);

impl Neighbours {
    fn on(cpu: &str) -> Neighbours {
        let busy = |_| {
            let mut loops = Command::new("taskset");
            loops.args(["-c", cpu, "sh", "-c", "while :; do :; done"]);
            loops.stdin(Stdio::null()).spawn().unwrap()
        };
        Neighbours((0..NEIGHBOURS).map(busy).collect())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_neighbour_takes_the_cpu_of_one_rank() {
    let _neighbours = Neighbours::on(CPU);
    let args = format!("--steps 150 --sleep-ms 60 --spin-ms 8 --pin-rank 2 --pin-cpu {CPU}");
    let ended = torchrun(&[], 4, "ddp.py", &args).run().ok();
    ended.names_only(2, 150);
    let report = ended.report();
    let verdict = &report["verdicts"][0];
    assert_eq!(verdict["cause"], "cpu-contention", "{verdict}");
    let evidence = verdict["evidence"].as_array().unwrap();
    let wanted = evidence
        .iter()
        .find(|piece| piece["what"] == "cpu_contention_ratio")
        .unwrap_or_else(|| panic!("{verdict}"));
    let (own, peers) = (
        wanted["value"].as_f64().unwrap(),
        wanted["peers"].as_f64().unwrap(),
    );
    assert!(own > peers + 0.05, "{verdict}");
    assert_eq!(verdict["provenance"], "live");
}
