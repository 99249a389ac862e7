//! Numbers that a shard makes up: the unique keys of messages that came without one, and any number
//! below another. Both come from seeds that are arguments.

use super::shard::State;
use crate::ids::Millis;
use crate::wire::message_id::{MessageId, UniqueKey};

impl State {
    /// Java's form of a message id, for clients that make none. The shard's number keeps the keys
    /// of two cores apart.
    pub(super) fn make_unique_key(&mut self) -> MessageId {
        self.keys_made = self.keys_made.wrapping_add(1);
        let key = UniqueKey {
            ip: self.config.store_host.ip(),
            process: self.config.process_id,
            constant: self
                .config
                .unique_constant
                .wrapping_add(self.config.number as u32),
            month_ms: millis_of_month(self.now.wall),
            counter: self.keys_made,
        };
        key.encode()
    }
}

/// A seeded generator (SplitMix64): only spreads sends over queues.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Any number below `end`; `None` if there is none.
    pub fn below(&mut self, end: u32) -> Option<u32> {
        let end = u64::from(end);
        (end > 0).then(|| (((self.next() >> 32) * end) >> 32) as u32)
    }
}

/// Milliseconds since the first of the month, UTC.
fn millis_of_month(wall: Millis) -> i32 {
    const DAY_MS: u64 = 86_400_000;
    let days = wall.0 / DAY_MS;
    let day = day_of_month(days);
    ((day - 1) * DAY_MS + wall.0 % DAY_MS) as i32
}

/// The day of the month, from 1, of a day counted from 1970-01-01: years are taken to begin in
/// March, so that the leap day is their last.
fn day_of_month(days: u64) -> u64 {
    const DAYS_OF_ERA: u64 = 146_097;
    let days = days + 719_468;
    let of_era = days % DAYS_OF_ERA;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    of_year - (153 * month + 2) / 5 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected days from `date -u`.
    #[test]
    fn days_of_the_month_are_those_of_the_calendar() {
        let days = [
            (0, 1),
            (1_795_986_781, 29),
            (951_782_400, 29),   // 2000-02-29
            (951_868_800, 1),    // 2000-03-01
            (1_709_164_800, 29), // 2024-02-29
            (4_107_542_400, 1),  // 2100-03-01
            (4_107_456_000, 28), // 2100-02-28
        ];
        for (seconds, day) in days {
            assert_eq!(day_of_month(seconds / 86_400), day, "{seconds}");
        }
        assert_eq!(millis_of_month(Millis(951_868_800_007)), 7);
    }

    #[test]
    fn numbers_below_another_are_spread_evenly() {
        let mut random = Random(7);
        let mut counts = [0; 5];
        for _ in 0..10_000 {
            counts[random.below(5).expect("there are five") as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (1800..2200).contains(count)),
            "{counts:?}"
        );
        assert_eq!(random.below(0), None);
        assert_eq!(random.below(1), Some(0));
    }
}
