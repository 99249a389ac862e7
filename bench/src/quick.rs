//! `ringmq-bench quick`: floors, sends and idle, round after round, in one directory.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use crate::broker::{self, Broker, Counters, OwnBroker, RunningBroker, StartError};
use crate::diskstats::{Disk, DiskCounts, DiskError};
use crate::floor::{FloorError, FloorFile, Method};
use crate::frames::Topic;
use crate::load::{BODY_BYTES, Load, LoadError, Shape};
use crate::machine::{self, Machine, MachineError};
use crate::report::{self, Figure, Results, Round, Sends};
use crate::responder::{Floor, start_responder};
use crate::setup::{self, SetupError};

const SHAPES: [Shape; 4] = [
    Shape {
        connections: 1,
        window: 1,
    },
    Shape {
        connections: 16,
        window: 1,
    },
    Shape {
        connections: 64,
        window: 1,
    },
    Shape {
        connections: 16,
        window: 16,
    },
];
/// Load that comes before each measured time and is not counted.
const WARM_UP: Duration = Duration::from_secs(1);
const QUIET_BEFORE_IDLE: Duration = Duration::from_secs(1);

#[derive(Args)]
pub struct Quick {
    /// Where the temporary directory is made; must be on a disk.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Rounds; the summary shows medians.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Measured seconds of each network, send and idle scenario.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Only these scenarios: device, network, send, idle, or one such as send-16x16.
    #[arg(long, value_name = "SCENARIO", value_parser = Scenario::selection)]
    only: Vec<Selection>,
    /// Also write everything to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Drive a broker that already runs instead of starting ringmq.
    #[arg(long, value_name = "HOST:PORT")]
    broker: Option<SocketAddr>,
    /// Its name server; without one the topic's eight queues are taken for granted.
    #[arg(long, value_name = "HOST:PORT", requires = "broker")]
    namesrv: Option<SocketAddr>,
    /// Its process, to measure its CPU time.
    #[arg(long, value_name = "PID", requires = "broker")]
    broker_pid: Option<u32>,
    /// Arguments for ringmq's own start.
    #[arg(last = true, conflicts_with = "broker")]
    serve: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum QuickError {
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error("cannot use {path}")]
    File { path: PathBuf, source: io::Error },
    #[error("cannot start the empty responder")]
    Responder(#[source] io::Error),
    #[error("device floor")]
    Floor(#[from] FloorError),
    #[error("network floor {shape}")]
    Network { shape: String, source: LoadError },
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("preparing the broker")]
    Setup(#[from] SetupError),
    #[error("send {shape}")]
    Send { shape: String, source: LoadError },
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("the broker's process cannot be watched (is it gone?)")]
    Process(#[source] io::Error),
}

/// What can be measured alone.
#[derive(Clone, Copy, PartialEq)]
enum Scenario {
    Device(Method),
    Network(Shape),
    Send(Shape),
    Idle,
}

/// Scenarios that one `--only` names.
type Selection = std::sync::Arc<[Scenario]>;

impl Scenario {
    fn all() -> impl Iterator<Item = Scenario> {
        let devices = Method::ALL.into_iter().map(Scenario::Device);
        let networks = SHAPES.into_iter().map(Scenario::Network);
        let sends = SHAPES.into_iter().map(Scenario::Send);
        devices.chain(networks).chain(sends).chain([Scenario::Idle])
    }

    fn name(self) -> String {
        match self {
            Scenario::Device(method) => format!("device-{}", method.name()),
            Scenario::Network(shape) => format!("network-{}", shape.name()),
            Scenario::Send(shape) => format!("send-{}", shape.name()),
            Scenario::Idle => "idle".into(),
        }
    }

    /// A scenario by its name, or all whose names begin with that word.
    fn selection(text: &str) -> Result<Selection, String> {
        let begins = format!("{text}-");
        let named = |scenario: &Scenario| {
            let name = scenario.name();
            name == text || name.starts_with(&begins)
        };
        let chosen: Vec<Scenario> = Scenario::all().filter(named).collect();
        if chosen.is_empty() {
            let names: Vec<String> = Scenario::all().map(Scenario::name).collect();
            return Err(format!(
                "known are device, network, send and {}",
                names.join(", ")
            ));
        }
        Ok(chosen.into())
    }
}

/// Runs all that was asked for, printing as it goes. Says whether every goal was met.
pub fn quick(options: &Quick) -> Result<bool, QuickError> {
    let (machine, disk) = Machine::describe(&options.directory)?;
    println!("{machine}");
    let warm_up = WARM_UP.as_secs();
    println!(
        "  messages of {BODY_BYTES} bytes; {warm_up} s of warm-up before each {} s is not counted; \
         disk counts are of the whole disk",
        options.seconds
    );
    let mut bench = Bench::new(options, disk)?;
    let mut rounds = Vec::new();
    for number in 1..=options.repeat {
        println!("\nround {number} of {}", options.repeat);
        let round = bench.round();
        // What was measured before a failure is worth its summary.
        let failed = round.is_err();
        rounds.push(std::mem::take(&mut bench.round));
        if failed {
            conclude(options, &machine, &bench, &rounds)?;
        }
        round?;
    }
    let figures = conclude(options, &machine, &bench, &rounds)?;
    Ok(figures.iter().all(|figure| figure.met != Some(false)))
}

/// Prints the summary and writes the file.
fn conclude(
    options: &Quick,
    machine: &Machine,
    bench: &Bench<'_>,
    rounds: &[Round],
) -> Result<Vec<Figure>, QuickError> {
    let figures = report::summarize(rounds, &SHAPES);
    println!(
        "\nsummary: median [lowest highest] of {} rounds",
        rounds.len()
    );
    for figure in &figures {
        println!("{}", report::figure_line(figure));
    }
    if let Some(path) = &options.json {
        let results = Results {
            machine,
            broker: bench.described.as_deref(),
            body_bytes: BODY_BYTES,
            warm_up_seconds: WARM_UP.as_secs_f64(),
            rounds,
            summary: &figures,
        };
        let write = || -> io::Result<()> { fs::write(path, serde_json::to_vec_pretty(&results)?) };
        write().map_err(|source| QuickError::File {
            path: path.clone(),
            source,
        })?;
    }
    Ok(figures)
}

struct Bench<'a> {
    options: &'a Quick,
    disk: Disk,
    directory: tempfile::TempDir,
    responder: Floor,
    described: Option<String>,
    /// The round that is being measured.
    round: Round,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Quick, disk: Disk) -> Result<Self, QuickError> {
        let made = tempfile::Builder::new()
            .prefix("ringmq-bench-")
            .tempdir_in(&options.directory);
        let directory = made.map_err(|source| QuickError::File {
            path: options.directory.clone(),
            source,
        })?;
        let responder = start_responder().map_err(QuickError::Responder)?;
        let (described, round) = (None, Round::default());
        Ok(Bench {
            options,
            disk,
            directory,
            responder,
            described,
            round,
        })
    }

