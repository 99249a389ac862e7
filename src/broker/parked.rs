//! Sends that are not answered yet: those told to the log, those that wait for room in the edge to
//! the log, and those whose topic is being made.
//!
//! What waits is a copy of the frame; it is tried again from its start. Order is kept: nobody
//! overtakes an older send to the log, nor an older one to the same new topic.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::errors::SendError;
use super::news::NewTopic;
use super::reply::Asker;
use super::send::{Turn, Unsent, refuse};
use super::shard::State;
use super::topics::check_name;
use crate::ids::{Conn, Micros};
use crate::limits::{
    APPENDS_IN_FLIGHT_MAX, NEW_TOPIC_WAIT_MS, NEW_TOPICS_MAX, PARKED_SEND_BYTES_MAX,
};
use crate::role::{CONTROL, Effect, Effects, Letter};
use crate::wire::headers::SendRequest;
use crate::wire::{Frame, Scratch};

/// Connections pause when parked sends take more, and go on when they take less.
const PAUSE_BYTES: usize = PARKED_SEND_BYTES_MAX / 4 * 3;
const RESUME_BYTES: usize = PARKED_SEND_BYTES_MAX / 2;
/// Capacity that a slot keeps for the next append.
const SLOT_KEEP: usize = 1024;

/// A copy of a frame that waits.
#[derive(Debug)]
struct Parked {
    asker: Asker,
    peer: SocketAddr,
    bytes: Vec<u8>,
    since: Micros,
}

/// Sends to one topic that does not exist yet.
#[derive(Debug)]
struct Awaited {
    topic: Box<str>,
    ask: u64,
    since: Micros,
    sends: VecDeque<Parked>,
}

/// What is kept of an append until the log answers.
#[derive(Debug)]
pub struct Slot {
    pub asker: Asker,
    pub queue_id: i32,
    /// Length of each record.
    pub lens: Vec<u32>,
    /// UNIQ_KEY; empty for a batch without one.
    pub transaction: Vec<u8>,
    in_use: bool,
}

/// The sends of one shard that are not answered yet.
#[derive(Debug, Default)]
pub struct Sends {
    slots: Vec<Slot>,
    free: Vec<u32>,
    parked: VecDeque<Parked>,
    /// Oldest first.
    awaited: VecDeque<Awaited>,
    asked: u64,
    /// Of `parked` and `awaited`.
    bytes: usize,
    paused: Vec<Conn>,
}

impl Sends {
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[must_use]
    pub fn has_credit(&self) -> bool {
        self.in_flight() < APPENDS_IN_FLIGHT_MAX
    }

    #[must_use]
    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Whether sends wait for this topic.
    #[must_use]
    pub fn is_awaited(&self, topic: &str) -> bool {
        self.awaited.iter().any(|awaited| *awaited.topic == *topic)
    }

    /// Sends that wait, for room or for a topic.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let awaited: usize = self.awaited.iter().map(|awaited| awaited.sends.len()).sum();
        self.parked.len() + awaited
    }

    /// The slot that [`Sends::begin`] will take; the log is told its number.
    #[must_use]
    pub fn next_slot(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.slots.len() as u32)
    }

    /// Takes the next slot for an append that the log was just told.
    pub fn begin(&mut self, asker: Asker, queue_id: i32, transaction: &[u8], lens: &[u32]) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                asker,
                queue_id,
                lens: Vec::new(),
                transaction: Vec::new(),
                in_use: false,
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        assert!(!slot.in_use, "append {index} is under way already");
        slot.in_use = true;
        slot.asker = asker;
        slot.queue_id = queue_id;
        slot.transaction.clear();
        slot.transaction.extend_from_slice(transaction);
        slot.lens.clear();
        slot.lens.extend_from_slice(lens);
    }

    /// The slot of an append that the log answers.
    #[must_use]
    pub fn slot(&self, ask: u64) -> &Slot {
        let slot = &self.slots[ask as usize];
        assert!(slot.in_use, "append {ask} was answered twice");
        slot
    }

    /// Gives an answered append's slot back, and with it its credit.
    pub fn end(&mut self, ask: u64) {
        let slot = &mut self.slots[ask as usize];
        slot.in_use = false;
        slot.transaction.clear();
        slot.transaction.shrink_to(SLOT_KEEP);
        slot.lens.clear();
        slot.lens.shrink_to(SLOT_KEEP);
        self.free.push(ask as u32);
    }

    /// When the oldest of those that wait has waited long enough.
    #[must_use]
    pub fn deadline(&self, wait_ms: u64) -> Option<Micros> {
        let parked = self
            .parked
            .front()
            .map(|send| send.since.plus_millis(wait_ms));
        let awaited = self.awaited.front();
        let awaited = awaited.map(|awaited| awaited.since.plus_millis(NEW_TOPIC_WAIT_MS));
        parked.into_iter().chain(awaited).min()
    }

    /// A connection is gone. What it sent before still counts.
    pub fn forget(&mut self, conn: Conn) {
        self.paused.retain(|paused| *paused != conn);
    }

    /// Lets connections go on when enough was taken.
    fn resume(&mut self, fx: &mut Effects<'_>) {
        if self.bytes <= RESUME_BYTES {
            for conn in self.paused.drain(..) {
                fx.push(Effect::Resume { conn });
            }
        }
    }
}

