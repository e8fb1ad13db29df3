//! Reads and sets values by their dotted names: the detector's thresholds, `observe.<finding>`,
//! `cost.gpu_hour_price[.<model>]`.

use super::Policy;
use super::bounds::{AT_MOST, LARGEST, ORDERED, SMALLEST};
use crate::verdict::Finding;

/// Prefix of the names of values for single findings. A value of 1 means that the finding is reported without alerts. A
/// value of 0 means that the table decides.
const OBSERVE: &str = "observe.";
/// Name of the price of a GPU-hour of any model, and prefix of the name of a model's price. A value of 0 means no
/// price.
const PRICE: &str = "cost.gpu_hour_price";
/// Maximum accepted length of the name of a GPU model, in bytes.
const MAX_MODEL: usize = 96;
/// Why a policy value cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// There is no such value.
    #[error("no policy value is called \"{key}\"; {known}")]
    UnknownKey {
        /// The requested name.
        key: String,
        /// The known names.
        known: String,
    },
    /// The value is invalid.
    #[error("{key} = {value}: {wanted}")]
    BadValue {
        /// The key.
        key: String,
        /// The given value.
        value: String,
        /// The accepted values.
        wanted: String,
    },
}

impl PolicyError {
    /// The key of the value.
    pub fn key(&self) -> &str {
        match self {
            PolicyError::UnknownKey { key, .. } | PolicyError::BadValue { key, .. } => key,
        }
    }
}

/// What a dotted name refers to.
enum Slot<'a> {
    Constant { section: &'a str, name: &'a str },
    Observe(Finding),
    Price(Option<&'a str>),
}

impl<'a> Slot<'a> {
    fn of(key: &'a str) -> Option<Slot<'a>> {
        if let Some(name) = key.strip_prefix(OBSERVE) {
            let finding = Finding::ALL.iter().find(|finding| finding.name() == name);
            return finding.copied().map(Slot::Observe);
        }
        if let Some(rest) = key.strip_prefix(PRICE) {
            return match rest.strip_prefix('.') {
                None if rest.is_empty() => Some(Slot::Price(None)),
                Some(model) if is_model(model) => Some(Slot::Price(Some(model))),
                _ => None,
            };
        }
        let (section, name) = key.split_once('.')?;
        Some(Slot::Constant { section, name })
    }
}

/// Returns true if a row of prices may have this name. The name must contain a word, because otherwise it would match
/// nothing.
fn is_model(name: &str) -> bool {
    name.len() <= MAX_MODEL && name.chars().any(char::is_alphanumeric) && !name.chars().any(char::is_control)
}

impl Policy {
    /// Returns the dotted names of the values that [`Policy::set`] accepts, in order. Of the prices per model, only the
    /// configured ones are included.
    pub fn keys(&self) -> Vec<String> {
        let mut keys = self.constants();
        keys.push(PRICE.to_owned());
        keys.extend(self.prices.models().map(|model| format!("{PRICE}.{model}")));
        keys.extend(Finding::ALL.iter().map(|finding| format!("{OBSERVE}{finding}")));
        keys
    }

    /// Returns the dotted names of the detector's thresholds, in order.
    pub fn constants(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for (section, value) in self.table() {
            for (name, value) in value.as_table().into_iter().flatten() {
                if value.is_float() || value.is_integer() {
                    keys.push(format!("{section}.{name}"));
                }
            }
        }
        keys
    }

    /// Returns the current value of a dotted name. A missing price is zero.
    pub fn get(&self, key: &str) -> Option<f64> {
        match Slot::of(key)? {
            Slot::Observe(finding) => Some(f64::from(u8::from(self.observes_only(finding)))),
            Slot::Price(model) => Some(self.prices.row(model).unwrap_or(0.0)),
            Slot::Constant { section, name } => {
                let table = self.table();
                let value = table.get(section)?.get(name)?;
                value
                    .as_float()
                    .or_else(|| value.as_integer().map(|whole| whole as f64))
            }
        }
    }

    /// Sets one value by its dotted name, for example `straggler.tolerated_ratio`.
    ///
    /// # Errors
    /// If the name is unknown, the value is invalid (counts must be whole), or it contradicts another value. Nothing is
    /// changed then.
    pub fn set(&mut self, key: &str, value: f64) -> Result<(), PolicyError> {
        self.set_all([(key, value)])
    }

    /// Sets several values at once. Only the final result must be consistent.
    ///
    /// # Errors
    /// The same as those of [`Policy::set`]. Nothing is changed then.
    pub fn set_all<'k>(
        &mut self,
        changes: impl IntoIterator<Item = (&'k str, f64)>,
    ) -> Result<(), PolicyError> {
        let mut next = self.clone();
        let mut changed = Vec::new();
        for (key, value) in changes {
            next.apply(key, value)?;
            changed.push(key);
        }
        next.is_consistent(&changed)?;
        *self = next;
        Ok(())
    }

