//! The rules of a layout, each with its cause and its cure. DESIGN 2.

use std::collections::BTreeSet;
use std::fmt;

use thiserror::Error;

use super::{CORES_MAX, Core, Engine, Idle, Layout, RoleKind};

/// Longest sensible spin; beyond it `spin` is meant.
pub const SPIN_US_MAX: u32 = 1_000_000;

const RING_ENTRIES_MIN: u32 = 64;
const RING_ENTRIES_MAX: u32 = 32_768;

/// From so many CPUs on, the index keeps off the cores of the data path.
const INDEX_APART_FROM_CPUS: usize = 4;

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
impl Layout {
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
    if core.has(RoleKind::Index)
        && allowed.len() >= INDEX_APART_FROM_CPUS
        && let Some(with) = data_path.into_iter().find(|&role| core.has(role))
    {
        return Err(FaultKind::IndexOnDataPath { with });
    }
    if let Idle::Adaptive { spin_us } = core.idle
        && !(1..=SPIN_US_MAX).contains(&spin_us)
    {
        return Err(FaultKind::SpinTime);
    }
    let entries = core.ring_entries;
    let in_range = (RING_ENTRIES_MIN..=RING_ENTRIES_MAX).contains(&entries);
    if !entries.is_power_of_two() || !in_range {
        return Err(FaultKind::RingEntries { entries });
    }
    Ok(())
}
