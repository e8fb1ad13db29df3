use std::fs::{self, OpenOptions};
use std::io::Write;
use std::time::Instant;

use paceline_health::event::{GpuFault, GpuFaultKind};

use super::*;

const SECOND: u64 = 1_000_000_000;

struct Bench {
    _dir: tempfile::TempDir,
    path: PathBuf,
    now_ns: u64,
}

impl Bench {
    fn new(text: Option<&str>) -> (Bench, Kmsg) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        let source = Kmsg::new(path.clone());
        let bench = Bench {
            _dir: dir,
            path,
            now_ns: host::monotonic_ns(),
        };
        (bench, source)
    }

    fn append(&self, text: &str) {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// Returns the events of one poll, which is made `after_ns` later.
    fn poll(&mut self, source: &mut Kmsg, after_ns: u64) -> Vec<Event> {
        self.now_ns += after_ns;
        let mut told = Vec::new();
        source.poll(self.now_ns, &mut |provenance, event| {
            assert_eq!(provenance, Provenance::Live);
            told.push(event);
            1
        });
        told
    }

    fn faults(&mut self, source: &mut Kmsg, after_ns: u64) -> Vec<GpuFault> {
        let faults = self
            .poll(source, after_ns)
            .into_iter()
            .filter_map(|event| match event {
                Event::GpuFault(fault) => Some(fault),
                _ => None,
            });
        faults.collect()
    }
}

fn states(told: &[Event]) -> Vec<KernelAccess> {
    let state = |event: &Event| match event {
        Event::Kernel(watch) => Some(watch.state),
        _ => None,
    };
    told.iter().filter_map(state).collect()
}

fn xid(pci: &str, number: u32, rest: &str) -> String {
    format!("NVRM: Xid (PCI:{pci}): {number}, pid=7, name=a, {rest}\n")
}

#[test]
fn what_stood_there_is_old_and_what_comes_is_new() {
    let text = format!(
        "{}[ 0.0] Linux version 6.8.0\nNVRM: GPU at PCI:0000:b3:00: GPU-6d1f0c3a-1111-2222-3333-000000000002\n{}",
        xid("0000:b3:00", 48, "of another boot"),
        xid("0000:b3:00", 31, "of this boot")
    );
    let (mut bench, mut source) = Bench::new(Some(&text));
    let told = bench.faults(&mut source, 0);
    let short: Vec<_> = told.iter().map(|fault| (fault.xid, fault.seen_by)).collect();
    assert_eq!(short, [(31, FaultSource::KernelBefore)]);
    bench.append(&xid("0000:b3:00", 79, "GPU has fallen off the bus."));
    let told = bench.faults(&mut source, 1);
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].xid, told[0].seen_by), (79, FaultSource::Kernel));
    let uuid = told[0].gpu.as_ref().map(GpuId::as_str);
    assert_eq!(uuid, Some("GPU-6d1f0c3a-1111-2222-3333-000000000002"));
    // A line without its newline is not complete yet, so it is not reported.
    let line = xid("0000:b3:00", 43, "x");
    bench.append(line.trim_end());
    assert_eq!(bench.faults(&mut source, SECOND), []);
    bench.append("\n");
    assert_eq!(bench.faults(&mut source, SECOND).len(), 1);
}

#[test]
fn a_burst_is_one_a_second_with_a_count() {
    let (mut bench, mut source) = Bench::new(Some(""));
    bench.poll(&mut source, 0);
    let (mut told, mut counted) = (0, 0);
    for _ in 0..100 {
        // Adds 2,000 faults a second, in polls of 100 ms. Each fault has another channel.
        for channel in 0..200 {
            bench.append(&xid("0000:b3:00", 45, &format!("Ch {channel:08x}")));
        }
        let faults = bench.faults(&mut source, SECOND / 10);
        told += faults.len();
        counted += faults.iter().map(|fault| fault.count).sum::<u32>();
    }
    counted += bench
        .faults(&mut source, SECOND)
        .iter()
        .map(|fault| fault.count)
        .sum::<u32>();
    assert_eq!(counted, 20_000);
    assert!((9..=11).contains(&told), "{told}");
}

#[test]
fn kinds_without_end_cost_no_memory_without_end() {
    let (mut bench, mut source) = Bench::new(Some(""));
    bench.poll(&mut source, 0);
    for number in 0..20_000_u32 {
        source.bursts.add(GpuFault {
            gpu: None,
            pci: format!("0000:{:02x}:00.0", number % 200).into(),
            kind: GpuFaultKind::Xid,
            xid: 74,
            count: 1,
            seen_by: FaultSource::Kernel,
            text: format!("link 1({number:#x})").into(),
        });
    }
    let faults = bench.faults(&mut source, SECOND);
    assert!(faults.len() <= 512, "{}", faults.len());
    let told: u64 = faults.iter().map(|fault| u64::from(fault.count)).sum();
    assert_eq!(told + source.bursts.lost(), 20_000);
}

