//! From what was measured to what is said: lines while it runs, ratios and goals at the end.

use serde::Serialize;

use crate::broker::Counters;
use crate::diskstats::DiskCounts;
use crate::floor::DeviceFloor;
use crate::load::Shape;
use crate::machine::Machine;
use crate::record::{Summary, Traffic, median};

/// A broker's sends beside what disk and broker counted over the same time.
#[derive(Clone, Debug, Serialize)]
pub struct Sends {
    #[serde(flatten)]
    pub traffic: Traffic,
    pub disk: DiskCounts,
    pub broker: Option<Counters>,
    /// CPU time of the broker over the measured time; 1 is a whole core.
    pub broker_cores: Option<f64>,
}

impl Sends {
    /// By the disk's count, which takes in other programs; `None` where the disk needs no flush.
    pub fn messages_per_flush(&self) -> Option<f64> {
        let flushes = self.disk.flushes;
        (flushes > 0).then(|| self.traffic.answered() as f64 / flushes as f64)
    }
}

/// One pass over all scenarios: its ratios compare like with like.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Round {
    pub device: Vec<DeviceFloor>,
    pub network: Vec<Traffic>,
    pub sends: Vec<Sends>,
    /// CPU time of the idle broker; 1 is a whole core.
    pub idle_cores: Option<f64>,
    /// Cores that neither the bench nor its broker used, over the whole round.
    pub others_cores: Option<f64>,
}

impl Round {
    /// The faster way at the median: no broker may call the slower one its floor.
    fn device_floor(&self) -> Option<&Summary> {
        let floors = self.device.iter().map(|floor| &floor.latency);
        floors.min_by(|a, b| a.p50_us.total_cmp(&b.p50_us))
    }

    fn network_floor(&self, shape: Shape) -> Option<&Traffic> {
        self.network.iter().find(|traffic| shape.is_of(traffic))
    }

    fn sends(&self, shape: Shape) -> Option<&Sends> {
        self.sends.iter().find(|sends| shape.is_of(&sends.traffic))
    }

    /// A latency of the sends over the sum of both floors' same latency.
    fn latency_ratio(&self, shape: Shape, of: fn(&Summary) -> f64) -> Option<f64> {
        let floor = of(&self.network_floor(shape)?.latency) + of(self.device_floor()?);
        Some(of(&self.sends(shape)?.traffic.latency) / floor)
    }

    fn rate_ratio(&self, shape: Shape) -> Option<f64> {
        let floor = self.network_floor(shape)?.rate_per_second;
        Some(self.sends(shape)?.traffic.rate_per_second / floor)
    }
}

impl Shape {
    /// `64`, or `16x16` with more than one request in flight.
    pub fn name(self) -> String {
        match self.window {
            1 => self.connections.to_string(),
            window => format!("{}x{window}", self.connections),
        }
    }

    fn is_of(self, traffic: &Traffic) -> bool {
        (self.connections, self.window) == (traffic.connections, traffic.window)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    pub fn met(self, value: f64) -> bool {
        match self {
            Goal::AtMost(limit) => value <= limit,
            Goal::AtLeast(limit) => value >= limit,
        }
    }
}

/// A line of the summary: the median over the rounds and the goal beside it.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub name: String,
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
    pub goal: Option<Goal>,
    pub met: Option<bool>,
}

impl Figure {
    fn over(
        rounds: &[Round],
        name: String,
        goal: Option<Goal>,
        value: impl Fn(&Round) -> Option<f64>,
    ) -> Option<Self> {
        let values: Vec<f64> = rounds.iter().filter_map(value).collect();
        let median = median(&values)?;
        let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let met = goal.map(|goal| goal.met(median));
        Some(Figure {
            name,
            median,
            lowest,
            highest,
            goal,
            met,
        })
    }
}

/// One connection's median send over the sum of the floors' medians.
const ONE_P50: Goal = Goal::AtMost(1.35);
/// The same of the 99th percentiles.
const ONE_P99: Goal = Goal::AtMost(2.0);
/// Sends per second of 64 connections over the empty responder's answers.
const MANY_RATE: Goal = Goal::AtLeast(0.55);
/// Sends per second of 16 connections with 16 in flight each.
const PIPELINED_RATE: Goal = Goal::AtLeast(120_000.0);
/// Of one core, while nobody asks anything.
const IDLE_CORES: Goal = Goal::AtMost(0.02);

/// What a quiet machine's other programs may use.
const OTHERS_CORES_MAX: f64 = 0.1;

