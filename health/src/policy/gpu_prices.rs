//! Prices of a GPU-hour: a general one, and others per model.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Prices of a GPU-hour in any one currency. Without configuration there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// The price for models without a price of their own.
    any: Option<f64>,
    by_model: BTreeMap<Arc<str>, f64>,
}

impl Prices {
    /// Returns the price for a GPU of `model`. A row's name need not be the driver's full product name. Consecutive
    /// whole words of it are enough (`H100` matches `NVIDIA H100 80GB HBM3`, but not `NVIDIA GH100`). The longest match
    /// wins.
    pub fn of(&self, model: Option<&str>) -> Option<f64> {
        let named = model.and_then(|model| {
            let model = words(model);
            let fitting = self.by_model.iter().filter_map(|(row, price)| {
                let row = words(row);
                let fits = model.windows(row.len().max(1)).any(|part| part == row);
                fits.then_some((row.len(), price))
            });
            // Of equally long matches, the first by name wins, because the map is ordered by name.
            fitting.rev().max_by_key(|(length, _)| *length)
        });
        named.map(|(_, price)| *price).or(self.any)
    }

    /// Returns the price of exactly this row. A `model` of `None` is the row for all models.
    pub(super) fn row(&self, model: Option<&str>) -> Option<f64> {
        match model {
            Some(model) => self.by_model.get(model).copied(),
            None => self.any,
        }
    }

    /// Sets the price of a row. A price of zero removes the row.
    pub(super) fn set(&mut self, model: Option<&str>, price: f64) {
        let price = (price > 0.0).then_some(price);
        match (model, price) {
            (None, price) => self.any = price,
            (Some(model), Some(price)) => {
                self.by_model.insert(Arc::from(model), price);
            }
            (Some(model), None) => {
                self.by_model.remove(model);
            }
        }
    }

    /// Returns the models that have a price of their own.
    pub(super) fn models(&self) -> impl Iterator<Item = &str> {
        self.by_model.keys().map(|model| &**model)
    }
}

fn words(name: &str) -> Vec<String> {
    name.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_row_that_fits_wins() {
        let mut prices = Prices::default();
        assert_eq!(prices.of(Some("NVIDIA H100 80GB HBM3")), None);
        prices.set(None, 1.0);
        prices.set(Some("H100"), 2.0);
        prices.set(Some("nvidia h100 80gb"), 3.0);
        prices.set(Some("H200"), 4.0);
        for (model, price) in [
            (Some("NVIDIA H100 80GB HBM3"), 3.0),
            (Some("NVIDIA H100 PCIe"), 2.0),
            (Some("NVIDIA GH200 480GB"), 1.0),
            (Some("NVIDIA A100-SXM4-80GB"), 1.0),
            (None, 1.0),
        ] {
            assert_eq!(prices.of(model), Some(price), "{model:?}");
        }
        prices.set(Some("H100"), 0.0);
        assert_eq!(prices.of(Some("NVIDIA H100 PCIe")), Some(1.0));
    }
}
