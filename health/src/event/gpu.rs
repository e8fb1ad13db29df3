//! GPU events: readings, faults, whether GPUs can be read, and which processes use them.

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
    /// The readings. A signal is missing if it was not requested or has not changed. All signals are sent every ten
    /// seconds.
    pub readings: BTreeMap<GpuSignal, Reading>,
}

/// Signals of a GPU. The names contain the base units. Counters start at zero when the driver is loaded unless noted
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuSignal {
    /// Core temperature.
    TemperatureC,
    /// Degrees left until the GPU slows itself down because of heat. Negative if it is hotter than that.
    MarginC,
    /// Current SM clock.
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
    /// Current memory clock.
    MemoryClockMhz,
    /// Uncorrectable ECC errors, volatile.
    EccUncorrected,
    /// Corrected ECC errors, volatile.
    EccCorrected,
    /// 1 if a row remap waits for a reset, else 0.
    RemapPending,
    /// 1 if a row could not be remapped, else 0.
    RemapFailed,
    /// Current PCIe generation.
    PcieGen,
    /// Highest PCIe generation that GPU and slot support.
    PcieGenMax,
    /// Current PCIe lanes.
    PcieWidth,
    /// Most PCIe lanes that GPU and slot support.
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
    /// Total memory.
    MemoryTotalBytes,
    /// Degrees left until the memory slows down because of heat. Negative if it is hotter than that.
    MemoryMarginC,
    /// Power, instant.
    PowerInstantW,
    /// The board's default power limit.
    PowerLimitDefaultW,
    /// Energy used since driver load.
    EnergyJ,
    /// Highest memory clock.
    MemoryClockMaxMhz,
    /// SM clock requested by application clocks.
    SmClockSetMhz,
    /// Reasons for the current clocks: NVML's bit mask.
    ClockReasons,
    /// Time slowed to keep pace with other GPUs (sync boost).
    ThrottleSyncNs,
    /// Share of time in which memory was read or written, 0 to 1.
    MemoryBusyRatio,
    /// Uncorrectable ECC errors over the board's life.
    EccUncorrectedAggregate,
    /// Corrected ECC errors over the board's life.
    EccCorrectedAggregate,
    /// 1 if ECC is on, else 0.
    EccEnabled,
    /// 1 if ECC will be on after the next reset, else 0.
    EccEnabledPending,
    /// 1 if SRAM errors passed the threshold above which the part is replaced, else 0.
    SramThresholdExceeded,
    /// Number of rows remapped after correctable errors.
    RowsRemappedCorrectable,
    /// Number of rows remapped after uncorrectable errors.
    RowsRemappedUncorrectable,
    /// Number of memory banks that have no spare row left.
    RemapBanksNone,
    /// Number of memory banks with few spare rows left.
    RemapBanksLow,
    /// Total memory banks, as counted by the histogram of spare rows.
    RemapBanks,
    /// Number of pages retired after single-bit errors (before Ampere).
    RetiredPagesSingleBit,
    /// Number of pages retired after double-bit errors (before Ampere).
    RetiredPagesDoubleBit,
    /// 1 if pages wait for a reset to be retired, else 0 (before Ampere).
    RetiredPagesPending,
    /// The driver's recommended recovery action: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover
    /// the IMEX domain.
    RecoveryAction,
    /// Bytes sent over PCIe. This counter wraps.
    PcieSentBytes,
    /// Bytes received over PCIe. This counter wraps.
    PcieReceivedBytes,
    /// Number of NVLinks that are up.
    NvlinkUp,
    /// Number of NVLinks.
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
    /// Result of the registration with the NVLink fabric: 0 success, else NVML's error.
    FabricStatus,
    /// Problems of the NVLink fabric: 0 none, else the sum of 1 bandwidth degraded, 2 route recovery, 4 a route
    /// unhealthy, 8 recovery from an access timeout, 16 configuration.
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
    /// Time that this reading spent in the driver.
    ReadNs,
}

impl GpuSignal {
    /// Number of signals; `ReadNs` must stay the last.
    pub const COUNT: usize = GpuSignal::ReadNs as usize + 1;
}

