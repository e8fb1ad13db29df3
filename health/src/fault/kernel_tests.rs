use super::*;

/// Returns the content of each line of a text, one result per line.
fn read(text: &str) -> Vec<String> {
    let mut log = KernelLog::default();
    let mut told = Vec::new();
    let or_none = |pci: Option<String>| pci.unwrap_or_else(|| "nowhere".to_owned());
    for line in text.lines() {
        log.read(line, |said| {
            told.push(match said {
                KernelLine::Xid(line) => format!("xid {} {} {}", line.xid, or_none(line.pci), line.text),
                KernelLine::Switch(line) => format!("sxid {} {} {}", line.xid, or_none(line.pci), line.text),
                KernelLine::FellOff { pci, text } => format!("off {} {text}", or_none(pci)),
                KernelLine::Uuid { pci, uuid } => format!("uuid {pci} {uuid}"),
                KernelLine::Boot => "boot".to_owned(),
            })
        });
    }
    told.iter().map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn every_shape_of_an_xid() {
    let check = |line: &str, wanted: &str| assert_eq!(read(line), [wanted], "{line}");
    let off = "xid 79 0000:b3:00.0 GPU has fallen off the bus.";
    for line in [
        "NVRM: Xid (PCI:0000:b3:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:b3:00.0): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (0000:b3:00): 79, GPU has fallen off the bus.",
        "[ 1234.567890] NVRM: Xid (PCI:0000:b3:00): 79, name=nvc:[driver], GPU has fallen off the bus.",
        "Nov 21 07:00:00 node3 kernel: [ 1234.5] NVRM: Xid (PCI:0000:B3:00): 79, GPU has fallen off the bus.",
        "2026-11-21T07:00:00,123+00:00 NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.",
        "4,1234,5000000,-;NVRM: Xid (PCI:0000:b3:00): 79, pid=1, name=a, GPU has fallen off the bus.",
        "4,1234,5000000,-,caller=T123;NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:b3:00): 79 GPU has fallen off the bus.",
    ] {
        check(line, off);
    }
    check("NVRM: Xid (PCI:0000:b3:00): 79", "xid 79 0000:b3:00.0");
    check("NVRM: Xid (PCI:0000:b3:00): 79\\x0a", "xid 79 0000:b3:00.0");
    check(
        "NVRM: Xid (PCI:0000:2d:00): 154 (GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required))",
        "xid 154 0000:2d:00.0 (GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required))",
    );
    check(
        "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link -1 (0x004525c6 0x00000000)",
        "xid 149 0008:01:00.0 NETIR_LINK_EVT  Fatal   XC0 i0 Link -1 (0x004525c6 0x00000000)",
    );
    // An XID of a MIG instance.
    check(
        "NVRM: Xid (PCI:0000:b3:00 GPU-I:05 GPU-CI:00): 43, pid=7, name=python3, Ch 00000008",
        "xid 43 0000:b3:00.0 Ch 00000008 (GPU-I:05 GPU-CI:00)",
    );
    check(
        "NVRM: Xid (PCI:0000:b3:00 GPU-I:05): 31",
        "xid 31 0000:b3:00.0 (GPU-I:05)",
    );
    check(
        "NVRM: Xid (somewhere): 31, Ch 00000010, intr 10000000. MMU Fault",
        "xid 31 nowhere Ch 00000010, intr 10000000. MMU Fault",
    );
    check(
        "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "sxid 20034 0000:c5:00.0 Fatal, Link 30 LTSSM Fault Up",
    );
}

#[test]
fn what_is_no_xid() {
    for line in [
        "",
        "NVRM: Xid",
        "NVRM: Xid (",
        "NVRM: Xid (PCI:0000:b3:00)",
        "NVRM: Xid (PCI:0000:b3:00): ",
        "NVRM: Xid (PCI:0000:b3:00): 79th",
        "NVRM: Xid (PCI:0000:b3:00): 99999999999, x",
        "NVRM: Xid (PCI:0000:b3:00): -1, x",
        "usb 1-1: Xid (PCI:0000:b3:00): 79, not the driver's words",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.82.07",
        " DEVICE=+pci:0000:b3:00.0",
        " SUBSYSTEM=pci",
        "systemd[1]: Linux version of something started",
    ] {
        assert_eq!(read(line), [""; 0], "{line}");
    }
}

#[test]
fn a_gpu_that_is_gone_without_an_xid() {
    let check = |text: &str, wanted: &[&str]| assert_eq!(read(text), wanted, "{text}");
    check(
        "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
        &["off 0000:b3:00.0 GPU 0000:b3:00.0: GPU has fallen off the bus."],
    );
    check(
        "NVRM: GPU at 0000:b3:00.0 has fallen off the bus.",
        &["off 0000:b3:00.0 GPU at 0000:b3:00.0 has fallen off the bus."],
    );
    check(
        "NVRM: rpc failed: GPU is lost",
        &["off nowhere rpc failed: GPU is lost"],
    );
    let words = "off 0000:b3:00.0 The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2330) installed in this system has \
        fallen off the bus and is not responding to commands.";
    // A message over several lines of a log file, and the same message in one raw record with escaped newlines.
    check(
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:2330)\nNVRM: installed in this system has\n\
         NVRM: fallen off the bus and is not responding to commands.",
        &["off 0000:b3:00.0 fallen off the bus and is not responding to commands."],
    );
    check(
        "4,5,6,-;NVRM: The NVIDIA GPU 0000:b3:00.0\\x0a(PCI ID: 10de:2330)\\x0ainstalled in this system has\\x0a\
         fallen off the bus and is not responding to commands.",
        &[words],
    );
    check(
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:2330)\nNVRM: installed in this system is not \
         supported by the NVIDIA 580.82.07 driver release.",
        &[],
    );
    // The message has a maximum number of lines. Text after it is not attributed to that GPU.
    check(
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: a\nNVRM: b\nNVRM: c\nNVRM: d\nNVRM: e\nfallen off the bus",
        &[],
    );
}

#[test]
fn addresses_and_boots() {
    assert_eq!(
        read(
            "[    0.000000] Linux version 6.8.0 (a@b)\n\
             NVRM: GPU at PCI:0000:b3:00: GPU-6d1f0c3a-1111-2222-3333-000000000002\n\
             NVRM: GPU at PCI:0000:b3:00: serial 42\n-- Boot 4f1c --"
        ),
        [
            "boot",
            "uuid 0000:b3:00.0 GPU-6d1f0c3a-1111-2222-3333-000000000002",
            "boot"
        ]
    );
    assert_eq!(read("5,0,0,-;Linux version 6.18.44"), ["boot"]);
}

#[test]
fn what_is_kept_is_bounded_and_whole_characters() {
    let long = format!("NVRM: Xid (PCI:0000:b3:00): 13, {}", "é".repeat(100_000));
    let mut log = KernelLog::default();
    log.read(&long, |said| {
        let KernelLine::Xid(line) = said else {
            panic!("an XID")
        };
        assert!(line.text.len() <= MAX_TEXT && line.text.chars().all(|letter| letter == 'é'));
    });
    for _ in 0..10_000 {
        log.read("NVRM: The NVIDIA GPU 0000:b3:00.0", |_| panic!("nothing"));
        log.read(&"x".repeat(5000), |_| panic!("nothing"));
    }
    assert!(
        log.block
            .is_none_or(|(_, words, _)| words.len() < MAX_BLOCK * (MAX_TEXT + 1) + 64)
    );
}
