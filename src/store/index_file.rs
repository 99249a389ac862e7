//! Index files: which records have a key (store-format 9).
//!
//! ```text
//!  0          40                    40 + 4 slots
//!  +----------+---------------------+---------+---------+-----
//!  | header   | slots, 4 bytes each | entry 0 | entry 1 | ...     all big-endian
//!  +----------+---------------------+---------+---------+-----
//!
//!  header  0 begin ms | 8 end ms | 16 begin offset | 24 end offset | 32 slots used | 36 next entry
//!  entry   0 key hash | 4 log offset | 12 seconds after begin | 16 previous entry of the slot
//! ```
//!
//! A slot holds the number of its newest entry; entry 0 is never used.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shards::ids::{FileDir, FileRef};

use crate::ids::{LogOffset, Millis};

pub const HEADER_BYTES: u64 = 40;
pub const SLOT_BYTES: u64 = 4;
pub const ENTRY_BYTES: u64 = 20;

/// `maxHashSlotNum` and `maxIndexNum`; they fix the files' length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub slots: u32,
    pub entries: u32,
}

impl Shape {
    #[must_use]
    pub fn file_bytes(self) -> u64 {
        self.entry_at(self.entries)
    }

    #[must_use]
    pub fn slot_at(self, slot: u32) -> u64 {
        HEADER_BYTES + u64::from(slot) * SLOT_BYTES
    }

    #[must_use]
    pub fn entry_at(self, entry: u32) -> u64 {
        self.slot_at(self.slots) + u64::from(entry) * ENTRY_BYTES
    }

    #[must_use]
    pub fn dir(self, path: PathBuf) -> Arc<FileDir> {
        Arc::new(FileDir {
            path,
            digits: 17,
            file_bytes: self.file_bytes(),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Header {
    pub begin: Millis,
    pub end: Millis,
    pub begin_offset: LogOffset,
    pub end_offset: LogOffset,
    pub slots_used: u32,
    /// At least 1.
    pub next_entry: u32,
}

impl Header {
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        let words = [
            self.begin.0,
            self.end.0,
            self.begin_offset.0,
            self.end_offset.0,
        ];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes[32..36].copy_from_slice(&self.slots_used.to_be_bytes());
        bytes[36..].copy_from_slice(&self.next_entry.to_be_bytes());
        bytes
    }

    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES as usize]) -> Header {
        let word = |at: usize| {
            let word = i64::from_be_bytes(*bytes[at..].first_chunk().expect("inside 40 bytes"));
            word.max(0) as u64
        };
        let half = |at: usize| {
            let half = i32::from_be_bytes(*bytes[at..].first_chunk().expect("inside 40 bytes"));
            half.max(0) as u32
        };
        Header {
            begin: Millis(word(0)),
            end: Millis(word(8)),
            begin_offset: LogOffset(word(16)),
            end_offset: LogOffset(word(24)),
            slots_used: half(32),
            next_entry: half(36).max(1),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key_hash: u32,
    pub at: LogOffset,
    pub seconds: u32,
    pub previous: u32,
}

impl Entry {
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_BYTES as usize] {
        let mut bytes = [0; ENTRY_BYTES as usize];
        bytes[..4].copy_from_slice(&self.key_hash.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.at.0.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.seconds.to_be_bytes());
        bytes[16..].copy_from_slice(&self.previous.to_be_bytes());
        bytes
    }

    #[must_use]
    pub fn decode(bytes: &[u8; ENTRY_BYTES as usize]) -> Entry {
        let half =
            |at: usize| u32::from_be_bytes(*bytes[at..].first_chunk().expect("inside 20 bytes"));
        let at = u64::from_be_bytes(*bytes[4..].first_chunk().expect("inside 20 bytes"));
        Entry {
            key_hash: half(0),
            at: LogOffset(at),
            seconds: half(12),
            previous: half(16),
        }
    }
}

/// The name of a file made at `wall`, as a number of 17 digits: `yyyyMMddHHmmssSSS`.
#[must_use]
pub fn name_at(wall: Millis, utc_offset_ms: i64) -> u64 {
    let local = wall.0 as i64 + utc_offset_ms;
    let (days, millis) = (
        local.div_euclid(86_400_000),
        local.rem_euclid(86_400_000) as u64,
    );
    let (year, month, day) = civil(days);
    let date = (year as u64 * 100 + month) * 100 + day;
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let time = (seconds / 3600 * 100 + seconds / 60 % 60) * 100 + seconds % 60;
    (date * 1_000_000 + time) * 1000 + millis
}

/// The date of a day counted from 1970-01-01, by eras of 400 years that begin in March.
fn civil(days: i64) -> (i64, u64, u64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = (of_year - (153 * march_month + 2) / 5 + 1) as u64;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    } as u64;
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// The number in a file's name, if it is one of ours.
#[must_use]
pub fn number(name: &str) -> Option<u64> {
    let plain = name.len() == 17 && name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|_| plain)
}

#[must_use]
pub fn file(dir: &Arc<FileDir>, number: u64) -> FileRef {
    FileRef {
        dir: dir.clone(),
        number,
    }
}

/// Where this broker notes how far the index files are whole: `store/ringmq/index`.
#[must_use]
pub fn note_path(root: &Path) -> PathBuf {
    root.join("ringmq").join("index")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_local_dates() {
        assert_eq!(name_at(Millis(0), 0), 19700101000000000);
        assert_eq!(name_at(Millis(1_700_000_000_123), 0), 20231114221320123);
        assert_eq!(name_at(Millis(1_709_164_800_000), -1), 20240228235959999);
        assert_eq!(name_at(Millis(1_709_164_800_000), 0), 20240229000000000);
    }

    #[test]
    fn a_file_of_the_usual_shape_has_420_000_040_bytes() {
        let usual = Shape {
            slots: 5_000_000,
            entries: 20_000_000,
        };
        assert_eq!(usual.file_bytes(), 420_000_040);
    }
}