    fn wants(&self, scenario: Scenario) -> bool {
        let only = &self.options.only;
        only.is_empty() || only.iter().any(|chosen| chosen.contains(&scenario))
    }

    fn seconds(&self) -> Duration {
        Duration::from_secs(self.options.seconds)
    }

    /// Measures each scenario once, into `self.round`, and what others did meanwhile.
    fn round(&mut self) -> Result<(), QuickError> {
        let began = Instant::now();
        let all = machine::busy();
        let own = broker::process_cpu(std::process::id()).ok();
        let broker = self.scenarios()?;
        let own = broker::process_cpu(std::process::id())
            .ok()
            .zip(own)
            .map(|(end, own)| end - own);
        let all = machine::busy()
            .zip(all)
            .map(|(end, all)| end.saturating_sub(all));
        self.round.others_cores = all.zip(own).map(|(all, own)| {
            all.saturating_sub(own + broker).as_secs_f64() / began.elapsed().as_secs_f64()
        });
        if let Some(cores) = self.round.others_cores {
            println!("{}", report::others_line(cores));
        }
        Ok(())
    }

    /// Returns the CPU time that the broker used.
    fn scenarios(&mut self) -> Result<Duration, QuickError> {
        self.device()?;
        self.network()?;
        let sends = SHAPES
            .into_iter()
            .any(|shape| self.wants(Scenario::Send(shape)));
        if !sends && !self.wants(Scenario::Idle) {
            return Ok(Duration::ZERO);
        }
        // A fresh store each time, so that all rounds meet the same conditions.
        let made = tempfile::Builder::new()
            .prefix("store-")
            .tempdir_in(&self.directory);
        let path = || self.directory.path().to_owned();
        let store = made.map_err(|source| QuickError::File {
            path: path(),
            source,
        })?;
        let mut broker = self.start(store.path())?;
        // A process of our own counts from its start, another one from here on.
        let running = broker.process().filter(|_| self.options.broker.is_some());
        let before = running.and_then(|process| broker::process_cpu(process).ok());
        setup::check_flush_mode(broker.address())?;
        let topic = setup::prepare(broker.address(), broker.namesrv())?;
        let description = format!("{}, {} queues", broker.description(), topic.queues);
        println!("  broker: {description}\n{}", report::SENDS_HEAD);
        self.described = Some(description);
        for shape in SHAPES {
            if self.wants(Scenario::Send(shape)) {
                self.send(&mut *broker, &topic, shape)?;
            }
        }
        self.idle(&*broker)?;
        let after = broker
            .process()
            .and_then(|process| broker::process_cpu(process).ok());
        Ok(after
            .unwrap_or_default()
            .saturating_sub(before.unwrap_or_default()))
    }

