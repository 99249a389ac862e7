//! Looking at one record after the other, through one window of bounded length.

use std::io;

use shards::files::Files;

use super::files::Found;
use crate::ids::{LogOffset, Millis};
use crate::limits;
use crate::store::checkpoint::JavaPart;
use crate::wire::record::{BadRecord, Check, Checked, LOG_OFFSET_AT, Record, Untrusted};

/// The unit of reading.
pub(super) const READ_BYTES: u64 = 1 << 20;
/// Size, magic and whatever else stands before the end of the log offset: less than any record.
const HEAD_BYTES: u64 = LOG_OFFSET_AT as u64 + 8;

/// What is at a position.
pub(super) enum Look<'a> {
    Record(Record<'a>),
    /// The rest of the segment is blank.
    Blank,
    Bad,
    /// A record by its head, of so many bytes: more than this broker can hold.
    TooLong(u64),
    /// The device failed to read.
    Unreadable,
}

/// A window on the log, at most as long as the longest record.
#[derive(Default)]
pub(super) struct Scanner {
    window: Vec<u8>,
    at: LogOffset,
}

impl Scanner {
    /// What is at `at`, inside a segment: a record counts if RocketMQ's test, the body's checksum
    /// and its position are right, and if a blank record fits behind it.
    pub fn look(&mut self, files: &mut dyn Files, found: &Found, at: LogOffset) -> Look<'_> {
        let left = found.segments.left(at);
        let Ok(head) = self.view(files, found, at, HEAD_BYTES.min(left)) else {
            return Look::Unreadable;
        };
        let size = match Untrusted(head).check(Check::default()) {
            Checked::Bad(BadRecord::Cut { size }) => u64::from(size),
            Checked::Blank { len } if u64::from(len) == left => return Look::Blank,
            _ => return Look::Bad,
        };
        if !found.segments.fits(at, size) {
            return Look::Bad;
        }
        if size > limits::RECORD_BYTES_MAX as u64 {
            return if stands_at(head, at) {
                Look::TooLong(size)
            } else {
                Look::Bad
            };
        }
        let Ok(bytes) = self.view(files, found, at, size) else {
            return Look::Unreadable;
        };
        let check = Check {
            position: Some(at.0),
            body_crc: true,
            no_nul: false,
        };
        match Untrusted(bytes).check(check) {
            Checked::Message(record) => Look::Record(record),
            _ => Look::Bad,
        }
    }

    /// `len` bytes from `at` on, inside one segment. Reads further than asked for, unless the
    /// device fails there.
    fn view(
        &mut self,
        files: &mut dyn Files,
        found: &Found,
        at: LogOffset,
        len: u64,
    ) -> io::Result<&[u8]> {
        let end = self.at.plus(self.window.len() as u64);
        if at < self.at || at.plus(len) > end {
            let ahead = READ_BYTES.min(found.segments.left(at)).max(len);
            self.read(files, found, at, ahead)
                .or_else(|_| self.read(files, found, at, len))?;
        }
        Ok(&self.window[at.since(self.at) as usize..][..len as usize])
    }

    fn read(
        &mut self,
        files: &mut dyn Files,
        found: &Found,
        at: LogOffset,
        len: u64,
    ) -> io::Result<()> {
        self.at = at;
        self.window.resize(len as usize, 0);
        found
            .read(files, at, &mut self.window)
            .inspect_err(|_| self.window.clear())
    }
}

/// Whether the head of a record says that it stands at `at`.
pub(super) fn stands_at(head: &[u8], at: LogOffset) -> bool {
    head.get(LOG_OFFSET_AT..)
        .and_then(|rest| rest.first_chunk())
        .is_some_and(|field| u64::from_be_bytes(*field) == at.0)
}

/// Whether topic or properties hold a zero byte.
pub(super) fn has_nul(record: &Record<'_>) -> bool {
    record.topic().contains('\0') || record.properties().has_nul()
}

/// Up to where a store that Java used last is on stable storage at least: the start of the segment
/// where Java's own recovery would begin, by the times of its checkpoint (store-behaviour 6.3).
pub(super) fn java_mark(
    files: &mut dyn Files,
    scanner: &mut Scanner,
    found: &Found,
    java: JavaPart,
) -> LogOffset {
    let trusted = java.trusted_until();
    let starts = found.starts.iter().rev().copied();
    starts
        .filter(|_| trusted > Millis(0))
        .find(|start| match scanner.look(files, found, *start) {
            Look::Record(record) => u64::try_from(record.store_timestamp())
                .is_ok_and(|timestamp| (1..=trusted.0).contains(&timestamp)),
            _ => false,
        })
        .unwrap_or(found.first())
}
