use super::*;

#[test]
fn every_fault_reads_back_as_it_prints() {
    for text in [
        "slow rank=3 factor=1.25 from=100 until=400",
        "slow rank=all factor=1.25 from=100",
        "slow rank=3 factor=1.25 from=100 until=400 every=40 for=20 cause=thermal",
        "slow node=1 factor=1.25 from=1 moves=50 cause=gc",
        "slow rack=0 factor=3 from=1 cause=cpu-contention",
        "link node=1 peer=2 factor=4 from=1",
        "link node=1 factor=4 from=50 until=90",
        "checkpoint-slow rank=2 factor=3 from=1",
        "warm-up-slow rank=all factor=3",
        "regress factor=1.1 from=500",
        "birth factor=1.2",
        "skew node=1",
        "spikes rank=2 share=0.05 factor=3",
        "silent rank=2 from=50",
        "silent rank=all from=50 for=10s",
        "heat gpu=3 from=60s",
        "warm gpu=3 from=60s until=90s",
        "gap node=1 from=20s for=10s",
        "gap node=1 from=20s steps=kept",
        "hold node=0 from=20s for=10s",
        "late rank=3 by=5s",
        "loss share=0.1",
        "reorder share=0.1",
        "repeat share=1",
    ] {
        let fault: Fault = text.parse().expect(text);
        assert_eq!(fault.to_string(), text);
        let json = serde_json::to_string(&fault).expect("JSON");
        assert_eq!(serde_json::from_str::<Fault>(&json).expect(&json), fault);
    }
    assert_eq!(
        "slow factor=2 rank=1".parse(),
        "slow rank=1 factor=2 from=1".parse::<Fault>()
    );
    assert_eq!(
        "heat gpu=3 from=1m".parse(),
        "heat gpu=3 from=60s".parse::<Fault>()
    );
}

#[test]
fn errors_name_the_word_and_what_is_known() {
    for (text, expected) in [
        ("", "fault= is missing; slow, spikes,"),
        (
            "slwo rank=3",
            "column 1: unknown word \"slwo\"; known: slow, spikes,",
        ),
        (
            "slow rnk=3",
            "column 6: unknown word \"rnk\"; known: rank, node, rack, factor, from",
        ),
        (
            "slow rank=3 gpu=1",
            "column 13: unknown word \"gpu\"; known: rank, node",
        ),
        (
            "slow rank=3 node=1 factor=2",
            "rank= is missing; one of rank=, node= and rack=",
        ),
        (
            "slow rank=3 factor=2 every=40",
            "for= is missing; of every so many",
        ),
        (
            "slow rank=3 factor=2 moves=0",
            "column 28: moves=\"0\": expected a whole number from 1",
        ),
        (
            "slow rank=3 factor=2 cause=imbalance",
            "column 28: cause=\"imbalance\": expected none, thermal,",
        ),
        (
            "slow rank=x factor=2",
            "column 11: rank=\"x\": expected a rank or all",
        ),
        ("slow rank=3", "factor= is missing; a factor such as 1.25"),
        (
            "slow rank=3 factor=0.5",
            "column 20: factor=\"0.5\": expected a factor, 1 to 1000",
        ),
        ("slow rank=3 rank=4 factor=2", "column 13: rank is given twice"),
        (
            "heat gpu=3 from=60",
            "column 17: from=\"60\": expected a time such as",
        ),
        ("late rank=all by=5s", "rank= is missing; a rank"),
        (
            "loss share=1.1",
            "column 12: share=\"1.1\": expected a share, 0 to 1",
        ),
        (
            "gap node=1 from=2s steps=some",
            "column 26: steps=\"some\": expected kept or lost",
        ),
    ] {
        let error = text.parse::<Fault>().expect_err(text).to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}
