//! Receiving the messages of a topic as a member of a group: pulling, handing on, committing.
//! Who has which queue is decided in [`super::group`]. client-behaviour 3; broker-requests 4, 10.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::connection::{CALL_TIMEOUT, Connections, Incoming, Started};
use super::message::Received;
use super::routes::{NameServers, Queue, RETRY_PREFIX, address};
use super::{ClientError, check_group, check_topic, client_id, wall_ms};
use crate::wire::bodies::TopicRouteData;
use crate::wire::headers::{PullRequest, PullResponse, UpdateConsumerOffsetRequest};
use crate::wire::record::{BadRecord, Check, Checked, Untrusted};
use crate::wire::{RequestCode, ResponseCode};

/// Messages that one pull asks for.
const PULL_MESSAGES: i32 = 32;
/// How long a broker may hold a pull, and how long its answer may take (client-behaviour 3.4).
const PULL_SUSPEND: Duration = Duration::from_secs(15);
const PULL_TIMEOUT: Duration = Duration::from_secs(30);
/// Bits of a pull's sys flag (broker-requests 4.1).
const PULL_SUSPENDS: i32 = 0x2;
const PULL_HAS_SUBSCRIPTION: i32 = 0x4;

/// How soon the stop flag is seen and due work is done.
const TICK: Duration = Duration::from_millis(100);
/// After a broker said that a queue has nothing although it could have waited, and when it is busy.
const SHORT_PAUSE: Duration = Duration::from_millis(20);
/// After an error.
pub const PAUSE: Duration = Duration::from_secs(1);
/// Before a warning is said again.
const WARN_PERIOD: Duration = Duration::from_secs(30);
/// How long brokers may take to count a new member.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
const COMMIT_PERIOD: Duration = Duration::from_secs(5);

/// What to receive.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveOptions<'a> {
    /// `host:port` of each.
    pub name_servers: &'a [String],
    /// The topic.
    pub topic: &'a str,
    /// Members of one group share the topic's queues, and what is read.
    pub group: &'a str,
    /// Waits for more, instead of ending with what was there at the start; also for the topic.
    pub follow: bool,
    /// Ends the receiving within 100 ms once it is true, or when a request under way has its
    /// answer: 5 s at most.
    pub stop: &'a AtomicBool,
}

/// Hands the unread messages of a topic to `output`, queue by queue in their order, and commits
/// them to the group afterwards: after a crash the last ones may come again, none is left out.
/// A new group begins with the oldest message. Returns how many messages there were.
///
/// # Errors
/// See [`ClientError`]. While following, only what cannot heal ends it; the rest is logged as a
/// warning and tried again. An error of `output` leaves its message unread.
pub fn receive(
    options: &ReceiveOptions<'_>,
    output: &mut dyn FnMut(&Received<'_>) -> io::Result<()>,
) -> Result<u64, ClientError> {
    check_topic(options.topic)?;
    check_group(options.group)?;
    let mut consumer = Consumer::new(options);
    let result = consumer.run(output);
    consumer.leave();
    result.map(|()| consumer.received)
}

/// A queue of this member.
pub struct Owned {
    /// The first message not yet handed on.
    pub next: i64,
    /// What the broker knows of that; -1 for nothing.
    pub committed: i64,
    /// Where to end, unless following.
    pub end: Option<i64>,
    pub pull: Option<Pull>,
    pub pull_at: Instant,
}

impl Owned {
    fn is_done(&self) -> bool {
        self.end == Some(self.next)
    }
}

/// A pull under way.
pub struct Pull {
    started: Started,
    deadline: Instant,
}

pub struct Consumer<'a> {
    pub options: &'a ReceiveOptions<'a>,
    pub name_servers: NameServers<'a>,
    pub connections: Connections,
    pub client_id: String,
    pub retry_topic: String,
    pub subscription_version: i64,
    /// Of the topic and of the group's retry topic, as far as they exist.
    pub routes: BTreeMap<String, TopicRouteData>,
    pub owned: BTreeMap<Queue, Owned>,
    pulls: BTreeMap<i32, Queue>,
    received: u64,
    /// The queues were shared out at least once.
    pub is_balanced: bool,
    /// When that must have happened.
    pub join_by: Instant,
    pub heartbeat_at: Instant,
    pub routes_at: Instant,
    pub balance_at: Instant,
    pub commit_at: Instant,
    warned: String,
    warned_at: Instant,
}