    /// Applies one change from a journal. Changes that were made together are consecutive there, and
    /// [`Policy::set_all`] has already checked that they are consistent.
    ///
    /// # Errors
    /// If the name is unknown or the value is invalid. Nothing is changed then.
    pub fn apply(&mut self, key: &str, value: f64) -> Result<(), PolicyError> {
        let bad = |wanted: &str| bad(key, value, wanted.to_owned());
        match Slot::of(key) {
            Some(Slot::Observe(finding)) => {
                match value {
                    1.0 => self.observed.insert(finding),
                    0.0 => self.observed.remove(&finding),
                    _ => return Err(bad("must be 1 (observe only) or 0")),
                };
            }
            Some(Slot::Price(model)) => {
                if value != 0.0 && !(SMALLEST..=LARGEST).contains(&value) {
                    return Err(bad("must be a positive price (at most 1e9), or 0 for none"));
                }
                self.prices.set(model, value);
            }
            Some(Slot::Constant { section, name }) => self.set_constant(section, name, value)?,
            None => return Err(self.unknown(key)),
        }
        Ok(())
    }

    fn set_constant(&mut self, section: &str, name: &str, value: f64) -> Result<(), PolicyError> {
        let key = format!("{section}.{name}");
        let mut table = self.table();
        let slot = table
            .get_mut(section)
            .and_then(|section| section.get_mut(name))
            .filter(|slot| slot.is_integer() || slot.is_float())
            .ok_or_else(|| self.unknown(&key))?;
        if !value.is_finite() || value <= 0.0 {
            return Err(bad(&key, value, "must be a positive number".to_owned()));
        }
        if !(SMALLEST..=LARGEST).contains(&value) {
            let wanted = format!("must be at least {SMALLEST:e} and at most {LARGEST:e}");
            return Err(bad(&key, value, wanted));
        }
        if let Some((_, most)) = AT_MOST.iter().find(|(own, most)| *own == key && value > *most) {
            return Err(bad(
                &key,
                value,
                format!("must be at most {most}: beyond that it is never true"),
            ));
        }
        *slot = match slot {
            toml::Value::Integer(_) if value.fract() == 0.0 => toml::Value::Integer(value as i64),
            toml::Value::Integer(_) => {
                return Err(bad(&key, value, "must be a positive whole number".to_owned()));
            }
            _ => toml::Value::Float(value),
        };
        self.detector = table
            .try_into()
            .map_err(|_| bad(&key, value, "is not possible there".to_owned()))?;
        Ok(())
    }

    /// Rejects contradicting values. The error names one of `changed`.
    fn is_consistent(&self, changed: &[&str]) -> Result<(), PolicyError> {
        let touched = |key: &str| changed.contains(&key);
        for (low, high) in ORDERED {
            let (Some(lower), Some(upper)) = (self.get(low), self.get(high)) else {
                continue;
            };
            if lower > upper && touched(low) {
                return Err(bad(low, lower, format!("must not pass {high} ({upper})")));
            }
            if lower > upper && touched(high) {
                return Err(bad(high, upper, format!("must not be less than {low} ({lower})")));
            }
        }
        let straggler = &self.detector.straggler;
        let (key, tolerated) = ("straggler.tolerated_ratio", straggler.tolerated_ratio);
        let smallest = straggler
            .alternatives
            .iter()
            .copied()
            .fold(f64::INFINITY, f64::min);
        if touched(key) && !(1.0..smallest).contains(&tolerated) {
            let wanted =
                format!("must be at least 1 and less than the smallest slowdown looked for ({smallest})");
            return Err(bad(key, tolerated, wanted));
        }
        Ok(())
    }

    fn unknown(&self, key: &str) -> PolicyError {
        let keys = self.keys();
        let mut sections: Vec<&str> = keys
            .iter()
            .filter_map(|key| key.split_once('.'))
            .map(|(section, _)| section)
            .collect();
        sections.dedup();
        let asked = key.split('.').next().unwrap_or_default();
        let known = if sections.contains(&asked) {
            let within: Vec<&str> = keys
                .iter()
                .filter(|known| known.split('.').next() == Some(asked))
                .map(String::as_str)
                .collect();
            format!("there are: {}", within.join(", "))
        } else {
            format!("its sections are: {}", sections.join(", "))
        };
        let key = key.to_owned();
        PolicyError::UnknownKey { key, known }
    }

