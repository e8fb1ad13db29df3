use super::*;

fn json(number: u32, message: &str) -> serde_json::Value {
    serde_json::to_value(Xid::of(&Policy::default(), number, message, None)).unwrap()
}

#[test]
fn the_json_that_programs_read() {
    let told = json(79, "");
    for (key, wanted) in [
        ("schema_version", serde_json::json!(1)),
        ("xid", 79.into()),
        ("name", "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS".into()),
        ("description", "GPU has fallen off the bus".into()),
        ("class", "node_reboot".into()),
        ("severity", "critical".into()),
        ("action", "reboot_node".into()),
        ("when", "now".into()),
        ("acts_on_node", true.into()),
        ("finding", "gpu-lost".into()),
    ] {
        assert_eq!(told[key], wanted, "{key}");
    }
    assert_eq!(json(31, "")["acts_on_node"], false);
    assert_eq!(json(48, "")["results_suspect"], true);
    assert_eq!(json(100_000, "")["class"], "unlisted");
    let text = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 02 (0x004525c6 0x00000000)";
    assert_eq!(json(149, text)["action"], "reset_gpu");
    assert_eq!(json(149, "")["action"], "none");
}

#[test]
fn text_is_wrapped_beside_its_label() {
    let style = Style {
        color: false,
        unicode: false,
        width: 60,
    };
    let policy = Policy::default();
    for finding in Finding::ALL {
        for line in Explained::of(&policy, *finding).render(style).lines().skip(1) {
            assert!(
                line.starts_with("  ") && line.len() <= 60 || line.contains("://"),
                "{line}"
            );
        }
    }
    let told = Xid::of(
        &policy,
        74,
        "NVLink: fatal error detected on link 7(0x10, 0x0)",
        None,
    )
    .render(style);
    let flat: Vec<&str> = told.split_whitespace().collect();
    assert!(flat.join(" ").contains("from the third on one link on"), "{told}");
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest() {
    let error = finding("stragler").unwrap_err().to_string();
    assert!(error.contains("did you mean \"straggler\"?"), "{error}");
    assert!(finding("zzz").unwrap_err().to_string().contains("gpu-lost"));
    assert!(
        finding("termal")
            .unwrap_err()
            .to_string()
            .contains("\"thermal\"?")
    );
}

#[test]
fn a_name_alone_is_a_finding_a_cause_or_an_xid() {
    let policy = Policy::default();
    let style = Style {
        color: false,
        unicode: false,
        width: 40,
    };
    for (name, key, value) in [
        ("straggler", "finding", "straggler"),
        ("thermal", "cause", "thermal"),
        ("data-loading", "finding", "data-loading"),
        ("79", "finding", "gpu-lost"),
    ] {
        let (json, text) = by_name(&policy, name, style).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json[key], value, "{name}");
        let is_narrow = |line: &str| line.chars().count() <= 40 || line.contains("://") || line.contains('_');
        assert!(text.lines().skip(1).all(is_narrow), "{text}");
    }
    assert!(branch("new").is_err());
}
