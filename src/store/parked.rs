//! Appends kept aside while the log waits for a segment or for room: a bounded queue whose bytes
//! lie in one ring, so that nothing is allocated after start.

use std::collections::VecDeque;

use crate::ids::{Micros, QueueKey, RoleId};

/// What a shard asked for; its bytes travel beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// Who gets the answer.
    pub from: RoleId,
    /// The asker's number.
    pub ask: u64,
    /// The queue of all its records.
    pub queue: QueueKey,
    /// How many records.
    pub count: u32,
    /// Whether the answer waits until it is stored.
    pub wait: bool,
}

struct Entry {
    append: Append,
    /// Absolute position of the bytes, which do not wrap.
    start: u64,
    len: usize,
    deadline: Micros,
}

/// The queue, oldest first.
#[derive(Default)]
pub struct Parked {
    entries: VecDeque<Entry>,
    entries_max: usize,
    bytes: Vec<u8>,
    /// Absolute position behind the newest bytes.
    head: u64,
}

impl Parked {
    /// Holds up to `entries_max` appends with `bytes_max` bytes in all. The bytes cost memory only
    /// once they were used.
    #[must_use]
    pub fn new(entries_max: usize, bytes_max: usize) -> Self {
        Parked {
            entries: VecDeque::with_capacity(entries_max),
            entries_max,
            bytes: vec![0; bytes_max],
            head: 0,
        }
    }

    /// Keeps an append; false if there is no room.
    #[must_use]
    pub fn push(&mut self, append: Append, bytes: &[u8], deadline: Micros) -> bool {
        let Some(start) = self.place(bytes.len() as u64) else {
            return false;
        };
        let at = (start % self.bytes.len() as u64) as usize;
        self.bytes[at..][..bytes.len()].copy_from_slice(bytes);
        self.head = start + bytes.len() as u64;
        self.entries.push_back(Entry {
            append,
            start,
            len: bytes.len(),
            deadline,
        });
        true
    }

    /// Where `len` bytes in one piece would start.
    fn place(&self, len: u64) -> Option<u64> {
        let capacity = self.bytes.len() as u64;
        if self.entries.len() == self.entries_max || len > capacity {
            return None;
        }
        let lap = self.head % capacity;
        let next_lap = self.head - lap + if lap == 0 { 0 } else { capacity };
        let Some(oldest) = self.entries.front() else {
            return Some(next_lap);
        };
        let start = if lap + len > capacity {
            next_lap
        } else {
            self.head
        };
        (start + len - oldest.start <= capacity).then_some(start)
    }

    /// The oldest append and its bytes.
    #[must_use]
    pub fn front(&self) -> Option<(Append, &[u8])> {
        let oldest = self.entries.front()?;
        let at = (oldest.start % self.bytes.len() as u64) as usize;
        Some((oldest.append, &self.bytes[at..][..oldest.len]))
    }

    /// When the oldest append has waited long enough.
    #[must_use]
    pub fn deadline(&self) -> Option<Micros> {
        self.entries.front().map(|oldest| oldest.deadline)
    }

    /// Lets the oldest append go.
    pub fn pop(&mut self) -> Option<Append> {
        self.entries.pop_front().map(|oldest| oldest.append)
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn append(ask: u64) -> Append {
        Append {
            from: RoleId(8),
            ask,
            queue: QueueKey(0),
            count: 1,
            wait: true,
        }
    }

    #[test]
    fn the_longest_append_fits_an_empty_queue_wherever_the_last_one_ended() {
        let mut parked = Parked::new(10, 100);
        assert!(parked.push(append(1), &[7; 33], Micros(0)));
        assert!(!parked.push(append(2), &[8; 100], Micros(0)));
        parked.pop();
        assert!(parked.push(append(3), &[9; 100], Micros(0)));
        assert!(!parked.push(append(4), &[1; 1], Micros(0)));
        assert_eq!(parked.front(), Some((append(3), &[9; 100][..])));
    }

    proptest! {
        /// Against a plain queue of vectors: same order, same bytes, never more than allowed.
        #[test]
        fn what_is_kept_comes_out_in_order(
            steps in prop::collection::vec(prop::option::of(0..40usize), 0..200),
        ) {
            let mut parked = Parked::new(5, 100);
            let mut model: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
            for (ask, step) in steps.into_iter().enumerate() {
                let ask = ask as u64;
                match step {
                    Some(len) => {
                        let bytes = vec![ask as u8; len];
                        if parked.push(append(ask), &bytes, Micros(ask)) {
                            model.push_back((ask, bytes));
                        } else {
                            let held: usize = model.iter().map(|(_, bytes)| bytes.len()).sum();
                            prop_assert!(model.len() == 5 || held + len + 80 > 100);
                        }
                    }
                    None => {
                        let expected = model.pop_front();
                        let front = parked.front().map(|(a, bytes)| (a.ask, bytes.to_vec()));
                        prop_assert_eq!(&front, &expected);
                        prop_assert_eq!(parked.pop().map(|a| a.ask), expected.map(|e| e.0));
                    }
                }
                let held: usize = model.iter().map(|(_, bytes)| bytes.len()).sum();
                prop_assert!(model.len() <= 5 && held <= 100);
            }
        }
    }
}
