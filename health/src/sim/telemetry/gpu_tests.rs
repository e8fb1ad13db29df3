use super::*;

fn value(script: &GpuScript, index: u32, t: f64, signal: GpuSignal) -> f64 {
    script.reading(index, t).readings[&signal]
        .value()
        .expect("every signal is read")
}

#[test]
fn a_script_reads_back_as_it_prints() {
    for text in [
        "gpus=8",
        r#"gpus=8 model="Simulated H100" heat=gpu3@6s"#,
        "gpus=2 model=X seed=9 clock=0.6 heat=gpu0@1.5s..90s warm=gpu1@500ms",
    ] {
        let script = GpuScript::parse(text).expect(text);
        assert_eq!(GpuScript::parse(&script.to_string()), Ok(script), "{text}");
    }
}

#[test]
fn errors_name_the_place() {
    for (text, expected) in [
        ("heat=gpu0@1s", "gpus= is missing; a whole number, 1 to 1048576"),
        (
            "gpus=0",
            "column 6: gpus=\"0\": expected a whole number, 1 to 1048576",
        ),
        ("gpus=8 glow=gpu1@2s", "column 8: unknown word \"glow\"; known: "),
        (
            "gpus=8 heat=3@6s",
            "column 13: heat=\"3@6s\": expected gpuN@TIME or",
        ),
        ("gpus=8 heat=gpu3@6", "column 13: heat=\"gpu3@6\": expected"),
        ("gpus=8 heat=gpu3@6s..5s", "column 13: "),
        (
            "gpus=8 heat=gpu3@6s warm=gpu3@7s",
            "column 21: warm of gpu3 is given twice",
        ),
        ("gpus=8 model=\"x", "column 14: the quote is never closed"),
        (
            "gpus=8 clock=NaN",
            "column 14: clock=\"NaN\": expected a ratio, 0.05 to 1",
        ),
    ] {
        let error = GpuScript::parse(text).expect_err(text).to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn a_heated_gpu_warms_then_slows_and_the_others_do_not() {
    let script = GpuScript::parse("gpus=8 heat=gpu3@6s").expect("script");
    let reason = GpuSignal::ThrottleThermalSwNs;
    let at = |t, signal| value(&script, 3, t, signal);
    // Before it heats up, the GPU is cool and fast, and no throttle reason is active.
    assert!(at(5.0, GpuSignal::MarginC) > 20.0);
    assert!(script.speed(3, 5.0) > 0.99);
    // While it heats up, the GPU is hotter but not slow yet.
    assert!(
        (5.0..22.0).contains(&at(7.5, GpuSignal::MarginC)),
        "{}",
        at(7.5, GpuSignal::MarginC)
    );
    assert!(script.speed(3, 7.5) > 0.99);
    assert_eq!(at(7.5, reason), at(0.0, reason));
    // At the limit, there is no margin, the throttle reason is active, and the clock is at three quarters.
    assert!(at(20.0, GpuSignal::MarginC) <= 0.0);
    assert!(
        (script.speed(3, 20.0) - 0.75).abs() < 0.003,
        "{}",
        script.speed(3, 20.0)
    );
    assert!((at(20.0, GpuSignal::SmClockMhz) / 1980.0 - 0.75).abs() < 0.003);
    assert!(at(20.0, GpuSignal::PowerW) < at(5.0, GpuSignal::PowerW) - 100.0);
    // The counter is the integral of the throttle reason, so it grows by one second per second.
    assert_eq!(at(21.0, reason) - at(20.0, reason), 1e9);
    for t in [0.0, 8.0, 20.0, 1e6] {
        assert!(script.speed(4, t) > 0.99);
        assert_eq!(value(&script, 4, t, reason), value(&script, 4, 0.0, reason));
        assert!(value(&script, 4, t, GpuSignal::MarginC) > 15.0);
    }
}

#[test]
fn heat_ends_and_the_clock_comes_back() {
    let script = GpuScript::parse("gpus=1 heat=gpu0@6s..30s").expect("script");
    let reason = |t| value(&script, 0, t, GpuSignal::ThrottleThermalSwNs);
    assert!(script.speed(0, 29.0) < 0.76);
    assert!(script.speed(0, 40.0) > 0.99);
    assert_eq!(reason(31.0), reason(1e5));
    assert!(value(&script, 0, 60.0, GpuSignal::MarginC) > 20.0);
}

#[test]
fn a_warm_gpu_is_not_slow() {
    let script = GpuScript::parse("gpus=1 warm=gpu0@6s").expect("script");
    let margin = value(&script, 0, 100.0, GpuSignal::MarginC);
    assert!((2.0..=6.0).contains(&margin), "{margin}");
    assert!(script.speed(0, 100.0) > 0.99);
    let reason = GpuSignal::ThrottleThermalSwNs;
    assert_eq!(value(&script, 0, 100.0, reason), value(&script, 0, 0.0, reason));
}

#[test]
fn uuids_differ_and_agree_in_both_forms() {
    let script = GpuScript::healthy(16, 1);
    let all: std::collections::BTreeSet<GpuId> = (0..16).map(|index| script.gpu(index)).collect();
    assert_eq!(all.len(), 16);
    let text = script.gpu(3).to_string();
    assert_eq!(text.len(), "GPU-".len() + 36);
    let hex: String = script
        .uuid_bytes(3)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(text.replace('-', ""), format!("GPU{hex}"));
    assert_ne!(script.gpu(3), GpuScript::healthy(16, 2).gpu(3));
}

#[test]
fn any_instant_is_total() {
    let script = GpuScript::parse("gpus=2 heat=gpu1@6s..9s").expect("script");
    for t in [-1.0, f64::NAN, f64::INFINITY, 0.0, 1e300] {
        for index in [0, 1, 99] {
            let speed = script.speed(index, t);
            assert!(speed > 0.7 && speed <= 1.0, "speed {speed} at {t}");
            for (signal, reading) in script.reading(index, t).readings {
                assert!(reading.value().is_some_and(f64::is_finite), "{signal:?} at {t}");
            }
        }
    }
}
