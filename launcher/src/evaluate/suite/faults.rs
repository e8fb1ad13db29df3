//! Everything else that can go wrong.

use super::{Scenario, Suite};

pub(super) fn scenarios() -> Vec<Scenario> {
    let case = |name: &str, world: &str| Scenario::new(Suite::Faults, name, world);
    vec![
        case("short-50", "nodes=4 steps=400")
            .fault("slow rank={rank} factor=1.3 from=150 until=250")
            .expect("straggler rank={rank}"),
        case("two-at-once", "nodes=4 steps=400")
            .fault("slow rank={rank} factor=1.2 from=150")
            .fault("slow rank={other} factor=1.5 from=150")
            .expect("straggler rank={rank}")
            .expect("straggler rank={other}"),
        case("two-in-turn", "nodes=4 steps=500")
            .fault("slow rank={rank} factor=1.2 from=100")
            .fault("slow rank={other} factor=1.4 from=300")
            .expect("straggler rank={rank}")
            .expect("straggler rank={other}"),
        case("silent-rank", "nodes=2 steps=300")
            .fault("silent rank={rank} from=150")
            .expect("rank-silent rank={rank}"),
        case("hang", "nodes=2 steps=300")
            .fault("silent rank=all from=150")
            .expect("job-hang job"),
    ]
}
