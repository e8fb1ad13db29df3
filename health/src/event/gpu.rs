//! What GPUs say: readings, faults, whether they can be read, and who holds them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Reading;
use crate::id::GpuId;

/// See [`super::Event::Gpu`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuReading {
    /// UUID.
    pub gpu: GpuId,
    /// PCI bus id, `0000:b3:00.0`.
    pub pci: Arc<str>,
    /// Product name.
    pub model: Arc<str>,
    /// What was read. A signal that is not here was not asked for, or is as it was told last; all are told every ten
    /// seconds.
    pub readings: BTreeMap<GpuSignal, Reading>,
}

/// What can be read from a GPU; base units in the name. Counters grow since driver load unless named otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuSignal {
    /// Core temperature.
    TemperatureC,
    /// Degrees left before the GPU slows itself down for heat; negative: past it.
    MarginC,
    /// SM clock now.
    SmClockMhz,
    /// Highest SM clock.
    SmClockMaxMhz,
    /// Power, one second average.
    PowerW,
    /// Enforced power limit.
    PowerLimitW,
    /// Time slowed by software thermal protection since driver load.
    ThrottleThermalSwNs,
    /// Time slowed by hardware thermal protection since driver load.
    ThrottleThermalHwNs,
    /// Time slowed by the power cap since driver load.
    ThrottlePowerNs,
    /// Share of time in which any kernel ran, 0 to 1.
    UtilizationRatio,
    /// Time slowed by the hardware power brake.
    ThrottleBrakeNs,
    /// Memory temperature.
    MemoryTemperatureC,
    /// Memory clock now.
    MemoryClockMhz,
    /// Uncorrectable ECC errors, volatile.
    EccUncorrected,
    /// Corrected ECC errors, volatile.
    EccCorrected,
    /// A row remap waits for a reset: 0 or 1.
    RemapPending,
    /// A row could not be remapped: 0 or 1.
    RemapFailed,
    /// PCIe generation now.
    PcieGen,
    /// Highest PCIe generation of GPU and slot.
    PcieGenMax,
    /// PCIe lanes now.
    PcieWidth,
    /// Most PCIe lanes of GPU and slot.
    PcieWidthMax,
    /// PCIe replays.
    PcieReplays,
    /// NVLink CRC errors, all links.
    NvlinkCrcErrors,
    /// NVLink replays, all links.
    NvlinkReplays,
    /// NVLink recoveries, all links.
    NvlinkRecoveries,
    /// Memory in use.
    MemoryUsedBytes,
    /// Memory there is.
    MemoryTotalBytes,
    /// Degrees left before memory slows down; negative: past it.
    MemoryMarginC,
    /// Power, instant.
    PowerInstantW,
    /// Power limit that the board has by default.
    PowerLimitDefaultW,
    /// Energy used since driver load.
    EnergyJ,
    /// Highest memory clock.
    MemoryClockMaxMhz,
    /// SM clock that was asked for by setting application clocks.
    SmClockSetMhz,
    /// Why the clocks are what they are now: bits, as NVML has them.
    ClockReasons,
    /// Time slowed to keep pace with other GPUs (sync boost).
    ThrottleSyncNs,
    /// Share of time in which memory was read or written, 0 to 1.
    MemoryBusyRatio,
    /// Uncorrectable ECC errors over the board's life.
    EccUncorrectedAggregate,
    /// Corrected ECC errors over the board's life.
    EccCorrectedAggregate,
    /// ECC is on: 0 or 1.
    EccEnabled,
    /// ECC will be on after the next reset: 0 or 1.
    EccEnabledPending,
    /// SRAM errors passed the threshold above which the part is replaced: 0 or 1.
    SramThresholdExceeded,
    /// Rows remapped after correctable errors.
    RowsRemappedCorrectable,
    /// Rows remapped after uncorrectable errors.
    RowsRemappedUncorrectable,
    /// Memory banks that have no spare row left.
    RemapBanksNone,
    /// Memory banks with few spare rows left.
    RemapBanksLow,
    /// Memory banks in all, as the histogram of spare rows counts them.
    RemapBanks,
    /// Pages retired after single-bit errors (before Ampere).
    RetiredPagesSingleBit,
    /// Pages retired after double-bit errors (before Ampere).
    RetiredPagesDoubleBit,
    /// Pages wait for a reset to be retired: 0 or 1 (before Ampere).
    RetiredPagesPending,
    /// What the driver says would recover the GPU: 0 nothing, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset,
    /// 5 recover the IMEX domain.
    RecoveryAction,
    /// Bytes sent over PCIe; wraps.
    PcieSentBytes,
    /// Bytes received over PCIe; wraps.
    PcieReceivedBytes,
    /// NVLinks that are up.
    NvlinkUp,
    /// NVLinks that there are.
    NvlinkCount,
    /// Bytes sent over NVLink, all links.
    NvlinkSentBytes,
    /// Bytes received over NVLink, all links.
    NvlinkReceivedBytes,
    /// NVLink errors, all links (Blackwell): malformed packets, overruns, receive errors, link integrity.
    NvlinkErrors,
    /// Symbols that NVLink received with errors, all links (Blackwell).
    NvlinkSymbolErrors,
    /// NVLink recoveries that failed, all links (Blackwell).
    NvlinkRecoveriesFailed,
    /// Registration with the NVLink fabric: 1 not started, 2 in progress, 3 completed.
    FabricState,
    /// What registration with the NVLink fabric ended in: 0 success, else NVML's error.
    FabricStatus,
    /// What is wrong with the NVLink fabric: 0 nothing, else the sum of 1 bandwidth degraded, 2 route recovery, 4 a
    /// route unhealthy, 8 recovery from an access timeout, 16 configuration.
    FabricHealth,
    /// Share of time in which the compute engine was busy, 0 to 1 (Hopper and later).
    GraphicsActiveRatio,
    /// Share of SMs that had work, 0 to 1 (Hopper and later).
    SmActiveRatio,
    /// Share of warps that were resident, 0 to 1 (Hopper and later).
    SmOccupancyRatio,
    /// Share of time in which tensor cores worked, 0 to 1 (Hopper and later).
    TensorActiveRatio,
    /// Share of DRAM bandwidth in use, 0 to 1 (Hopper and later).
    DramActiveRatio,
    /// Time that this reading took in the driver.
    ReadNs,
}

