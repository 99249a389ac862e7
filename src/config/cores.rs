//! The layout of the cores: which role runs on which pinned thread, and how a thread waits.
//!
//! A layout comes from a TOML file (`--cores`, examples in `tuning/`) or from
//! [`default_layout`]. It is plain data; [`Layout::check`] says whether this machine can run it.
//! DESIGN 2.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

/// Most cores of one process: a connection's handle names its shard in one byte, and beyond this
/// count the one log is what limits.
pub const CORES_MAX: usize = 64;

/// How long an adaptive core looks for work before it parks, in microseconds: about the time that
/// a wake-up of two sleeping cores costs.
pub const SPIN_US_DEFAULT: u32 = 50;

/// Longest sensible spin; beyond it `spin` is meant.
pub const SPIN_US_MAX: u32 = 1_000_000;

/// Entries of a ring that carries connections: a turn submits up to one send per connection.
pub const RING_ENTRIES_SHARD: u32 = 4_096;

/// Entries of any other ring.
pub const RING_ENTRIES_OTHER: u32 = 1_024;

const RING_ENTRIES_MIN: u32 = 64;
const RING_ENTRIES_MAX: u32 = 32_768;

/// From so many CPUs on, the index keeps off the cores of the data path.
const INDEX_APART_FROM_CPUS: usize = 4;

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

/// Why a file is not a layout for this machine.
#[derive(Debug, Error)]
pub enum LayoutError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// The file is not TOML or holds what no field is there for.
    #[error("{file}:{line}: {message}")]
    Toml {
        /// The file.
        file: String,
        /// Where, counted from 1.
        line: usize,
        /// The parser's words.
        message: String,
    },
    /// The layout breaks a rule.
    #[error("{file}:{line}: {fault}")]
    Fault {
        /// The file.
        file: String,
        /// The line of the core at fault, or the first line where the whole layout is.
        line: usize,
        /// The rule and the cure.
        fault: Fault,
    },
}

/// A broken rule: cause and cure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FaultKind {
    /// No core at all.
    #[error("no core is given; add a [[core]] with its roles")]
    NoCores,
    /// More cores than a process can have.
    #[error("{count} cores are given; a process has at most {CORES_MAX}")]
    TooManyCores {
        /// How many there are.
        count: usize,
    },
    /// A core without a role.
    #[error("this core has no role; give it one or remove it")]
    NoRole,
    /// A role stands twice on one core.
    #[error("`{}` stands twice on this core; one role of a kind has the whole core already",
        .role.name())]
    RoleTwiceOnCore {
        /// The role.
        role: RoleKind,
    },
    /// Too few of a role.
    #[error("no core has the role `{}`; add it to one", .role.name())]
    RoleMissing {
        /// The role.
        role: RoleKind,
    },
    /// Too many of a role.
    #[error("`{}` is on more than one core; there is exactly one of it, so remove it here",
        .role.name())]
    RoleTwice {
        /// The role.
        role: RoleKind,
    },
    /// The process may not run there.
    #[error(
        "CPU {cpu} is not one this process may use; choose another, or \"any\", or start it \
        with a wider affinity (taskset, cpuset)"
    )]
    CpuNotAllowed {
        /// The CPU.
        cpu: usize,
    },
    /// The background thread may not run there.
    #[error("[background] CPU {cpu} is not one this process may use; choose another or \"any\"")]
    BackgroundCpuNotAllowed {
        /// The CPU.
        cpu: usize,
    },
    /// A spinning thread would starve another.
    #[error(
        "idle = \"spin\" needs CPU {cpu} alone, but core {other} is pinned to it too; move \
        one of them or use \"adaptive\" or \"park\""
    )]
    SpinSharesCpu {
        /// The CPU.
        cpu: usize,
        /// The other core.
        other: usize,
    },
    /// A spinning thread would starve the background thread.
    #[error(
        "idle = \"spin\" needs CPU {cpu} alone, but the background thread is pinned to it; \
        move it ([background] cpu) or use \"adaptive\" or \"park\""
    )]
    SpinSharesBackground {
        /// The CPU.
        cpu: usize,
    },
    /// A spinning thread without a CPU of its own.
    #[error("idle = \"spin\" needs a CPU of its own; give its number instead of \"any\"")]
    SpinAnywhere,
    /// A blocking write would stop the other roles of the core.
    #[error(
        "engine = \"blocking\" stops the log's core during a write, so `log` must be alone on \
        it; move the other roles or use \"ring\" or \"auto\""
    )]
    BlockingLogShares,
    /// Index work would delay the data path.
    #[error("`index` shares this core with `{}`; with {INDEX_APART_FROM_CPUS} CPUs or more it must \
        not delay log, dispatch or shard, so move it beside control", .with.name())]
    IndexOnDataPath {
        /// What it shares the core with.
        with: RoleKind,
    },
    /// `spin_us` with another strategy, or out of range.
    #[error("spin_us goes with idle = \"adaptive\" and is from 1 to {SPIN_US_MAX}")]
    SpinTime,
    /// Not a size of a ring.
    #[error(
        "ring_entries = {entries}: it is a power of two from {RING_ENTRIES_MIN} to \
        {RING_ENTRIES_MAX}"
    )]
    RingEntries {
        /// What was given.
        entries: u32,
    },
}

