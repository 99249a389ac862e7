//! Following the log: record after record from a position up to a mark, out of the tail while it
//! holds them, else out of the segments. Dispatch after a crash, a dispatch that lags and a live
//! one are this same code.

use shards::chunk::Tail;
use shards::role::ReadAt;

use crate::ids::{LogOffset, LogRange, Ticket};
use crate::role::{Effect, Effects};
use crate::wire::record::{BadRecord, Check, Checked, Record, Untrusted};

/// What is looked at in one go, unless one record is longer.
const WINDOW_BYTES: u64 = 64 * 1024;
/// One turn's work; the rest waits for the next, so that other roles of the core get theirs.
const TURN_BYTES: u64 = 1024 * 1024;

/// A place in the log and how to read on from it.
pub struct Follow {
    at: LogOffset,
    segment_bytes: u64,
    tail: Tail,
    ticket: Ticket,
    reading: bool,
    /// Bytes that the next record is known to need.
    wanted: u64,
    stuck: Option<BadRecord>,
    scratch: Vec<u8>,
}

/// Why following stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything below the mark was seen.
    Caught,
    /// This turn's share is done; go on in the next.
    More,
    /// `Input::Read` with the follower's ticket will go on.
    Reading,
    /// What stands at the follower's place is no record, although it was acknowledged: rot. The
    /// follower stays there.
    Stuck(BadRecord),
}

impl Follow {
    /// `ticket` is used for all reads, one at a time.
    #[must_use]
    pub fn new(at: LogOffset, segment_bytes: u64, tail: Tail, ticket: Ticket) -> Self {
        let scratch = Vec::new();
        Follow {
            at,
            segment_bytes,
            tail,
            ticket,
            reading: false,
            wanted: 0,
            stuck: None,
            scratch,
        }
    }

    /// Everything below was seen.
    #[must_use]
    pub fn at(&self) -> LogOffset {
        self.at
    }

    #[must_use]
    pub fn is_reading(&self) -> bool {
        self.reading
    }

    /// Goes on up to `upto`, which is the end of a record or of a segment and was published by a
    /// mark.
    pub fn run(
        &mut self,
        upto: LogOffset,
        fx: &mut Effects<'_>,
        mut each: impl FnMut(&Record<'_>),
    ) -> Progress {
        if let Some(bad) = self.stuck {
            return Progress::Stuck(bad);
        }
        if self.reading {
            return Progress::Reading;
        }
        let start = self.at;
        while self.at < upto {
            if self.at.since(start) >= TURN_BYTES {
                return Progress::More;
            }
            let range = self.window(upto);
            let tail = self.tail.clone();
            let Some(lease) = tail.lease(range) else {
                let at = ReadAt::Log(range.at);
                fx.push(Effect::Read {
                    ticket: self.ticket,
                    at,
                    len: range.len,
                });
                self.reading = true;
                return Progress::Reading;
            };
            let mut scratch = std::mem::take(&mut self.scratch);
            let stuck = self.consume(lease.whole(&mut scratch), &mut each);
            self.scratch = scratch;
            if let Some(bad) = stuck {
                return Progress::Stuck(bad);
            }
        }
        Progress::Caught
    }

    /// Takes the bytes of `Input::Read`; then call [`Follow::run`] again.
    pub fn take_read(&mut self, bytes: &[u8], mut each: impl FnMut(&Record<'_>)) {
        assert!(self.reading, "nothing was being read");
        self.reading = false;
        self.consume(bytes, &mut each);
    }

    /// A read failed; the next [`Follow::run`] tries again.
    pub fn read_failed(&mut self) {
        self.reading = false;
    }

    fn window(&self, upto: LogOffset) -> LogRange {
        let segment_end = (self.at.0 / self.segment_bytes + 1) * self.segment_bytes;
        let end = segment_end.min(upto.0);
        let len = self.wanted.max(WINDOW_BYTES).min(end - self.at.0);
        LogRange {
            at: self.at,
            len: len as u32,
        }
    }

    fn consume(&mut self, bytes: &[u8], each: &mut impl FnMut(&Record<'_>)) -> Option<BadRecord> {
        let start = self.at;
        while self.at.since(start) < bytes.len() as u64 {
            let rest = &bytes[self.at.since(start) as usize..];
            let check = Check {
                position: Some(self.at.0),
                body_crc: false,
                no_nul: false,
            };
            match Untrusted(rest).check(check) {
                Checked::Message(record) => {
                    each(&record);
                    self.at = self.at.plus(u64::from(record.size()));
                }
                Checked::Blank { .. } => {
                    let segment = self.at.0 / self.segment_bytes;
                    self.at = LogOffset((segment + 1) * self.segment_bytes);
                    self.wanted = 0;
                    return None;
                }
                Checked::BadWithSize(size) => {
                    log::error!(
                        "the record of {size} bytes at {} is damaged: skipped",
                        self.at
                    );
                    self.at = self.at.plus(u64::from(size));
                }
                Checked::Bad(BadRecord::Cut { size }) if u64::from(size) > rest.len() as u64 => {
                    let looked_at_all_of_it = self.wanted >= u64::from(size) && self.at == start;
                    if looked_at_all_of_it {
                        return self.stuck_at(BadRecord::Cut { size });
                    }
                    self.wanted = u64::from(size);
                    return None;
                }
                Checked::Bad(BadRecord::NoHead) if self.at > start => return None,
                Checked::Bad(bad) => return self.stuck_at(bad),
            }
        }
        self.wanted = 0;
        None
    }

    fn stuck_at(&mut self, bad: BadRecord) -> Option<BadRecord> {
        log::error!(
            "log position {} holds no record ({bad}), although it was acknowledged: the file is \
             damaged; stop the broker and run ringmq-store verify",
            self.at
        );
        self.stuck = Some(bad);
        self.stuck
    }
}
