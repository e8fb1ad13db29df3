//! Causes of findings.

use serde::{Deserialize, Serialize};

closed! {
    /// Why. Each needs a counter of its own in the window, or, of a rank that hangs, what it was seen to wait for;
    /// without one the cause is unknown.
    #[derive(Default)]
    Cause {
        /// No counter explains it.
        #[default]
        Unknown = "unknown",
        /// The GPU protects itself from heat.
        Thermal = "thermal",
        /// The GPU is held at its power cap, or braked, and its peers are not.
        Power = "power",
        /// The SM clock is low without a reason, on a cool GPU.
        ClockStuck = "clock-stuck",
        /// Memory errors, or rows that wait to be remapped.
        Ecc = "ecc",
        /// The PCIe link runs under its width or generation, or repeats itself.
        Pcie = "pcie",
        /// NVLink errors, and transfers within the node are slow.
        Nvlink = "nvlink",
        /// Transfers across the node are slow, and its network ports count errors.
        Network = "network",
        /// The excess sits in the data phase.
        DataLoading = "data-loading",
        /// The process wants for CPU time.
        CpuContention = "cpu-contention",
        /// The process collects garbage.
        GcPause = "gc-pause",
        /// The work itself differs between ranks.
        Imbalance = "imbalance",
        /// The rank writes a checkpoint meanwhile.
        Checkpoint = "checkpoint",
        /// The rank evaluates meanwhile.
        Evaluation = "evaluation",
        /// The rank, or its loader, waits for a file system.
        Storage = "storage",
        /// The rank waits for another thread of its own process.
        LockWait = "lock-wait",
        /// The rank waits for an answer over the network that is no collective.
        RemoteService = "remote-service",
        /// The rank waits for another process of its node: one that it started, or the other end of a pipe.
        OtherProcess = "other-process",
        /// A signal has stopped the process.
        Stopped = "stopped",
        /// The rank runs its own code while the other ranks wait.
        OwnCode = "own-code",
        /// Ranks have entered collectives that differ: another one, another order, another size.
        CollectiveMismatch = "collective-mismatch",
        /// The rank waits for the GPU's driver, or its GPU has a fault.
        GpuFault = "gpu-fault",
    }
}

impl Cause {
    /// Whether only ranks that hang have it.
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
