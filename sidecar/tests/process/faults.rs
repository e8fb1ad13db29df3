//! From a line of the kernel log to a verdict.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant};

use crate::job::Job;

/// The speed on a busy machine is not meaningful: this checks that no line waits for a timer of seconds. The speed is
/// printed.
const SLOWEST: Duration = Duration::from_secs(3);

#[test]
fn a_kernel_line_becomes_a_verdict() {
    let job = Job::new("kmsg");
    let log = job.dir.path().join("kmsg");
    let old = "NVRM: Xid (PCI:0000:01:00): 48, pid=1, name=a, from before the watch\n";
    std::fs::write(&log, old).unwrap();
    let mut sidecar = job.start("n0", &["--kmsg", log.to_str().unwrap()]);
    sidecar.hear("ready");
    let before = sidecar.hear("verdict");
    assert_eq!(
        (before["finding"].as_str(), before["severity"].as_str()),
        (Some("xid-recorded"), Some("info"))
    );
    let mut took: Vec<Duration> = (2..42_u32)
        .map(|gpu| {
            let mut file = OpenOptions::new().append(true).open(&log).unwrap();
            let began = Instant::now();
            writeln!(
                file,
                "4,{gpu},77000000,-;NVRM: Xid (PCI:0000:{gpu:02x}:00): 119, pid=7, name=a, Timeout of GSP"
            )
            .unwrap();
            let verdict = sidecar.hear("verdict");
            assert_eq!(verdict["finding"], "gpu-fault", "{verdict}");
            assert_eq!(verdict["provenance"], "live", "{verdict}");
            assert_eq!(verdict["order"]["remedy"], "reset_gpu", "{verdict}");
            assert_eq!(
                verdict["subject"]["gpu_uuid"],
                format!("0000:{gpu:02x}:00.0"),
                "{verdict}"
            );
            let took = began.elapsed();
            // Not synchronized with the sidecar's ticks.
            std::thread::sleep(Duration::from_millis(u64::from(7 * gpu % 100)));
            took
        })
        .collect();
    took.sort();
    println!(
        "kernel line to verdict: median {:?}, worst of 40 {:?}",
        took[20], took[39]
    );
    // Other load on the disk may delay one.
    assert!(took[37] < SLOWEST, "{took:?}");
    sidecar.say(r#"{"exit":{"code":0}}"#);
    sidecar.end();
    let report = job.report(&job.run_dir());
    let notes = report["coverage"]["notes"].to_string();
    assert!(!notes.contains("kernel log"), "{notes}");
}

#[test]
fn a_kernel_log_that_cannot_be_read_is_told_and_no_more() {
    let job = Job::new("nokmsg");
    let mut sidecar = job.start("n0", &["--kmsg", job.dir.path().to_str().unwrap()]);
    sidecar.hear("ready");
    sidecar.hear("progress");
    sidecar.say(r#"{"exit":{"code":0}}"#);
    let (code, stderr) = sidecar.end();
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let report = job.report(&job.run_dir());
    let notes = report["coverage"]["notes"].to_string();
    assert!(
        notes.contains("the kernel log of 1 node cannot be read (n0"),
        "{notes}"
    );
}
