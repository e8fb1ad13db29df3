//! Orders of the policy. An order is a remedy, and when to apply it.

use serde::{Deserialize, Serialize};

/// A remedy. Remedies are ordered from least to most drastic. Of two remedies, the more drastic one includes the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Do nothing.
    None,
    /// Restart the application.
    RestartApp,
    /// Update driver, firmware or another program.
    UpdateSoftware,
    /// Run diagnostics on the GPU.
    Diagnose,
    /// Contact the vendor, because repeating the remedy does not help.
    Support,
    /// Recover the IMEX domain of the NVLink partition.
    RecoverImex,
    /// Drain the peer-to-peer users of this GPU.
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
    /// Returns its name in JSON and tables.
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

    /// Returns the remedy as an instruction.
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

    /// Returns true if the remedy takes the GPU or its node out of service.
    pub fn acts_on_node(self) -> bool {
        self >= Remedy::DrainP2p
    }

    /// Returns the remedy for the driver's number of a recovery action (NVML field 230, XID 154), or `None` for an
    /// unknown number.
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

/// When to apply a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// After the job, because running work stays correct.
    JobEnd,
    /// At the next checkpoint, because continuing after it would cost more than stopping.
    NextCheckpoint,
    /// At once, because running work is lost or wrong.
    Now,
}

impl When {
    /// Returns the end of the instruction, which says when to carry it out.
    pub fn words(self) -> &'static str {
        match self {
            When::JobEnd => "when the job has ended",
            When::NextCheckpoint => "at the next checkpoint",
            When::Now => "now",
        }
    }
}

/// The order of the policy, in a form for programs. [`crate::verdict::Verdict::action`] is the corresponding text for
/// people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Order {
    /// The remedy.
    pub remedy: Remedy,
    /// When to apply it.
    pub when: When,
}
