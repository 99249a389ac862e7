//! Clients: each keeps several requests in flight, notes every answer in the ledger, and insists on
//! being answered in time.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ringmq::wire::batch::BatchItem;
use ringmq::wire::headers::{
    PullRequest, PullResponse, QueryConsumerOffsetRequest, SendRequest, SendResponse,
    UpdateConsumerOffsetRequest,
};
use ringmq::wire::properties::Properties;
use ringmq::wire::{
    Encoding, ExtWriter, Frame, RequestCode, RequestHead, ResponseCode, Scratch, encode_request,
};
use shards::Conn;

use crate::cores::World;
use crate::decoder::{self, Record};
use crate::ledger::{Attempt, Broken, Fate, Ledger, Place, Queue};
use crate::plan::Plan;
use crate::rng::Rng;

/// An answer must come within this, beyond what a request itself asks for, while nothing stalls.
const PATIENCE_US: u64 = 15_000_000;
/// A stalled device excuses much more.
const PATIENCE_STALLED_US: u64 = 300_000_000;
/// A parked pull must have been woken this long after its message was acknowledged.
const WAKE_US: u64 = 3_000_000;

enum Asked {
    Send {
        ids: Vec<u64>,
        waits: bool,
    },
    Pull {
        queue: Queue,
        offset: u64,
        all: bool,
    },
    Commit {
        queue: Queue,
        offset: i64,
    },
    Query,
}

struct Request {
    asked: Asked,
    until: u64,
}

struct Client {
    number: usize,
    conn: Option<Conn>,
    peer: SocketAddr,
    flying: BTreeMap<i32, Request>,
    cursors: BTreeMap<Queue, u64>,
    next_at: u64,
    encoding: Encoding,
}

/// Consumer offsets as they were committed: group and queue -> asked for, answered.
pub type Commits = BTreeMap<(String, Queue), (i64, i64)>;

pub struct Workload {
    clients: Vec<Client>,
    rng: Rng,
    pub left: u64,
    opaque: i32,
    /// When a queue's offset was acknowledged.
    acks: BTreeMap<(Queue, u64), u64>,
    stalls: bool,
    topics: u64,
    body_bytes_max: u64,
    parked_max: usize,
    scratch: Scratch,
}

impl Workload {
    pub fn new(plan: &Plan, mut rng: Rng, life: u64, now: u64) -> Workload {
        let client = |number: usize| {
            let port = 40_000 + life as usize * 100 + number;
            let host = if number % 3 == 2 {
                format!("[2001:db8::{number}]:{port}")
            } else {
                format!("10.0.1.{number}:{port}")
            };
            Client {
                number,
                conn: None,
                peer: host.parse().expect("an address"),
                flying: BTreeMap::new(),
                cursors: BTreeMap::new(),
                next_at: now,
                encoding: if number % 2 == 0 {
                    Encoding::Json
                } else {
                    Encoding::Binary
                },
            }
        };
        Workload {
            clients: (0..plan.clients).map(client).collect(),
            left: plan.requests,
            opaque: 0,
            acks: BTreeMap::new(),
            stalls: plan.faults.stall > 0,
            topics: plan.topics,
            body_bytes_max: plan.body_bytes_max,
            parked_max: rng.within(1, 6) as usize,
            rng,
            scratch: Scratch::new(),
        }
    }

    /// Whether a request is under way that must be answered without anything new happening.
    pub fn is_waiting(&self) -> bool {
        let mut flying = self
            .clients
            .iter()
            .flat_map(|client| client.flying.values());
        flying.any(|request| !matches!(request.asked, Asked::Pull { .. }))
    }

    /// When the clients want to do something next.
    pub fn next_at(&self) -> Option<u64> {
        let next = self.clients.iter().map(|client| client.next_at).min();
        next.filter(|_| self.left > 0)
    }

