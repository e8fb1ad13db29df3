//! Parses the sections of a file that hold values of the policy: `[detector.*]`, `[observe]` and `[cost]`.

use paceline_health::Policy;
use paceline_health::verdict::Finding;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file::{Page, article};
use super::keys::{COST, DETECTOR, OBSERVE, PRICE};
use super::raw::Said;
use crate::output::Usage;

/// Names of the sections.
pub(super) const SECTIONS: [&str; 3] = ["detector", "observe", "cost"];
/// Key in `[cost.gpu_hour_price]` of the price for models that are not listed.
const ANY_MODEL: &str = "default";

type Values = Vec<(String, Said)>;

impl Page<'_> {
    /// Returns the values of the section with this name, if the name is one of a policy section.
    pub(super) fn policy(
        &self,
        name: &str,
        section: &Spanned<DeValue<'_>>,
        values: &mut Values,
    ) -> Option<Result<(), Usage>> {
        let within = format!("{name}.");
        match within.as_str() {
            DETECTOR => Some(self.detector(section, values)),
            OBSERVE => Some(self.observe(section, values)),
            COST => Some(self.cost(section, values)),
            _ => None,
        }
    }

    fn detector(&self, sections: &Spanned<DeValue<'_>>, values: &mut Values) -> Result<(), Usage> {
        let known = Policy::default().constants();
        for (section, inner) in self.table(sections, "detector", "numbers")?.iter() {
            let prefix = format!("{}.", section.get_ref());
            if !known.iter().any(|key| key.starts_with(&prefix)) {
                let names = known
                    .iter()
                    .filter_map(|key| key.split_once('.'))
                    .map(|(head, _)| head);
                return Err(self.unknown(section.span().start, section.get_ref(), DETECTOR, names));
            }
            for (name, value) in self.table(inner, section.get_ref(), "numbers")?.iter() {
                let key = format!("{prefix}{}", name.get_ref());
                if !known.contains(&key) {
                    let names = known.iter().filter_map(|key| key.strip_prefix(&prefix));
                    let within = format!("{DETECTOR}{prefix}");
                    return Err(self.unknown(name.span().start, name.get_ref(), &within, names));
                }
                let number = self.number(&key, value)?;
                values.push((format!("{DETECTOR}{key}"), self.said(number, name.span().start)));
            }
        }
        Ok(())
    }

    /// Parses `[observe]`, with lines such as `straggler = true`.
    fn observe(&self, section: &Spanned<DeValue<'_>>, values: &mut Values) -> Result<(), Usage> {
        for (name, value) in self.table(section, "observe", "findings")?.iter() {
            values.push(self.observed(name, value)?);
        }
        Ok(())
    }

    /// Parses one entry of `[observe]`.
    pub(super) fn observed(
        &self,
        name: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(String, Said), Usage> {
        let (finding, at) = (name.get_ref().as_ref(), name.span().start);
        let known = Finding::ALL.iter().map(|finding| finding.name());
        if !known.clone().any(|known| known == finding) {
            return Err(self.unknown(at, finding, OBSERVE, known));
        }
        let key = format!("{OBSERVE}{finding}");
        let DeValue::Boolean(on) = value.get_ref() else {
            let other = article(value.get_ref().type_str());
            let message = format!("{key} must be true or false, not {other}");
            return Err(self.wrong(value.span().start, &message));
        };
        Ok((key, self.said(i32::from(*on).to_string(), at)))
    }

    /// Parses `[cost]`. The price is a number (`gpu_hour_price = 2`) or a table by model.
    fn cost(&self, section: &Spanned<DeValue<'_>>, values: &mut Values) -> Result<(), Usage> {
        for (name, value) in self.table(section, "cost", "prices")?.iter() {
            if format!("{COST}{}", name.get_ref()) != PRICE {
                let known = PRICE.strip_prefix(COST).into_iter();
                return Err(self.unknown(name.span().start, name.get_ref(), COST, known));
            }
            let DeValue::Table(models) = value.get_ref() else {
                let number = self.number(PRICE, value)?;
                values.push((PRICE.to_owned(), self.said(number, name.span().start)));
                continue;
            };
            for (model, price) in models.iter() {
                let key = match model.get_ref().as_ref() {
                    ANY_MODEL => PRICE.to_owned(),
                    model => format!("{PRICE}.{model}"),
                };
                let number = self.number(&key, price)?;
                values.push((key, self.said(number, model.span().start)));
            }
        }
        Ok(())
    }

    fn table<'v, 't>(
        &self,
        value: &'v Spanned<DeValue<'t>>,
        name: &str,
        of: &str,
    ) -> Result<&'v DeTable<'t>, Usage> {
        let message = format!("{name} must be a table of {of}");
        value
            .get_ref()
            .as_table()
            .ok_or_else(|| self.wrong(value.span().start, &message))
    }

    fn number(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Result<String, Usage> {
        match value.get_ref() {
            DeValue::Float(number) => Ok(number.as_str().replace('_', "")),
            DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().replace('_', "")),
            other => {
                let message = format!("{key} must be a number, not {}", article(other.type_str()));
                Err(self.wrong(value.span().start, &message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file::parse;

    #[test]
    fn sections_become_values_of_the_policy() {
        let text = "[observe]\nstraggler = true\n[cost.gpu_hour_price]\ndefault = 2\n\"NVIDIA H100 80GB HBM3\" = 2.5\n";
        let values = parse(Path::new("p.toml"), text).unwrap();
        let mut rows: Vec<String> = values
            .iter()
            .map(|(key, said)| format!("{key}={} {}", said.text, said.origin))
            .collect();
        rows.sort();
        assert_eq!(
            rows,
            [
                "cost.gpu_hour_price.NVIDIA H100 80GB HBM3=2.5 p.toml:5:1",
                "cost.gpu_hour_price=2 p.toml:4:1",
                "observe.straggler=1 p.toml:2:1",
            ]
        );
        let values = parse(Path::new("p.toml"), "cost.gpu_hour_price = 3\n").unwrap();
        assert_eq!(values[0].0, "cost.gpu_hour_price");
    }

    #[test]
    fn complaints_name_the_place_and_what_was_meant() {
        for (text, expected) in [
            (
                "[observe]\nstragler = true\n",
                "p.toml:2:1: unknown key `observe.stragler`; did you mean `observe.straggler`?",
            ),
            (
                "[observe]\nstraggler = 2\n",
                "p.toml:2:13: observe.straggler must be true or false, not an integer",
            ),
            (
                "[cost]\ngpu_hours_price = 2\n",
                "p.toml:2:1: unknown key `cost.gpu_hours_price`; did you mean `cost.gpu_hour_price`?",
            ),
            (
                "[cost.gpu_hour_price]\nH100 = \"2\"\n",
                "p.toml:2:8: cost.gpu_hour_price.H100 must be a number, not a string",
            ),
            (
                "observe = 1\n",
                "p.toml:1:11: observe must be a table of findings",
            ),
        ] {
            assert_eq!(parse(Path::new("p.toml"), text).unwrap_err().0, expected);
        }
    }
}