/// Every figure that the rounds hold enough for.
pub fn summarize(rounds: &[Round], shapes: &[Shape]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |name: String, goal, value: &dyn Fn(&Round) -> Option<f64>| {
        figures.extend(Figure::over(rounds, name, goal, value));
    };
    add("device floor p50, us".into(), None, &|round| {
        Some(round.device_floor()?.p50_us)
    });
    add("device floor p99, us".into(), None, &|round| {
        Some(round.device_floor()?.p99_us)
    });
    for &shape in shapes {
        let name = shape.name();
        add(format!("network floor {name}, /s"), None, &|round| {
            Some(round.network_floor(shape)?.rate_per_second)
        });
        add(format!("network floor {name} p50, us"), None, &|round| {
            Some(round.network_floor(shape)?.latency.p50_us)
        });
    }
    for &shape in shapes {
        let name = shape.name();
        let goal = |connections, window, goal| {
            (shape
                == Shape {
                    connections,
                    window,
                })
            .then_some(goal)
        };
        add(
            format!("send {name}, /s"),
            goal(16, 16, PIPELINED_RATE),
            &|round| Some(round.sends(shape)?.traffic.rate_per_second),
        );
        add(
            format!("send {name} / network floor"),
            goal(64, 1, MANY_RATE),
            &|round| round.rate_ratio(shape),
        );
        add(
            format!("send {name} p50 / (network + device)"),
            goal(1, 1, ONE_P50),
            &|round| round.latency_ratio(shape, |summary| summary.p50_us),
        );
        add(
            format!("send {name} p99 / (network + device)"),
            goal(1, 1, ONE_P99),
            &|round| round.latency_ratio(shape, |summary| summary.p99_us),
        );
        add(format!("send {name} messages per flush"), None, &|round| {
            round.sends(shape)?.messages_per_flush()
        });
    }
    add("everything else, cores".into(), None, &|round| {
        round.others_cores
    });
    add("idle, cores".into(), Some(IDLE_CORES), &|round| {
        round.idle_cores
    });
    figures
}

/// All of a run, for a file.
#[derive(Serialize)]
pub struct Results<'a> {
    pub machine: &'a Machine,
    pub broker: Option<&'a str>,
    pub body_bytes: usize,
    pub warm_up_seconds: f64,
    pub rounds: &'a [Round],
    pub summary: &'a [Figure],
}

pub const DEVICE_HEAD: &str =
    "  device floor, 4 KiB      n      p50      p99    p99.9      max  us   writes  flushes";
pub const NETWORK_HEAD: &str =
    "  network floor       rate/s      p50      p99    p99.9      max  us   generator";
pub const SENDS_HEAD: &str = concat!(
    "  sync-flush sends    rate/s      p50      p99    p99.9      max  us   generator",
    "    broker   flushes    own  messages/flush"
);

pub fn device_line(floor: &DeviceFloor) -> String {
    let DeviceFloor {
        method,
        latency,
        disk,
    } = floor;
    let (name, count) = (method.name(), latency.count);
    let latency = latencies(latency);
    format!(
        "  {name:<18} {count:>7} {latency}  {:>9} {:>8}",
        disk.writes, disk.flushes
    )
}

pub fn network_line(shape: Shape, traffic: &Traffic) -> String {
    let Traffic {
        rate_per_second,
        latency,
        generator_cores,
        ..
    } = traffic;
    let (name, latency) = (shape.name(), latencies(latency));
    format!(
        "  {name:<16} {rate_per_second:>9.0} {latency}  {:>8.0}%",
        generator_cores * 100.0
    )
}

pub fn sends_line(shape: Shape, sends: &Sends) -> String {
    let broker = sends
        .broker_cores
        .map_or("-".into(), |cores| format!("{:.0}%", cores * 100.0));
    let own = sends
        .broker
        .map_or("-".into(), |counters| counters.flushes.to_string());
    let each = sends
        .messages_per_flush()
        .map_or("-".into(), |each| format!("{each:.2}"));
    let line = network_line(shape, &sends.traffic);
    format!(
        "{line}  {broker:>8}  {:>8} {own:>6}  {each:>14}",
        sends.disk.flushes
    )
}

/// Figures beside busy neighbours are not worth much, and their floors neither.
pub fn others_line(cores: f64) -> String {
    let warning = if cores > OTHERS_CORES_MAX {
        ": NOT A QUIET MACHINE"
    } else {
        ""
    };
    format!(
        "  everything else used {:.0}% of a core{warning}",
        cores * 100.0
    )
}

fn latencies(summary: &Summary) -> String {
    let Summary {
        p50_us,
        p99_us,
        p999_us,
        max_us,
        ..
    } = summary;
    format!("{p50_us:>8.1} {p99_us:>8.1} {p999_us:>8.1} {max_us:>8.0}    ")
}