impl State {
    pub(super) fn on_send(
        &mut self,
        fx: &mut Effects<'_>,
        asker: Asker,
        peer: SocketAddr,
        frame: &Frame<'_>,
        bytes: &[u8],
    ) {
        let topic = match self.try_send(fx, asker, peer, frame, Turn::First) {
            Ok(()) => return,
            Err(Unsent::Refused(error)) => return self.refuse_send(fx, &asker, &error),
            Err(Unsent::NoRoom) => None,
            Err(Unsent::NoTopic(topic)) => Some(topic),
        };
        let waiting_bytes = self.sends.bytes;
        if waiting_bytes + bytes.len() > PARKED_SEND_BYTES_MAX {
            return self.refuse_send(fx, &asker, &SendError::Overloaded { waiting_bytes });
        }
        let parked = Parked {
            asker,
            peer,
            bytes: bytes.to_vec(),
            since: self.now.mono,
        };
        self.sends.bytes += bytes.len();
        match topic {
            None => self.sends.parked.push_back(parked),
            Some(topic) => self.await_topic(fx, &topic, parked, frame),
        }
        if self.sends.bytes > PAUSE_BYTES && !self.sends.paused.contains(&asker.conn) {
            self.sends.paused.push(asker.conn);
            fx.push(Effect::Pause { conn: asker.conn });
        }
    }

    fn refuse_send(&mut self, fx: &mut Effects<'_>, asker: &Asker, error: &SendError<'_>) {
        refuse(&self.config, &mut self.replies, fx, asker, error);
    }

    /// Puts a send behind those that wait for its topic; the first one asks control to make it.
    fn await_topic(
        &mut self,
        fx: &mut Effects<'_>,
        topic: &str,
        parked: Parked,
        frame: &Frame<'_>,
    ) {
        let mut awaited = self.sends.awaited.iter_mut();
        if let Some(awaited) = awaited.find(|awaited| *awaited.topic == *topic) {
            awaited.sends.push_back(parked);
            return;
        }
        let ask = self.sends.asked;
        let asked = self.sends.awaited.len() < NEW_TOPICS_MAX
            && SendRequest::decode(&frame.header).is_ok_and(|request| {
                let payload = new_topic(topic, &request, parked.peer);
                let letter = Letter::CreateTopic { ask };
                self.replies.tell(fx, CONTROL, letter, &payload).is_ok()
            });
        if !asked {
            self.sends.bytes -= parked.bytes.len();
            self.refuse_send(fx, &parked.asker, &SendError::TooManyNewTopics);
            return;
        }
        self.sends.asked += 1;
        self.sends.awaited.push_back(Awaited {
            topic: topic.into(),
            ask,
            since: self.now.mono,
            sends: VecDeque::from([parked]),
        });
    }

    /// Control has made a topic, or not: those that waited go on, in their order.
    pub(super) fn on_topic_created(
        &mut self,
        fx: &mut Effects<'_>,
        ask: u64,
        scratch: &mut Scratch,
    ) {
        let mut awaited = self.sends.awaited.iter();
        // One that has waited too long is no longer there.
        let Some(at) = awaited.position(|awaited| awaited.ask == ask) else {
            return;
        };
        let awaited = self
            .sends
            .awaited
            .remove(at)
            .expect("its place was just found");
        for mut parked in awaited.sends {
            // What follows is another kind of waiting.
            parked.since = self.now.mono;
            if self.sends.has_parked() {
                self.sends.parked.push_back(parked);
            } else {
                self.try_parked(fx, parked, Turn::TopicAnswered, scratch);
            }
        }
        self.sends.resume(fx);
    }

