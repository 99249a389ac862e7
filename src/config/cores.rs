//! The layout of the cores: which role runs on which pinned thread, and how a thread waits.
//!
//! A layout comes from a TOML file (`--cores`, examples in `tuning/`) or from
//! [`default_layout`]. It is plain data; [`Layout::check`] says whether this machine can run it.
//! DESIGN 2.

use std::fmt::{self, Write};
use std::io;

use serde::Deserialize;

mod check;
mod file;

pub use check::{Fault, FaultKind};
pub use file::LayoutError;

/// Most cores of one process: a connection's handle names its shard in one byte, and beyond this
/// count the one log is what limits.
pub const CORES_MAX: usize = 64;

/// How long an adaptive core looks for work before it parks, in microseconds: about the time that
/// a wake-up of two sleeping cores costs.
pub const SPIN_US_DEFAULT: u32 = 50;

/// Entries of a ring that carries connections: a turn submits up to one send per connection.
pub const RING_ENTRIES_SHARD: u32 = 4_096;

/// Entries of any other ring.
pub const RING_ENTRIES_OTHER: u32 = 1_024;

/// A state machine that lives on exactly one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleKind {
    /// Connections, queues and groups; as many as there are cores for.
    Shard,
    /// The commit log; exactly one.
    Log,
    /// The queue files; exactly one.
    Dispatch,
    /// Look-up by key and time; exactly one.
    Index,
    /// Delay, timer, transaction checks, revival; exactly one.
    Delivery,
    /// Replication; any number.
    Replica,
    /// Topics, settings, segments, retention, registration; exactly one.
    Control,
    /// The name server; at most one.
    Namesrv,
}

impl RoleKind {
    /// All of them, in the order of the table in DESIGN 2.
    pub const ALL: [Self; 8] = [
        Self::Shard,
        Self::Log,
        Self::Dispatch,
        Self::Index,
        Self::Delivery,
        Self::Replica,
        Self::Control,
        Self::Namesrv,
    ];

    /// The name in files and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shard => "shard",
            Self::Log => "log",
            Self::Dispatch => "dispatch",
            Self::Index => "index",
            Self::Delivery => "delivery",
            Self::Replica => "replica",
            Self::Control => "control",
            Self::Namesrv => "namesrv",
        }
    }

    /// Fewest and most of them in a broker.
    const fn count(self) -> (usize, usize) {
        match self {
            Self::Shard => (1, CORES_MAX),
            Self::Replica => (0, CORES_MAX),
            Self::Namesrv => (0, 1),
            Self::Log | Self::Dispatch | Self::Index | Self::Delivery | Self::Control => (1, 1),
        }
    }
}

/// What a core does when nothing is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Look again at once, for ever. The CPU belongs to this thread alone.
    Spin,
    /// Look again for a while, then sleep.
    Adaptive {
        /// How long, in microseconds.
        spin_us: u32,
    },
    /// Sleep until the kernel or another core wakes it.
    Park,
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spin => f.write_str("spin"),
            Self::Adaptive { spin_us } => write!(f, "adaptive, {spin_us} us"),
            Self::Park => f.write_str("park"),
        }
    }
}

/// How the log writes durably.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Probe the device at the first start and choose.
    #[default]
    Auto,
    /// A write linked to a flush, on the ring.
    Ring,
    /// One blocking system call per write, on a thread of the log's own.
    Blocking,
}

impl Engine {
    /// The name in files and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ring => "ring",
            Self::Blocking => "blocking",
        }
    }
}

/// A pinned thread with one ring and one loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// The CPU it is pinned to; `None` leaves it to the kernel.
    pub cpu: Option<usize>,
    /// The roles that live on it, in the order in which a turn visits them.
    pub roles: Vec<RoleKind>,
    /// How it waits.
    pub idle: Idle,
    /// Entries of its ring's submission queue, a power of two.
    pub ring_entries: u32,
}

impl Core {
    /// A core of these roles with a ring of the usual size.
    pub fn new(cpu: Option<usize>, roles: &[RoleKind], idle: Idle) -> Self {
        let ring_entries = ring_entries_default(roles);
        Self {
            cpu,
            roles: roles.to_vec(),
            idle,
            ring_entries,
        }
    }

    /// Whether the role lives here.
    pub fn has(&self, role: RoleKind) -> bool {
        self.roles.contains(&role)
    }
}

fn ring_entries_default(roles: &[RoleKind]) -> u32 {
    if roles.contains(&RoleKind::Shard) {
        RING_ENTRIES_SHARD
    } else {
        RING_ENTRIES_OTHER
    }
}

/// All cores of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The cores, numbered from 0.
    pub cores: Vec<Core>,
    /// How the log writes.
    pub engine: Engine,
    /// The CPU of the background thread (slow file work, log lines); `None` leaves it to the
    /// kernel.
    pub background_cpu: Option<usize>,
}
/// The CPUs that this process may run on, in order.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