pub fn figure_line(figure: &Figure) -> String {
    let Figure {
        name,
        median,
        lowest,
        highest,
        goal,
        met,
    } = figure;
    let (median, lowest, highest) = (short(*median), short(*lowest), short(*highest));
    let goal = match goal {
        None => String::new(),
        Some(Goal::AtMost(limit)) => format!("<= {}", short(*limit)),
        Some(Goal::AtLeast(limit)) => format!(">= {}", short(*limit)),
    };
    let met = met.map_or("", |met| if met { "met" } else { "MISSED" });
    let line = format!("  {name:<40} {median:>10}  [{lowest:>9} {highest:>9}]  {goal:>10}  {met}");
    line.trim_end().to_owned()
}

/// Four digits that matter, more or less.
fn short(value: f64) -> String {
    match value.abs() {
        1_000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::Method;

    fn summary(p50_us: f64, p99_us: f64) -> Summary {
        Summary {
            count: 1_000,
            p50_us,
            p99_us,
            p999_us: p99_us,
            max_us: p99_us,
        }
    }

    fn traffic(shape: Shape, rate_per_second: f64, p50_us: f64, p99_us: f64) -> Traffic {
        Traffic {
            connections: shape.connections,
            window: shape.window,
            seconds: 1.0,
            rate_per_second,
            latency: summary(p50_us, p99_us),
            generator_cores: 0.1,
        }
    }

    fn floor(method: Method, p50_us: f64, p99_us: f64) -> DeviceFloor {
        let disk = DiskCounts::default();
        DeviceFloor {
            method,
            latency: summary(p50_us, p99_us),
            disk,
        }
    }

    const ONE: Shape = Shape {
        connections: 1,
        window: 1,
    };
    const MANY: Shape = Shape {
        connections: 64,
        window: 1,
    };

    fn round(send_p50_us: f64, send_rate: f64) -> Round {
        let sends = |traffic: Traffic| Sends {
            traffic,
            disk: DiskCounts {
                flushes: 250,
                ..DiskCounts::default()
            },
            broker: None,
            broker_cores: None,
        };
        Round {
            device: vec![
                floor(Method::Ring, 80.0, 130.0),
                floor(Method::Blocking, 90.0, 100.0),
            ],
            network: vec![
                traffic(ONE, 50_000.0, 20.0, 70.0),
                traffic(MANY, 100_000.0, 500.0, 900.0),
            ],
            sends: vec![
                sends(traffic(ONE, 9_000.0, send_p50_us, 300.0)),
                sends(traffic(MANY, send_rate, 1_000.0, 2_000.0)),
            ],
            idle_cores: Some(0.001),
            others_cores: None,
        }
    }

    fn figure<'a>(figures: &'a [Figure], name: &str) -> &'a Figure {
        figures
            .iter()
            .find(|figure| figure.name == name)
            .expect("in the summary")
    }

    #[test]
    fn ratios_are_taken_within_a_round_and_judged_by_their_median() {
        let rounds = [
            round(120.0, 54_000.0),
            round(200.0, 56_000.0),
            round(130.0, 57_000.0),
        ];
        let figures = summarize(&rounds, &[ONE, MANY]);
        let p50 = figure(&figures, "send 1 p50 / (network + device)");
        assert_eq!((p50.lowest, p50.median, p50.highest), (1.2, 1.3, 2.0));
        assert_eq!((p50.goal, p50.met), (Some(ONE_P50), Some(true)));
        let p99 = figure(&figures, "send 1 p99 / (network + device)");
        assert_eq!((p99.median, p99.met), (1.5, Some(true)));
        let rate = figure(&figures, "send 64 / network floor");
        assert_eq!(
            (rate.median, rate.goal, rate.met),
            (0.56, Some(MANY_RATE), Some(true))
        );
        assert_eq!(figure(&figures, "send 64 messages per flush").median, 4.0);
        assert_eq!(
            figure(&figures, "send 64 p50 / (network + device)").goal,
            None
        );
        assert_eq!(figure(&figures, "idle, cores").met, Some(true));
    }

    #[test]
    fn what_was_not_measured_is_not_in_the_summary() {
        let mut without = round(120.0, 54_000.0);
        without.device.clear();
        without.idle_cores = None;
        let figures = summarize(&[without], &[ONE, MANY]);
        let absent = |word: &str| !figures.iter().any(|figure| figure.name.contains(word));
        assert!(absent("device") && absent("idle"));
        assert!(
            figures
                .iter()
                .any(|figure| figure.name == "send 64 / network floor")
        );
        assert!(summarize(&[], &[ONE]).is_empty());
    }

    #[test]
    fn a_goal_is_met_on_its_own_side_and_at_its_limit() {
        assert!(Goal::AtMost(2.0).met(2.0) && !Goal::AtMost(2.0).met(2.01));
        assert!(Goal::AtLeast(2.0).met(2.0) && !Goal::AtLeast(2.0).met(1.99));
    }
}