    pub fn act(
        &mut self,
        world: &mut World,
        ledger: &mut Ledger,
        commits: &mut Commits,
    ) -> Result<(), Broken> {
        for place in 0..self.clients.len() {
            self.receive(place, world, ledger, commits)?;
            self.check_patience(place, world)?;
            let client = &self.clients[place];
            if self.left > 0 && client.next_at <= world.mono && client.flying.len() < 12 {
                self.left -= 1;
                self.ask(place, world, ledger, commits);
                let pause = match self.rng.below(40) {
                    0 => self.rng.skewed(6_000_000),
                    1..=15 => 0,
                    _ => self.rng.skewed(5000),
                };
                self.clients[place].next_at = world.mono + pause;
            }
        }
        Ok(())
    }

    fn check_patience(&self, place: usize, world: &World) -> Result<(), Broken> {
        let client = &self.clients[place];
        let late = client.flying.iter().find(|(_, request)| {
            let patience = if self.stalls {
                PATIENCE_STALLED_US
            } else {
                PATIENCE_US
            };
            request.until + patience < world.mono
        });
        match late {
            Some((opaque, request)) => Err(format!(
                "request {opaque} ({}) was not answered",
                request.asked.name()
            )),
            None => Ok(()),
        }
    }

    // ---- asking

    fn ask(&mut self, place: usize, world: &mut World, ledger: &mut Ledger, commits: &mut Commits) {
        let conn = self.connection(place, world);
        if self.rng.once_in(60) {
            world.net.reset(conn);
            self.clients[place].conn = None;
            self.clients[place].flying.clear();
            return;
        }
        match self.rng.below(20) {
            0..=10 => self.send(place, conn, world, ledger),
            11 | 12 => self.send_batch(place, conn, world, ledger),
            13..=17 => self.pull(place, conn, world, ledger),
            18 => self.commit(place, conn, world, ledger, commits),
            _ => self.query(place, conn, world, ledger),
        }
    }

    fn connection(&mut self, place: usize, world: &mut World) -> Conn {
        let client = &mut self.clients[place];
        let open = client.conn.filter(|conn| world.net.is_open(*conn));
        let conn = open.unwrap_or_else(|| {
            client.flying.clear();
            world.net.open(client.peer)
        });
        client.conn = Some(conn);
        conn
    }

