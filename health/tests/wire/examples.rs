//! One event of each kind, as shown in docs/wire.md.

use std::collections::BTreeMap;

use paceline_health::Time;
use paceline_health::event::*;
use paceline_health::id::Rank;
use paceline_health::preflight::{Against, Comparison, Metric, Noted, Outcome, Place, Problem};
use paceline_health::verdict::Severity;

pub fn examples() -> Vec<Event> {
    let readings = BTreeMap::from([
        (GpuSignal::TemperatureC, Reading::Value(61.0)),
        (GpuSignal::SmClockMhz, Reading::Value(1980.0)),
        (GpuSignal::MarginC, Reading::Missing(Missing::Unsupported)),
        (
            GpuSignal::PowerW,
            Reading::Missing(Missing::Error("timeout".into())),
        ),
    ]);
    let pulse = Pulse {
        rank: Rank(2),
        restart: 0,
        step: 18,
        phase: Phase::Wait,
        idle_ns: 3_100_000,
        alive: true,
    };
    let phases = Phases {
        data_ns: 400_000,
        compute_ns: 45_400_000,
        wait_ns: 2_700_000,
        optimizer_ns: 100_000,
        checkpoint_ns: 0,
        gc_ns: 0,
    };
    vec![
        Event::Job(Job {
            job: "llama-7b".into(),
            paceline: "0.1.0".into(),
            listened_to: None,
        }),
        Event::Agent(Agent {
            paceline: "0.1.0".into(),
            sources: vec!["probe".into()],
            unix_ms: 1_790_000_000_000,
            rack: "r07".into(),
            versions: BTreeMap::from([("driver".into(), "580.82.07".into())]),
        }),
        Event::Attach(Attach {
            rank: Rank(2),
            local_rank: 2,
            world_size: 4,
            restart: 0,
            pid: 4711,
            gpu: Some("GPU-6d1f0c3a-0000-0000-0000-000000000002".into()),
            role: "".into(),
            framework: "torch 2.15.0".into(),
        }),
        Event::Step(Step {
            rank: Rank(2),
            restart: 0,
            step: 17,
            kind: StepKind::Train,
            dur_ns: 48_600_000,
            phases: Some(phases),
            micro_batches: 1,
            tokens: 0,
            signal: Signal::S2,
            sum_sq: 0,
            expert_tokens: 0,
        }),
        Event::Mark(Mark {
            rank: Rank(0),
            step: 17,
            kind: "checkpoint".into(),
            value: 0,
        }),
        Event::Gpu(GpuReading {
            gpu: "GPU-6d1f0c3a-0000-0000-0000-000000000002".into(),
            pci: "0000:b3:00.0".into(),
            model: "NVIDIA H100 80GB HBM3".into(),
            readings,
        }),
        Event::Beat(Beat {
            ranks: vec![pulse],
            ring_dropped: 0,
            ring_torn: 0,
            spool_dropped: 0,
            cpu_ns: 51_000_000,
            rss_bytes: 9_437_184,
            plugin_ns: 1_400_000,
            plugin_calls: 20_000,
            source_ns: vec![4_000_000],
        }),
        Event::Policy(PolicyChange {
            key: "impact.warning_ratio".into(),
            value: 0.05,
            by: "start".into(),
        }),
        Event::Detach(Detach {
            rank: Rank(2),
            restart: 0,
            step: 17,
        }),
        Event::Exit(Exit { code: 0 }),
        Event::Bye(Bye {
            reason: "the command ended".into(),
        }),
        Event::End(End {
            missing: vec!["n2".into()],
        }),
        Event::Layout(Layout {
            rank: Rank(2),
            restart: 0,
            dp: Axis { index: 0, size: 2 },
            tp: Axis { index: 0, size: 1 },
            pp: Axis { index: 1, size: 2 },
            ep: Axis { index: 0, size: 1 },
            cp: Axis { index: 0, size: 1 },
            micro_batches: 8,
        }),
        Event::Group(Group {
            rank: Rank(2),
            restart: 0,
            comm: 81_985_529_216_486_895,
            size: 2,
            name: "DP".into(),
        }),
        Event::Comm(Comm {
            rank: Rank(2),
            restart: 0,
            step: 17,
            comm: 81_985_529_216_486_895,
            collectives: 12,
            bytes: 536_870_912,
            dur_ns: 2_700_000,
            exposed_ns: None,
            unfit: 0,
            gpu: false,
            functions: Vec::new(),
        }),
        Event::Host(HostReading {
            rank: Some(Rank(2)),
            readings: BTreeMap::from([(HostSignal::RunQueueNs, Reading::Value(1_250_000.0))]),
        }),
        Event::Baseline(Baseline {
            of: BaselineOf::Step,
            seconds: 0.0485,
            source: "preflight".into(),
        }),
        Event::GpuFault(GpuFault {
            gpu: Some("GPU-6d1f0c3a-0000-0000-0000-000000000002".into()),
            pci: "0000:b3:00.0".into(),
            kind: GpuFaultKind::Xid,
            xid: 79,
            count: 1,
            seen_by: FaultSource::Kernel,
            text: "GPU has fallen off the bus.".into(),
        }),
        Event::GpuAccess(GpuAccess {
            gpu: Some("GPU-6d1f0c3a-0000-0000-0000-000000000002".into()),
            pci: "0000:b3:00.0".into(),
            state: Access::Silent,
            text: "nvmlDeviceGetFieldValues has not come back".into(),
            for_ns: 4_600_000_000,
        }),
        Event::GpuHolders(GpuHolders {
            gpu: "GPU-6d1f0c3a-0000-0000-0000-000000000002".into(),
            pci: "0000:b3:00.0".into(),
            processes: vec![GpuProcess {
                pid: 4711,
                name: "python3".into(),
                used_bytes: Some(68_719_476_736),
            }],
        }),
        Event::Kernel(KernelWatch {
            path: "/dev/kmsg".into(),
            boot: "4f1c0f3e-0000-0000-0000-000000000001".into(),
            state: KernelAccess::Readable,
            lost: 0,
            text: "".into(),
        }),
        Event::Port(PortReading {
            port: "mlx5_0/1".into(),
            link: PortLink::Infiniband,
            readings: BTreeMap::from([
                (PortSignal::Up, Reading::Value(1.0)),
                (PortSignal::RateBps, Reading::Value(4e11)),
                (PortSignal::LinkDowns, Reading::Value(0.0)),
                (PortSignal::Retransmits, Reading::Missing(Missing::Unsupported)),
            ]),
        }),
        Event::Trouble(Trouble {
            rank: Some(Rank(3)),
            kind: TroubleKind::GpuMemory,
            says: "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.".into(),
            code: Some(1),
        }),
        Event::Ras(RasReport {
            state: RasAccess::Answered,
            still: true,
            nccl: "2.28.9".into(),
            comms: 3,
            uneven: 1,
            size: 4,
            ranks: vec![RasRank {
                state: RasState::Behind,
                rank: Some(Rank(2)),
                comm: 81_985_529_216_486_895,
                host: "10.0.0.2".into(),
                pid: 4711,
                collective: "AllReduce".into(),
                launched: 6649,
                others: 6650,
            }],
            more: 0,
            errors: 0,
            text: "".into(),
        }),
        Event::Source(SourceState {
            source: "step-log".into(),
            trouble: "train.log is not there".into(),
        }),
        Event::Preflight(Preflight {
            mode: "quick".into(),
            outcome: Outcome::Critical,
            seconds: 9.8,
            nodes: 4,
            gpus: 8,
            comparisons: 61,
            values: BTreeMap::from([(Metric::AllBusbw, 46.2)]),
            policy: "exclude".into(),
            left_out: vec![LeftOut {
                node: "n3".into(),
                why: "GPU-6d1f0c3a-0000-0000-0000-000000000005 of node n3: matrix multiplication of the GPU is slow".into(),
            }],
        }),
        Event::Bench(Bench {
            node: "n3".into(),
            there: true,
            model: "NVIDIA H100 80GB HBM3".into(),
            gpus: 2,
            values: BTreeMap::from([(Metric::Gemm, 580.0), (Metric::PairBusbw, 48.1)]),
            of_gpus: BTreeMap::from([(
                "GPU-6d1f0c3a-0000-0000-0000-000000000005".into(),
                BTreeMap::from([(Metric::Gemm, 580.0)]),
            )]),
        }),
        Event::PreflightFinding(Noted {
            place: Place::Gpu {
                node: "n3".into(),
                gpu: "GPU-6d1f0c3a-0000-0000-0000-000000000005".into(),
            },
            or: Vec::new(),
            what: "gemm".into(),
            severity: Severity::Critical,
            value: Some(580.0),
            unit: "TFLOP/s".into(),
            comparisons: vec![Comparison {
                against: Against::Fleet,
                expected: 700.0,
                severity: Severity::Critical,
                source: "".into(),
            }],
            sure: true,
            says: "matrix multiplication of the GPU is slow".into(),
            cause: "".into(),
            advice: "leave it out".into(),
        }),
        Event::PreflightProblem(Problem {
            node: Some("n4".into()),
            phase: "pairs, round 1".into(),
            what: "no answer within 7 s".into(),
            lost: true,
        }),
        Event::Collectives(Collectives {
            rank: Rank(2),
            restart: 0,
            step: 17,
            comm: 81_985_529_216_486_895,
            each: [(0, 1_200_000), (1, 31_000_000)]
                .map(|(sequence, dur_ns)| Collective {
                    function: 1,
                    sequence: 4_000 + sequence,
                    bytes: 33_554_432,
                    dur_ns,
                })
                .to_vec(),
            left_out: 0,
        }),
        Event::Thinned(Thinned {
            here: true,
            whole: false,
            from: 1,
            to: 812_044,
            to_ns: Time(23_118_000_000),
            gone: BTreeMap::from([("step".into(), 401_776), ("beat".into(), 49_152)]),
            frames: 450_928,
            bound_bytes: 8 << 30,
        }),
        Event::Start(Start {
            rank: Rank(3),
            restart: 0,
            local_rank: 3,
            world_size: 8,
            stage: StartStage::Waiting,
            call: "barrier".into(),
            idle_ns: 31_000_000_000,
        }),
        Event::Stacks(Stacks {
            ranks: vec![Rank(2)],
            restart: 0,
            main: Activity {
                state: ThreadState::Sleeping,
                frames: vec![
                    StackFrame {
                        function: "wait".into(),
                        file: "/usr/lib/python3.11/threading.py".into(),
                        line: 327,
                    },
                    StackFrame {
                        function: "next_batch".into(),
                        file: "/home/u/data.py".into(),
                        line: 88,
                    },
                ],
                own: Some(1),
                waits_in: "lock (futex)".into(),
                missing: "".into(),
                waits_for: WaitFor::Lock,
            },
            workers: vec![WorkerActivity {
                count: 2,
                activity: Activity {
                    state: ThreadState::Disk,
                    frames: vec![],
                    own: None,
                    waits_in: "read of /data/x.bin (nfs4 at /data)".into(),
                    missing: "in an uninterruptible sleep of the kernel".into(),
                    waits_for: WaitFor::NetworkFile,
                },
            }],
        }),
        Event::Entered(Entered {
            rank: Rank(2),
            restart: 0,
            comms: vec![CommEntered {
                comm: 0x0123_4567_89ab_cdef,
                each: vec![
                    LastCollective {
                        function: ALL_REDUCE,
                        sequence: 8812,
                        bytes: 64 << 20,
                    },
                    LastCollective {
                        function: ALL_GATHER,
                        sequence: 51,
                        bytes: 4096,
                    },
                ],
                ago_ns: 5_000_000_000,
            }],
            whole: true,
        }),
        Event::Comm(Comm {
            rank: Rank(2),
            restart: 0,
            step: 40,
            comm: 81_985_529_216_486_895,
            collectives: 3,
            bytes: 402_653_184,
            dur_ns: 21_700_000,
            exposed_ns: None,
            unfit: 0,
            gpu: true,
            functions: vec![
                FunctionSum::of(REDUCE_SCATTER, &[(61_000_000, 1_200_000)]),
                FunctionSum::of(ALL_GATHER, &[(0, 1_500_000), (22_000_000, 19_000_000)]),
            ],
        }),
    ]
}