/// A broken rule and the core that breaks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The core's number, where one is at fault.
    pub core: Option<usize>,
    /// The rule.
    pub kind: FaultKind,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.core {
            Some(core) => write!(f, "core {core}: {}", self.kind),
            None => self.kind.fmt(f),
        }
    }
}

impl std::error::Error for Fault {}

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

    /// Reads and checks a file for a process that may use the CPUs `allowed`.
    pub fn load(file: &Path, allowed: &[usize]) -> Result<Self, LayoutError> {
        let text = fs::read_to_string(file).map_err(|error| LayoutError::Read {
            file: file.to_owned(),
            error,
        })?;
        Self::parse(&file.display().to_string(), &text, allowed)
    }

    /// [`Layout::load`] for a text that is already there; `file` is its name in messages.
    pub fn parse(file: &str, text: &str, allowed: &[usize]) -> Result<Self, LayoutError> {
        let line_at = |position: usize| {
            let before = text.as_bytes().iter().take(position);
            1 + before.filter(|&&byte| byte == b'\n').count()
        };
        let written: WrittenLayout = toml::from_str(text).map_err(|error| LayoutError::Toml {
            file: file.to_owned(),
            line: line_at(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        let line_of = |core: Option<usize>| {
            let written = core.and_then(|core| written.core.get(core));
            written.map_or(1, |core| line_at(core.span().start))
        };
        let layout = written
            .layout()
            .and_then(|layout| layout.check(allowed).map(|()| layout));
        layout.map_err(|fault| LayoutError::Fault {
            file: file.to_owned(),
            line: line_of(fault.core),
            fault,
        })
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

    /// The number of the first core that has the role.
    pub fn core_of(&self, role: RoleKind) -> Option<usize> {
        self.cores.iter().position(|core| core.has(role))
    }

    /// Whether a broker can run this on the CPUs `allowed`. Says the first broken rule.
    pub fn check(&self, allowed: &[usize]) -> Result<(), Fault> {
        let whole = |kind| Fault { core: None, kind };
        match self.cores.len() {
            0 => return Err(whole(FaultKind::NoCores)),
            count if count > CORES_MAX => return Err(whole(FaultKind::TooManyCores { count })),
            _ => {}
        }
        for (number, core) in self.cores.iter().enumerate() {
            let fault = |kind| Fault {
                core: Some(number),
                kind,
            };
            check_core(core, allowed).map_err(fault)?;
            self.check_sharing(number).map_err(fault)?;
        }
        for role in RoleKind::ALL {
            self.check_count(role)?;
        }
        match self.background_cpu {
            Some(cpu) if !allowed.contains(&cpu) => {
                Err(whole(FaultKind::BackgroundCpuNotAllowed { cpu }))
            }
            _ => Ok(()),
        }
    }

    /// What a spinning or blocking core must not share its CPU or itself with.
    fn check_sharing(&self, number: usize) -> Result<(), FaultKind> {
        let core = &self.cores[number];
        let blocking = self.engine == Engine::Blocking;
        if blocking && core.has(RoleKind::Log) && core.roles.len() > 1 {
            return Err(FaultKind::BlockingLogShares);
        }
        if core.idle != Idle::Spin {
            return Ok(());
        }
        let Some(cpu) = core.cpu else {
            return Err(FaultKind::SpinAnywhere);
        };
        let same = |(other, there): (usize, &Core)| {
            (other != number && there.cpu == Some(cpu)).then_some(other)
        };
        if let Some(other) = self.cores.iter().enumerate().find_map(same) {
            return Err(FaultKind::SpinSharesCpu { cpu, other });
        }
        if self.background_cpu == Some(cpu) {
            return Err(FaultKind::SpinSharesBackground { cpu });
        }
        Ok(())
    }

    fn check_count(&self, role: RoleKind) -> Result<(), Fault> {
        let (fewest, most) = role.count();
        let mut having = self
            .cores
            .iter()
            .enumerate()
            .filter(|(_, core)| core.has(role));
        if having.clone().count() < fewest {
            return Err(Fault {
                core: None,
                kind: FaultKind::RoleMissing { role },
            });
        }
        match having.nth(most) {
            Some((number, _)) => Err(Fault {
                core: Some(number),
                kind: FaultKind::RoleTwice { role },
            }),
            None => Ok(()),
        }
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

/// The rules that concern one core alone, and the index's neighbours.
fn check_core(core: &Core, allowed: &[usize]) -> Result<(), FaultKind> {
    if core.roles.is_empty() {
        return Err(FaultKind::NoRole);
    }
    let mut seen = BTreeSet::new();
    if let Some(&role) = core.roles.iter().find(|&&role| !seen.insert(role)) {
        return Err(FaultKind::RoleTwiceOnCore { role });
    }
    if let Some(cpu) = core.cpu.filter(|cpu| !allowed.contains(cpu)) {
        return Err(FaultKind::CpuNotAllowed { cpu });
    }
    let data_path = [RoleKind::Log, RoleKind::Dispatch, RoleKind::Shard];
    let beside_index = data_path.into_iter().find(|&role| core.has(role));
    if let (true, Some(with)) = (core.has(RoleKind::Index), beside_index) {
        if allowed.len() >= INDEX_APART_FROM_CPUS {
            return Err(FaultKind::IndexOnDataPath { with });
        }
    }
    if let Idle::Adaptive { spin_us } = core.idle {
        if !(1..=SPIN_US_MAX).contains(&spin_us) {
            return Err(FaultKind::SpinTime);
        }
    }
    let entries = core.ring_entries;
    let in_range = (RING_ENTRIES_MIN..=RING_ENTRIES_MAX).contains(&entries);
    if !entries.is_power_of_two() || !in_range {
        return Err(FaultKind::RingEntries { entries });
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLayout {
    #[serde(default)]
    log: WrittenLog,
    #[serde(default)]
    background: WrittenBackground,
    #[serde(default)]
    core: Vec<Spanned<WrittenCore>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLog {
    #[serde(default)]
    engine: Engine,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenBackground {
    #[serde(default)]
    cpu: WrittenCpu,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCore {
    #[serde(default)]
    cpu: WrittenCpu,
    roles: Vec<RoleKind>,
    #[serde(default)]
    idle: WrittenIdle,
    spin_us: Option<u32>,
    ring_entries: Option<u32>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenIdle {
    Spin,
    Adaptive,
    #[default]
    Park,
}

/// A number or the word `any`.
#[derive(Clone, Copy, Default)]
struct WrittenCpu(Option<usize>);

impl<'de> Deserialize<'de> for WrittenCpu {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CpuVisitor;
        impl serde::de::Visitor<'_> for CpuVisitor {
            type Value = WrittenCpu;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a CPU, or \"any\"")
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<WrittenCpu, E> {
                let cpu = usize::try_from(number);
                cpu.map(|cpu| WrittenCpu(Some(cpu)))
                    .map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(number), &self))
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<WrittenCpu, E> {
                match word {
                    "any" => Ok(WrittenCpu(None)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
                }
            }
        }
        deserializer.deserialize_any(CpuVisitor)
    }
}

impl WrittenLayout {
    fn layout(&self) -> Result<Layout, Fault> {
        let cores = self.core.iter().enumerate().map(|(number, written)| {
            let fault = |kind| Fault {
                core: Some(number),
                kind,
            };
            written.get_ref().core().map_err(fault)
        });
        Ok(Layout {
            cores: cores.collect::<Result<_, _>>()?,
            engine: self.log.engine,
            background_cpu: self.background.cpu.0,
        })
    }
}

impl WrittenCore {
    fn core(&self) -> Result<Core, FaultKind> {
        let idle = match (self.idle, self.spin_us) {
            (WrittenIdle::Adaptive, time) => Idle::Adaptive {
                spin_us: time.unwrap_or(SPIN_US_DEFAULT),
            },
            (_, Some(_)) => return Err(FaultKind::SpinTime),
            (WrittenIdle::Spin, None) => Idle::Spin,
            (WrittenIdle::Park, None) => Idle::Park,
        };
        let mut core = Core::new(self.cpu.0, &self.roles, idle);
        core.ring_entries = self.ring_entries.unwrap_or(core.ring_entries);
        Ok(core)
    }
}