type Output<'o> = &'o mut dyn FnMut(&Received<'_>) -> io::Result<()>;

impl<'a> Consumer<'a> {
    fn new(options: &'a ReceiveOptions<'a>) -> Consumer<'a> {
        let now = Instant::now();
        Consumer {
            options,
            name_servers: NameServers::new(options.name_servers),
            connections: Connections::new(),
            client_id: String::new(),
            retry_topic: format!("{RETRY_PREFIX}{}", options.group),
            subscription_version: wall_ms(),
            routes: BTreeMap::new(),
            owned: BTreeMap::new(),
            pulls: BTreeMap::new(),
            received: 0,
            is_balanced: false,
            join_by: now + JOIN_TIMEOUT,
            heartbeat_at: now,
            routes_at: now,
            balance_at: now,
            commit_at: now + COMMIT_PERIOD,
            warned: String::new(),
            warned_at: now,
        }
    }

    fn run(&mut self, output: Output<'_>) -> Result<(), ClientError> {
        if !self.find_topic()? {
            return Ok(());
        }
        self.client_id = client_id(self.connections.local_ip());
        self.join()?;
        while !self.is_stopped() && !self.is_finished() {
            self.tend()?;
            self.check_pulls()?;
            self.start_pulls()?;
            match self.connections.next(Instant::now() + TICK) {
                None => {}
                Some(Ok(answer)) if answer.is_response => self.pulled(&answer, output)?,
                Some(Ok(asked)) => self.asked(&asked)?,
                Some(Err(error)) => self.lost(error)?,
            }
        }
        self.commit_all()
    }

    pub fn is_stopped(&self) -> bool {
        self.options.stop.load(Ordering::Relaxed)
    }

    fn is_finished(&self) -> bool {
        let done = self.owned.values().all(Owned::is_done);
        !self.options.follow && self.is_balanced && done
    }

    /// Decides whether an error ends everything. While following, what can heal is waited for.
    pub fn bear(&mut self, error: ClientError) -> Result<(), ClientError> {
        let heals = match &error {
            ClientError::Refused { code, .. } => !matches!(
                *code,
                ResponseCode::NO_PERMISSION | ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST
            ),
            ClientError::Output(_) | ClientError::NotMember { .. } => false,
            _ => true,
        };
        if !self.options.follow || !heals {
            return Err(error);
        }
        if !matches!(error, ClientError::Refused { .. }) {
            // A broker that comes back knows this member only by a heartbeat.
            let again = Instant::now() + PAUSE;
            self.heartbeat_at = self.heartbeat_at.min(again);
            self.balance_at = self.balance_at.min(again);
        }
        self.warn(format!("{error}; trying again"));
        Ok(())
    }

    /// Says a thing once as long as it is all there is to say.
    fn warn(&mut self, text: String) {
        let now = Instant::now();
        if self.warned != text || self.warned_at + WARN_PERIOD <= now {
            log::warn!("{text}");
            (self.warned, self.warned_at) = (text, now);
        }
    }

    /// Name servers may close a connection that they see no use for.
    fn lost(&mut self, error: ClientError) -> Result<(), ClientError> {
        match &error {
            ClientError::Lost { address, .. } if !self.addresses().contains(address) => Ok(()),
            _ => self.bear(error),
        }
    }

    /// Forgets pulls whose answers cannot come any more.
    fn check_pulls(&mut self) -> Result<(), ClientError> {
        let now = Instant::now();
        let mut stuck = None;
        for (queue, owned) in &mut self.owned {
            let Some(pull) = &owned.pull else { continue };
            let route = self.routes.get(&queue.topic);
            let place = route.and_then(|route| address(route, &queue.broker));
            let is_under_way =
                place.is_some_and(|place| self.connections.is_under_way(place, pull.started));
            if is_under_way && now < pull.deadline {
                continue;
            }
            if let Some(place) = place.filter(|_| is_under_way) {
                stuck = Some(place.to_owned());
            }
            self.pulls.remove(&pull.started.opaque);
            owned.pull = None;
            owned.pull_at = now + PAUSE;
        }
        let Some(address) = stuck else { return Ok(()) };
        self.connections.close(&address);
        self.bear(ClientError::TimedOut {
            address,
            request: RequestCode::PULL_MESSAGE,
            timeout: PULL_TIMEOUT,
        })
    }

    fn start_pulls(&mut self) -> Result<(), ClientError> {
        let now = Instant::now();
        let due = |owned: &Owned| owned.pull.is_none() && owned.pull_at <= now && !owned.is_done();
        let queues: Vec<Queue> = self
            .owned
            .iter()
            .filter(|(_, owned)| due(owned))
            .map(|(queue, _)| queue.clone())
            .collect();
        for queue in queues {
            let is_due = |owned: &Owned| owned.pull_at <= now;
            if !self.owned.get(&queue).is_some_and(is_due) {
                continue;
            }
            if let Err(error) = self.start_pull(&queue) {
                // All queues of the broker wait, so that it is tried once and not for each.
                let again = Instant::now() + PAUSE;
                let all = self.owned.iter_mut();
                all.filter(|(other, _)| other.broker == queue.broker)
                    .for_each(|(_, owned)| owned.pull_at = again);
                self.bear(error)?;
            }
        }
        Ok(())
    }

    fn start_pull(&mut self, queue: &Queue) -> Result<(), ClientError> {
        let address = self.address_of(queue)?;
        let Some(owned) = self.owned.get_mut(queue) else {
            return Ok(());
        };
        let suspends = if self.options.follow {
            PULL_SUSPENDS
        } else {
            0
        };
        let request = PullRequest {
            consumer_group: self.options.group,
            topic: &queue.topic,
            queue_id: queue.id,
            queue_offset: owned.next,
            max_msg_nums: PULL_MESSAGES,
            sys_flag: suspends | PULL_HAS_SUBSCRIPTION,
            commit_offset: 0,
            suspend_timeout_millis: PULL_SUSPEND.as_millis() as i64,
            subscription: Some("*"),
            sub_version: self.subscription_version,
            expression_type: Some("TAG"),
            max_msg_bytes: None,
            request_source: None,
            proxy_forward_client_id: None,
        };
        let code = RequestCode::PULL_MESSAGE;
        let started = self
            .connections
            .start(&address, code, b"", |ext| request.encode(ext))?;
        owned.pull = Some(Pull {
            started,
            deadline: Instant::now() + PULL_TIMEOUT,
        });
        self.pulls.insert(started.opaque, queue.clone());
        Ok(())
    }

    /// Where a queue is pulled and its offsets are kept: at the master, or at a slave without one.
    pub fn address_of(&self, queue: &Queue) -> Result<String, ClientError> {
        let route = self.routes.get(&queue.topic);
        let address = route.and_then(|route| address(route, &queue.broker));
        address
            .map(str::to_owned)
            .ok_or_else(|| ClientError::NoQueue {
                topic: queue.topic.clone(),
                verb: "read",
            })
    }

    fn pulled(&mut self, answer: &Incoming, output: Output<'_>) -> Result<(), ClientError> {
        // Unknown answers are of pulls that were given up.
        let Some(queue) = self.pulls.remove(&answer.opaque) else {
            return Ok(());
        };
        let Some(owned) = self.owned.get_mut(&queue) else {
            return Ok(());
        };
        owned.pull = None;
        let code = ResponseCode(answer.code);
        match code {
            ResponseCode::SUCCESS => self.hand_on(&queue, answer, output),
            ResponseCode::PULL_NOT_FOUND
            | ResponseCode::PULL_RETRY_IMMEDIATELY
            | ResponseCode::PULL_OFFSET_MOVED => {
                let header = answer.parse(RequestCode::PULL_MESSAGE, |frame| {
                    PullResponse::decode(&frame.header)
                })?;
                if code == ResponseCode::PULL_OFFSET_MOVED {
                    let (wanted, next) = (owned.next, header.next_begin_offset);
                    log::warn!("{queue} has no message {wanted}: continuing with {next}");
                }
                owned.next = header.next_begin_offset;
                // Not found: there is nothing up to the end that was seen at the start.
                let is_end = code == ResponseCode::PULL_NOT_FOUND;
                let next = owned.next;
                owned.end = owned
                    .end
                    .map(|end| if is_end { next } else { end.max(next) });
                if is_end {
                    owned.pull_at = Instant::now() + SHORT_PAUSE;
                }
                Ok(())
            }
            ResponseCode::FLOW_CONTROL => {
                owned.pull_at = Instant::now() + SHORT_PAUSE;
                Ok(())
            }
            _ => {
                owned.pull_at = Instant::now() + PAUSE;
                self.bear(answer.refused(RequestCode::PULL_MESSAGE))
            }
        }
    }

    fn hand_on(
        &mut self,
        queue: &Queue,
        answer: &Incoming,
        output: Output<'_>,
    ) -> Result<(), ClientError> {
        let request = RequestCode::PULL_MESSAGE;
        let header = answer.parse(request, |frame| PullResponse::decode(&frame.header))?;
        let Some(owned) = self.owned.get_mut(queue) else {
            return Ok(());
        };
        let reading = Reading {
            queue,
            stop: self.options.stop,
            owned,
            received: &mut self.received,
        };
        let handed_on = answer.parse(request, |frame| {
            reading.hand_on(frame.body, header.next_begin_offset, output)
        });
        let committed = self.commit(queue);
        handed_on?.map_err(ClientError::Output)?;
        committed.or_else(|error| self.bear(error))
    }

    /// Tells the broker what was handed on (15), and waits until it knows: another member that is
    /// given the queue asks right away.
    pub fn commit(&mut self, queue: &Queue) -> Result<(), ClientError> {
        let address = self.address_of(queue)?;
        let Some(owned) = self.owned.get_mut(queue) else {
            return Ok(());
        };
        if owned.committed == owned.next {
            return Ok(());
        }
        let next = owned.next;
        let request = UpdateConsumerOffsetRequest {
            consumer_group: self.options.group,
            topic: &queue.topic,
            queue_id: queue.id,
            commit_offset: next,
        };
        let code = RequestCode::UPDATE_CONSUMER_OFFSET;
        let asked = self
            .connections
            .call(&address, code, CALL_TIMEOUT, b"", |ext| request.encode(ext));
        asked?.succeeded(code)?;
        owned.committed = next;
        Ok(())
    }

    /// Commits all queues; the first error after all were tried.
    pub fn commit_all(&mut self) -> Result<(), ClientError> {
        self.commit_at = Instant::now() + COMMIT_PERIOD;
        let queues: Vec<Queue> = self.owned.keys().cloned().collect();
        let mut result = Ok(());
        for queue in queues {
            result = result.and(self.commit(&queue));
        }
        result
    }

    /// Continues a queue from elsewhere; what a pull under way brings is not wanted any more.
    pub fn move_to(&mut self, queue: &Queue, offset: i64) {
        if let Some(owned) = self.owned.get_mut(queue) {
            if let Some(pull) = owned.pull.take() {
                self.pulls.remove(&pull.started.opaque);
            }
            owned.next = offset;
            owned.pull_at = Instant::now();
            self.commit_at = Instant::now();
        }
    }
}

