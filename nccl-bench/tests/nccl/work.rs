//! Tests measurements on GPUs of a fake library, including faults and missing parts.

use std::time::{Duration, Instant};

use paceline_health::event::Missing;
use paceline_nccl_bench::gpu::{Metric, Options, Outcome, Place, Work, WorkError, work};

use crate::stage::{LONG, Stage};

/// Returns options that are small enough for fake GPUs on the host.
fn options(stage: &Stage) -> Options {
    Options {
        cuda_lib: Some(stage.library()),
        cublas_lib: Some(stage.library()),
        passes: 3,
        pass: Duration::from_millis(10),
        size: 48,
        memory: 1 << 20,
        transfer: 100_000,
        ..Options::default()
    }
}

fn measured(stage: &Stage) -> Vec<Work> {
    work(&options(stage), LONG).unwrap()
}

fn error(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Missing(Missing::Error(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_gpu_and_every_metric_alone() {
    let works = measured(&Stage::new("gpus = 2"));
    assert_eq!(works.len(), 2);
    for (index, work) in (0..).zip(&works) {
        assert_eq!((work.device.index, work.device.place), (index, Place::Gpus));
        assert_eq!(
            work.device.uuid.as_ref().unwrap().as_str(),
            format!("GPU-fa4e0000-0000-4000-8000-00000000000{index}")
        );
        let metrics: Vec<Metric> = work.metrics.keys().copied().collect();
        assert_eq!(metrics, Metric::OF_GPU);
        for (metric, outcome) in &work.metrics {
            let Outcome::Measured(measured) = outcome else {
                panic!("{metric:?}: {outcome:?}")
            };
            assert_eq!(measured.passes.len(), 3);
            assert!(
                measured.median > 0.0 && measured.spread >= 0.0,
                "{metric:?}: {measured:?}"
            );
        }
    }
    let json = serde_json::to_string(&works).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Work>>(&json).unwrap(), works);
}

#[test]
fn a_slow_gpu_is_slow_in_what_it_computes() {
    let works = measured(&Stage::new("gpus = 2\n[gpu.1]\nslow = 25.0"));
    let median = |gpu: usize| works[gpu].metrics[&Metric::GemmF32].median().unwrap();
    assert!(median(1) * 2.0 < median(0), "{} and {}", median(1), median(0));
}

#[test]
fn what_one_gpu_lacks_is_not_the_others_loss() {
    let works = measured(&Stage::new("gpus = 1\n[call]\ncublasCreate_v2 = 1"));
    let metrics = &works[0].metrics;
    assert!(error(&metrics[&Metric::GemmBf16]).contains("cublasCreate: not initialized"));
    assert!(metrics[&Metric::MemoryCopy].median().is_some());

    let works = measured(&Stage::new("gpus = 1").without("cublasGemmEx"));
    assert!(error(&works[0].metrics[&Metric::GemmF32]).contains("libfake.so has no function cublasGemmEx"));

    let works = measured(&Stage::new("gpus = 1\n[call]\ncuDevicePrimaryCtxRetain = 2"));
    for metric in Metric::OF_GPU {
        assert!(error(&works[0].metrics[&metric]).contains("cuDevicePrimaryCtxRetain: out of memory"));
    }

    let stage = Stage::new("gpus = 1");
    let large = Options {
        memory: 3 << 30,
        ..options(&stage)
    };
    let works = work(&large, LONG).unwrap();
    assert!(error(&works[0].metrics[&Metric::MemoryCopy]).contains("cuMemAlloc: out of memory"));
}

#[test]
fn a_gpu_that_computes_or_copies_wrong_has_no_figure() {
    let check = |function: &str, metric: Metric, what: &str| {
        let works = measured(&Stage::new(&format!("gpus = 2\n[gpu.1]\nwrong = \"{function}\"")));
        assert!(
            works[0]
                .metrics
                .values()
                .all(|outcome| outcome.median().is_some()),
            "{works:?}"
        );
        let text = error(&works[1].metrics[&metric]);
        assert!(text.starts_with(what) && text.contains("wrong"), "{text}");
    };
    check("cublasGemmEx", Metric::GemmBf16, "a bf16 product");
    check("cublasGemmEx", Metric::GemmF32, "a f32 product");
    check(
        "cuMemcpyDtoDAsync_v2",
        Metric::MemoryCopy,
        "a copy within the GPU",
    );
    check("cuMemcpyHtoDAsync_v2", Metric::HostToDevice, "a copy to the GPU");
    check(
        "cuMemcpyDtoHAsync_v2",
        Metric::DeviceToHost,
        "a copy from the GPU",
    );
}

#[test]
fn a_gpu_that_hangs_is_left_behind_and_says_what_it_was_doing() {
    let stage = Stage::new("gpus = 2\n[gpu.1]\nslow = 1e9");
    let began = Instant::now();
    let works = work(&options(&stage), Duration::from_secs(2)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(4));
    assert!(works[0].metrics[&Metric::GemmBf16].median().is_some());
    let metrics = &works[1].metrics;
    assert!(
        metrics.values().all(|outcome| outcome.median().is_none()),
        "{metrics:?}"
    );
    assert!(
        error(&metrics[&Metric::GemmBf16]).contains("not done within 2.0 s"),
        "{metrics:?}"
    );
}

#[test]
fn without_a_gpu_it_is_an_error_and_never_the_cpu() {
    let stage = Stage::new("gpus = 0");
    let refused = work(&options(&stage), LONG).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("cuInit: no CUDA-capable device is detected"),
        "{refused}"
    );
    let absent = Options {
        cuda_lib: Some("/nonexistent/libcuda.so.1".into()),
        ..Options::default()
    };
    let refused = work(&absent, LONG).unwrap_err();
    assert!(
        matches!(refused, WorkError::Cuda(_)) && refused.to_string().contains("no libcuda.so.1 found"),
        "{refused}"
    );
}

#[test]
fn the_cpu_has_metrics_of_its_own() {
    let options = Options {
        passes: 3,
        pass: Duration::from_millis(20),
        size: 96,
        memory: 1 << 20,
        threads: Some(2),
        ..Options::of_cpu()
    };
    let works = work(&options, LONG).unwrap();
    assert_eq!(
        (works.len(), works[0].device.place, works[0].device.model.as_str()),
        (1, Place::Cpu, "CPU, 2 threads")
    );
    let metrics: Vec<Metric> = works[0].metrics.keys().copied().collect();
    assert_eq!(metrics, Metric::OF_CPU);
    assert!(
        works[0]
            .metrics
            .values()
            .all(|outcome| outcome.median().unwrap() > 1e6),
        "{works:?}"
    );
}
