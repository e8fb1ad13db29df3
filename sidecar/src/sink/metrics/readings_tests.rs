use paceline_health::event::{
    Event, FaultSource, GpuFault, GpuFaultKind, GpuReading, GpuSignal, PortLink, PortReading, PortSignal,
    Reading,
};

use super::tests::{frame, is_in_the_contract, report, shown};
use super::{Metrics, Shown, Transport};

#[test]
fn gpus_under_the_names_of_dcgm_exporter() {
    let mut metrics = Metrics::default();
    for (gpu, pci) in [("GPU-b", "0000:b3:00.0"), ("GPU-a", "0000:1b:00.0")] {
        let readings = [
            (GpuSignal::PowerW, Reading::Value(312.5)),
            (GpuSignal::UtilizationRatio, Reading::Value(0.5)),
            (GpuSignal::MemoryTotalBytes, Reading::Value(3e6 * 1.048_576)),
            (GpuSignal::MemoryUsedBytes, Reading::Value(1e6 * 1.048_576)),
            (GpuSignal::EccCorrected, Reading::Value(2.0)),
        ];
        let reading = GpuReading {
            gpu: gpu.into(),
            pci: pci.into(),
            model: "H200".into(),
            readings: readings.into(),
        };
        metrics.observe(&frame(Event::Gpu(reading)), 1.0);
    }
    // The same XID is reported by the kernel, which only has the address, and by NVML.
    for (gpu, seen_by, count) in [
        (None, FaultSource::Kernel, 3),
        (Some("GPU-b".into()), FaultSource::Nvml, 1),
    ] {
        let fault = GpuFault {
            gpu,
            pci: "0000:b3:00.0".into(),
            kind: GpuFaultKind::Xid,
            xid: 63,
            count,
            seen_by,
            text: "".into(),
        };
        metrics.observe(&frame(Event::GpuFault(fault)), 1.0);
    }
    let page = |words: &[&str]| metrics.page(&report(), &Transport::default(), shown(words));
    let plain = page(&[]);
    assert!(!plain.contains("DCGM"), "{plain}");
    is_in_the_contract(&plain);
    assert!(
        plain.contains("paceline_gpu_xid_errors_total{gpu_uuid=\"GPU-b\",xid=\"63\"} 3\n"),
        "{plain}"
    );
    assert!(
        plain.contains("paceline_gpu_ecc_errors_total{gpu_uuid=\"GPU-a\",kind=\"corrected\"} 2\n"),
        "{plain}"
    );
    let page = page(&["--metrics-compat", "dcgm"]);
    let labels = |index: u32, gpu: &str, pci: &str| {
        format!(
            "{{Hostname=\"n1\",UUID=\"{gpu}\",device=\"nvidia{index}\",gpu=\"{index}\",modelName=\"H200\",pci_bus_id=\"{pci}\"}}"
        )
    };
    let (first, second) = (
        labels(0, "GPU-a", "00000000:1B:00.0"),
        labels(1, "GPU-b", "00000000:B3:00.0"),
    );
    for wanted in [
        format!("DCGM_FI_DEV_POWER_USAGE{first} 312.5\n"),
        format!("DCGM_FI_DEV_GPU_UTIL{second} 50\n"),
        format!("DCGM_FI_DEV_XID_ERRORS{first} 0\n"),
        format!("DCGM_FI_DEV_XID_ERRORS{second} 63\n"),
        "# TYPE DCGM_FI_DEV_ECC_SBE_VOL_TOTAL counter\n".to_owned(),
    ] {
        assert!(page.contains(&wanted), "no {wanted} in\n{page}");
    }
    let free = page.lines().find(|line| line.starts_with("DCGM_FI_DEV_FB_FREE"));
    let free: f64 = free.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!((free - 2.0).abs() < 1e-6, "{free}");
}

#[test]
fn network_ports() {
    let mut metrics = Metrics::default();
    let readings = [
        (PortSignal::Up, Reading::Value(1.0)),
        (PortSignal::RateBps, Reading::Value(400e9)),
        (PortSignal::Retransmits, Reading::Value(5.0)),
    ];
    let reading = PortReading {
        port: "mlx5_0/1".into(),
        link: PortLink::Infiniband,
        readings: readings.into(),
    };
    metrics.observe(&frame(Event::Port(reading)), 1.0);
    let page = metrics.page(&report(), &Transport::default(), Shown::default());
    is_in_the_contract(&page);
    for wanted in [
        "paceline_fabric_port_up{link=\"infiniband\",node=\"n1\",port=\"mlx5_0/1\"} 1\n",
        "paceline_fabric_port_rate_bytes_per_second{node=\"n1\",port=\"mlx5_0/1\"} 50000000000\n",
        "paceline_fabric_errors_total{counter=\"retransmit\",node=\"n1\",port=\"mlx5_0/1\"} 5\n",
    ] {
        assert!(page.contains(wanted), "no {wanted} in\n{page}");
    }
}

/// Prometheus' format escapes a backslash, a quote and the end of a line, and accepts everything else unchanged.
/// Terminal escape sequences and long text are made printable and short first.
#[test]
fn hostile_names_are_labels_on_one_line() {
    let words = "\"} 1\nup{x=\"\x1b[31m\r\0\u{9b}\u{202e}\\".repeat(1 << 15);
    let mut metrics = Metrics::default();
    let reading = GpuReading {
        gpu: words.as_str().into(),
        pci: "0000:1b:00.0".into(),
        model: words.as_str().into(),
        readings: [(GpuSignal::PowerW, Reading::Value(312.5))].into(),
    };
    let mut frame = frame(Event::Gpu(reading));
    frame.node = words.as_str().into();
    metrics.observe(&frame, 1.0);
    let mut report = report();
    report.job = words.as_str().into();
    let page = metrics.page(
        &report,
        &Transport::default(),
        shown(&["--metrics-compat", "dcgm"]),
    );
    assert!(page.len() < 128 << 10, "{} bytes", page.len());
    let bad = page.contains(|letter: char| {
        letter != '\n' && paceline_health::text::sanitize::visible(letter) != letter
    });
    assert!(!bad, "{page}");
    assert!(page.lines().all(|line| !line.starts_with("up{")), "{page}");
    assert!(page.contains(r#"job_id="\"} 1 up{x=\"␛[31m "#), "{page}");
}
