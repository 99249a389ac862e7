//! What lies behind the log's end: first looked at, then erased.
//!
//! It must be zero before anything is appended. Else a later crash could leave a record of today
//! that ends just where an old one begins, and the old one would be taken for a part of the log.

use shards::files::Files;
use shards::role::BLOCK_BYTES;

use super::files::Found;
use super::scan::{Look, READ_BYTES, Scanner, has_nul, stands_at};
use super::{Cut, Refused};
use crate::ids::LogOffset;
use crate::limits;

/// The first bytes of both record magics, and how far into a record they stand.
const MAGIC_START: [u8; 3] = [0xDA, 0xA3, 0x20];
const MAGIC_AT: usize = 4;
/// Read beyond a piece, so that a record's head that begins in it is seen whole.
const OVERLAP_BYTES: u64 = 36;

/// What was found behind the log's end.
#[derive(Default)]
pub(super) struct Survey {
    pub cut: Cut,
    /// A valid record starts more than one batch beyond the end or in a later segment: not of the
    /// write that was under way.
    pub later_record: bool,
    /// The device failed to read there.
    pub unreadable: Option<LogOffset>,
    /// Pieces that are not all zero: start and length, inside one segment each.
    dirty: Vec<(LogOffset, u64)>,
}

impl Survey {
    /// Looks at everything from `end` to the end of the last segment.
    pub fn make(
        files: &mut dyn Files,
        scanner: &mut Scanner,
        found: &Found,
        end: LogOffset,
    ) -> Survey {
        let mut survey = Survey::default();
        let mut bytes = Vec::new();
        let mut candidate = end.plus(1);
        for (at, len) in pieces(found, end, found.end()) {
            let seen = (len + OVERLAP_BYTES).min(found.segments.left(at));
            bytes.resize(seen as usize, 0);
            if found.read(files, at, &mut bytes).is_err() {
                survey.unreadable = Some(at);
                return survey;
            }
            let Some(last) = last_nonzero(&bytes[..len as usize]) else {
                continue;
            };
            survey.dirty.push((at, len));
            survey.cut.bytes = at.plus(last as u64 + 1).since(end);
            let piece = Piece {
                at,
                len,
                bytes: &bytes,
            };
            survey.count_records(files, scanner, found, end, &piece, &mut candidate);
            if survey.unreadable.is_some() {
                return survey;
            }
        }
        survey
    }

    /// Counts the valid records that start in one piece, from `candidate` on.
    fn count_records(
        &mut self,
        files: &mut dyn Files,
        scanner: &mut Scanner,
        found: &Found,
        end: LogOffset,
        piece: &Piece<'_>,
        candidate: &mut LogOffset,
    ) {
        while let Some(at) = piece.next_head(*candidate) {
            *candidate = at.plus(1);
            match scanner.look(files, found, at) {
                Look::Record(record) if !has_nul(&record) => {
                    self.cut.records += 1;
                    self.later_record |=
                        at >= end.plus(limits::WRITE_BYTES_MAX) || at >= found.segments.end_of(end);
                    *candidate = at.plus(u64::from(record.size()));
                }
                Look::Unreadable => {
                    self.unreadable = Some(at);
                    return;
                }
                _ => {}
            }
        }
    }
}

/// A piece of a segment, and some bytes behind it.
struct Piece<'a> {
    at: LogOffset,
    len: u64,
    bytes: &'a [u8],
}

impl Piece<'_> {
    /// Where, from `from` on, something starts that looks like a record: its magic is right and
    /// it says that it stands there.
    fn next_head(&self, from: LogOffset) -> Option<LogOffset> {
        let from = from.max(self.at).since(self.at) as usize;
        let magics = from + MAGIC_AT..(self.len as usize + MAGIC_AT).min(self.bytes.len());
        let magics = self.bytes.get(magics)?;
        let mut heads = magics
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == MAGIC_START[0])
            .map(|(index, _)| from + index);
        heads
            .find(|head| {
                self.bytes[head + MAGIC_AT..].starts_with(&MAGIC_START)
                    && stands_at(&self.bytes[*head..], self.at.plus(*head as u64))
            })
            .map(|head| self.at.plus(head as u64))
    }
}

/// Erases what the survey found: in the segment of `end` its blocks that are not zero, and all
/// later segments from the first one on that holds anything. Segments prepared behind the end and
/// never used stay.
pub(super) fn erase(
    files: &mut dyn Files,
    found: &mut Found,
    end: LogOffset,
    survey: &Survey,
) -> Result<(), Refused> {
    let segment_end = found.segments.end_of(end);
    let in_segment = |piece: &&(LogOffset, u64)| piece.0 < segment_end;
    for (at, len) in survey.dirty.iter().take_while(in_segment) {
        zero_blocks(files, found, *at, *len)?;
    }
    match survey.dirty.iter().find(|(at, _)| *at >= segment_end) {
        Some((at, _)) => {
            let start = found.segments.start_of(*at);
            found.remove_from(files, start)
        }
        None => Ok(()),
    }
}

/// Writes zeros over the blocks of a piece that are not zero, neighbours together.
fn zero_blocks(
    files: &mut dyn Files,
    found: &Found,
    at: LogOffset,
    len: u64,
) -> Result<(), Refused> {
    let mut bytes = vec![0; len as usize];
    found
        .read(files, at, &mut bytes)
        .map_err(Refused::io("read", &found.path_of(at)))?;
    let mut dirty: Option<(u64, u64)> = None;
    for (from, to) in blocks(at, len) {
        if last_nonzero(&bytes[from as usize..to as usize]).is_some() {
            dirty = Some((dirty.map_or(from, |run| run.0), to));
        } else if let Some(run) = dirty.take() {
            zero(files, found, at, run)?;
        }
    }
    match dirty {
        Some(run) => zero(files, found, at, run),
        None => Ok(()),
    }
}

fn zero(
    files: &mut dyn Files,
    found: &Found,
    at: LogOffset,
    (from, to): (u64, u64),
) -> Result<(), Refused> {
    found.write(files, at.plus(from), &vec![0; (to - from) as usize])
}

/// The blocks of a piece, relative to its start; the first may be cut.
fn blocks(at: LogOffset, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let first = at.0 % BLOCK_BYTES;
    (0..(first + len).div_ceil(BLOCK_BYTES)).map(move |number| {
        let from = (number * BLOCK_BYTES).saturating_sub(first);
        let to = ((number + 1) * BLOCK_BYTES - first).min(len);
        (from, to)
    })
}

/// `from .. to` in reads that do not cross segments.
fn pieces(
    found: &Found,
    from: LogOffset,
    to: LogOffset,
) -> impl Iterator<Item = (LogOffset, u64)> + use<> {
    let segments = found.segments;
    let mut at = from;
    std::iter::from_fn(move || {
        let len = READ_BYTES - at.0 % READ_BYTES;
        let piece = (at, len.min(segments.left(at)));
        (at < to).then(|| {
            at = at.plus(piece.1);
            piece
        })
    })
}

fn last_nonzero(bytes: &[u8]) -> Option<usize> {
    let is_zero = |chunk: &[u8]| chunk.iter().fold(0, |all, byte| all | byte) == 0;
    if bytes.chunks(4096).all(is_zero) {
        return None;
    }
    bytes.iter().rposition(|byte| *byte != 0)
}
