//! The demo's model: a linear map, learned from noisy samples of another one by plain gradient descent. The model is
//! small but real: its loss falls, and the ranks stay in sync only if they really sum their gradients.

use paceline_health::sim::chance::Chance;

/// Number of inputs. The number of outputs is the same.
const WIDTH: usize = 48;
/// Number of samples per rank and step.
const BATCH: usize = 8;
const LEARNING_RATE: f32 = 0.02;

/// One rank's copy of the model, and its source of samples.
#[derive(Debug)]
pub(crate) struct Model {
    weights: Vec<f32>,
    /// The linear map that the model learns.
    truth: Vec<f32>,
    chance: Chance,
}

/// Samples, each with its inputs and expected outputs.
pub(crate) struct Batch(Vec<(Vec<f32>, Vec<f32>)>);

impl Model {
    /// Creates the model of one rank. The weights are the same on every rank, and the samples differ.
    pub(crate) fn new(rank: u32) -> Model {
        let mut common = Chance::of(1, &[0x7472_7574]);
        let truth = (0..WIDTH * WIDTH).map(|_| common.unit() as f32 - 0.5).collect();
        Model {
            weights: vec![0.0; WIDTH * WIDTH],
            truth,
            chance: Chance::of(1, &[u64::from(rank)]),
        }
    }

    /// Returns the next samples.
    pub(crate) fn batch(&mut self) -> Batch {
        let sample = |_| {
            let input: Vec<f32> = (0..WIDTH)
                .map(|_| self.chance.unit() as f32 * 2.0 - 1.0)
                .collect();
            let mut output = apply(&self.truth, &input);
            output
                .iter_mut()
                .for_each(|value| *value += (self.chance.unit() as f32 - 0.5) * 0.01);
            (input, output)
        };
        Batch((0..BATCH).map(sample).collect())
    }

    /// Runs the forward and backward pass. Returns the gradient with the loss appended, as one vector to be summed over
    /// the ranks.
    pub(crate) fn gradient(&self, batch: &Batch) -> Vec<f32> {
        let mut gradient = vec![0.0; WIDTH * WIDTH + 1];
        for (input, wanted) in &batch.0 {
            let output = apply(&self.weights, input);
            for (row, (value, wanted)) in output.iter().zip(wanted).enumerate() {
                let error = value - wanted;
                gradient[WIDTH * WIDTH] += error * error / (BATCH * WIDTH) as f32;
                for (slot, input) in gradient[row * WIDTH..(row + 1) * WIDTH].iter_mut().zip(input) {
                    *slot += error * input;
                }
            }
        }
        gradient
    }

    /// Runs the optimizer's step with the summed gradient of `ranks` ranks. Returns the mean loss.
    pub(crate) fn step(&mut self, summed: &[f32], ranks: u32) -> f32 {
        let rate = LEARNING_RATE / ranks as f32;
        self.weights
            .iter_mut()
            .zip(summed)
            .for_each(|(weight, gradient)| *weight -= rate * gradient);
        summed[WIDTH * WIDTH] / ranks as f32
    }
}

fn apply(weights: &[f32], input: &[f32]) -> Vec<f32> {
    weights
        .chunks_exact(WIDTH)
        .map(|row| row.iter().zip(input).map(|(w, x)| w * x).sum())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns() {
        let mut ranks = [Model::new(0), Model::new(1)];
        let mut losses = Vec::new();
        for _ in 0..100 {
            let mut sum = vec![0.0; WIDTH * WIDTH + 1];
            for model in &mut ranks {
                let batch = model.batch();
                sum.iter_mut()
                    .zip(model.gradient(&batch))
                    .for_each(|(sum, value)| *sum += value);
            }
            losses.push(ranks.each_mut().map(|model| model.step(&sum, 2))[0]);
        }
        assert!(losses[99] < losses[0] * 0.2, "{} then {}", losses[0], losses[99]);
        assert_eq!(ranks[0].weights, ranks[1].weights);
    }
}
