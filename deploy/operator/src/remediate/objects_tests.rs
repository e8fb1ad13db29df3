use super::*;

fn node(status: Value) -> NodeView {
    NodeView::of(&json!({ "metadata": { "name": "n1" }, "status": status })).unwrap()
}

#[test]
fn gpus_are_the_nodes_own_and_not_those_that_can_be_given_away() {
    let gpus = |status: Value| node(status).gpus;
    let key = "nvidia.com/gpu";
    assert_eq!(
        gpus(json!({ "capacity": { key: "8" }, "allocatable": { key: "0" } })),
        Some(8)
    );
    assert_eq!(
        gpus(json!({ "capacity": { key: "0" }, "allocatable": { key: "0" } })),
        Some(0),
        "the device plugin is gone"
    );
    assert_eq!(gpus(json!({ "capacity": { "cpu": "64" } })), None);
}

#[test]
fn a_preflight_gets_all_gpus_and_must_measure_them() {
    let job = |gpus| preflight("p", "paceline", &node(json!({})), gpus, "image", 60);
    let container = |gpus| job(gpus)["spec"]["template"]["spec"]["containers"][0].clone();
    let of_eight = container(Some(8));
    assert_eq!(of_eight["resources"]["limits"]["nvidia.com/gpu"], "8");
    assert_eq!(of_eight["command"], json!(["paceline", "preflight", "--gpus=8"]));
    let driver = json!({ "name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility" });
    assert!(of_eight["env"].as_array().unwrap().contains(&driver));
    let none = container(None);
    assert_eq!(none["command"], json!(["paceline", "preflight"]));
    assert!(none["resources"]["limits"]["nvidia.com/gpu"].is_null());
}
