use super::*;

fn layout(text: &str, ranks: u32) -> Layout {
    let spec = crate::sim::WorldSpec::parse(text).expect(text);
    spec.layout.of(ranks).expect("a layout")
}

fn still(layout: &Layout) -> Roads {
    Roads {
        reduce: vec![0.0; (layout.pp * layout.tp) as usize],
        exchange: vec![0.0; (layout.pp * layout.pipelines()) as usize],
        hop: vec![0.0; (layout.pp * layout.pipelines()) as usize],
        uneven: Vec::new(),
    }
}

/// Returns the synchronization time of a step in which rank r only computes, for `compute(r)` seconds.
fn meet(layout: Layout, framework: Framework, compute: impl Fn(u32) -> f64) -> f64 {
    let ranks = layout.stage() * layout.pp;
    let own = |rank| Own {
        compute: compute(rank),
        ..Own::default()
    };
    let own: Vec<Own> = (0..ranks).map(own).collect();
    let shares = vec![1.0 / f64::from(layout.micro); (layout.dp * layout.micro) as usize];
    Timeline::new(layout, framework, 0).run(&own, &shares, &still(&layout))
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found} for {expected}");
}

/// According to Narayanan et al. 2021, section 2.2, a step with p stages and m micro-batches takes (m + p - 1) times as
/// long as one micro-batch.
#[test]
fn an_even_pipeline_takes_what_the_formula_says() {
    for (pp, micro) in [(2, 4), (4, 8), (4, 4), (8, 32), (4, 2)] {
        let layout = layout(&format!("pp={pp} micro={micro}"), 4 * pp);
        let expected = f64::from(micro + pp - 1) / f64::from(micro);
        assert_near(meet(layout, Framework::Ddp, |_| 1.0), expected);
    }
}

/// According to the same section, if each stage has v chunks, the idle time is a v-th of that without chunks.
#[test]
fn an_interleaved_pipeline_takes_what_the_formula_says() {
    for (pp, chunks, micro) in [(2, 2, 4), (4, 2, 8), (4, 4, 4), (4, 3, 16), (8, 2, 32)] {
        let layout = layout(&format!("pp={pp} micro={micro} chunks={chunks}"), 4 * pp);
        let idle = f64::from(pp - 1) / f64::from(chunks);
        assert_near(
            meet(layout, Framework::Ddp, |_| 1.0),
            1.0 + idle / f64::from(micro),
        );
    }
}

/// If the last stage is slower, every micro-batch waits for it. Each other stage adds its time once, forward and
/// backward.
#[test]
fn a_slow_last_stage_sets_the_pace_of_the_pipeline() {
    let layout = layout("pp=4 micro=8", 4);
    let heavy = 1.3;
    let found = meet(layout, Framework::Ddp, |rank| if rank == 3 { heavy } else { 1.0 });
    assert_near(found, (8.0 * heavy + 3.0) / 8.0);
}

/// One slow rank of one stage of one replica delays its pipeline. The synchronization then delays all others.
#[test]
fn a_slow_rank_holds_up_its_pipeline_and_then_everybody() {
    let layout = layout("pp=4 tp=2 micro=8", 16);
    let even = meet(layout, Framework::Ddp, |_| 1.0);
    // Ranks 12 to 15 are the last stage, which has two replicas of two ranks.
    let slow = meet(layout, Framework::Ddp, |rank| if rank == 15 { 1.2 } else { 1.0 });
    assert_near(slow - even, 8.0 * 0.2 / 8.0);
    // Its partner in the same cell would have waited for it anyway.
    let both = meet(layout, Framework::Ddp, |rank| if rank >= 14 { 1.2 } else { 1.0 });
    assert_near(both, slow);
}

/// A slow rank costs nothing as long as its pipeline stage has slack.
#[test]
fn slack_hides_what_is_not_critical() {
    let layout = layout("pp=4 micro=8", 8);
    let stage = |rank: u32| if rank >= 6 { 1.5 } else { 1.0 };
    let even = meet(layout, Framework::Ddp, stage);
    // Rank 2 is in the second stage, which waits for the last one most of the time.
    let slow = meet(layout, Framework::Ddp, |rank| {
        stage(rank) * if rank == 2 { 1.05 } else { 1.0 }
    });
    assert!(slow - even < 0.05 * 0.5, "{slow} {even}");
    assert!(slow >= even);
}

#[test]
fn ranks_of_a_cell_meet_in_every_micro_batch() {
    // The ranks of two experts have long micro-batches alternately, so over the whole step neither is slower.
    let layout = layout("ep=2 micro=2", 2);
    let own = vec![
        Own {
            compute: 1.0,
            ..Own::default()
        };
        2
    ];
    let shares = [0.3, 0.7, 0.7, 0.3];
    let mut timeline = Timeline::new(layout, Framework::Ddp, 0);
    assert_near(timeline.run(&own, &shares, &still(&layout)), 1.4);
    assert_near(timeline.busy[0], 1.4);
}

#[test]
fn sharded_replicas_wait_at_layers_and_run_one_ahead() {
    let layout = layout("", 2);
    let even = vec![
        Own {
            compute: 1.0,
            ..Own::default()
        };
        2
    ];
    let run = |uneven: Vec<f64>| {
        let roads = Roads {
            uneven,
            ..still(&layout)
        };
        Timeline::new(layout, Framework::Fsdp, 0).run(&even, &[1.0, 1.0], &roads)
    };
    assert_near(run(Vec::new()), 1.0);
    // A rank that gains time in two short layers loses it again at the next layer, where it must wait.
    let turns = run(vec![0.4, 0.4, -0.4, -0.4, -0.4, -0.4, 0.4, 0.4]);
    assert!((1.0 + 1e-9..1.4).contains(&turns), "{turns}");
    // A rank that is slower throughout costs the same as with a single synchronization at the end.
    let slow = |framework| meet(layout, framework, |rank| if rank == 1 { 1.25 } else { 1.0 });
    assert_near(slow(Framework::Fsdp), slow(Framework::Ddp));
}
