//! The log's segments: where one ends, when a record moves on to the next (store-format 2 and
//! 3.5). Their names are the runtime's ([`shards::segments`]).
//!
//! ```text
//!  00000000000000000000        00000000001073741824
//!  +--------+--------+-------+-------+ +--------+---
//!  | record | record | blank | zeros | | record |       a record never spans two segments
//!  +--------+--------+-------+-------+ +--------+---
//!                    8 bytes: what is left, blank magic
//! ```

use crate::ids::LogOffset;
use crate::limits;
use crate::wire::record::{BLANK_BYTES, encode_blank};

/// Segments of one log: all equally long, each starting at a multiple of the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    bytes: u64,
}

impl Segments {
    /// # Panics
    /// If `bytes` is not a multiple of a device block or cannot be addressed (`i32` blank
    /// records): the configuration has checked it.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        assert!(
            Self::is_possible(bytes),
            "a segment of {bytes} bytes: {} to {}, in blocks of {}",
            limits::SEGMENT_BYTES_MIN,
            limits::SEGMENT_BYTES_MAX,
            shards::role::BLOCK_BYTES,
        );
        Segments { bytes }
    }

    /// Whether segments can have this length.
    #[must_use]
    pub fn is_possible(bytes: u64) -> bool {
        (limits::SEGMENT_BYTES_MIN..=limits::SEGMENT_BYTES_MAX).contains(&bytes)
            && bytes.is_multiple_of(shards::role::BLOCK_BYTES)
    }

    /// The length of each.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Where the segment that holds the byte at `at` starts.
    #[must_use]
    pub fn start_of(self, at: LogOffset) -> LogOffset {
        LogOffset(at.0 / self.bytes * self.bytes)
    }

    /// Where the segment that holds the byte at `at` ends.
    #[must_use]
    pub fn end_of(self, at: LogOffset) -> LogOffset {
        self.start_of(at).plus(self.bytes)
    }

    /// Bytes from `at` to the end of its segment; at least one.
    #[must_use]
    pub fn left(self, at: LogOffset) -> u64 {
        self.end_of(at).since(at)
    }

    /// Whether an append of `bytes` at `at` leaves room for the blank record behind it.
    #[must_use]
    pub fn fits(self, at: LogOffset, bytes: u64) -> bool {
        bytes + BLANK_BYTES as u64 <= self.left(at)
    }

    /// Whether an append of `bytes` fits an empty segment.
    #[must_use]
    pub fn can_hold(self, bytes: u64) -> bool {
        self.fits(LogOffset(0), bytes)
    }

    /// The blank record that ends the segment at `at`.
    #[must_use]
    pub fn blank(self, at: LogOffset) -> [u8; BLANK_BYTES] {
        encode_blank(self.left(at) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 64 * 1024;

    #[test]
    fn eight_bytes_stay_free_behind_every_record() {
        let segments = Segments::new(SEGMENT);
        let at = LogOffset(3 * SEGMENT + 1000);
        let left = SEGMENT - 1000;
        assert!(segments.fits(at, left - 8));
        assert!(!segments.fits(at, left - 7));
        assert!(segments.can_hold(SEGMENT - 8));
        assert!(!segments.can_hold(SEGMENT - 7));
    }

    #[test]
    fn a_boundary_belongs_to_the_segment_behind_it() {
        let segments = Segments::new(SEGMENT);
        let boundary = LogOffset(2 * SEGMENT);
        assert_eq!(segments.start_of(boundary), boundary);
        assert_eq!(segments.end_of(boundary), LogOffset(3 * SEGMENT));
        assert_eq!(segments.end_of(LogOffset(2 * SEGMENT - 1)), boundary);
        assert_eq!(segments.left(boundary), SEGMENT);
    }

    #[test]
    fn the_blank_record_says_what_is_left() {
        let segments = Segments::new(SEGMENT);
        let blank = segments.blank(LogOffset(SEGMENT - 0x1234));
        assert_eq!(blank, [0, 0, 0x12, 0x34, 0xCB, 0xD4, 0x31, 0x94]);
    }
}
