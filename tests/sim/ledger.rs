//! What was sent, what was answered, what was seen: and whether the store keeps its word.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::decoder::{Log, Record};

/// A promise that was broken, in words.
pub type Broken = String;

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub log: u64,
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Not answered, or answered with an outcome that is open.
    Open,
    /// Answered "stored"; `durable`: after its flush.
    Stored { place: Place, durable: bool },
    /// Answered "not stored".
    Refused,
    /// Found by a start, which made it durable.
    Recovered(Place),
    /// Not found by a start, as was allowed: it must never come back.
    Lost,
}

/// One message that a client tried to send.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub topic: String,
    /// What the client asked for; -1 is any.
    pub queue: i32,
    pub body: Vec<u8>,
    pub flag: i32,
    pub born: i64,
    pub peer: SocketAddr,
    /// The client's own, at the start of what is stored.
    pub properties: Vec<u8>,
    pub fate: Fate,
}

/// Queue: topic and number.
pub type Queue = (String, i32);

#[derive(Clone, Default)]
pub struct Ledger {
    pub attempts: Vec<Attempt>,
    /// Which message stands at a queue's offset, as answers and consumers said.
    known: BTreeMap<(Queue, u64), u64>,
    /// What consumers saw: queue and offset -> message and where it stood.
    seen: BTreeMap<(Queue, u64), (u64, u64)>,
    /// One beyond each queue's last acknowledged offset.
    pub ends: BTreeMap<Queue, u64>,
    /// Records found by the last start.
    pub recovered: u64,
    pub acknowledged: u64,
    pub consumed: u64,
}

impl Ledger {
    /// The next message's number: its property `SIM`.
    pub fn next(&self) -> u64 {
        self.attempts.len() as u64
    }

    fn know(&mut self, queue: Queue, offset: u64, id: u64) -> Result<(), Broken> {
        match self.known.insert((queue.clone(), offset), id) {
            Some(other) if other != id => Err(format!(
                "{queue:?} has two messages at {offset}: {other} and {id}"
            )),
            _ => Ok(()),
        }
    }

    /// A send was answered "stored".
    pub fn stored(
        &mut self,
        id: u64,
        queue: i32,
        place: Place,
        durable: bool,
    ) -> Result<(), Broken> {
        let attempt = &mut self.attempts[id as usize];
        let fits = attempt.queue < 0 || attempt.queue == queue;
        if !fits {
            return Err(format!("message {id} was answered for queue {queue}"));
        }
        attempt.fate = Fate::Stored { place, durable };
        self.acknowledged += 1;
        let queue = (attempt.topic.clone(), queue);
        let end = self.ends.entry(queue.clone()).or_default();
        *end = place.offset.max(*end).max(place.offset + 1);
        self.know(queue, place.offset, id)
    }

    pub fn refused(&mut self, id: u64) {
        self.attempts[id as usize].fate = Fate::Refused;
    }

    /// A consumer got a record.
    pub fn consumed(&mut self, record: &Record) -> Result<(), Broken> {
        let id = self.identify(record)?;
        self.consumed += 1;
        let queue = (record.topic.clone(), record.queue);
        self.know(queue.clone(), record.offset, id)?;
        let key = (queue, record.offset);
        match self.seen.insert(key, (id, record.at)) {
            Some(before) if before != (id, record.at) => Err(format!(
                "consumers saw two things at {} of {}-{}",
                record.offset, record.topic, record.queue
            )),
            _ => Ok(()),
        }
    }

    /// Which message a record is; an error if nobody ever sent it like this.
    fn identify(&self, record: &Record) -> Result<u64, Broken> {
        let text = record
            .property("SIM")
            .and_then(|id| std::str::from_utf8(id).ok());
        let id = text.and_then(|id| id.parse::<u64>().ok());
        let attempt = id.and_then(|id| self.attempts.get(id as usize));
        let (Some(id), Some(attempt)) = (id, attempt) else {
            return Err(format!("the record at {} was never sent", record.at));
        };
        let same = attempt.topic == record.topic
            && (attempt.queue < 0 || attempt.queue == record.queue)
            && attempt.body == record.body
            && attempt.flag == record.flag
            && attempt.born == record.born
            && attempt.peer == record.born_host
            && record.properties.starts_with(&attempt.properties);
        if !same {
            return Err(format!("the record at {} is not message {id}", record.at));
        }
        Ok(id)
    }

