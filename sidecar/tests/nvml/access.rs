//! GPUs, drivers and libraries that cannot be read: reported as such, retried, never considered healthy.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use paceline_health::event::{Access, Event};
use paceline_sidecar::host::monotonic_ns;
use paceline_sidecar::source::Source;
use paceline_sidecar::source::nvml::NvmlSource;

use crate::stage::{Stage, gpu, is_access};

const S: Duration = Duration::from_secs(1);

#[test]
fn a_library_that_is_named_and_not_there() {
    let mut source = NvmlSource::new(Some(PathBuf::from("/nonexistent/libnvidia-ml.so.1")));
    let began = Instant::now();
    let mut said = Vec::new();
    while began.elapsed() < 4 * S {
        source.poll(monotonic_ns(), &mut |_, event| {
            said.push(event);
            0
        });
        std::thread::sleep(S / 10);
    }
    assert_eq!(said.len(), 1, "tried again, told once: {said:#?}");
    assert!(is_access(&said[0], None, Access::NoLibrary));
}

#[test]
fn what_init_answers_is_told_and_tried_again() {
    for (answer, wanted) in [
        ("driver_not_loaded", Access::NoDriver),
        ("no_permission", Access::NoPermission),
        ("lib_rm_version_mismatch", Access::VersionMismatch),
        ("unknown", Access::Failing),
    ] {
        let mut stage = Stage::new(&format!("gpus = 2\ninit = \"{answer}\""));
        stage.expect(2 * S, |event| is_access(event, None, wanted));
        stage.play("gpus = 2");
        stage.expect(5 * S, |event| is_access(event, None, Access::Readable));
        stage.expect(3 * S, |event| matches!(event, Event::Gpu(_)));
    }
}

#[test]
fn a_driver_without_gpus() {
    let mut stage = Stage::new("gpus = 0");
    stage.expect(2 * S, |event| is_access(event, None, Access::NoDevice));
}

#[test]
fn a_call_that_does_not_come_back_is_told_within_five_seconds_and_holds_up_nobody() {
    let mut stage = Stage::new("gpus = 8");
    stage.expect(3 * S, |event| is_access(event, Some(&gpu(7)), Access::Readable));
    stage.wait(2 * S);
    stage.play("gpus = 8\n[gpu.3]\nhang = true");
    let (took, event) = stage.expect(8 * S, |event| is_access(event, Some(&gpu(3)), Access::Silent));
    // Since the change: up to a second until the next round, then the deadline.
    assert!(took > 4 * S && took < 6 * S, "{took:?}");
    let Event::GpuAccess(access) = event else {
        unreachable!("as expected")
    };
    assert!(
        access.for_ns < 5_000_000_000 && access.text.contains("has not returned"),
        "{access:?}"
    );
    for index in (0..8).filter(|index| *index != 3) {
        let times: Vec<Duration> = stage.readings(&gpu(index)).iter().map(|(at, _)| *at).collect();
        let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(
            longest < Duration::from_millis(1500),
            "GPU {index} waited {longest:?}"
        );
    }
    stage.play("gpus = 8");
    stage.expect(3 * S, |event| is_access(event, Some(&gpu(3)), Access::Readable));
    stage.expect(
        3 * S,
        |event| matches!(event, Event::Gpu(reading) if reading.gpu == gpu(3)),
    );
}

#[test]
fn a_gpu_that_is_lost_and_comes_back() {
    let mut stage = Stage::new("gpus = 4");
    stage.wait(2 * S);
    stage.play("gpus = 4\n[gpu.2]\nfail = \"gpu_is_lost\"");
    let (took, _) = stage.expect(3 * S, |event| is_access(event, Some(&gpu(2)), Access::Lost));
    assert!(took < 2 * S, "{took:?}");
    stage.play("gpus = 4");
    stage.expect(6 * S, |event| is_access(event, Some(&gpu(2)), Access::Readable));
    stage.expect(
        3 * S,
        |event| matches!(event, Event::Gpu(reading) if reading.gpu == gpu(2)),
    );
    let others = stage.accesses();
    let others = others
        .iter()
        .filter(|access| access.gpu.is_some() && access.gpu != Some(gpu(2)));
    assert!(
        others.clone().all(|access| access.state == Access::Readable),
        "{others:?}"
    );
}

#[test]
fn a_gpu_that_wants_a_reset_is_not_healthy() {
    let mut stage = Stage::new("gpus = 2\n[gpu.1]\nfail = \"reset_required\"");
    // There is no handle from the start, so the event is about the node.
    let (_, event) = stage.expect(3 * S, |event| is_access(event, None, Access::Failing));
    let Event::GpuAccess(access) = event else {
        unreachable!("as expected")
    };
    assert!(access.text.contains("reset_required"), "{access:?}");
    stage.expect(
        3 * S,
        |event| matches!(event, Event::Gpu(reading) if reading.gpu == gpu(0)),
    );
}

#[test]
fn a_driver_that_is_loaded_anew() {
    let mut stage = Stage::new("gpus = 2");
    stage.wait(2 * S);
    stage.play("gpus = 2\nrestarts = 1\ninit = \"driver_not_loaded\"");
    stage.expect(4 * S, |event| is_access(event, Some(&gpu(1)), Access::NoDriver));
    stage.expect(4 * S, |event| is_access(event, None, Access::NoDriver));
    stage.play("gpus = 2\nrestarts = 1");
    stage.expect(8 * S, |event| is_access(event, None, Access::Readable));
    stage.expect(4 * S, |event| is_access(event, Some(&gpu(1)), Access::Readable));
    stage.expect(
        4 * S,
        |event| matches!(event, Event::Gpu(reading) if reading.gpu == gpu(1)),
    );
}

#[test]
fn a_new_journal_hears_who_can_be_read() {
    let mut stage = Stage::new("gpus = 2\n[gpu.1]\nprocesses = [1]");
    stage.wait(2 * S);
    stage.seen.clear();
    stage.next = 0;
    stage.source.introduce(&mut |_, _| 0);
    stage.wait(2 * S);
    let said = stage.accesses().len();
    assert_eq!(said, 3, "the node and two GPUs: {:?}", stage.accesses());
    assert!(
        stage
            .readings(&gpu(0))
            .iter()
            .any(|(_, of)| of.readings.len() > 40),
        "everything is read again"
    );
}

#[test]
fn a_gpu_that_hangs_from_the_start_holds_up_nobody() {
    let mut stage = Stage::new("gpus = 3\n[gpu.0]\nhang = true");
    let (took, _) = stage.expect(
        2 * S,
        |event| matches!(event, Event::Gpu(reading) if reading.gpu == gpu(2)),
    );
    assert!(took < S, "{took:?}");
    let (took, event) = stage.expect(6 * S, |event| is_access(event, None, Access::Silent));
    let Event::GpuAccess(access) = event else {
        unreachable!("as expected")
    };
    assert!(
        took < 5 * S && access.text.contains("number 0"),
        "{took:?} {access:?}"
    );
    stage.play("gpus = 3");
    stage.expect(3 * S, |event| is_access(event, None, Access::Readable));
    stage.expect(
        3 * S,
        |event| matches!(event, Event::Gpu(reading) if reading.gpu == gpu(0)),
    );
}
