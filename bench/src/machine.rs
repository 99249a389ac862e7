//! The stamp of the machine that figures belong to.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::diskstats::{Disk, DiskError, Mount};

const UNKNOWN: &str = "unknown";
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "devtmpfs"];

#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("the working directory is on {0}, which makes nothing durable; name one on a disk")]
    InMemory(String),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub version: &'static str,
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    pub clock: String,
    pub congestion_control: String,
    pub file_system: String,
    pub mount_options: String,
    pub disk: String,
    pub write_cache: String,
    pub fua: String,
    pub block_bytes: String,
    pub scheduler: String,
    /// Over the last minute, before the first scenario.
    pub load_average: String,
}

impl Machine {
    /// Describes the machine and the disk under `directory`; refuses file systems in memory.
    pub fn describe(directory: &Path) -> Result<(Self, Disk), MachineError> {
        let mount = Mount::of(directory)?;
        if IN_MEMORY.contains(&&*mount.file_system) {
            return Err(MachineError::InMemory(mount.file_system));
        }
        let disk = Disk::under(directory)?;
        let name = rustix::system::uname();
        let load = read("/proc/loadavg");
        let queue = |setting: &str| disk.queue(setting).unwrap_or_else(|| UNKNOWN.into());
        let machine = Machine {
            version: env!("CARGO_PKG_VERSION"),
            cpu: cpu_model(&read("/proc/cpuinfo")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("Linux {}", name.release().to_string_lossy()),
            clock: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            file_system: mount.file_system,
            mount_options: mount.options,
            disk: disk.name.clone(),
            write_cache: queue("write_cache"),
            fua: queue("fua"),
            block_bytes: queue("logical_block_size"),
            scheduler: queue("scheduler"),
            load_average: load.split(' ').next().unwrap_or(UNKNOWN).to_owned(),
        };
        Ok((machine, disk))
    }
}

/// CPU time that all cores together have spent on anything, as far as the kernel tells.
pub fn busy() -> Option<Duration> {
    busy_in(&fs::read_to_string("/proc/stat").ok()?)
}

/// The first line: user, nice, system, idle, iowait, irq, softirq, steal, in ticks of 10 ms; guest
/// time is part of user time. Stolen time counts: it is somebody else's.
fn busy_in(stat: &str) -> Option<Duration> {
    let words = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace();
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _idle, _wait, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    Some(Duration::from_millis(
        (user + nice + system + irq + softirq + steal) * 10,
    ))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| UNKNOWN.into(), |text| text.trim().to_owned())
}

fn cpu_model(cpuinfo: &str) -> String {
    let models = cpuinfo
        .lines()
        .filter_map(|line| line.strip_prefix("model name"));
    let model = models
        .map(|rest| rest.trim_start_matches([' ', '\t', ':']))
        .next();
    model.unwrap_or(UNKNOWN).to_owned()
}

impl fmt::Display for Machine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "ringmq-bench {} on {}", self.version, self.kernel)?;
        let Machine {
            cores,
            clock,
            congestion_control,
            load_average,
            ..
        } = self;
        let wire = format!("clock {clock}, tcp {congestion_control}, load {load_average}");
        writeln!(out, "  {}, {cores} cores, {wire}", self.cpu)?;
        writeln!(
            out,
            "  {} ({}) on {}",
            self.file_system, self.mount_options, self.disk
        )?;
        write!(
            out,
            "  write cache \"{}\", fua {}, blocks of {} bytes, scheduler {}",
            self.write_cache, self.fua, self.block_bytes, self.scheduler
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_memory_is_refused() {
        let shm = Path::new("/dev/shm");
        if Mount::of(shm).is_ok_and(|mount| mount.file_system == "tmpfs") {
            assert!(matches!(
                Machine::describe(shm),
                Err(MachineError::InMemory(_))
            ));
        }
    }

    #[test]
    fn busy_is_what_is_neither_idle_nor_waiting() {
        let stat = "cpu  10 1 20 5000 300 2 3 4 7 7\ncpu0 1 2 3 4 5 6 7 8 9 9\n";
        assert_eq!(busy_in(stat), Some(Duration::from_millis(400)));
        assert_eq!(busy_in("cpu  10 1 20"), None);
    }

    #[test]
    fn a_model_is_named_once() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Some(R) CPU\n\n\
            processor\t: 1\n\
            model name\t: Other\n";
        assert_eq!(cpu_model(cpuinfo), "Some(R) CPU");
        assert_eq!(cpu_model(""), UNKNOWN);
    }
}
