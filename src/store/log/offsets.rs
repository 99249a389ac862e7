//! The next offset of every queue.

use std::collections::BTreeMap;

use crate::broker::news::{Boot, Topic};
use crate::ids::{QueueKey, QueueOffset};

const UNKNOWN: u64 = u64::MAX;

/// By queue key; grows with the news of topics only.
pub struct NextOffsets {
    next: Vec<u64>,
    topics: BTreeMap<String, Vec<QueueKey>>,
}

impl NextOffsets {
    /// From what recovery counted.
    #[must_use]
    pub fn new(boot: &Boot) -> Self {
        let mut offsets = NextOffsets {
            next: Vec::new(),
            topics: BTreeMap::new(),
        };
        for topic in &boot.topics {
            offsets.learn(topic);
        }
        for queue in &boot.queues {
            *offsets.slot(queue.key) = queue.next.0;
        }
        offsets
    }

    /// Takes over a new or changed topic: queues not known yet start at 0.
    pub fn learn(&mut self, topic: &Topic) {
        for queue in &topic.queues {
            let next = self.slot(*queue);
            if *next == UNKNOWN {
                *next = 0;
            }
        }
        self.topics.insert(topic.name.clone(), topic.queues.clone());
    }

    /// The topic's queues take no more.
    pub fn forget(&mut self, topic: &str) {
        for queue in self.topics.remove(topic).unwrap_or_default() {
            *self.slot(queue) = UNKNOWN;
        }
    }

    /// The offset that the next record of a queue gets.
    #[must_use]
    pub fn get(&self, queue: QueueKey) -> Option<QueueOffset> {
        let next = *self.next.get(queue.0 as usize)?;
        (next != UNKNOWN).then_some(QueueOffset(next))
    }

    /// Records took offsets up to `next`.
    pub fn advance(&mut self, queue: QueueKey, next: QueueOffset) {
        let slot = self.slot(queue);
        assert!(*slot <= next.0, "{queue:?} goes back from {slot} to {next}");
        *slot = next.0;
    }

    fn slot(&mut self, queue: QueueKey) -> &mut u64 {
        let index = queue.0 as usize;
        if index >= self.next.len() {
            self.next.resize(index + 1, UNKNOWN);
        }
        &mut self.next[index]
    }
}
