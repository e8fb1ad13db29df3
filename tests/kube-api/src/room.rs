//! Validates pod-level resources (KEP-2837) together with their containers', as in validation.go, for CPU and memory.

use serde_json::Value;

/// Checks that a pod requests at least the sum of its containers' requests, and that no container exceeds the pod's
/// limit.
///
/// # Errors
/// Returns why the pod is invalid.
pub(crate) fn check(spec: &Value) -> Result<(), String> {
    let list = |name: &str| spec[name].as_array().map_or(&[][..], Vec::as_slice);
    for resource in ["cpu", "memory"] {
        let asks = |container: &Value| {
            let own = &container["resources"];
            let asked = amount(&own["requests"][resource]);
            asked.or_else(|| amount(&own["limits"][resource])).unwrap_or(0.0)
        };
        // Sidecars run beside the other init containers, of which only one runs at a time.
        let (mut beside, mut most) = (0.0_f64, 0.0_f64);
        for container in list("initContainers") {
            if container["restartPolicy"] == "Always" {
                beside += asks(container);
                most = most.max(beside);
            } else {
                most = most.max(beside + asks(container));
            }
        }
        let together = most.max(beside + list("containers").iter().map(asks).sum::<f64>());
        let pods = |word: &str| amount(&spec["resources"][word][resource]);
        if let Some(asked) = pods("requests").filter(|asked| *asked < together) {
            return Err(format!(
                "spec.resources.requests[{resource}]: Invalid value: {asked}: must be greater than or equal to aggregate container requests of {together}"
            ));
        }
        for container in list("containers") {
            let limit = amount(&container["resources"]["limits"][resource]);
            if let (Some(limit), Some(most)) = (limit, pods("limits"))
                && limit > most
            {
                return Err(format!(
                    "spec.containers[].resources.limits[{resource}]: Invalid value: {limit}: must be less than or equal to pod limits of {most}"
                ));
            }
        }
    }
    Ok(())
}

/// Parses the quantities that tests use.
fn amount(quantity: &Value) -> Option<f64> {
    let text = quantity
        .as_str()
        .map_or_else(|| quantity.to_string(), str::to_owned);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let factor = match &text[end..] {
        "" => 1.0,
        "m" => 1e-3,
        "Mi" => f64::from(1 << 20),
        "Gi" => f64::from(1 << 30),
        _ => return None,
    };
    Some(text[..end].parse::<f64>().ok()? * factor)
}