/// See [`super::Event::GpuFault`]: an XID, an ECC event, or a kernel log line about a lost GPU. The kernel log and NVML
/// report the same fault in different words. The detector merges the two reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuFault {
    /// UUID, if known. It may not be, because the kernel log has only the address and a lost GPU cannot be queried.
    pub gpu: Option<GpuId>,
    /// PCI bus id, `0000:b3:00.0`. Empty if not known.
    pub pci: Arc<str>,
    /// Its kind.
    pub kind: GpuFaultKind,
    /// The XID, or the SXID of a switch, or zero if there is none.
    pub xid: u32,
    /// How many identical faults this one represents. A burst of faults is sent as one event with a count.
    pub count: u32,
    /// Its source.
    pub seen_by: FaultSource,
    /// The kernel log's message without its prefix. Empty if the fault was reported by NVML.
    pub text: Arc<str>,
}

/// The kind of a [`GpuFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuFaultKind {
    /// An XID.
    Xid,
    /// The GPU has fallen off the bus, or is lost, and no XID was logged for it.
    FellOff,
    /// NVML: corrected ECC errors.
    EccCorrected,
    /// NVML: an uncorrectable ECC error.
    EccUncorrected,
    /// NVML: many corrected ECC errors in a short time.
    EccStorm,
    /// NVML: a page was retired or a row remapped.
    MemoryRetired,
    /// NVML: a page could not be retired or a row could not be remapped.
    MemoryRetirementFailed,
    /// NVML: a poisoned value was consumed; the application is terminated, the GPU continues.
    Poison,
    /// NVML: a poisoned value was consumed, and the GPU stops working.
    PoisonFatal,
    /// NVML: the GPU is out of service.
    Unavailable,
    /// NVML: the driver's recommended recovery action changed to the value in [`GpuSignal::RecoveryAction`].
    RecoveryAction,
    /// A fault of an NVSwitch; `xid` has its number.
    Switch,
}

/// The source of a [`GpuFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultSource {
    /// The kernel log. It is authoritative.
    Kernel,
    /// An NVML event. It is only a hint, because NVML does not report some XIDs, and merges several into the last one.
    Nvml,
    /// A line of the kernel log from before monitoring began. It is for information only; no action follows from it.
    KernelBefore,
}

/// See [`super::Event::GpuAccess`]. Without readings, the GPU's health is unknown. An unreadable GPU does not count as
/// healthy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuAccess {
    /// The GPU, or `None` for all GPUs of the node.
    pub gpu: Option<GpuId>,
    /// PCI bus id, `0000:b3:00.0`. Empty for all GPUs of the node.
    pub pci: Arc<str>,
    /// Its state now.
    pub state: Access,
    /// The call and its result, for people.
    pub text: Arc<str>,
    /// How long the state has lasted, by the node's clock, nanoseconds.
    pub for_ns: u64,
}

/// Whether GPUs can be read, and the reason if they cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// GPUs can be read.
    Readable,
    /// The node has neither an NVIDIA driver nor its library. It counts as a node without GPUs unless a rank trains on
    /// one.
    Absent,
    /// The library is missing or broken, though there is a driver.
    NoLibrary,
    /// The library is present; the driver is not loaded or does not respond.
    NoDriver,
    /// Library and driver are of different versions, typically after an upgrade without a reboot.
    VersionMismatch,
    /// This process has no permission to open the devices.
    NoPermission,
    /// Driver and library are present, but there is no GPU, or none is visible to this process.
    NoDevice,
    /// The GPU has fallen off the bus or is lost to the driver.
    Lost,
    /// A call has not returned for [`GpuAccess::for_ns`].
    Silent,
    /// Every call fails for another reason, given in [`GpuAccess::text`].
    Failing,
    /// Readings are available; XID and ECC events are not.
    NoEvents,
}

/// See [`super::Event::GpuHolders`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuHolders {
    /// UUID.
    pub gpu: GpuId,
    /// PCI bus id, `0000:b3:00.0`.
    pub pci: Arc<str>,
    /// The processes, most memory first. Empty if there are none.
    pub processes: Vec<GpuProcess>,
}

/// A process that uses a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process id on its node.
    pub pid: u32,
    /// Name of its program. Empty if the process is in another container or has ended.
    pub name: Arc<str>,
    /// GPU memory that it uses, if the driver reports it.
    pub used_bytes: Option<u64>,
}
