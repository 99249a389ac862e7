//! The log's next segment, ahead of need, and how full the disk is.
//!
//! A segment's blocks are zero-written before the log appends to them, so that appending overwrites
//! blocks that the file system has already placed (half the latency of new ones). A segment is
//! handed over with its first part zero-written; zeroing then goes on ahead of the log in steps,
//! and
//! `Mark::Prepared` follows it, until one whole segment lies ready behind the one in use. Should
//! the log come close, zeroing of that segment stops for good and its rest is appended to as it is:
//! slower, never refused, and never both at one place.

use std::path::PathBuf;

use shards::files::{Job, JobDone, JobError, Space};

use crate::ids::{LogOffset, Micros, Ticket};
use crate::role::{Effect, Effects, Mark};

pub const PREPARE: Ticket = Ticket(20);
pub const ZERO: Ticket = Ticket(21);
pub const SPACE: Ticket = Ticket(22);

/// A segment is handed over with so much of it zero-written.
pub const ZEROED_AT_FIRST_BYTES: u64 = 64 * 1024 * 1024;
const ZERO_STEP_BYTES: u64 = 4 * 1024 * 1024;
/// What lies ready beyond the log's end: so much, or so many seconds of its present rate.
const LEAD_BYTES_MIN: u64 = 256 * 1024 * 1024;
const LEAD_SECONDS: u64 = 30;
/// The rate is measured over at least this long.
const RATE_WINDOW_US: u64 = 1_000_000;
/// How near the log may come before zeroing stops.
const ZERO_LEAD_BYTES: u64 = 16 * 1024 * 1024;
const RETRY_MS: u64 = 1000;

#[derive(Clone, Debug)]
pub struct SegmentSettings {
    pub segment_bytes: u64,
    pub store: PathBuf,
    /// Percent of the disk: warn, and refuse sends.
    pub warn_percent: u64,
    pub full_percent: u64,
    pub space_interval_ms: u64,
}

#[derive(Debug)]
pub struct Segments {
    settings: SegmentSettings,
    written: LogOffset,
    /// End of the last segment that there is.
    end: LogOffset,
    /// The log may append below.
    prepared: LogOffset,
    preparing: bool,
    zeroing: bool,
    /// When the rate was last measured, where the log was then, and the rate in bytes per second.
    measured: (Micros, LogOffset),
    rate: u64,
    retry_at: Micros,
    space_at: Micros,
    asked_space: bool,
    warned: bool,
    /// The disk is too full for sends.
    refusing: bool,
    /// The last try to make a segment failed.
    no_segment: bool,
    pub ratio_percent: u64,
}

impl Segments {
    /// `prepared` lies inside the last segment, which ends at `end`.
    #[must_use]
    pub fn new(
        settings: SegmentSettings,
        written: LogOffset,
        prepared: LogOffset,
        end: LogOffset,
    ) -> Self {
        Segments {
            settings,
            written,
            end,
            prepared,
            preparing: false,
            zeroing: false,
            measured: (Micros(0), written),
            rate: 0,
            retry_at: Micros(0),
            space_at: Micros(0),
            asked_space: false,
            warned: false,
            refusing: false,
            no_segment: false,
            ratio_percent: 0,
        }
    }

    pub fn written(&mut self, written: LogOffset) {
        self.written = self.written.max(written);
    }

    #[must_use]
    pub fn written_mark(&self) -> LogOffset {
        self.written
    }

    pub fn run(&mut self, now: Micros, fx: &mut Effects<'_>) {
        if now >= self.space_at && !self.asked_space {
            self.asked_space = true;
            let path = self.settings.store.clone();
            fx.push(Effect::Slow {
                ticket: SPACE,
                job: Job::Space { path },
            });
        }
        self.measure(now);
        if now < self.retry_at || self.preparing || self.zeroing || !self.is_due() {
            return;
        }
        if self.prepared < self.end {
            self.zero_on(fx);
        } else {
            self.preparing = true;
            let zeroed_bytes = self.zeroed_at_first();
            let job = Job::PrepareSegment {
                start: self.end,
                zeroed_bytes,
            };
            fx.push(Effect::Slow {
                ticket: PREPARE,
                job,
            });
        }
    }

    fn measure(&mut self, now: Micros) {
        let (then, written) = self.measured;
        let time = now.0.saturating_sub(then.0);
        if time >= RATE_WINDOW_US {
            self.rate = self.written.since(written).saturating_mul(1_000_000) / time;
            self.measured = (now, self.written);
        }
    }

