//! A log range on its way to a socket: from the tail in memory, from the page cache by sendfile, or
//! through one of a few buffers that the ring fills from the segment.

use crate::chunk::{Lease, Tail};
use crate::ids::LogRange;

/// Where a core's sends find log ranges.
pub(crate) struct Ranges {
    tail: Option<Tail>,
}

impl Ranges {
    pub fn new(tail: Option<Tail>) -> Self {
        Ranges { tail }
    }

    /// The range in memory, if the tail still holds it.
    pub fn lease(&self, range: LogRange) -> Option<Lease<'_>> {
        self.tail.as_ref()?.lease(range)
    }
}
