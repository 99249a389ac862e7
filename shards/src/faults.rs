//! Faults on demand, for tests and soak runs on a real kernel: an explicit value in a core's plan,
//! absent otherwise.

use std::time::Duration;

/// Which operations a fault counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAt {
    /// The write of `Effect::Write`.
    Write,
    /// The flush behind it, and `Effect::Sync`.
    Flush,
    Put,
    Read,
}

/// What happens instead of the operation, or before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It fails with this errno.
    Error(i32),
    /// Only so many bytes; a flush is never short.
    Short(u32),
    /// It takes this much longer.
    Delay(Duration),
}

/// One planned fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub at: FaultAt,
    /// 1 is the first operation of its kind on this core.
    pub nth: u64,
    pub kind: FaultKind,
}

/// The faults of one core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    planned: Vec<Fault>,
    seen: [u64; 4],
}

impl Faults {
    #[must_use]
    pub fn new(planned: impl IntoIterator<Item = Fault>) -> Self {
        Faults {
            planned: planned.into_iter().collect(),
            seen: [0; 4],
        }
    }

    /// Counts one operation and answers what is planned for it.
    pub fn next(&mut self, at: FaultAt) -> Option<FaultKind> {
        let seen = &mut self.seen[at as usize];
        *seen += 1;
        let planned = |fault: &&Fault| fault.at == at && fault.nth == *seen;
        self.planned.iter().find(planned).map(|fault| fault.kind)
    }
}