/// The layout for a machine that nobody has tuned. DESIGN 2.
///
/// | CPUs | cores |
/// |------|-------|
/// | 1 | everything |
/// | 2 | shard, log, dispatch / index, delivery, control, namesrv |
/// | 3 | shard / log, dispatch / index, delivery, control, namesrv |
/// | n | n - 3 x shard / log / dispatch / index, delivery, control, namesrv |
///
/// The log never spins: the kernel's own threads that flush for it share its CPU, and a spinning
/// core keeps them from it. The last core shares its CPU with the background thread and parks.
pub fn default_layout(cpus: &[usize], namesrv: bool) -> Layout {
    use RoleKind::{Control, Delivery, Dispatch, Index, Log, Shard};
    let cpus = &cpus[..cpus.len().min(CORES_MAX)];
    let adaptive = Idle::Adaptive {
        spin_us: SPIN_US_DEFAULT,
    };
    let quiet = [Index, Delivery, Control];
    let mut cores = match *cpus {
        [] | [_] => {
            let all = [Shard, Log, Dispatch, Index, Delivery, Control];
            vec![Core::new(cpus.first().copied(), &all, Idle::Park)]
        }
        [first, last] => vec![
            Core::new(Some(first), &[Shard, Log, Dispatch], Idle::Park),
            Core::new(Some(last), &quiet, Idle::Park),
        ],
        [first, middle, last] => vec![
            Core::new(Some(first), &[Shard], adaptive),
            Core::new(Some(middle), &[Log, Dispatch], Idle::Park),
            Core::new(Some(last), &quiet, Idle::Park),
        ],
        [ref shards @ .., log, dispatch, last] => {
            let shards = shards
                .iter()
                .map(|&cpu| Core::new(Some(cpu), &[Shard], adaptive));
            shards
                .chain([
                    Core::new(Some(log), &[Log], Idle::Park),
                    Core::new(Some(dispatch), &[Dispatch], adaptive),
                    Core::new(Some(last), &quiet, Idle::Park),
                ])
                .collect()
        }
    };
    if namesrv {
        let last = cores.last_mut().expect("every arm has a core");
        last.roles.push(RoleKind::Namesrv);
    }
    Layout {
        cores,
        engine: Engine::Auto,
        background_cpu: cpus.last().copied(),
    }
}

impl Layout {
    /// One core with a name server and nothing else.
    pub fn namesrv_alone(cpu: Option<usize>) -> Self {
        let core = Core::new(cpu, &[RoleKind::Namesrv], Idle::Park);
        Self {
            cores: vec![core],
            engine: Engine::Auto,
            background_cpu: cpu,
        }
    }

    /// With the name server's role beside control, or without it: the same file serves a broker
    /// and a standalone process.
    pub fn with_namesrv(mut self, wanted: bool) -> Self {
        if !wanted {
            for core in &mut self.cores {
                core.roles.retain(|&role| role != RoleKind::Namesrv);
            }
            self.cores.retain(|core| !core.roles.is_empty());
        } else if self.core_of(RoleKind::Namesrv).is_none() {
            let control = self
                .cores
                .iter_mut()
                .find(|core| core.has(RoleKind::Control));
            if let Some(core) = control {
                core.roles.push(RoleKind::Namesrv);
            }
        }
        self
    }

    /// With a core of its own for the log, on the CPU it was on, as the blocking engine needs it.
    pub fn with_log_apart(mut self) -> Self {
        let shares = |core: &&mut Core| core.has(RoleKind::Log) && core.roles.len() > 1;
        if let Some(core) = self.cores.iter_mut().find(shares) {
            core.roles.retain(|&role| role != RoleKind::Log);
            // Two threads on one CPU: neither may keep the other from it.
            core.idle = Idle::Park;
            let cpu = core.cpu;
            self.cores
                .push(Core::new(cpu, &[RoleKind::Log], Idle::Park));
        }
        self
    }

    /// How many shards there are: one on each core that names the role.
    pub fn shards(&self) -> usize {
        let has = |core: &&Core| core.has(RoleKind::Shard);
        self.cores.iter().filter(has).count()
    }

    /// The number of the first core that has the role.
    pub fn core_of(&self, role: RoleKind) -> Option<usize> {
        self.cores.iter().position(|core| core.has(role))
    }

    /// The table for the first lines of the log: core, CPU, roles, how it waits, ring.
    pub fn table(&self) -> String {
        let cpu = |cpu: Option<usize>| cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string());
        let mut rows = vec![["core", "CPU", "idle", "ring", "roles"].map(str::to_owned)];
        for (number, core) in self.cores.iter().enumerate() {
            let roles: Vec<&str> = core.roles.iter().map(|role| role.name()).collect();
            rows.push([
                number.to_string(),
                cpu(core.cpu),
                core.idle.to_string(),
                core.ring_entries.to_string(),
                roles.join(" "),
            ]);
        }
        let background = "background thread: slow file work, log lines".to_owned();
        rows.push([
            "-".to_owned(),
            cpu(self.background_cpu),
            String::new(),
            String::new(),
            background,
        ]);
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2), width(3)];
        let mut table = String::new();
        for [core, cpu, idle, ring, roles] in &rows {
            let [a, b, c, d] = widths;
            writeln!(
                table,
                "{core:>a$}  {cpu:>b$}  {idle:<c$}  {ring:>d$}  {roles}"
            )
            .expect("a String takes everything");
        }
        writeln!(table, "log engine: {}", self.engine.name()).expect("a String takes everything");
        table
    }
}

#[cfg(test)]
mod tests;