    fn table(&self) -> toml::Table {
        toml::Table::try_from(&self.detector).unwrap_or_default()
    }
}

fn bad(key: &str, value: f64, wanted: String) -> PolicyError {
    PolicyError::BadValue {
        key: key.to_owned(),
        value: value.to_string(),
        wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_set_by_name_and_bad_ones_change_nothing() {
        let mut policy = Policy::default();
        for (key, value) in [
            ("impact.warning_ratio", 0.05),
            ("straggler.min_steps", 8.0),
            ("observe.straggler", 1.0),
            ("cost.gpu_hour_price", 2.0),
            ("cost.gpu_hour_price.NVIDIA H100 80GB HBM3", 2.5),
        ] {
            policy.set(key, value).unwrap();
            assert_eq!(policy.get(key), Some(value), "{key}");
            assert!(policy.keys().iter().any(|known| known == key), "{key}");
        }
        assert!(policy.observes_only(Finding::Straggler) && !policy.observes_only(Finding::JobHang));
        assert_eq!(policy.gpu_hour_price(Some("NVIDIA H100 80GB HBM3")), Some(2.5));
        let before = policy.clone();
        for (key, value) in [
            ("impact.warning", 0.1),
            ("impact", 0.1),
            ("impact.warning_ratio", -1.0),
            ("impact.warning_ratio", f64::NAN),
            ("impact.warning_ratio", 0.5),
            ("impact.critical_ratio", 0.01),
            ("straggler.min_steps", 2.5),
            ("straggler.min_steps", 1e10),
            ("blind.beat_missing_s", 1e300),
            ("blind.beat_missing_s", f64::MIN_POSITIVE),
            ("cost.gpu_hour_price", f64::INFINITY),
            ("straggler.alternatives", 2.0),
            ("straggler.tolerated_ratio", 1.03),
            ("straggler.tolerated_ratio", 0.9),
            ("silence.suspect_p99", 11.0),
            ("link.min_steps", 26.0),
            ("link.window_steps", 19.0),
            ("shift.reference_steps", 129.0),
            ("shares.window_steps", 1e9),
            ("observe.strangler", 1.0),
            ("observe.straggler", 0.5),
            ("cost.gpu_hour_price", -1.0),
            ("cost.gpu_hour_price.", 1.0),
            ("cost.gpu_hour_prices", 1.0),
        ] {
            assert!(policy.set(key, value).is_err(), "{key} {value}");
        }
        assert_eq!(policy, before);
    }

    #[test]
    fn values_that_belong_together_are_set_together() {
        let mut policy = Policy::default();
        let both = [("impact.warning_ratio", 0.2), ("impact.critical_ratio", 0.4)];
        policy.set_all(both).unwrap();
        assert_eq!(policy.get("impact.warning_ratio"), Some(0.2));
        let before = policy.clone();
        let refused = policy
            .set_all([("impact.warning_ratio", 0.1), ("impact.critical_ratio", 0.05)])
            .unwrap_err();
        assert_eq!(
            refused.to_string(),
            "impact.warning_ratio = 0.1: must not pass impact.critical_ratio (0.05)"
        );
        assert_eq!(policy, before);
        // The journal contains changes one by one, so the intermediate state may be inconsistent.
        for (key, value) in [("impact.warning_ratio", 0.5), ("impact.critical_ratio", 0.6)] {
            policy.apply(key, value).unwrap();
        }
    }

    #[test]
    fn every_key_can_be_set_to_what_it_is_and_every_rule_names_keys_that_exist() {
        let mut policy = Policy::default();
        for key in policy.keys() {
            let value = policy.get(&key).unwrap();
            policy.set(&key, value).unwrap();
        }
        assert_eq!(policy, Policy::default());
        for key in ORDERED.iter().flat_map(|(low, high)| [low, high]) {
            assert!(policy.get(key).is_some(), "{key}");
        }
        for (key, most) in AT_MOST {
            policy
                .clone()
                .set_all([(key, most), ("link.window_steps", 32.0)])
                .unwrap();
            let said = policy.set(key, most + 1.0).unwrap_err().to_string();
            assert_eq!(
                said,
                format!(
                    "{key} = {}: must be at most {most}: beyond that it is never true",
                    most + 1.0
                )
            );
        }
    }

    #[test]
    fn a_name_that_is_not_known_is_answered_with_those_that_are() {
        let mut policy = Policy::default();
        let said = policy.set("impact.warn", 1.0).unwrap_err().to_string();
        assert_eq!(
            said,
            "no policy value is called \"impact.warn\"; there are: impact.critical_ratio, impact.warning_ratio"
        );
        let said = policy.set("nonsense", 1.0).unwrap_err().to_string();
        assert!(
            said.contains("its sections are: ") && said.contains("observe"),
            "{said}"
        );
    }
}
