//! The answers: each append gets exactly one.

use super::Log;
use crate::role::{AppendRefused, Effects, Letter, Stored};
use crate::store::parked::Append;

impl Log {
    /// Answers what is covered by published marks.
    pub(super) fn answer_written(&mut self, fx: &mut Effects<'_>) {
        while let Some(front) = self.waiting.front()
            && front.end <= self.answerable
        {
            if !front.answered {
                answer(front.append, Ok(front.stored), fx);
            }
            self.waiting.pop_front();
            self.expired = self.expired.saturating_sub(1);
        }
    }

    /// Answers appends whose write takes longer than `syncFlushTimeout`: they are stored, but the
    /// outcome of the flush is open.
    pub(super) fn answer_expired(&mut self, fx: &mut Effects<'_>) {
        while let Some(append) = self.waiting.get_mut(self.expired)
            && append.deadline <= self.now
        {
            if !append.answered {
                append.answered = true;
                self.counters.flush_timeouts.add(1);
                let stored = Stored {
                    flush_timed_out: true,
                    ..append.stored
                };
                answer(append.append, Ok(stored), fx);
            }
            self.expired += 1;
        }
    }

    /// Tells all who wait that the log failed.
    pub(super) fn answer_poisoned(&mut self, fx: &mut Effects<'_>) {
        while let Some(waiting) = self.waiting.pop_front() {
            if !waiting.answered {
                self.refuse(waiting.append, AppendRefused::Poisoned, fx);
            }
        }
        self.expired = 0;
        self.refuse_parked(AppendRefused::Poisoned, fx);
    }

    /// Places what was kept aside, oldest first, and refuses what waited too long.
    pub(super) fn serve_parked(&mut self, fx: &mut Effects<'_>) {
        if self.parked.is_empty() {
            return;
        }
        let mut parked = std::mem::take(&mut self.parked);
        while let Some((append, payload)) = parked.front() {
            match self.try_place(append, payload, fx) {
                Ok(()) => self.submit_if_full(fx),
                Err(hold) => {
                    let waited = parked.deadline().is_some_and(|until| until <= self.now);
                    if !waited && !hold.is_final() {
                        break;
                    }
                    self.refuse_held(append, hold, fx);
                }
            }
            parked.pop();
        }
        self.parked = parked;
    }

    pub(super) fn refuse_parked(&mut self, why: AppendRefused, fx: &mut Effects<'_>) {
        while let Some(append) = self.parked.pop() {
            self.refuse(append, why, fx);
        }
    }

    pub(super) fn refuse(&mut self, append: Append, why: AppendRefused, fx: &mut Effects<'_>) {
        match why {
            AppendRefused::Poisoned => self.counters.refused_poisoned.add(1),
            AppendRefused::Stopping => self.counters.refused_stopping.add(1),
            AppendRefused::Busy | AppendRefused::NoSegment | AppendRefused::NoQueue => {}
        }
        answer(append, Err(why), fx);
    }
}

pub(super) fn answer(append: Append, result: Result<Stored, AppendRefused>, fx: &mut Effects<'_>) {
    let ask = append.ask;
    fx.tell(append.from, 0, |_| Letter::Appended { ask, result })
        .expect("the asker holds a credit, so the way back has room");
}