#[test]
fn one_that_cannot_be_read_is_told_once_and_tried_again() {
    let (mut bench, mut source) = Bench::new(None);
    assert_eq!(states(&bench.poll(&mut source, 0)), [KernelAccess::Missing]);
    assert_eq!(states(&bench.poll(&mut source, 5 * SECOND)), []);
    bench.append(&xid("0000:b3:00", 79, "x"));
    let told = bench.poll(&mut source, SECOND);
    assert_eq!(states(&told), [KernelAccess::Readable]);
    // The file was created after monitoring began, so its lines are new as well.
    assert!(matches!(&told[0], Event::GpuFault(fault) if fault.seen_by == FaultSource::Kernel));
    // A directory is not a log, so access fails.
    let dir = tempfile::tempdir().unwrap();
    let mut source = Kmsg::new(dir.path().to_owned());
    let states = states(&bench.poll(&mut source, 0));
    assert_eq!(states, [KernelAccess::Failing]);
}

#[test]
fn a_new_journal_is_told_all_of_it() {
    let (mut bench, mut source) = Bench::new(Some(&xid("0000:b3:00", 48, "before")));
    bench.poll(&mut source, 0);
    bench.append(&xid("0000:b3:00", 79, "x").repeat(3));
    bench.poll(&mut source, SECOND);
    assert_eq!(bench.poll(&mut source, SECOND), []);
    source.introduce(&mut |_, _| 0);
    let told = bench.poll(&mut source, 1);
    assert_eq!(states(&told), [KernelAccess::Readable]);
    let mut faults: Vec<_> = told
        .iter()
        .filter_map(|event| match event {
            Event::GpuFault(fault) => Some((fault.xid, fault.count, fault.seen_by)),
            _ => None,
        })
        .collect();
    faults.sort_by_key(|(xid, ..)| *xid);
    assert_eq!(
        faults,
        [(48, 1, FaultSource::KernelBefore), (79, 3, FaultSource::Kernel)]
    );
    assert_eq!(bench.poll(&mut source, SECOND), []);
}

#[test]
fn a_file_that_is_cut_or_replaced() {
    let (mut bench, mut source) = Bench::new(Some("old\n"));
    bench.poll(&mut source, 0);
    // Truncation is detected only if the file is shorter than the part that was already read.
    fs::write(&bench.path, "").unwrap();
    bench.poll(&mut source, SECOND);
    bench.append(&xid("0000:b3:00", 31, "cut"));
    assert_eq!(bench.faults(&mut source, SECOND).len(), 1);
    fs::remove_file(&bench.path).unwrap();
    assert_eq!(bench.faults(&mut source, SECOND), []);
    bench.append(&xid("0000:b3:00", 43, "replaced"));
    assert_eq!(bench.faults(&mut source, SECOND).len(), 1);
}

/// Feeds the corpus of the fuzz target and random bytes. The source must not panic, and its time must be proportional
/// to the bytes.
#[test]
fn garbage_costs_nothing_but_its_reading() {
    let (mut bench, mut source) = Bench::new(Some(""));
    bench.poll(&mut source, 0);
    let mut file = OpenOptions::new().append(true).open(&bench.path).unwrap();
    let mut noise = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::new();
    for _ in 0..200_000 {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        bytes.push((noise >> 32) as u8);
        if noise.is_multiple_of(97) {
            bytes.extend_from_slice(b"NVRM: Xid (PCI:");
        }
        if noise.is_multiple_of(89) {
            bytes.extend_from_slice(b"\nNVRM: The NVIDIA GPU 0000:b3:00.0");
        }
    }
    file.write_all(&bytes).unwrap();
    file.write_all(&b"x".repeat(1 << 20)).unwrap();
    file.write_all(b"\n").unwrap();
    let begun = Instant::now();
    bench.poll(&mut source, SECOND);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    bench.append(&xid("0000:b3:00", 79, "after all that"));
    assert!(
        bench
            .faults(&mut source, SECOND)
            .iter()
            .any(|fault| fault.xid == 79)
    );
}

/// Reads the real device, if this user may read it. Its existing records count as old.
#[test]
fn the_real_device() {
    let mut source = Kmsg::new(DEVICE.into());
    let mut told = Vec::new();
    source.poll(host::monotonic_ns(), &mut |_, event| {
        told.push(event);
        1
    });
    assert_eq!(states(&told).len(), 1, "{told:?}");
    for event in &told {
        assert!(!matches!(event, Event::GpuFault(fault) if fault.seen_by == FaultSource::Kernel));
    }
}
