//! Recent readings of one device or process in little memory. Gauges are stored as read, counters as increases.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::codec::serde_impls;
use crate::frame::Provenance;
use crate::stats;
use crate::time::Time;

/// Maximum number of readings kept: half a minute at 1 Hz.
const READINGS: usize = 32;
/// With fewer intervals between readings than this, a single interval can move the median.
const TYPICAL_SPANS: usize = 5;
/// The value was not read.
const NONE: f32 = f32::NAN;
/// The value was read, but its increase is unknown, because it is the first reading of a counter or one after a reset.
const ANEW: f32 = f32::NEG_INFINITY;

/// Time, journal entry and provenance of a reading.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stamp {
    pub at: Time,
    /// Position in the journal.
    pub entry: u64,
    pub provenance: Provenance,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Row<const N: usize> {
    stamp: Stamp,
    #[serde(with = "serde_impls::array")]
    values: [f32; N],
}

/// Readings in `N` columns. The first `GAUGES` columns are gauges, the rest are counters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series<const GAUGES: usize, const N: usize> {
    rows: VecDeque<Row<N>>,
    /// The last reading of each counter.
    #[serde(with = "serde_impls::array")]
    counters: [f64; N],
}

impl<const GAUGES: usize, const N: usize> Default for Series<GAUGES, N> {
    fn default() -> Self {
        Series {
            rows: VecDeque::new(),
            counters: [f64::NAN; N],
        }
    }
}

impl<const GAUGES: usize, const N: usize> Series<GAUGES, N> {
    /// Takes a reading. Values that were not read are `None`.
    pub fn push(&mut self, stamp: Stamp, read: &[Option<f64>; N]) {
        let mut values = [NONE; N];
        for (column, now) in read.iter().enumerate() {
            let Some(now) = *now else { continue };
            values[column] = if column < GAUGES {
                now as f32
            } else {
                let before = std::mem::replace(&mut self.counters[column], now);
                // For a first reading `before` is NaN, which compares as false. The counter then starts over, as it
                // does after a reset.
                if now >= before {
                    (now - before) as f32
                } else {
                    ANEW
                }
            };
        }
        if self.rows.len() == READINGS {
            self.rows.pop_front();
        }
        self.rows.push_back(Row { stamp, values });
    }

    /// Returns the median of a gauge since `since`, or its last value if no reading is that recent.
    pub fn gauge(&self, column: usize, since: Time) -> Option<f64> {
        let read = || self.rows.iter().filter(|row| !row.values[column].is_nan());
        let value = |row: &Row<N>| f64::from(row.values[column]);
        let mut inside: Vec<f64> = read().filter(|row| row.stamp.at >= since).map(value).collect();
        stats::median(&mut inside).or_else(|| read().next_back().map(value))
    }

    /// Returns the readings of a gauge since `since` whose row passes `keep`. In the row, unread columns are NaN.
    pub fn values(&self, column: usize, since: Time, keep: impl Fn(&[f32; N]) -> bool) -> Vec<f64> {
        let inside = self.rows.iter().filter(|row| row.stamp.at >= since);
        let kept = inside.filter(|row| !row.values[column].is_nan() && keep(&row.values));
        kept.map(|row| f64::from(row.values[column])).collect()
    }

    /// Returns the most frequent value of a gauge since `since`, or its last one if no reading is that recent.
    pub fn setting(&self, column: usize, since: Time) -> Option<f64> {
        let mut inside = self.values(column, since, |_| true);
        stats::mode(&mut inside).map_or_else(|| self.latest(column), |(value, _)| Some(value))
    }

    /// Returns the last value of a gauge.
    pub fn latest(&self, column: usize) -> Option<f64> {
        let row = self.rows.iter().rfind(|row| !row.values[column].is_nan())?;
        Some(f64::from(row.values[column]))
    }

    /// Returns the increase of a counter per second since `since`. If fewer than two readings are that recent, it uses
    /// the last two.
    pub fn rate(&self, column: usize, since: Time) -> Option<f64> {
        let inside = self.young(column, since);
        let (grew, span) = self.growth(column, inside.max(2) - 1)?;
        (span > 0.0).then(|| grew / span)
    }

    /// Returns the typical increase per second, which is the median over the intervals between readings. A median
    /// ignores events that occur in only a few intervals, such as an evaluation or a save. With few intervals, it
    /// returns the mean.
    pub fn typical_rate(&self, column: usize, since: Time) -> Option<f64> {
        let inside = self.rows.iter().filter(|row| row.stamp.at >= since);
        let read: Vec<&Row<N>> = inside.filter(|row| !row.values[column].is_nan()).collect();
        let spans = read.windows(2).filter(|pair| pair[1].values[column] != ANEW);
        let rates = spans.map(|pair| {
            let lasted = pair[1].stamp.at.since(pair[0].stamp.at).as_secs_f64();
            f64::from(pair[1].values[column]) / lasted
        });
        let mut rates: Vec<f64> = rates.filter(|rate| rate.is_finite()).collect();
        if rates.len() < TYPICAL_SPANS {
            return self.rate(column, since);
        }
        stats::median(&mut rates)
    }

    /// Returns the increase of a counter since the last reading before `since`.
    pub fn rise(&self, column: usize, since: Time) -> Option<f64> {
        let inside = self.young(column, since);
        Some(self.growth(column, inside.max(1))?.0)
    }