    /// The edge has room or a credit came back: the oldest sends go on.
    pub(super) fn try_waiting_sends(&mut self, fx: &mut Effects<'_>, scratch: &mut Scratch) {
        if self.sends.parked.is_empty() {
            return;
        }
        while self.sends.has_credit()
            && let Some(parked) = self.sends.parked.pop_front()
        {
            if !self.try_parked(fx, parked, Turn::Again, scratch) {
                break;
            }
        }
        self.sends.resume(fx);
    }

    /// Tries a send again that has waited. `false`: it is the first of those that wait now.
    fn try_parked(
        &mut self,
        fx: &mut Effects<'_>,
        parked: Parked,
        turn: Turn,
        scratch: &mut Scratch,
    ) -> bool {
        let bytes = parked.bytes.len();
        // It could be decoded when it came; a broken one would have closed its connection.
        let Ok(frame) = Frame::decode(&parked.bytes, scratch) else {
            self.sends.bytes -= bytes;
            return true;
        };
        match self.try_send(fx, parked.asker, parked.peer, &frame, turn) {
            Ok(()) => self.sends.bytes -= bytes,
            Err(Unsent::Refused(error)) => {
                self.sends.bytes -= bytes;
                self.refuse_send(fx, &parked.asker, &error);
            }
            Err(Unsent::NoRoom) => {
                self.sends.parked.push_front(parked);
                return false;
            }
            Err(Unsent::NoTopic(topic)) => {
                let topic = topic.into_owned();
                let copy = Parked {
                    bytes: parked.bytes.clone(),
                    ..parked
                };
                self.await_topic(fx, &topic, copy, &frame);
            }
        }
        true
    }

    /// Answers the sends that have waited long enough, with busy.
    pub(super) fn expire_sends(&mut self, fx: &mut Effects<'_>) {
        let wait_ms = self.config.send_wait_ms;
        let now = self.now.mono;
        while let Some(parked) = self.sends.parked.front()
            && parked.since.plus_millis(wait_ms) <= now
        {
            let parked = self.sends.parked.pop_front().expect("it was just seen");
            self.expire(fx, &parked);
        }
        while let Some(awaited) = self.sends.awaited.front()
            && awaited.since.plus_millis(NEW_TOPIC_WAIT_MS) <= now
        {
            let awaited = self.sends.awaited.pop_front().expect("it was just seen");
            awaited
                .sends
                .iter()
                .for_each(|parked| self.expire(fx, parked));
        }
        self.sends.resume(fx);
    }

    fn expire(&mut self, fx: &mut Effects<'_>, parked: &Parked) {
        self.sends.bytes -= parked.bytes.len();
        let error = SendError::WaitedTooLong {
            waited_ms: (self.now.mono.0 - parked.since.0) / 1000,
            waiting: self.sends.waiting() + 1,
        };
        self.refuse_send(fx, &parked.asker, &error);
    }

    /// The broker stops: what waits is refused, what the log was told is waited for.
    pub(super) fn refuse_waiting_sends(&mut self, fx: &mut Effects<'_>) {
        let awaited = std::mem::take(&mut self.sends.awaited);
        let awaited = awaited.into_iter().flat_map(|awaited| awaited.sends);
        for parked in std::mem::take(&mut self.sends.parked)
            .into_iter()
            .chain(awaited)
        {
            self.refuse_send(fx, &parked.asker, &SendError::Stopping);
        }
        self.sends.bytes = 0;
        self.sends.resume(fx);
    }
}

fn new_topic(topic: &str, request: &SendRequest<'_>, peer: SocketAddr) -> Vec<u8> {
    // A dead-letter topic has one queue, whatever the client says of its own topic.
    let own = topic == request.topic;
    let default_queues = if own {
        request.default_topic_queue_nums
    } else {
        1
    };
    // What is no name is no topic either.
    let default_topic = Some(request.default_topic).filter(|name| check_name(name).is_ok());
    let new = NewTopic {
        topic: topic.to_string(),
        default_topic: default_topic.unwrap_or_default().to_string(),
        default_queues,
        unit_mode: request.unit_mode,
        peer: peer.to_string(),
    };
    serde_json::to_vec(&new).expect("texts and numbers are JSON")
}
