//! Causes of findings.

use serde::{Deserialize, Serialize};

closed! {
    /// The cause of a finding. Each needs evidence within the window: a counter of its own or, for a hung rank, the
    /// resource that it waits for; otherwise the cause is unknown.
    #[derive(Default)]
    Cause {
        /// No counter explains it.
        #[default]
        Unknown = "unknown",
        /// The GPU throttles because of heat.
        Thermal = "thermal",
        /// The GPU is limited by its power cap or power brake, and its peers are not.
        Power = "power",
        /// The SM clock of a cool GPU is low without a throttle reason.
        ClockStuck = "clock-stuck",
        /// Memory errors, or rows pending a remap.
        Ecc = "ecc",
        /// The PCIe link has reduced width or generation, or replays.
        Pcie = "pcie",
        /// NVLink errors, and slow transfers within the node.
        Nvlink = "nvlink",
        /// Slow transfers between nodes, and errors on the node's network ports.
        Network = "network",
        /// The excess is in the data phase.
        DataLoading = "data-loading",
        /// The process lacks CPU time.
        CpuContention = "cpu-contention",
        /// The process collects garbage.
        GcPause = "gc-pause",
        /// The work itself differs between ranks.
        Imbalance = "imbalance",
        /// The rank writes a checkpoint during that time.
        Checkpoint = "checkpoint",
        /// The rank evaluates during that time.
        Evaluation = "evaluation",
        /// The rank, or its loader, waits for a file system.
        Storage = "storage",
        /// The rank waits for another thread of its own process.
        LockWait = "lock-wait",
        /// The rank waits for a network response outside of collectives.
        RemoteService = "remote-service",
        /// The rank waits for another process of its node: a child process, or the other end of a pipe.
        OtherProcess = "other-process",
        /// A signal has stopped the process.
        Stopped = "stopped",
        /// The rank runs its own code while the other ranks wait.
        OwnCode = "own-code",
        /// Ranks have entered different collectives: another operation, order or size.
        CollectiveMismatch = "collective-mismatch",
        /// The rank waits for the GPU driver, or its GPU has a fault.
        GpuFault = "gpu-fault",
    }
}

impl Cause {
    /// Returns true if this cause occurs only for hung ranks.
    pub fn is_of_hang(self) -> bool {
        matches!(
            self,
            Cause::Storage
                | Cause::LockWait
                | Cause::RemoteService
                | Cause::OtherProcess
                | Cause::Stopped
                | Cause::OwnCode
                | Cause::CollectiveMismatch
                | Cause::GpuFault
        )
    }
}