impl GpuSignal {
    /// How many there are; the last of them stays the last.
    pub const COUNT: usize = GpuSignal::ReadNs as usize + 1;
}

/// See [`super::Event::GpuFault`]: an XID, an ECC event, or a line that says that a GPU is gone. The kernel log and
/// NVML tell of the same fault in their own words; whoever counts joins them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuFault {
    /// UUID, where it is known. The kernel log knows only the address, and a lost GPU cannot be asked.
    pub gpu: Option<GpuId>,
    /// PCI bus id, `0000:b3:00.0`; empty: not known.
    pub pci: Arc<str>,
    /// What it is.
    pub kind: GpuFaultKind,
    /// The XID, or the SXID of a switch; zero: the fault has none.
    pub xid: u32,
    /// How many alike this one stands for: bursts are counted, not repeated.
    pub count: u32,
    /// Who told.
    pub seen_by: FaultSource,
    /// The words of the kernel log, without their prefix; empty: NVML has none.
    pub text: Arc<str>,
}

/// What a [`GpuFault`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuFaultKind {
    /// An XID.
    Xid,
    /// The GPU has fallen off the bus, or is lost, and no XID says so.
    FellOff,
    /// NVML: corrected ECC errors.
    EccCorrected,
    /// NVML: an uncorrectable ECC error.
    EccUncorrected,
    /// NVML: many corrected ECC errors in a short time.
    EccStorm,
    /// NVML: a page was retired or a row remapped.
    MemoryRetired,
    /// NVML: a page could not be retired, a row not remapped.
    MemoryRetirementFailed,
    /// NVML: a poisoned value was consumed; the application is ended, the GPU goes on.
    Poison,
    /// NVML: a poisoned value was consumed, and the GPU does not go on.
    PoisonFatal,
    /// NVML: the GPU is out of service.
    Unavailable,
    /// NVML: the recovery action that the driver asks for has changed; [`GpuSignal::RecoveryAction`] says to what.
    RecoveryAction,
    /// A fault of an NVSwitch: its number is in `xid`.
    Switch,
}

/// Who told of a [`GpuFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultSource {
    /// The kernel log: the truth.
    Kernel,
    /// An NVML event: a hint. NVML cannot tell of some XIDs and merges several into the last one.
    Nvml,
    /// The kernel log, from before the watch began: worth knowing, and nothing is done for it.
    KernelBefore,
}

/// See [`super::Event::GpuAccess`]. Without a reading nothing is known: a GPU that cannot be read is not a healthy one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuAccess {
    /// The GPU; `None`: all of the node's.
    pub gpu: Option<GpuId>,
    /// PCI bus id, `0000:b3:00.0`; empty: of the node.
    pub pci: Arc<str>,
    /// Its state now.
    pub state: Access,
    /// What was asked, and what was answered, for people.
    pub text: Arc<str>,
    /// How long it has been so already, by the node's own clock, nanoseconds.
    pub for_ns: u64,
}

/// Whether GPUs can be read, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// They can.
    Readable,
    /// There is no driver and no library of NVIDIA's here: a node without GPUs, unless a rank trains on one.
    Absent,
    /// The library is missing or broken, though there is a driver.
    NoLibrary,
    /// The library is there, the driver is not loaded or does not answer.
    NoDriver,
    /// Library and driver are of different versions: an upgrade without a reboot.
    VersionMismatch,
    /// No permission to open the devices.
    NoPermission,
    /// Driver and library are there, and no GPU is, or none is visible to this process.
    NoDevice,
    /// The GPU has fallen off the bus or is lost to the driver.
    Lost,
    /// A call has not come back for [`GpuAccess::for_ns`].
    Silent,
    /// Every call fails in another way, which [`GpuAccess::text`] tells.
    Failing,
    /// XID and ECC events cannot be had, readings can.
    NoEvents,
}

/// See [`super::Event::GpuHolders`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuHolders {
    /// UUID.
    pub gpu: GpuId,
    /// PCI bus id, `0000:b3:00.0`.
    pub pci: Arc<str>,
    /// The processes, most memory first. Empty: nobody.
    pub processes: Vec<GpuProcess>,
}

/// A process that holds a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process id on its node.
    pub pid: u32,
    /// Name of its program; empty: the process is in another container, or gone.
    pub name: Arc<str>,
    /// GPU memory in its use, where the driver says.
    pub used_bytes: Option<u64>,
}