    #[expect(clippy::too_many_arguments, reason = "a request's parts")]
    fn put(
        &mut self,
        place: usize,
        conn: Conn,
        world: &mut World,
        (code, oneway): (RequestCode, bool),
        (asked, hold_us): (Asked, u64),
        body: &[u8],
        ext: impl FnOnce(&mut ExtWriter<'_>),
    ) {
        self.opaque += 1;
        let mut head = RequestHead::new(code, self.opaque);
        if oneway {
            head = head.oneway();
        }
        let client = &mut self.clients[place];
        let mut frame = Vec::new();
        encode_request(&mut frame, client.encoding, &head, None, body.len(), ext);
        frame.extend_from_slice(body);
        world.net.send(conn, &frame);
        if !oneway {
            let until = world.mono + hold_us;
            client.flying.insert(self.opaque, Request { asked, until });
        }
    }

    fn body(&mut self) -> Vec<u8> {
        let len = 1 + self.rng.skewed(self.body_bytes_max) as usize;
        // Zeros at the end look like what was never written.
        match self.rng.below(6) {
            0 => vec![0; len],
            1 => {
                let mut body = self.rng.bytes(len);
                body[len / 2..].fill(0);
                body
            }
            _ => self.rng.bytes(len),
        }
    }

    fn attempt(
        &mut self,
        place: usize,
        ledger: &mut Ledger,
        (topic, queue, born): (&str, i32, i64),
        waits: bool,
    ) -> u64 {
        let id = ledger.next();
        let mut properties = format!("SIM\u{1}{id}\u{2}");
        if self.rng.once_in(3) {
            properties.push_str(&format!("TAGS\u{1}Tag{}\u{2}", self.rng.below(3)));
        }
        if self.rng.once_in(3) {
            properties.push_str(&format!("KEYS\u{1}key{} k\u{2}", self.rng.below(20)));
        }
        if !waits {
            properties.push_str("WAIT\u{1}false\u{2}");
        }
        let attempt = Attempt {
            topic: topic.to_string(),
            queue,
            body: self.body(),
            flag: self.rng.below(100) as i32,
            born,
            peer: self.clients[place].peer,
            properties: properties.into_bytes(),
            fate: Fate::Open,
        };
        ledger.attempts.push(attempt);
        id
    }

    fn target(&mut self, world: &World) -> (String, i32, i64) {
        let topic = format!("Topic{}", self.rng.below(self.topics));
        let queue = self.rng.below(5) as i32 - 1;
        (topic, queue.min(3), world.now().wall.0 as i64)
    }

    fn send(&mut self, place: usize, conn: Conn, world: &mut World, ledger: &mut Ledger) {
        let (topic, queue, born) = self.target(world);
        let waits = !self.rng.once_in(8);
        let oneway = self.rng.once_in(8);
        let id = self.attempt(place, ledger, (&topic, queue, born), waits);
        let attempt = ledger.attempts[id as usize].clone();
        let properties = String::from_utf8(attempt.properties).expect("made of text");
        let request = send_request(&topic, queue, born, attempt.flag, &properties, false);
        let asked = Asked::Send {
            ids: vec![id],
            waits,
        };
        let long = self.rng.once_in(3);
        let code = if long {
            RequestCode::SEND_MESSAGE
        } else {
            RequestCode::SEND_MESSAGE_V2
        };
        let how = (code, oneway);
        self.put(place, conn, world, how, (asked, 0), &attempt.body, |ext| {
            if long {
                request.encode_long_names(ext);
            } else {
                request.encode(ext);
            }
        });
    }

    fn send_batch(&mut self, place: usize, conn: Conn, world: &mut World, ledger: &mut Ledger) {
        let (topic, queue, born) = self.target(world);
        let count = self.rng.within(1, 6);
        let mut ids = Vec::new();
        let mut body = Vec::new();
        let most = self.body_bytes_max;
        self.body_bytes_max = most.min(8000);
        for _ in 0..count {
            let id = self.attempt(place, ledger, (&topic, queue, born), true);
            let attempt = &ledger.attempts[id as usize];
            let item = BatchItem {
                flag: attempt.flag,
                body: &attempt.body,
                properties: Properties(&attempt.properties),
            };
            item.encode(&mut body);
            ids.push(id);
        }
        self.body_bytes_max = most;
        let request = send_request(&topic, queue, born, 0, "", true);
        let asked = Asked::Send { ids, waits: true };
        let how = (RequestCode::SEND_BATCH_MESSAGE, false);
        self.put(place, conn, world, how, (asked, 0), &body, |ext| {
            request.encode(ext);
        });
    }

    fn some_queue(&mut self, ledger: &Ledger) -> Queue {
        let known = ledger.ends.len() as u64;
        if known == 0 || self.rng.once_in(10) {
            return (format!("Topic{}", self.rng.below(self.topics)), 0);
        }
        let pick = self.rng.below(known) as usize;
        let queue = ledger.ends.keys().nth(pick);
        queue.expect("below their number").clone()
    }

    fn pull(&mut self, place: usize, conn: Conn, world: &mut World, ledger: &Ledger) {
        let flying = self.clients[place].flying.values();
        let parked = flying.filter(|request| matches!(request.asked, Asked::Pull { .. }));
        if parked.count() >= self.parked_max {
            return;
        }
        let queue = self.some_queue(ledger);
        let end = ledger.ends.get(&queue).copied().unwrap_or(0);
        let cursor = self.clients[place]
            .cursors
            .get(&queue)
            .copied()
            .unwrap_or(0);
        let offset = match self.rng.below(10) {
            0 => self.rng.below(end + 1),
            1..=3 => end,
            _ => cursor,
        };
        let suspend_ms = self.rng.within(1, 12_000);
        let holds = !self.rng.once_in(6);
        let all = !self.rng.once_in(6);
        let group = format!("group{}", self.clients[place].number);
        let request = PullRequest {
            consumer_group: &group,
            topic: &queue.0,
            queue_id: queue.1,
            queue_offset: offset as i64,
            max_msg_nums: self.rng.within(1, 32) as i32,
            sys_flag: 4 | if holds { 2 } else { 0 },
            commit_offset: 0,
            suspend_timeout_millis: suspend_ms as i64,
            subscription: Some(if all { "*" } else { "Tag1" }),
            sub_version: 0,
            expression_type: Some("TAG"),
            max_msg_bytes: None,
            request_source: None,
            proxy_forward_client_id: None,
        };
        let asked = Asked::Pull {
            queue: queue.clone(),
            offset,
            all,
        };
        let hold_us = if holds { suspend_ms * 1000 } else { 0 };
        let how = (RequestCode::PULL_MESSAGE, false);
        self.put(place, conn, world, how, (asked, hold_us), &[], |ext| {
            request.encode(ext);
        });
    }

    fn commit(
        &mut self,
        place: usize,
        conn: Conn,
        world: &mut World,
        ledger: &Ledger,
        commits: &mut Commits,
    ) {
        let queue = self.some_queue(ledger);
        if !ledger.ends.contains_key(&queue) {
            return;
        }
        let group = format!("group{}", self.clients[place].number);
        let entry = commits.entry((group.clone(), queue.clone()));
        let (asked_for, _) = entry.or_insert((0, -1));
        *asked_for += 1;
        let offset = *asked_for;
        let request = UpdateConsumerOffsetRequest {
            consumer_group: &group,
            topic: &queue.0,
            queue_id: queue.1,
            commit_offset: offset,
        };
        let asked = Asked::Commit {
            queue: queue.clone(),
            offset,
        };
        let how = (RequestCode::UPDATE_CONSUMER_OFFSET, false);
        self.put(place, conn, world, how, (asked, 0), &[], |ext| {
            request.encode(ext);
        });
    }

    fn query(&mut self, place: usize, conn: Conn, world: &mut World, ledger: &Ledger) {
        let queue = self.some_queue(ledger);
        let group = format!("group{}", self.clients[place].number);
        let request = QueryConsumerOffsetRequest {
            consumer_group: &group,
            topic: &queue.0,
            queue_id: queue.1,
            set_zero_if_not_found: None,
        };
        let how = (RequestCode::QUERY_CONSUMER_OFFSET, false);
        self.put(place, conn, world, how, (Asked::Query, 0), &[], |ext| {
            request.encode(ext);
        });
    }

    // ---- answers

    fn receive(
        &mut self,
        place: usize,
        world: &mut World,
        ledger: &mut Ledger,
        commits: &mut Commits,
    ) -> Result<(), Broken> {
        let Some(conn) = self.clients[place].conn else {
            return Ok(());
        };
        while let Some(bytes) = world.net.receive(conn) {
            let mut scratch = std::mem::take(&mut self.scratch);
            let frame = Frame::decode(&bytes, &mut scratch);
            let frame = frame.map_err(|error| format!("an answer cannot be read: {error}"))?;
            if frame.header.is_response() {
                self.answered(place, world.mono, &frame, ledger, commits)?;
            }
            self.scratch = scratch;
        }
        if !world.net.is_open(conn) {
            self.clients[place].flying.clear();
            self.clients[place].conn = None;
        }
        Ok(())
    }

    fn answered(
        &mut self,
        place: usize,
        now: u64,
        frame: &Frame<'_>,
        ledger: &mut Ledger,
        commits: &mut Commits,
    ) -> Result<(), Broken> {
        let opaque = frame.header.opaque;
        let Some(request) = self.clients[place].flying.remove(&opaque) else {
            return Err(format!("request {opaque} was answered twice or never made"));
        };
        match request.asked {
            Asked::Send { ids, waits } => self.sent(now, frame, &ids, waits, ledger),
            Asked::Pull { queue, offset, all } => {
                self.pulled(place, now, frame, (queue, offset, all), ledger)
            }
            Asked::Commit { queue, offset } => {
                if frame.header.response_code() == ResponseCode::SUCCESS {
                    let group = format!("group{}", self.clients[place].number);
                    let entry = commits.entry((group, queue)).or_insert((offset, offset));
                    entry.1 = entry.1.max(offset);
                }
                Ok(())
            }
            Asked::Query => Ok(()),
        }
    }

    fn sent(
        &mut self,
        now: u64,
        frame: &Frame<'_>,
        ids: &[u64],
        waits: bool,
        ledger: &mut Ledger,
    ) -> Result<(), Broken> {
        let code = frame.header.response_code();
        if code != ResponseCode::SUCCESS && code != ResponseCode::FLUSH_DISK_TIMEOUT {
            let is_open = code == ResponseCode::SERVICE_NOT_AVAILABLE;
            for id in ids.iter().filter(|_| !is_open) {
                ledger.refused(*id);
            }
            return Ok(());
        }
        let response = SendResponse::decode(&frame.header)
            .map_err(|error| format!("an answer to a send cannot be read: {error}"))?;
        let places: Vec<&str> = response.msg_id.split(',').collect();
        if places.len() != ids.len() {
            return Err(format!(
                "{} messages were answered with {}",
                ids.len(),
                response.msg_id
            ));
        }
        let durable = waits && code == ResponseCode::SUCCESS;
        for (index, (id, text)) in ids.iter().zip(places).enumerate() {
            let log = text.get(text.len() - 16..);
            let log = log.and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let place = Place {
                log: log.ok_or_else(|| format!("no message id: {text}"))?,
                offset: response.queue_offset as u64 + index as u64,
            };
            ledger.stored(*id, response.queue_id, place, durable)?;
            let topic = ledger.attempts[*id as usize].topic.clone();
            if durable {
                let key = ((topic, response.queue_id), place.offset);
                self.acks.insert(key, now);
            }
        }
        Ok(())
    }

    fn pulled(
        &mut self,
        place: usize,
        now: u64,
        frame: &Frame<'_>,
        (queue, offset, all): (Queue, u64, bool),
        ledger: &mut Ledger,
    ) -> Result<(), Broken> {
        let code = frame.header.response_code();
        let missed = self.acks.get(&(queue.clone(), offset)).copied();
        if code == ResponseCode::PULL_NOT_FOUND
            && all
            && !self.stalls
            && missed.is_some_and(|acked| acked + WAKE_US < now)
        {
            return Err(format!(
                "a pull of {offset} of {queue:?} was not woken by a message"
            ));
        }
        if code != ResponseCode::SUCCESS {
            return Ok(());
        }
        let response = PullResponse::decode(&frame.header)
            .map_err(|error| format!("an answer to a pull cannot be read: {error}"))?;
        let records = decoder::read_records(frame.body);
        let Some(records) = records.filter(|records| !records.is_empty()) else {
            return Err(format!("a pull of {queue:?} brought no whole records"));
        };
        check_order(&records, &queue, offset, all)?;
        for record in &records {
            ledger.consumed(record)?;
        }
        self.clients[place]
            .cursors
            .insert(queue, response.next_begin_offset as u64);
        Ok(())
    }
}

fn check_order(records: &[Record], queue: &Queue, offset: u64, all: bool) -> Result<(), Broken> {
    let mut expected = offset;
    for record in records {
        let fits = (record.topic.as_str(), record.queue) == (queue.0.as_str(), queue.1);
        let in_row = record.offset == expected || (!all && record.offset > expected);
        if !fits || !in_row {
            return Err(format!(
                "a pull of {expected} of {queue:?} brought {} of {}-{}",
                record.offset, record.topic, record.queue
            ));
        }
        expected = record.offset + 1;
    }
    Ok(())
}

fn send_request<'a>(
    topic: &'a str,
    queue_id: i32,
    born_timestamp: i64,
    flag: i32,
    properties: &'a str,
    batch: bool,
) -> SendRequest<'a> {
    SendRequest {
        producer_group: "producers",
        topic,
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id,
        sys_flag: 0,
        born_timestamp,
        flag,
        properties,
        reconsume_times: 0,
        unit_mode: false,
        max_reconsume_times: None,
        batch,
        broker_name: None,
    }
}

impl Asked {
    fn name(&self) -> &'static str {
        match self {
            Asked::Send { .. } => "send",
            Asked::Pull { .. } => "pull",
            Asked::Commit { .. } => "commit of an offset",
            Asked::Query => "query of an offset",
        }
    }
}
