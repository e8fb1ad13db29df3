//! What policy asks for: a remedy, and when.

use serde::{Deserialize, Serialize};

/// What should be done. The order is from least to most drastic, so that of two remedies the larger includes the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Nothing.
    None,
    /// Restart the application.
    RestartApp,
    /// Update driver, firmware or another program.
    UpdateSoftware,
    /// Run diagnostics on the GPU.
    Diagnose,
    /// Ask the vendor: repeating the remedy does not help.
    Support,
    /// Recover the IMEX domain of the NVLink partition.
    RecoverImex,
    /// Drain what talks to this GPU peer to peer.
    DrainP2p,
    /// Reset the GPU.
    ResetGpu,
    /// Drain the node, then reset the GPU.
    DrainReset,
    /// Reboot the node.
    RebootNode,
    /// Have the hardware inspected.
    Inspect,
}

impl Remedy {
    /// Its name in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Remedy::None => "none",
            Remedy::RestartApp => "restart_app",
            Remedy::UpdateSoftware => "update_software",
            Remedy::Diagnose => "diagnose",
            Remedy::Support => "support",
            Remedy::RecoverImex => "recover_imex",
            Remedy::DrainP2p => "drain_p2p",
            Remedy::ResetGpu => "reset_gpu",
            Remedy::DrainReset => "drain_reset",
            Remedy::RebootNode => "reboot_node",
            Remedy::Inspect => "inspect",
        }
    }

    /// As an instruction.
    pub fn words(self) -> &'static str {
        match self {
            Remedy::None => "do nothing",
            Remedy::RestartApp => "restart the application",
            Remedy::UpdateSoftware => "update the software",
            Remedy::Diagnose => "run diagnostics on this GPU",
            Remedy::Support => "open a ticket with the vendor instead of another reset",
            Remedy::RecoverImex => "recover the IMEX domain",
            Remedy::DrainP2p => "drain the GPUs that use peer-to-peer access to this GPU",
            Remedy::ResetGpu => "reset the GPU",
            Remedy::DrainReset => "drain the node and reset the GPU",
            Remedy::RebootNode => "reboot the node",
            Remedy::Inspect => "take the node out of service and have the hardware inspected",
        }
    }

    /// Whether it takes the GPU or its node out of service.
    pub fn acts_on_node(self) -> bool {
        self >= Remedy::DrainP2p
    }

    /// The remedy of a recovery action as the driver numbers it (NVML field 230, XID 154); `None`: not a known one.
    ///
    /// Source: <https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html>, nvmlDeviceGpuRecoveryAction_t.
    pub fn of_recovery_action(number: u64) -> Option<Remedy> {
        Some(match number {
            0 => Remedy::None,
            1 => Remedy::ResetGpu,
            2 => Remedy::RebootNode,
            3 => Remedy::DrainP2p,
            4 => Remedy::DrainReset,
            5 => Remedy::RecoverImex,
            _ => return None,
        })
    }
}

/// When it should be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// When the job has ended: running work stays correct.
    JobEnd,
    /// At the next checkpoint: going on costs more than stopping.
    NextCheckpoint,
    /// At once: running work is lost or wrong.
    Now,
}

impl When {
    /// As the end of an instruction.
    pub fn words(self) -> &'static str {
        match self {
            When::JobEnd => "when the job has ended",
            When::NextCheckpoint => "at the next checkpoint",
            When::Now => "now",
        }
    }
}

/// What policy asks for, for programs; [`crate::verdict::Verdict::action`] says the same for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Order {
    /// What should be done.
    pub remedy: Remedy,
    /// When.
    pub when: When,
}
