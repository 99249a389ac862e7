//! The log's positions, and the one door that moves them.

use crate::ids::LogOffset;
use crate::store::FlushMode;

/// Always `first <= dispatched <= visible <= written` and `durable <= written`; `visible` is
/// `durable` in SYNC and `written` in ASYNC. Each lies between two records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    mode: FlushMode,
    first: LogOffset,
    dispatched: LogOffset,
    visible: LogOffset,
    durable: LogOffset,
    written: LogOffset,
}

/// One mark and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// Start of the first segment that is still there.
    First(LogOffset),
    /// End of what is in the consume queues.
    Dispatched(LogOffset),
    /// End of what is on stable storage; in SYNC consumers see it.
    Durable(LogOffset),
    /// End of what is in its segment; in ASYNC consumers see it.
    Written(LogOffset),
}

impl Watermarks {
    /// A log that was read back from `first` to `end` and made durable as a whole; nothing of it
    /// is known to be dispatched.
    #[must_use]
    pub fn new(mode: FlushMode, first: LogOffset, end: LogOffset) -> Self {
        let marks = Watermarks {
            mode,
            first,
            dispatched: first,
            visible: end,
            durable: end,
            written: end,
        };
        marks.check();
        marks
    }

    /// Moves one mark, and `visible` with the one it follows.
    ///
    /// # Panics
    /// If the mark would go back or pass another: whoever moves it is wrong, and whatever would be
    /// acknowledged next could be lost.
    pub fn advance(&mut self, step: Advance) {
        let (mark, to) = match step {
            Advance::First(to) => (&mut self.first, to),
            Advance::Dispatched(to) => (&mut self.dispatched, to),
            Advance::Durable(to) => (&mut self.durable, to),
            Advance::Written(to) => (&mut self.written, to),
        };
        assert!(*mark <= to, "{step:?} goes back from {mark:?}");
        *mark = to;
        self.visible = match self.mode {
            FlushMode::Sync => self.durable,
            FlushMode::Async => self.written,
        };
        self.check();
    }

    fn check(&self) {
        assert!(self.first <= self.dispatched, "{self:?}");
        assert!(self.dispatched <= self.visible, "{self:?}");
        assert!(self.visible <= self.written, "{self:?}");
        assert!(self.durable <= self.written, "{self:?}");
    }

    /// Start of the first segment that is still there.
    #[must_use]
    pub fn first(&self) -> LogOffset {
        self.first
    }

    /// End of what is in the consume queues.
    #[must_use]
    pub fn dispatched(&self) -> LogOffset {
        self.dispatched
    }

    /// End of what consumers, index and replicas may see.
    #[must_use]
    pub fn visible(&self) -> LogOffset {
        self.visible
    }

    /// End of what is on stable storage.
    #[must_use]
    pub fn durable(&self) -> LogOffset {
        self.durable
    }

    /// End of what is in its segment.
    #[must_use]
    pub fn written(&self) -> LogOffset {
        self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(bytes: u64) -> LogOffset {
        LogOffset(bytes)
    }

    #[test]
    fn visible_is_durable_in_sync_and_written_in_async() {
        for (mode, visible) in [(FlushMode::Sync, 150), (FlushMode::Async, 200)] {
            let mut marks = Watermarks::new(mode, at(0), at(100));
            marks.advance(Advance::Written(at(200)));
            marks.advance(Advance::Durable(at(150)));
            assert_eq!(marks.visible(), at(visible), "{mode:?}");
            assert_eq!((marks.durable(), marks.written()), (at(150), at(200)));
        }
    }

    #[test]
    #[should_panic(expected = "goes back")]
    fn a_mark_never_goes_back() {
        let mut marks = Watermarks::new(FlushMode::Sync, at(0), at(100));
        marks.advance(Advance::Written(at(99)));
    }

    proptest! {
        /// Steps that break the order are refused by a panic; all others keep it.
        #[test]
        fn the_order_holds_after_every_step(
            steps in prop::collection::vec((0..4u8, 0..1000u64), 0..30),
            sync in any::<bool>(),
        ) {
            let mode = if sync { FlushMode::Sync } else { FlushMode::Async };
            let mut marks = Watermarks::new(mode, at(10), at(100));
            for (kind, to) in steps {
                let step = [Advance::First, Advance::Dispatched, Advance::Durable, Advance::Written]
                    [usize::from(kind)](at(to));
                let mut next = marks;
                let moved = std::panic::catch_unwind(move || {
                    next.advance(step);
                    next
                });
                if let Ok(next) = moved {
                    marks = next;
                }
                prop_assert!(marks.first() <= marks.dispatched());
                prop_assert!(marks.dispatched() <= marks.visible());
                prop_assert!(marks.visible() <= marks.written());
                prop_assert!(marks.durable() <= marks.written());
            }
        }
    }
}