    /// Compares what a start has found with everything that was promised before; afterwards all of
    /// it counts as promised.
    ///
    /// `counts`: the death (or the flush mode) was one that keeps what was answered.
    pub fn check(&mut self, log: &Log, counts: bool) -> Result<(), Broken> {
        let mut places: BTreeMap<u64, Place> = BTreeMap::new();
        let mut next: BTreeMap<Queue, u64> = BTreeMap::new();
        let mut stored = 0;
        for record in &log.records {
            let id = self.identify(record)?;
            let place = Place {
                log: record.at,
                offset: record.offset,
            };
            if places.insert(id, place).is_some() {
                return Err(format!("message {id} is in the log twice"));
            }
            let queue = (record.topic.clone(), record.queue);
            let expected = next.entry(queue.clone()).or_default();
            if record.offset != *expected {
                return Err(format!(
                    "{queue:?} goes on with {} instead of {expected} at {}",
                    record.offset, record.at
                ));
            }
            *expected += 1;
            if record.stored < stored {
                return Err(format!("store times fall at {}", record.at));
            }
            stored = record.stored;
        }
        for (id, attempt) in self.attempts.iter_mut().enumerate() {
            let found = places.get(&(id as u64)).copied();
            attempt.settle(id, found, counts)?;
        }
        self.check_seen(&places, counts)?;
        self.forget_lost(log);
        self.recovered = log.records.len() as u64;
        self.ends = next;
        Ok(())
    }

    fn check_seen(&mut self, places: &BTreeMap<u64, Place>, counts: bool) -> Result<(), Broken> {
        for ((queue, offset), (id, at)) in &self.seen {
            let place = Place {
                log: *at,
                offset: *offset,
            };
            let is_there = places.get(id) == Some(&place);
            if counts && !is_there {
                return Err(format!(
                    "message {id}, seen by a consumer at {offset} of {queue:?}, is gone"
                ));
            }
        }
        Ok(())
    }

    /// Offsets of what was lost are given again.
    fn forget_lost(&mut self, log: &Log) {
        let kept = log.records.iter();
        let kept: std::collections::BTreeSet<(Queue, u64)> = kept
            .map(|record| ((record.topic.clone(), record.queue), record.offset))
            .collect();
        self.known.retain(|key, _| kept.contains(key));
        self.seen.retain(|key, _| kept.contains(key));
    }
}

impl Attempt {
    fn settle(&mut self, id: usize, found: Option<Place>, counts: bool) -> Result<(), Broken> {
        let promised = match self.fate {
            Fate::Recovered(place) => Some(place),
            Fate::Stored {
                place,
                durable: true,
            } if counts => Some(place),
            _ => None,
        };
        match (self.fate, found) {
            (_, None) if promised.is_some() => {
                return Err(format!("message {id} is lost: {:?}", self.fate));
            }
            (Fate::Stored { place, .. } | Fate::Recovered(place), Some(found))
                if place != found =>
            {
                return Err(format!("message {id} moved from {place:?} to {found:?}"));
            }
            (Fate::Refused, Some(found)) => {
                return Err(format!("message {id} was refused but stands at {found:?}"));
            }
            (Fate::Lost, Some(found)) => {
                return Err(format!("message {id} was gone but is back at {found:?}"));
            }
            _ => {}
        }
        self.fate = match (self.fate, found) {
            (_, Some(place)) => Fate::Recovered(place),
            (Fate::Refused, None) => Fate::Refused,
            (_, None) => Fate::Lost,
        };
        Ok(())
    }
}
