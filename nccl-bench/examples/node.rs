//! Prints this node's properties and the measurements of each of its GPUs as JSON: `cargo run --release -p
//! paceline-nccl-bench --example node`. With `cpu` as its argument it measures the CPU instead of GPUs.

use std::io::Write;
use std::time::Duration;

use paceline_nccl_bench::gpu;
use paceline_nccl_bench::snapshot::{Options, take};

fn main() -> std::io::Result<()> {
    let is_cpu = std::env::args().nth(1).is_some_and(|word| word == "cpu");
    let options = if is_cpu {
        gpu::Options::of_cpu()
    } else {
        gpu::Options::default()
    };
    let work = gpu::work(&options, Duration::from_secs(60));
    let work = work.map_or_else(
        |error| serde_json::json!({"error": error.to_string()}),
        |work| serde_json::json!(work),
    );
    let node = serde_json::json!({"snapshot": take(&Options::default()), "work": work});
    writeln!(std::io::stdout(), "{node:#}")
}
