//! The broker under measurement: a child of our own, or one that already runs.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::Serialize;

use crate::setup;

/// The hidden subcommand under which this program is the broker.
pub const SERVE: &str = "serve";
const START_PATIENCE: Duration = Duration::from_secs(30);
const STOP_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot start the broker")]
    Spawn(#[source] io::Error),
    #[error("the broker ended before it was ready")]
    Ended,
    #[error("the broker was not ready after 30 s")]
    Late,
    #[error("the broker's ready line cannot be read: {0}")]
    ReadyLine(String),
    #[error("the broker started with flush={0}; only sync can be compared with the device")]
    NotSync(String),
}

/// What a broker counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Messages it answered as stored.
    pub stored: u64,
    /// Flushes of its log that completed.
    pub flushes: u64,
}

impl Counters {
    pub fn since(self, earlier: Counters) -> Counters {
        Counters {
            stored: self.stored.wrapping_sub(earlier.stored),
            flushes: self.flushes.wrapping_sub(earlier.flushes),
        }
    }
}

/// What the bench needs to know of a broker.
pub trait Broker {
    fn address(&self) -> SocketAddr;

    /// Asked for the topic's route where there is one.
    fn namesrv(&self) -> Option<SocketAddr>;

    /// Whose CPU time is the broker's; `None` leaves it unmeasured.
    fn process(&self) -> Option<u32>;

    /// The broker's own counts, if it serves them.
    fn counters(&mut self) -> Option<Counters> {
        None
    }

    /// For people.
    fn description(&self) -> String;
}

/// A broker that somebody else started.
pub struct RunningBroker {
    pub address: SocketAddr,
    pub namesrv: Option<SocketAddr>,
    pub process: Option<u32>,
}

impl Broker for RunningBroker {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn namesrv(&self) -> Option<SocketAddr> {
        self.namesrv
    }

    fn process(&self) -> Option<u32> {
        self.process
    }

    fn description(&self) -> String {
        format!("the broker at {}", self.address)
    }
}

/// This program run once more as a broker; stopped when dropped.
pub struct OwnBroker {
    child: Child,
    ready: Ready,
}

impl OwnBroker {
    /// Starts `serve` with these arguments in `directory` and waits for its ready line.
    pub fn start(directory: &Path, arguments: &[String]) -> Result<Self, StartError> {
        let program = std::env::current_exe().map_err(StartError::Spawn)?;
        let mut command = Command::new(program);
        command.arg(SERVE).args(arguments).current_dir(directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(StartError::Spawn)?;
        match wait_until_ready(&mut child) {
            Ok(ready) => Ok(OwnBroker { child, ready }),
            Err(error) => {
                stop(&mut child);
                Err(error)
            }
        }
    }
}

impl Broker for OwnBroker {
    fn address(&self) -> SocketAddr {
        self.ready.broker
    }

    fn namesrv(&self) -> Option<SocketAddr> {
        Some(self.ready.namesrv)
    }

    fn process(&self) -> Option<u32> {
        Some(self.child.id())
    }

    fn counters(&mut self) -> Option<Counters> {
        setup::counters(self.ready.broker).ok()
    }

    fn description(&self) -> String {
        format!("ringmq, engine {}", self.ready.engine)
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

/// `ready namesrv=HOST:PORT broker=HOST:PORT flush=sync engine=NAME`
#[derive(Debug, PartialEq, Eq)]
struct Ready {
    namesrv: SocketAddr,
    broker: SocketAddr,
    engine: String,
}

impl Ready {
    fn parse(line: &str) -> Result<Self, StartError> {
        let words = line.split_ascii_whitespace().skip(1);
        let pairs: Vec<(&str, &str)> = words.filter_map(|word| word.split_once('=')).collect();
        let unreadable = || StartError::ReadyLine(line.to_owned());
        let value = |name: &str| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| *value).ok_or_else(unreadable)
        };
        let address = |name: &str| value(name)?.parse().map_err(|_| unreadable());
        let ready = Ready {
            namesrv: address("namesrv")?,
            broker: address("broker")?,
            engine: value("engine")?.to_owned(),
        };
        match value("flush")? {
            "sync" => Ok(ready),
            other => Err(StartError::NotSync(other.to_owned())),
        }
    }
}

/// Reads the child's output on a thread of its own, to the end, so that the child never blocks.
fn wait_until_ready(child: &mut Child) -> Result<Ready, StartError> {
    let output = child.stdout.take().ok_or(StartError::Ended)?;
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _nobody_waits_any_more = sender.send(line);
        }
    });
    let end = Instant::now() + START_PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) if line.starts_with("ready ") => return Ready::parse(&line),
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => return Err(StartError::Late),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(StartError::Ended),
        }
    }
}

/// Asks the child to stop, waits 10 s, then ends it.
fn stop(child: &mut Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _already_gone = rustix::process::kill_process(pid, Signal::TERM);
    }
    let end = Instant::now() + STOP_PATIENCE;
    while Instant::now() < end {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    eprintln!("ringmq-bench: the broker did not stop within 10 s and is ended");
    let _already_gone = child.kill();
    let _already_gone = child.wait();
}

/// CPU time of all threads of a process so far, to the nanosecond.
pub fn process_cpu(process: u32) -> io::Result<Duration> {
    let mut total_ns = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may end while the list is read.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else {
            continue;
        };
        total_ns += text
            .split(' ')
            .next()
            .and_then(|ns| ns.parse().ok())
            .unwrap_or(0_u64);
    }
    Ok(Duration::from_nanos(total_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_line_says_where_and_how() {
        let line = "ready namesrv=127.0.0.1:9876 broker=127.0.0.1:10911 flush=sync engine=ring";
        let ready = Ready::parse(line).expect("valid");
        assert_eq!(ready.namesrv, "127.0.0.1:9876".parse().expect("an address"));
        assert_eq!(ready.broker, "127.0.0.1:10911".parse().expect("an address"));
        assert_eq!(ready.engine, "ring");
        let asynchronous = line.replace("sync", "async");
        assert!(matches!(
            Ready::parse(&asynchronous),
            Err(StartError::NotSync(_))
        ));
        let nowhere = line.replace("broker=127.0.0.1:10911 ", "");
        assert!(matches!(
            Ready::parse(&nowhere),
            Err(StartError::ReadyLine(_))
        ));
    }

    #[test]
    fn work_shows_in_the_process_time() {
        let process = std::process::id();
        let before = process_cpu(process).expect("our own process");
        let end = Instant::now() + Duration::from_secs(20);
        let mut spent = Duration::ZERO;
        while spent < Duration::from_millis(50) && Instant::now() < end {
            spent = process_cpu(process)
                .expect("our own process")
                .saturating_sub(before);
        }
        assert!(spent >= Duration::from_millis(50));
    }
}
