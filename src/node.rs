//! From configuration to running cores: what starts in which order, the table, the stop.
//!
//! ```text
//!  probe -> lock -> open the store (recover) -> first segment -> roles on their cores
//!    -> dispatch caught up -> abort file -> listeners open -> registered -> ready
//!  stop: shards (sends drained, offsets) -> log (flushed) -> dispatch, index -> control (tables,
//!    checkpoint, abort removed) -> exit
//! ```

mod any;
mod report;
mod settings;
mod start;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use shards::cores::{Running, StartError, StopError};
use shards::lock::{LockError, StoreLock};
use shards::role::Mark as _;

use crate::boot::OpenError;
use crate::config::{BrokerConfig, Layout, NamesrvConfig};
use crate::ids::RoleId;
use crate::role::{CONTROL, DISPATCH, INDEX, LOG, Mark, NAMESRV, Ringmq, shard};
use crate::store::FlushMode;
use crate::store::dispatch::DispatchCounters;
use crate::store::log::LogCounters;

/// What to start: a broker, a name server, or both.
#[derive(Clone, Debug)]
pub struct Options {
    pub broker: Option<BrokerConfig>,
    pub namesrv: Option<NamesrvConfig>,
    pub layout: Layout,
}

/// A stop waits so long for each phase; then it says what did not stop.
const STOP_PHASE: Duration = Duration::from_secs(20);

/// Why the process does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Segments(#[from] shards::segments::OpenError),
    #[error(
        "{dir}: SYNC_FLUSH would be an empty promise here: {reason}. Choose another directory, \
             or say --accept-unsafe-store if losing acknowledged messages does not matter"
    )]
    NotDurable { dir: PathBuf, reason: String },
    #[error("{path}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
    #[error("the first segment cannot be made: {0}; free some space or choose another --data")]
    FirstSegment(shards::files::JobError),
    #[error("{address} cannot be resolved: {cause}")]
    Address { address: String, cause: io::Error },
    #[error("no port is free on {address}: {cause}")]
    Port {
        address: SocketAddr,
        cause: io::Error,
    },
    #[error("{0}")]
    Kv(String),
    #[error(
        "the consume queues did not catch up with the log within {0:?}: see the log lines above"
    )]
    NotCaughtUp(Duration),
    #[error("the signals cannot be watched: {0}")]
    Signals(io::Error),
}

/// A running process.
pub struct Node {
    running: Running<Ringmq>,
    roles: Roles,
    pub facts: Facts,
    /// Held until everything has stopped.
    _lock: Option<StoreLock>,
}

/// What of it there is.
#[derive(Clone, Copy, Debug)]
struct Roles {
    shards: usize,
    namesrv: bool,
}

/// What the `ready` line says.
#[derive(Clone, Debug)]
pub struct Facts {
    pub namesrv: Option<SocketAddr>,
    pub broker: Option<SocketAddr>,
    pub mode: FlushMode,
    pub engine: &'static str,
    pub log: Option<Arc<LogCounters>>,
    pub dispatch: Option<Arc<DispatchCounters>>,
}

impl Facts {
    /// One line for programs that wait for this process.
    #[must_use]
    pub fn ready_line(&self) -> String {
        let mut line = "ready".to_owned();
        if let Some(namesrv) = self.namesrv {
            line += &format!(" namesrv={namesrv}");
        }
        if let Some(broker) = self.broker {
            let flush = match self.mode {
                FlushMode::Sync => "sync",
                FlushMode::Async => "async",
            };
            line += &format!(" broker={broker} flush={flush} engine={}", self.engine);
        }
        line
    }
}

impl Node {
    /// The latest value of a mark.
    fn mark(&self, mark: Mark) -> u64 {
        self.running.marks().read(mark.kind())
    }

    /// Stops cleanly: everything acknowledged is durable, `abort` is removed.
    ///
    /// # Errors
    /// What did not stop in time or broke; the next start recovers.
    pub fn stop(self) -> Result<(), Vec<StopError>> {
        let shards: Vec<RoleId> = (0..self.roles.shards).map(shard).collect();
        let mut phases: Vec<&[RoleId]> = Vec::new();
        if self.roles.shards > 0 {
            phases.extend([&shards[..], &[LOG], &[DISPATCH, INDEX], &[CONTROL]]);
        }
        if self.roles.namesrv {
            phases.push(&[NAMESRV]);
        }
        let counters = self.facts.log.clone();
        let stopped = self.running.stop(&phases, STOP_PHASE);
        if let Some(counters) = counters {
            let counted = counters.list().into_iter().filter(|(_, count)| *count > 0);
            let counted: Vec<_> = counted
                .map(|(name, count)| format!("{name}={count}"))
                .collect();
            log::info!("log: {}", counted.join(" "));
        }
        stopped
    }
}