/// A pull's messages on their way to the output.
struct Reading<'r> {
    queue: &'r Queue,
    stop: &'r AtomicBool,
    owned: &'r mut Owned,
    received: &'r mut u64,
}

impl Reading<'_> {
    /// Hands the messages on until all are, or the end, the stop flag or an error of the output.
    /// Afterwards the queue's next message is the first that was not.
    fn hand_on(
        self,
        body: &[u8],
        next_begin: i64,
        output: Output<'_>,
    ) -> Result<io::Result<()>, BadRecord> {
        let end = self.owned.end.unwrap_or(i64::MAX);
        let mut rest = body;
        while !rest.is_empty() {
            let record = match Untrusted(rest).check(Check::default()) {
                Checked::Message(record) => record,
                Checked::Bad(bad) => return Err(bad),
                Checked::Blank { .. } | Checked::BadWithSize(_) => return Err(BadRecord::Length),
            };
            rest = &rest[record.bytes().len()..];
            let offset = i64::try_from(record.queue_offset()).unwrap_or(i64::MAX - 1);
            if offset < self.owned.next {
                continue;
            }
            if offset >= end {
                break;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Ok(()));
            }
            if let Err(error) = output(&Received::new(&self.queue.broker, &record)) {
                return Ok(Err(error));
            }
            self.owned.next = offset + 1;
            *self.received += 1;
        }
        self.owned.next = self.owned.next.max(next_begin).min(end);
        Ok(Ok(()))
    }
}
