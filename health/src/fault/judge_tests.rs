use super::*;

fn by_number(xid: u32) -> Judgement {
    FaultTables::default().judge(xid, "", None)
}

/// Checks our classification against NVIDIA's immediate actions. 18 codes need a reset, a reboot or an inspection. 70
/// codes need nothing or a restart of the application.
#[test]
fn the_whole_catalogue() {
    let tables = FaultTables::default();
    let (mut found, mut needed, mut quiet, mut wrong) = (0, 0, 0, Vec::new());
    for row in tables.xids() {
        let acts = tables.judge(row.xid, "", None).acts_on_node();
        match row.immediate_action.as_str() {
            "RESET_GPU" | "RESTART_BM" | "RESTART_VM" | "CHECK_MECHANICALS" | "WORKFLOW_XID_48" => {
                needed += 1;
                found += u32::from(acts);
            }
            "IGNORE" | "RESTART_APP" | "WORKFLOW_XID_45" => {
                quiet += 1;
                if acts {
                    wrong.push(row.xid);
                }
            }
            // These are unused codes and codes decided by the message. The number alone must not cause an action.
            _ => assert!(!acts, "{} {}", row.xid, row.immediate_action),
        }
        assert!(!tables.class(row.class).means.is_empty());
    }
    assert_eq!((found, needed, quiet, wrong), (18, 18, 70, vec![]));
    assert_eq!(tables.xids().count(), 172);
}

#[test]
fn severity_by_class() {
    use Remedy::*;
    let check = |xid, severity, remedy, finding| {
        let judged = by_number(xid);
        assert_eq!(
            (judged.severity, judged.order.remedy, judged.finding),
            (severity, remedy, finding),
            "{xid}"
        );
    };
    check(79, Severity::Critical, RebootNode, Finding::GpuLost);
    check(119, Severity::Critical, ResetGpu, Finding::GpuFault);
    check(54, Severity::Critical, Inspect, Finding::GpuFault);
    check(48, Severity::Critical, ResetGpu, Finding::EccUncorrectable);
    check(95, Severity::Critical, ResetGpu, Finding::EccUncorrectable);
    check(94, Severity::Warning, RestartApp, Finding::ApplicationFault);
    check(31, Severity::Warning, RestartApp, Finding::ApplicationFault);
    check(43, Severity::Info, None, Finding::XidRecorded);
    check(45, Severity::Info, None, Finding::XidRecorded);
    check(63, Severity::Info, None, Finding::RowRemap);
    check(78, Severity::Warning, UpdateSoftware, Finding::XidRecorded);
    check(2, Severity::Warning, None, Finding::XidRecorded);
    check(999_999, Severity::Warning, None, Finding::XidRecorded);
    for (xid, suspect) in [
        (48, true),
        (95, true),
        (140, true),
        (94, false),
        (79, false),
        (31, false),
    ] {
        assert_eq!(by_number(xid).suspect, suspect, "{xid}");
    }
}

#[test]
fn the_driver_is_followed() {
    let check = |text: &str, wanted: Option<Remedy>| {
        let judged = FaultTables::default().judge(154, text, None);
        assert_eq!(judged.recovery, wanted, "{text}");
        let acts = wanted.is_some_and(|remedy| remedy >= Remedy::DrainP2p);
        assert_eq!(judged.acts_on_node(), acts, "{text}");
        if wanted.is_some_and(|remedy| remedy != Remedy::None) {
            assert_eq!(judged.severity, Severity::Critical, "{text}");
        }
    };
    let changed = "GPU recovery action changed from ";
    check(
        &format!("{changed}0x0 (None) to 0x1 (GPU Reset Required)"),
        Some(Remedy::ResetGpu),
    );
    check(
        &format!("({changed}0x0 (None) to 0x2 (Node Reboot Required))"),
        Some(Remedy::RebootNode),
    );
    check(
        &format!("{changed}0x0 (None) to 0x3 (Drain P2P)"),
        Some(Remedy::DrainP2p),
    );
    check(
        &format!("{changed}0x1 (GPU Reset Required) to 0x4 (Drain and Reset)"),
        Some(Remedy::DrainReset),
    );
    check(
        &format!("{changed}0x2 (Node Reboot Required) to 0x0 (None)"),
        Some(Remedy::None),
    );
    check(
        &format!("{changed}None to Drain and Reset"),
        Some(Remedy::DrainReset),
    );
    check(&format!("{changed}0x0 to 0x77"), None);
    check("", None);
}

fn xid_74(first_to_fifth: [u32; 5]) -> Judgement {
    let [a, b, c, d, e] = first_to_fifth;
    let text =
        format!("NVLink: fatal error detected on link 7({a:#x}, {b:#x}, {c:#x}, {d:#x}, {e:#x}, 0x0, 0x0)");
    FaultTables::default().judge(74, &text, None)
}

