//! Runs a preflight of two nodes that are threads of this process and share this machine's GPUs. This tests a pair over
//! NCCL on one machine, even with one GPU (`NCCL_MULTI_RANK_GPU_ENABLE=1`, NCCL 2.30). Prints the transport of each
//! phase, the results of links, and the problems.
//!
//!     pair PATH-OF-paceline-nccl-bench [quick|full]

use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::thread;

use paceline_nccl_bench::preflight::{Expected, Lead, Machine, Me, Mode, attend, lead};
use paceline_seal::Key;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1);
    let bench = words.next().ok_or("where is paceline-nccl-bench?")?;
    let mode = match words.next() {
        Some(word) if word == "full" => Mode::Full,
        _ => Mode::Quick,
    };
    let library = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let machine = Machine {
        nvml_lib: library("PACELINE_NVML_LIB"),
        nccl_lib: library("PACELINE_NCCL_LIB"),
        cuda_lib: library("PACELINE_CUDA_LIB"),
        cublas_lib: library("PACELINE_CUBLAS_LIB"),
        rank: vec![bench, OsString::from("--preflight-rank")],
    };
    let key = Key::of_chance()?;
    let me = |node: &str| Me {
        node: node.into(),
        job: "pair".into(),
        key: key.clone(),
        paceline: env!("CARGO_PKG_VERSION").into(),
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let first = listener.local_addr()?.to_string();
    let (second, its) = (me("n2"), machine.clone());
    let member = thread::spawn(move || attend(&first, &second, &its, mode.wait(), &mut |_| ()));
    let by = Lead {
        listener,
        expected: Expected {
            count: 2,
            names: vec!["n1".into(), "n2".into()],
        },
        mode,
        wait: mode.wait(),
        min_busbw: None,
        past: &|_| Ok(Vec::new()),
    };
    let report = lead(by, &me("n1"), &machine, &mut |phase, _, _| eprintln!("{phase}"))?;
    let mut out = std::io::stdout().lock();
    for carried in &report.carried {
        writeln!(out, "{}: {} {}", carried.phase, carried.transport, carried.why)?;
    }
    for sample in report
        .samples
        .iter()
        .filter(|sample| sample.metric.name().contains("bus"))
    {
        let passes = format!("{} passes, spread {:.1} %", sample.passes, sample.spread * 100.0);
        writeln!(
            out,
            "{} {}: {:.2} GB/s, {} bytes, {passes} ({})",
            sample.metric, sample.place, sample.value, sample.bytes, sample.conditions
        )?;
    }
    for problem in &report.problems {
        writeln!(out, "problem: {}: {}", problem.phase, problem.what)?;
    }
    writeln!(out, "{:.1} s", report.seconds)?;
    drop(out);
    member.join().map_err(|_| "the second node died")??;
    Ok(())
}
