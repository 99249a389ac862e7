//! What a measurement leaves behind: latency distributions and medians over rounds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies above this are recorded as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// A latency distribution in nanoseconds, exact to three digits.
pub struct Latencies(Histogram<u64>);

impl Latencies {
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
        Latencies(histogram.expect("the bounds are in order and three digits are allowed"))
    }

    pub fn record(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    pub fn clear(&mut self) {
        self.0.reset();
    }

    pub fn summary(&self) -> Summary {
        let us = |nanoseconds: u64| nanoseconds as f64 / 1_000.0;
        Summary {
            count: self.0.len(),
            p50_us: us(self.0.value_at_quantile(0.50)),
            p99_us: us(self.0.value_at_quantile(0.99)),
            p999_us: us(self.0.value_at_quantile(0.999)),
            max_us: us(self.0.max()),
        }
    }
}

/// The figures that are printed of a distribution, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    pub count: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

/// One scenario of load: answers per second over the measured time and their latencies.
#[derive(Clone, Debug, Serialize)]
pub struct Traffic {
    pub connections: usize,
    /// Requests in flight per connection.
    pub window: usize,
    pub seconds: f64,
    pub rate_per_second: f64,
    pub latency: Summary,
    /// CPU time of the generator's thread over the measured time; 1 is a whole core.
    pub generator_cores: f64,
}

impl Traffic {
    pub fn answered(&self) -> u64 {
        self.latency.count
    }
}

/// The middle value; of an even number the mean of the two in the middle. `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// CPU time of the calling thread so far.
pub fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_value_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn a_summary_is_in_microseconds_and_keeps_the_tail() {
        let mut latencies = Latencies::new();
        (1..=1_000).for_each(|us| latencies.record(us * 1_000));
        let summary = latencies.summary();
        let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.002;
        assert_eq!(summary.count, 1_000);
        assert!(near(summary.p50_us, 500.0) && near(summary.p99_us, 990.0));
        assert!(near(summary.p999_us, 999.0) && near(summary.max_us, 1_000.0));
    }
}