    /// Returns the increase of a counter in its readings after `since`, and the time of the last one, or `None` if
    /// there are none.
    pub fn growth_after(&self, column: usize, since: Time) -> Option<(f64, Time)> {
        let later = self.rows.iter().rev().take_while(|row| row.stamp.at > since);
        let read = later.filter(|row| !row.values[column].is_nan());
        read.fold(None, |known, row| {
            let (sum, last) = known.unwrap_or((0.0, row.stamp.at));
            // A reading at which the counter was reset adds nothing.
            let grew = f64::from(row.values[column]).max(0.0);
            Some((sum + grew, last))
        })
    }

    /// Returns the number of readings since `since`.
    pub fn readings(&self, since: Time) -> usize {
        self.rows.iter().filter(|row| row.stamp.at >= since).count()
    }

    /// Returns the journal entries of the readings since `since`, and the least trusted provenance among them.
    pub fn origin(&self, since: Time) -> Option<((u64, u64), Provenance)> {
        let last = self.rows.back()?;
        let inside = self.readings(since);
        let used = self.rows.iter().rev().take(inside.max(2));
        let (first, provenance) = used.fold((last.stamp.entry, last.stamp.provenance), |(_, worst), row| {
            (row.stamp.entry, worst.max(row.stamp.provenance))
        });
        Some(((first, last.stamp.entry), provenance))
    }

    fn young(&self, column: usize, since: Time) -> usize {
        let inside = self.rows.iter().filter(|row| row.stamp.at >= since);
        inside.filter(|row| !row.values[column].is_nan()).count()
    }

    /// Returns the increase of a counter in its last `spans` intervals between readings, and their total duration in
    /// seconds. Intervals with a counter reset are left out.
    fn growth(&self, column: usize, spans: usize) -> Option<(f64, f64)> {
        let mut read = self
            .rows
            .iter()
            .rev()
            .filter(|row| !row.values[column].is_nan())
            .peekable();
        let mut known = None;
        for _ in 0..spans {
            let (Some(row), Some(before)) = (read.next(), read.peek()) else {
                break;
            };
            let grew = row.values[column];
            if grew != ANEW {
                let (sum, span) = known.unwrap_or((0.0, 0.0));
                let lasted = row.stamp.at.since(before.stamp.at).as_secs_f64();
                known = Some((sum + f64::from(grew), span + lasted));
            }
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(counter: &[(f64, Option<f64>)]) -> Series<1, 2> {
        let mut series = Series::default();
        for (entry, (at_s, value)) in (1..).zip(counter) {
            let stamp = Stamp {
                at: Time::from_secs_f64(*at_s),
                entry,
                provenance: Provenance::Live,
            };
            series.push(stamp, &[value.map(|value| value / 10.0), *value]);
        }
        series
    }

    #[test]
    fn rates_and_rises() {
        let at = Time::from_secs_f64;
        for (name, counter, since, rate, rise) in [
            ("nothing read", vec![], 0.0, None, None),
            ("one reading has no rate", vec![(1.0, Some(7.0))], 0.0, None, None),
            (
                "a lifetime total is not a rise",
                vec![(1.0, Some(9e15)), (2.0, Some(9e15))],
                0.0,
                Some(0.0),
                Some(0.0),
            ),
            (
                "within the window",
                vec![(1.0, Some(0.0)), (2.0, Some(4.0)), (4.0, Some(5.0))],
                2.0,
                Some(0.5),
                Some(5.0),
            ),
            (
                "the last two where none is young",
                vec![(1.0, Some(0.0)), (2.0, Some(4.0)), (4.0, Some(5.0))],
                9.0,
                Some(0.5),
                Some(1.0),
            ),
            (
                "a reset span is left out",
                vec![(1.0, Some(50.0)), (2.0, Some(1.0)), (3.0, Some(3.0))],
                0.0,
                Some(2.0),
                Some(2.0),
            ),
            (
                "readings without it do not count",
                vec![(1.0, Some(1.0)), (2.0, None), (3.0, Some(3.0))],
                0.0,
                Some(1.0),
                Some(2.0),
            ),
        ] {
            let series = series(&counter);
            assert_eq!(series.rate(1, at(since)), rate, "{name}");
            assert_eq!(series.rise(1, at(since)), rise, "{name}");
        }
    }

    #[test]
    fn a_burst_is_not_typical() {
        let totals = [0.0, 1.0, 2.0, 40.0, 41.0, 42.0, 43.0];
        let counter: Vec<(f64, Option<f64>)> = (0_u8..).map(f64::from).zip(totals.map(Some)).collect();
        let typical = |readings: usize| series(&counter[..readings]).typical_rate(1, Time::ZERO);
        assert_eq!(typical(7), Some(1.0));
        assert_eq!(typical(4), Some(40.0 / 3.0), "of three spans the mean");
        assert_eq!(typical(1), None);
    }

    #[test]
    fn gauges_are_medians_of_the_window() {
        let readings = series(&[(1.0, Some(10.0)), (2.0, Some(20.0)), (3.0, Some(90.0))]);
        assert_eq!(readings.gauge(0, Time::ZERO), Some(2.0));
        assert_eq!(readings.gauge(0, Time::from_secs_f64(7.0)), Some(9.0), "the last");
        assert_eq!(readings.latest(0), Some(9.0));
        assert_eq!(
            readings.origin(Time::from_secs_f64(2.0)),
            Some(((2, 3), Provenance::Live))
        );
    }

    #[test]
    fn memory_is_bounded() {
        let many: Vec<(f64, Option<f64>)> = (0..1000).map(|i| (f64::from(i), Some(f64::from(i)))).collect();
        let series = series(&many);
        assert_eq!(series.rows.len(), READINGS);
        assert_eq!(series.rate(1, Time::ZERO), Some(1.0));
    }
}