    /// Less lies ready than should.
    fn is_due(&self) -> bool {
        let lead = LEAD_BYTES_MIN.max(self.rate.saturating_mul(LEAD_SECONDS));
        self.prepared.0 < self.written.0.saturating_add(lead)
    }

    fn zeroed_at_first(&self) -> u64 {
        ZEROED_AT_FIRST_BYTES.min(self.settings.segment_bytes)
    }

    fn zero_on(&mut self, fx: &mut Effects<'_>) {
        if self.prepared.0 < self.written.0 + ZERO_LEAD_BYTES {
            self.prepared = self.end;
            return fx.mark(Mark::Prepared(self.prepared));
        }
        let start = LogOffset(self.end.0 - self.settings.segment_bytes);
        let from = self.prepared.since(start);
        let bytes = ZERO_STEP_BYTES.min(self.end.since(self.prepared));
        self.zeroing = true;
        fx.push(Effect::Slow {
            ticket: ZERO,
            job: Job::ZeroSegment { start, from, bytes },
        });
    }

    pub fn done(&mut self, now: Micros, ticket: Ticket, done: JobDone, fx: &mut Effects<'_>) {
        match (ticket, done) {
            (PREPARE, JobDone::Failed(error)) => {
                self.preparing = false;
                self.retry_at = now.plus_millis(RETRY_MS);
                self.failed(&error, fx);
            }
            (PREPARE, _) => {
                self.preparing = false;
                self.prepared = self.end.plus(self.zeroed_at_first());
                self.end = self.end.plus(self.settings.segment_bytes);
                if std::mem::take(&mut self.no_segment) {
                    log::info!("the log's next segment is there again");
                    fx.mark(Mark::NoSegment(0));
                }
                fx.mark(Mark::Prepared(self.prepared));
            }
            (ZERO, JobDone::Failed(error)) => {
                self.zeroing = false;
                log::warn!("a segment cannot be zero-written ({error}): its appends are slower");
                self.prepared = self.end;
                fx.mark(Mark::Prepared(self.prepared));
            }
            (ZERO, _) => {
                self.zeroing = false;
                self.prepared = self.prepared.plus(ZERO_STEP_BYTES).min(self.end);
                fx.mark(Mark::Prepared(self.prepared));
            }
            (SPACE, done) => {
                self.asked_space = false;
                self.space_at = now.plus_millis(self.settings.space_interval_ms);
                if let JobDone::Space(space) = done {
                    self.measured(space, fx);
                }
            }
            _ => {}
        }
    }

    fn failed(&mut self, error: &JobError, fx: &mut Effects<'_>) {
        if !std::mem::replace(&mut self.no_segment, true) {
            log::error!(
                "the log's next segment cannot be made ({error}): sends are refused (14) once the \
                 last one is full; free some space"
            );
            fx.mark(Mark::NoSegment(1));
        }
    }

    fn measured(&mut self, space: Space, fx: &mut Effects<'_>) {
        let all = (space.used + space.free).max(1);
        self.ratio_percent = (space.used * 100).div_ceil(all);
        let settings = &self.settings;
        let (warn, full) = (settings.warn_percent, settings.full_percent);
        if self.ratio_percent >= warn && !std::mem::replace(&mut self.warned, true) {
            let percent = self.ratio_percent;
            let store = settings.store.display();
            log::warn!("{store}: the disk is {percent}% full; at {full}% sends are refused (14)");
        }
        self.warned &= self.ratio_percent >= warn;
        self.tell_refusing(fx);
    }

    fn tell_refusing(&mut self, fx: &mut Effects<'_>) {
        let refusing = self.ratio_percent >= self.settings.full_percent;
        if refusing != std::mem::replace(&mut self.refusing, refusing) {
            let percent = self.ratio_percent;
            if refusing {
                log::error!("sends are refused (14): the disk is {percent}% full");
            } else {
                log::info!("sends are taken again: the disk is {percent}% full");
            }
            fx.mark(Mark::DiskFull(u64::from(refusing)));
        }
    }

    #[must_use]
    pub fn deadline(&self) -> Option<Micros> {
        let space = (!self.asked_space).then_some(self.space_at);
        let busy = self.preparing || self.zeroing;
        let work = !busy && self.is_due();
        [space, work.then_some(self.retry_at)]
            .into_iter()
            .flatten()
            .min()
    }
}
