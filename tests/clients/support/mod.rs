//! What the real-client tests stand on: the broker under test, the client programs, and the ledger
//! that compares what was sent with what arrived.

pub mod broker;
pub mod ledger;
pub mod program;
pub mod remoting;
pub mod toolchain;
pub mod world;

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long anything may take that a client does by itself: a rebalance (20 s in Go), a route
/// refresh (30 s).
pub const PATIENCE: Duration = Duration::from_secs(75);

/// Why a test did not run to its end.
#[derive(Clone, Debug)]
pub enum Stop {
    /// A tool or a client that is not on this machine: the test is ignored, except in CI.
    Missing(String),
    Failed(String),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Missing(reason) => write!(f, "missing: {reason}"),
            Stop::Failed(reason) => write!(f, "{reason}"),
        }
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::Failed(error.to_string())
    }
}

pub type Outcome<T = ()> = Result<T, Stop>;

pub fn failed<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Stop::Failed(reason.into()))
}

/// Fails with the text unless the condition holds.
pub fn ensure(condition: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if condition {
        Ok(())
    } else {
        failed(otherwise())
    }
}

/// Asks every 50 ms until there is an answer; `what` names it in the failure.
pub fn wait_for<T>(
    what: &str,
    patience: Duration,
    mut ask: impl FnMut() -> Outcome<Option<T>>,
) -> Outcome<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() > end {
            return failed(format!("{what}: nothing within {} s", patience.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Where the clients and the tests are described, in the source tree.
pub fn sources() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

/// Where everything built, stored and logged goes: inside the target folder, which lies on a disk.
pub fn scratch() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("clients")
}
