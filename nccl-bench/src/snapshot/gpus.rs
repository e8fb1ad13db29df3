//! Reads the GPUs, with the sidecar's reader of the management library.

use paceline_health::event::{Access, GpuSignal, Missing};
use paceline_sidecar::source::host::files::Files;
use paceline_sidecar::source::nvml::{SurveyedGpu, survey};

use super::{GpuState, Gpus, Options, Text, pci};

/// Signals that matter before a job starts.
const SIGNALS: [GpuSignal; 26] = [
    GpuSignal::EccEnabled,
    GpuSignal::EccEnabledPending,
    GpuSignal::EccUncorrected,
    GpuSignal::EccCorrected,
    GpuSignal::EccUncorrectedAggregate,
    GpuSignal::SramThresholdExceeded,
    GpuSignal::RemapPending,
    GpuSignal::RemapFailed,
    GpuSignal::RemapBanksNone,
    GpuSignal::RetiredPagesPending,
    GpuSignal::RecoveryAction,
    GpuSignal::SmClockMhz,
    GpuSignal::SmClockMaxMhz,
    GpuSignal::SmClockSetMhz,
    GpuSignal::MemoryClockMaxMhz,
    GpuSignal::ClockReasons,
    GpuSignal::PowerLimitW,
    GpuSignal::PowerLimitDefaultW,
    GpuSignal::TemperatureC,
    GpuSignal::PcieGen,
    GpuSignal::PcieGenMax,
    GpuSignal::PcieWidth,
    GpuSignal::PcieWidthMax,
    GpuSignal::NvlinkUp,
    GpuSignal::NvlinkCount,
    GpuSignal::FabricState,
];

/// Reads the GPUs and their locations.
pub(super) fn read(files: &mut Files, options: &Options) -> Gpus {
    match survey(options.nvml_lib.as_deref(), options.limit) {
        Ok(found) => {
            let driver = if found.driver.is_empty() {
                Text::Missing(Missing::Unsupported)
            } else {
                Text::Text(found.driver.to_string())
            };
            let list = found.gpus.into_iter().map(|gpu| state(files, gpu)).collect();
            Gpus {
                access: Access::Readable,
                text: String::new(),
                driver,
                list,
            }
        }
        Err(refusal) => {
            let driver = Text::failed(&refusal.text);
            Gpus {
                access: refusal.access,
                text: refusal.text,
                driver,
                list: Vec::new(),
            }
        }
    }
}

fn state(files: &mut Files, gpu: SurveyedGpu) -> GpuState {
    GpuState {
        uuid: gpu.gpu_uuid,
        place: pci::place(files, &gpu.pci_bus_id),
        pci: gpu.pci_bus_id.to_string(),
        model: gpu.model.to_string(),
        access: gpu.access,
        text: gpu.text,
        signals: gpu
            .signals
            .into_iter()
            .filter(|(signal, _)| SIGNALS.contains(signal))
            .collect(),
    }
}