    fn device(&mut self) -> Result<(), QuickError> {
        if !Method::ALL
            .into_iter()
            .any(|method| self.wants(Scenario::Device(method)))
        {
            return Ok(());
        }
        println!("{}", report::DEVICE_HEAD);
        let file = FloorFile::prepare(self.directory.path())?;
        for method in Method::ALL {
            if self.wants(Scenario::Device(method)) {
                let floor = file.measure(method, &self.disk)?;
                println!("{}", report::device_line(&floor));
                self.round.device.push(floor);
            }
        }
        Ok(())
    }

    fn network(&mut self) -> Result<(), QuickError> {
        if !SHAPES
            .into_iter()
            .any(|shape| self.wants(Scenario::Network(shape)))
        {
            return Ok(());
        }
        println!("{}", report::NETWORK_HEAD);
        let topic = Topic {
            name: "RingmqBench".into(),
            broker: "broker-a".into(),
            queues: 8,
        };
        for shape in SHAPES {
            if !self.wants(Scenario::Network(shape)) {
                continue;
            }
            let failed = |source| QuickError::Network {
                shape: shape.name(),
                source,
            };
            let mut load = Load::connect(self.responder.address, &topic, shape).map_err(failed)?;
            load.run(WARM_UP).map_err(failed)?;
            let traffic = load.run(self.seconds()).map_err(failed)?;
            load.drain().map_err(failed)?;
            println!("{}", report::network_line(shape, &traffic));
            self.round.network.push(traffic);
        }
        Ok(())
    }

    fn start(&self, store: &Path) -> Result<Box<dyn Broker>, StartError> {
        let options = self.options;
        Ok(match options.broker {
            Some(address) => {
                let (namesrv, process) = (options.namesrv, options.broker_pid);
                Box::new(RunningBroker {
                    address,
                    namesrv,
                    process,
                })
            }
            None => Box::new(OwnBroker::start(store, &options.serve)?),
        })
    }

    fn send(
        &mut self,
        broker: &mut dyn Broker,
        topic: &Topic,
        shape: Shape,
    ) -> Result<(), QuickError> {
        let failed = |source| QuickError::Send {
            shape: shape.name(),
            source,
        };
        let mut load = Load::connect(broker.address(), topic, shape).map_err(failed)?;
        load.run(WARM_UP).map_err(failed)?;
        let before = Sample::take(broker, &self.disk)?;
        let traffic = load.run(self.seconds()).map_err(failed)?;
        let after = Sample::take(broker, &self.disk)?;
        load.drain().map_err(failed)?;
        let both = before.broker.zip(after.broker);
        let sends = Sends {
            disk: after.disk.since(before.disk),
            broker: both.map(|(before, after)| after.since(before)),
            broker_cores: before.cores_until(&after),
            traffic,
        };
        println!("{}", report::sends_line(shape, &sends));
        self.round.sends.push(sends);
        Ok(())
    }

    fn idle(&mut self, broker: &dyn Broker) -> Result<(), QuickError> {
        if !self.wants(Scenario::Idle) {
            return Ok(());
        }
        let Some(process) = broker.process() else {
            println!("  idle: not measured, the broker's process is not known");
            return Ok(());
        };
        thread::sleep(QUIET_BEFORE_IDLE);
        let before = broker::process_cpu(process).map_err(QuickError::Process)?;
        let began = Instant::now();
        thread::sleep(self.seconds());
        let after = broker::process_cpu(process).map_err(QuickError::Process)?;
        let cores = after.saturating_sub(before).as_secs_f64() / began.elapsed().as_secs_f64();
        println!("  idle: {:.2}% of a core", cores * 100.0);
        self.round.idle_cores = Some(cores);
        Ok(())
    }
}

/// What others count, at one moment.
struct Sample {
    at: Instant,
    disk: DiskCounts,
    broker: Option<Counters>,
    process: Option<Duration>,
}

impl Sample {
    fn take(broker: &mut dyn Broker, disk: &Disk) -> Result<Self, QuickError> {
        let process = broker.process().map(broker::process_cpu).transpose();
        Ok(Sample {
            at: Instant::now(),
            disk: disk.counts()?,
            broker: broker.counters(),
            process: process.map_err(QuickError::Process)?,
        })
    }

    fn cores_until(&self, after: &Sample) -> Option<f64> {
        let (before, end) = self.process.zip(after.process)?;
        Some(end.saturating_sub(before).as_secs_f64() / (after.at - self.at).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_a_scenario_or_a_family() {
        let count = |text| Scenario::selection(text).map(|chosen| chosen.len());
        assert_eq!(count("device"), Ok(2));
        assert_eq!(count("send"), Ok(4));
        assert_eq!(count("send-16"), Ok(1));
        assert_eq!(count("network-16x16"), Ok(1));
        assert_eq!(count("idle"), Ok(1));
        assert!(Scenario::selection("sends").is_err_and(|error| error.contains("send-16x16")));
    }
}