#[test]
fn the_registers_of_xid_74() {
    use Remedy::{Inspect, None as Nothing, ResetGpu, Support};
    let check = |register: usize, bits: &[u32], severity, remedy, after: u32| {
        for bit in bits {
            let mut registers = [0; 5];
            registers[register - 1] = 1 << bit;
            let judged = xid_74(registers);
            let repeat = (after > 1).then_some(Repeat { link: Some(7), after });
            assert_eq!(
                (judged.severity, judged.order.remedy, judged.repeat),
                (severity, remedy, repeat),
                "register {register} bit {bit}"
            );
        }
    };
    let (info, warning, critical) = (Severity::Info, Severity::Warning, Severity::Critical);
    check(1, &[0, 23, 30], info, Nothing, 1);
    check(1, &[1, 20], info, Support, 1);
    check(1, &[4, 5], warning, Support, 3);
    check(1, &[8, 9, 12, 16, 17, 24, 28], critical, Inspect, 1);
    check(1, &[21, 22], warning, Inspect, 2);
    check(1, &[27, 29], warning, Support, 2);
    check(3, &[0, 1, 2, 6], warning, Support, 3);
    check(3, &[13], warning, Support, 1);
    check(3, &[16, 17, 18, 19], critical, Inspect, 2);
    check(4, &[16, 17], info, Support, 1);
    check(4, &[18], critical, ResetGpu, 1);
    check(5, &[18, 19, 21, 22, 24, 25, 27, 28], warning, Support, 3);
    check(5, &[20, 23, 26, 29], info, Nothing, 1);
    // If several rows match, the worst one decides. Bits without a row cause a warning without an action.
    assert_eq!(xid_74([1 << 23 | 1 << 16, 0, 0, 0, 0]).order.remedy, Inspect);
    assert_eq!(xid_74([1 << 2, 0, 0, 0, 0]).order.remedy, Nothing);
    assert!(!by_number(74).acts_on_node());
}

/// Tests every row of the table in both layouts, with all ignored bits set to 0 and to 1.
#[test]
fn every_row_of_nvlink5_in_both_layouts() {
    let text = include_str!("../../policy/nvlink5.tsv");
    let table = super::rows("nvlink5.tsv", text).unwrap();
    assert_eq!(table.len(), 95);
    let tables = FaultTables::default();
    let mut checked = 0;
    for row in &table {
        let cell = |column| row.text(column).unwrap();
        let xid: u32 = cell("xid").parse().unwrap();
        for unit in cell("unit").split('/') {
            for (masks, branch) in [
                (("intrinfo_v1_lt_r575", "action2_v1"), Branch::Before575),
                (("intrinfo_v2_ge_r575", "action2_v2"), Branch::From575),
            ] {
                for (mask, action) in [(masks.0, "action"), (masks.1, "action2")] {
                    for fill in ["0", "1"] {
                        let wanted = cell(action);
                        if wanted.is_empty() {
                            continue;
                        }
                        let info = u32::from_str_radix(&cell(mask).replace('-', fill), 2).unwrap();
                        for status in cell("error_status").split('/') {
                            let status = if status.is_empty() { "0x0" } else { status };
                            let text =
                                format!("{unit}  Fatal   XC0 i0 Link 02 ({info:#010x} {status} 0x0 0x0)");
                            let judged = tables.judge(xid, &text, Some(branch));
                            let told = (judged.severity, judged.order.remedy);
                            let wanted = match wanted {
                                "IGNORE" => (Severity::Info, Remedy::None),
                                "XID_154_EVAL" => (Severity::Warning, Remedy::RestartApp),
                                "RESET_GPU" => (Severity::Critical, Remedy::ResetGpu),
                                other => panic!("{other}"),
                            };
                            assert_eq!(told, wanted, "{xid} {branch:?} {text}");
                            checked += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(checked >= 95 * 2 * 2, "{checked}");
}

#[test]
fn nvlink_messages() {
    let check = |text: &str, unit: &str, fatal, link, registers: &[u32]| {
        let wanted = NvlinkLine {
            unit: unit.to_owned(),
            fatal,
            link,
            registers: registers.to_vec(),
        };
        assert_eq!(NvlinkLine::parse(text), Some(wanted), "{text}");
    };
    check(
        "NETIR_LINK_EVT  Fatal   XC0 i0 Link 02 (0x004525c6 0x00000000 0x0)",
        "NETIR_LINK_EVT",
        true,
        Some(2),
        &[0x4525c6, 0, 0],
    );
    check(
        "MSE Degraded Nonfatal XC1 in Link -1 (0x0 0xFFFFFFFF)",
        "MSE Degraded",
        false,
        None,
        &[0, u32::MAX],
    );
    check(
        "NVLink: fatal error detected on link 11(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
        "",
        true,
        Some(11),
        &[0, 0, 0x10000, 0, 0, 0, 0],
    );
    for text in ["", "(", "NVLink: link 3", "(0x", "Link 2 (0x)"] {
        assert!(
            NvlinkLine::parse(text).is_none_or(|line| line.registers.is_empty()),
            "{text}"
        );
    }
    // The layout depends on the branch, because the same number denotes another unit since R575.
    assert_eq!(Branch::of("570.86.15"), Some(Branch::Before575));
    assert_eq!(Branch::of("580.82.07"), Some(Branch::From575));
    assert_eq!(Branch::of("unknown"), None);
}

#[test]
fn an_unknown_branch_takes_the_more_drastic_of_both_layouts() {
    let tables = FaultTables::default();
    let text = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 02 (0x004525c6 0x00000000)";
    for branch in [None, Some(Branch::Before575)] {
        assert_eq!(tables.judge(149, text, branch).order.remedy, Remedy::ResetGpu);
    }
    assert_eq!(
        tables.judge(149, text, Some(Branch::From575)).order.remedy,
        Remedy::None
    );
    // If several error bits are set at once, the worst of their rows decides.
    let text = "SAW_MVB Fatal XC0 i0 Link 02 (0x00000001 0x00000006)";
    assert_eq!(
        tables.judge(144, text, Some(Branch::From575)).order.remedy,
        Remedy::ResetGpu
    );
}
