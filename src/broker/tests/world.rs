//! Shards with edges between them, a log and queue files in memory, and clients.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use shards::mesh::{EdgeSize, Inlet, Outlets, edge};
use shards::role::{Body, ReadAt, ReadError, Role};
use shards::{ListenerId, Now};

use crate::broker::news::{Boot, GroupSettings, News, Online, QueueState, Subscription, Topic};
use crate::broker::shard::{Shard, ShardConfig};
use crate::ids::{
    Conn, LogOffset, LogRange, Micros, Millis, QueueKey, QueueOffset, RoleId, Ticket,
};
use crate::role::{
    self, AppendRefused, CONTROL, DISPATCH, Effect, Effects, INDEX, Input, LOG, Letter, Mark,
    Stored,
};
use crate::wire::properties::java_hash;
use crate::wire::record::{self, Check, Checked, Record, Untrusted};
use crate::wire::{
    Encoding, Frame, RequestCode, RequestHead, ResponseCode, Scratch, encode_request,
};

pub const STORE_HOST: &str = "127.0.0.1:20911";
pub const FILE_BYTES: u64 = 20 * 100;

/// What a client got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    pub conn: Conn,
    pub code: ResponseCode,
    pub opaque: i32,
    pub remark: Option<String>,
    pub ext: BTreeMap<String, String>,
    pub body: Vec<u8>,
    pub encoding: Encoding,
    pub has_ext: bool,
}

impl Got {
    pub fn field(&self, name: &str) -> &str {
        let value = self.ext.get(name);
        value.unwrap_or_else(|| panic!("no field {name} in {self:?}"))
    }

    pub fn remark(&self) -> &str {
        self.remark.as_deref().unwrap_or_default()
    }

    /// The messages of the body, by their bodies.
    pub fn bodies(&self) -> Vec<String> {
        let body = |record: Record<'_>| String::from_utf8(record.body().to_vec()).unwrap();
        records(&self.body).into_iter().map(body).collect()
    }
}

/// The records that lie back to back in `bytes`.
pub fn records(mut bytes: &[u8]) -> Vec<Record<'_>> {
    let mut records = vec![];
    while !bytes.is_empty() {
        let check = Check {
            body_crc: true,
            ..Check::default()
        };
        match Untrusted(bytes).check(check) {
            Checked::Message(record) => {
                bytes = &bytes[record.size() as usize..];
                records.push(record);
            }
            other => panic!("no record: {other:?}"),
        }
    }
    records
}

struct Core {
    shard: Shard,
    outlets: Outlets<Letter>,
    inlets: Vec<(RoleId, Inlet<Letter>)>,
    list: Vec<Effect>,
    bytes: Vec<u8>,
    ranges: Vec<LogRange>,
}

/// One append as the log heard it.
#[derive(Clone, Debug)]
pub struct Appended {
    pub shard: RoleId,
    pub ask: u64,
    pub queue: QueueKey,
    pub count: u32,
    pub wait: bool,
    pub bytes: Vec<u8>,
}

pub struct World {
    cores: Vec<Core>,
    pub now: Now,
    /// Bytes of the log; appended to as letters come.
    pub log: Vec<u8>,
    pub appends: Vec<Appended>,
    /// Whether the log answers at once; else the answers wait in `unanswered`.
    pub log_answers: bool,
    pub unanswered: VecDeque<(RoleId, u64, Stored)>,
    pub queue_ends: BTreeMap<QueueKey, u64>,
    /// Units in the files, by queue and offset.
    pub units: BTreeMap<(QueueKey, u64), Vec<u8>>,
    dirs: BTreeMap<String, QueueKey>,
    /// Units not told to the owners yet.
    undispatched: BTreeMap<QueueKey, Vec<u8>>,
    /// Whether what is appended becomes readable at once.
    pub dispatches: bool,
    pub got: Vec<Got>,
    pub closed: Vec<Conn>,
    pub paused: Vec<Conn>,
    pub stopped: Vec<usize>,
    /// Letters to control and index.
    pub told: Vec<(RoleId, RoleId, Letter, Vec<u8>)>,
    /// Ranges of every reply, as they were left.
    pub ranges: Vec<Vec<LogRange>>,
    pub reads: usize,
    pub tell_log: bool,
    opaque: i32,
}

pub fn conn(core: usize, slot: u32) -> Conn {
    Conn {
        core: core as u8,
        slot,
        generation: 1,
    }
}

pub fn topic(name: &str, queues: u32, first_key: u32) -> Topic {
    Topic {
        name: name.to_string(),
        read_queues: queues,
        write_queues: queues,
        perm: 6,
        sys_flag: 0,
        multi_tag: false,
        order: false,
        attributes: BTreeMap::new(),
        queues: (first_key..first_key + queues).map(QueueKey).collect(),
    }
}

pub fn group(name: &str) -> GroupSettings {
    GroupSettings {
        name: name.to_string(),
        consume_enable: true,
        broadcast_enable: true,
        retry_max_times: 16,
        retry_queues: 1,
        sys_flag: 0,
    }
}

pub fn online(group: &str, topic: &str, expression: &str, version: i64) -> News {
    let tags = expression.split("||").map(str::trim);
    let tags = tags.filter(|tag| !tag.is_empty() && *tag != "*");
    News::Online(Online {
        group: group.to_string(),
        broadcasting: false,
        subscriptions: vec![Subscription {
            topic: topic.to_string(),
            expression: expression.to_string(),
            expression_type: "TAG".to_string(),
            tag_hashes: tags.map(java_hash).collect(),
            version,
        }],
    })
}

pub struct Setup {
    pub shards: usize,
    pub boot: Boot,
    pub configure: fn(&mut ShardConfig),
    pub size: fn(RoleId, RoleId) -> EdgeSize,
}

impl Default for Setup {
    fn default() -> Setup {
        let mut template = topic("TBW102", 8, 900);
        template.perm = 7;
        Setup {
            shards: 1,
            boot: Boot {
                topics: vec![topic("T", 4, 0), template],
                groups: vec![group("G")],
                queues: vec![],
                offsets: vec![],
            },
            configure: |_| {},
            size: |from, to| role::edge(from, to).expect("shards have these edges"),
        }
    }
}

impl Setup {
    pub fn build(self) -> World {
        let boot = Arc::new(self.boot);
        let mut cores: Vec<Core> = (0..self.shards)
            .map(|number| {
                let host = STORE_HOST.parse().unwrap();
                let mut config = ShardConfig::new(number, self.shards, host);
                config.queue_dir = "consumequeue".into();
                config.queue_file_bytes = FILE_BYTES;
                (self.configure)(&mut config);
                Core {
                    shard: Shard::new(config, &boot),
                    outlets: Outlets::new(),
                    inlets: vec![],
                    list: vec![],
                    bytes: vec![],
                    ranges: vec![],
                }
            })
            .collect();
        let mut receivers = vec![CONTROL, LOG, INDEX];
        receivers.extend((0..self.shards).map(role::shard));
        for (number, core) in cores.iter_mut().enumerate() {
            let me = role::shard(number);
            for to in receivers.iter().copied().filter(|to| *to != me) {
                let (outlet, inlet) = edge((self.size)(me, to));
                core.outlets.connect(to, outlet);
                core.inlets.push((to, inlet));
            }
        }
        let mut dirs = BTreeMap::new();
        for topic in &boot.topics {
            for (id, key) in topic.queues.iter().enumerate() {
                dirs.insert(format!("consumequeue/{}/{id}", topic.name), *key);
            }
        }
        let mut world = World {
            cores,
            now: Now {
                mono: Micros(1_000_000),
                wall: Millis(1_795_986_781_000),
            },
            log: vec![],
            appends: vec![],
            log_answers: true,
            unanswered: VecDeque::new(),
            queue_ends: BTreeMap::new(),
            units: BTreeMap::new(),
            dirs,
            undispatched: BTreeMap::new(),
            dispatches: true,
            got: vec![],
            closed: vec![],
            paused: vec![],
            stopped: vec![],
            told: vec![],
            ranges: vec![],
            reads: 0,
            tell_log: true,
            opaque: 0,
        };
        for core in 0..self.shards {
            world.open(conn(core, 0));
        }
        world
    }
}

impl World {
    pub fn new() -> World {
        Setup::default().build()
    }

    pub fn open(&mut self, conn: Conn) {
        let peer: SocketAddr = "127.0.0.1:44756".parse().unwrap();
        let listener = ListenerId(0);
        self.hear(
            usize::from(conn.core),
            Input::Opened {
                conn,
                listener,
                peer,
            },
        );
    }

    pub fn close(&mut self, conn: Conn) {
        self.hear(usize::from(conn.core), Input::Closed { conn });
    }

    pub fn mark(&mut self, mark: Mark) {
        for core in 0..self.cores.len() {
            self.hear(core, Input::Mark(mark));
        }
    }

    pub fn letter(&mut self, core: usize, from: RoleId, letter: Letter, payload: &[u8]) {
        let input = Input::Letter {
            from,
            letter,
            payload,
        };
        self.hear(core, input);
    }

    pub fn news(&mut self, news: &News) {
        if let News::Topic(topic) = news {
            for (id, key) in topic.queues.iter().enumerate() {
                let dir = format!("consumequeue/{}/{id}", topic.name);
                self.dirs.insert(dir, *key);
            }
        }
        let payload = serde_json::to_vec(news).unwrap();
        for core in 0..self.cores.len() {
            self.letter(core, CONTROL, Letter::News { version: 7 }, &payload);
        }
    }

    /// Time passes; every core whose deadline has come hears of it.
    pub fn pass(&mut self, millis: u64) {
        let end = self.now.mono.plus_millis(millis);
        loop {
            let next = self.cores.iter().enumerate();
            let next = next
                .filter_map(|(n, core)| Some((core.shard.deadline()?, n)))
                .min();
            let Some((time, core)) = next.filter(|(time, _)| *time <= end) else {
                break;
            };
            self.set_time(time.max(self.now.mono));
            self.hear(core, Input::Deadline);
        }
        self.set_time(end);
    }

    fn set_time(&mut self, mono: Micros) {
        self.now.wall.0 += (mono.0 - self.now.mono.0) / 1000;
        self.now.mono = mono;
    }

    /// Sends a frame and returns what its connection got for it, if it got something.
    pub fn ask_with(
        &mut self,
        conn: Conn,
        head: impl FnOnce(&mut RequestHead),
        code: i32,
        fields: &[(&str, &str)],
        body: &[u8],
        encoding: Encoding,
    ) -> Option<Got> {
        self.opaque += 1;
        let mut request = RequestHead::new(RequestCode(code), self.opaque);
        head(&mut request);
        let mut bytes = vec![];
        encode_request(&mut bytes, encoding, &request, None, body.len(), |out| {
            fields
                .iter()
                .for_each(|(name, value)| out.put_str(name, value));
        });
        bytes.extend_from_slice(body);
        let frame = Input::Frame {
            conn,
            bytes: &bytes[4..],
        };
        let before = self.got.len();
        self.hear(usize::from(conn.core), frame);
        let mine = |got: &&Got| got.conn == conn && got.opaque == request.opaque;
        self.got[before..].iter().find(mine).cloned()
    }

    pub fn try_ask(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> Option<Got> {
        self.ask_with(conn(0, 0), |_| {}, code, fields, body, Encoding::Json)
    }

    pub fn ask(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> Got {
        let got = self.try_ask(code, fields, body);
        got.unwrap_or_else(|| panic!("no answer to {code} {fields:?}"))
    }

    /// Lets a shard hear something, then everything run until nothing is left to do.
    pub fn hear(&mut self, core: usize, input: Input<'_>) {
        self.call(core, input);
        while self.step() {}
    }

    fn call(&mut self, number: usize, input: Input<'_>) {
        let core = &mut self.cores[number];
        let mut fx = Effects {
            list: &mut core.list,
            bytes: &mut core.bytes,
            ranges: &mut core.ranges,
            outlets: &mut core.outlets,
        };
        core.shard.handle(self.now, input, &mut fx);
        let list = std::mem::take(&mut core.list);
        let bytes = std::mem::take(&mut core.bytes);
        let ranges = std::mem::take(&mut core.ranges);
        for effect in list {
            self.carry_out(number, effect, &bytes, &ranges);
        }
    }

    fn carry_out(&mut self, core: usize, effect: Effect, bytes: &[u8], ranges: &[LogRange]) {
        match effect {
            Effect::Reply { conn, head, body } => {
                let ranges = match body {
                    Body::None => &[],
                    Body::Log(span) => {
                        &ranges[span.start as usize..(span.start + span.len) as usize]
                    }
                };
                self.take_reply(conn, head.of(bytes), ranges);
            }
            Effect::Close { conn } => {
                self.closed.push(conn);
                self.call(core, Input::Closed { conn });
            }
            Effect::Pause { conn } => self.paused.push(conn),
            Effect::Resume { conn } => self.paused.retain(|paused| *paused != conn),
            Effect::Read { ticket, at, len } => self.read(core, ticket, at, len),
            Effect::Stopped => self.stopped.push(core),
            other => panic!("a shard does not ask for {other:?}"),
        }
    }

    fn take_reply(&mut self, conn: Conn, head: &[u8], ranges: &[LogRange]) {
        let mut whole = head.to_vec();
        for range in ranges {
            let at = range.at.0 as usize;
            whole.extend_from_slice(&self.log[at..at + range.len as usize]);
        }
        self.ranges.push(ranges.to_vec());
        let length = u32::from_be_bytes(whole[..4].try_into().unwrap());
        assert_eq!(
            length as usize,
            whole.len() - 4,
            "the length word counts the body"
        );
        let mut scratch = Scratch::new();
        let frame = Frame::decode(&whole[4..], &mut scratch).expect("our own frame");
        let text = String::from_utf8_lossy(head);
        self.got.push(Got {
            conn,
            code: frame.header.response_code(),
            opaque: frame.header.opaque,
            remark: frame.header.remark.map(str::to_string),
            ext: frame
                .header
                .ext_fields()
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect(),
            body: frame.body.to_vec(),
            encoding: frame.header.encoding,
            has_ext: text.contains("extFields"),
        });
    }

    fn read(&mut self, core: usize, ticket: Ticket, at: ReadAt, len: u32) {
        self.reads += 1;
        let bytes = match at {
            ReadAt::Log(at) => {
                let end = at.0 as usize + len as usize;
                self.log.get(at.0 as usize..end).map(<[u8]>::to_vec)
            }
            ReadAt::File(file, at) => {
                assert!(
                    at + u64::from(len) <= FILE_BYTES,
                    "a read stays in its file"
                );
                assert_eq!(file.number % FILE_BYTES, 0);
                let dir = file.dir.path.to_str().unwrap();
                let key = self.dirs.get(dir).copied();
                key.and_then(|key| {
                    let first = (file.number + at) / 20;
                    let units = first..first + u64::from(len) / 20;
                    let units = units.map(|offset| self.units.get(&(key, offset)));
                    units
                        .collect::<Option<Vec<_>>>()
                        .map(|units| units.into_iter().flatten().copied().collect::<Vec<u8>>())
                })
            }
        };
        let result = bytes.as_deref().ok_or(ReadError::Missing);
        self.call(core, Input::Read { ticket, result });
    }

    /// Carries letters on; false if there are none.
    pub fn step(&mut self) -> bool {
        let mut moved = false;
        for core in 0..self.cores.len() {
            while let Some((to, letter, payload)) = self.next_letter(core) {
                moved = true;
                self.carry(role::shard(core), to, letter, payload);
            }
            while let Some(to) = self.cores[core].outlets.take_room() {
                moved = true;
                self.call(core, Input::Room { to });
            }
        }
        moved || (self.dispatches && self.dispatch())
    }

    fn next_letter(&mut self, core: usize) -> Option<(RoleId, Letter, Vec<u8>)> {
        let tell_log = self.tell_log;
        let inlets = &mut self.cores[core].inlets;
        for (to, inlet) in inlets.iter_mut().filter(|(to, _)| tell_log || *to != LOG) {
            if let Some((letter, bytes)) = inlet.peek() {
                let taken = (*to, letter, bytes.to_vec());
                inlet.release();
                return Some(taken);
            }
        }
        None
    }

    fn carry(&mut self, from: RoleId, to: RoleId, letter: Letter, payload: Vec<u8>) {
        match (to, letter) {
            (
                LOG,
                Letter::Append {
                    ask,
                    queue,
                    count,
                    wait,
                },
            ) => {
                let append = Appended {
                    shard: from,
                    ask,
                    queue,
                    count,
                    wait,
                    bytes: payload,
                };
                self.append(append);
            }
            (CONTROL | INDEX, _) => self.told.push((from, to, letter, payload)),
            (to, letter) => {
                let core = usize::from(to.0 - role::SHARD_0.0);
                let input = Input::Letter {
                    from,
                    letter,
                    payload: &payload,
                };
                self.call(core, input);
            }
        }
    }

    fn append(&mut self, append: Appended) {
        let end = self.queue_ends.entry(append.queue).or_insert(0);
        let stored = Stored {
            log_offset: LogOffset(self.log.len() as u64),
            queue_offset: QueueOffset(*end),
            store_timestamp: self.now.wall,
            flush_timed_out: false,
        };
        let sizes: Vec<u32> = records(&append.bytes).iter().map(Record::size).collect();
        assert_eq!(
            sizes.len(),
            append.count as usize,
            "count says how many records"
        );
        let mut rest = &append.bytes[..];
        for size in sizes {
            let (bytes, after) = rest.split_at(size as usize);
            rest = after;
            let at = self.log.len() as u64;
            let mut bytes = bytes.to_vec();
            record::patch(&mut bytes, *end, at, self.now.wall.0 as i64);
            self.log.extend_from_slice(&bytes);
            let tags = records(&bytes)[0].tags_code();
            let mut unit = at.to_be_bytes().to_vec();
            unit.extend_from_slice(&size.to_be_bytes());
            unit.extend_from_slice(&tags.to_be_bytes());
            self.undispatched
                .entry(append.queue)
                .or_default()
                .extend_from_slice(&unit);
            self.units.insert((append.queue, *end), unit);
            *end += 1;
        }
        let (shard, ask) = (append.shard, append.ask);
        self.appends.push(append);
        if self.log_answers {
            self.answer(shard, ask, Ok(stored));
        } else {
            self.unanswered.push_back((shard, ask, stored));
        }
    }

    pub fn answer(&mut self, shard: RoleId, ask: u64, result: Result<Stored, AppendRefused>) {
        let core = usize::from(shard.0 - role::SHARD_0.0);
        let input = Input::Letter {
            from: LOG,
            letter: Letter::Appended { ask, result },
            payload: &[],
        };
        self.call(core, input);
    }

    /// Answers the oldest append that waits.
    pub fn answer_next(&mut self, result: Result<(), AppendRefused>) {
        let (shard, ask, stored) = self.unanswered.pop_front().expect("an append waits");
        self.answer(shard, ask, result.map(|()| stored));
        while self.step() {}
    }

    /// Makes what was appended visible, and tells the owners; false if there is nothing.
    pub fn dispatch(&mut self) -> bool {
        if self.undispatched.is_empty() {
            return false;
        }
        let visible = LogOffset(self.log.len() as u64);
        for core in 0..self.cores.len() {
            self.call(core, Input::Mark(Mark::Visible(visible)));
        }
        for (queue, units) in std::mem::take(&mut self.undispatched) {
            self.tell_readable(queue, &units);
        }
        true
    }

    pub fn tell_readable(&mut self, queue: QueueKey, units: &[u8]) {
        let next = QueueOffset(self.queue_ends[&queue]);
        let owner = role::owner(queue, self.cores.len());
        let core = usize::from(owner.0 - role::SHARD_0.0);
        let input = Input::Letter {
            from: DISPATCH,
            letter: Letter::Readable { queue, next },
            payload: units,
        };
        self.call(core, input);
    }

    pub fn deadline(&self, core: usize) -> Option<Micros> {
        self.cores[core].shard.deadline()
    }

    // ---- requests

    /// A send of 310 with all that a client sends.
    pub fn send_fields<'a>(topic: &'a str, queue: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            ("a", "PG"),
            ("b", topic),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", queue),
            ("f", "0"),
            ("g", "1795986781001"),
            ("h", "0"),
            ("i", ""),
            ("j", "0"),
            ("k", "false"),
            ("m", "false"),
        ]
    }

    pub fn send(&mut self, topic: &str, queue: &str, properties: &str, body: &[u8]) -> Got {
        let fields = with(World::send_fields(topic, queue), "i", properties);
        self.ask(310, &fields, body)
    }

    pub fn pull_fields<'a>(topic: &'a str, queue: &'a str, offset: &'a str) -> Fields<'a> {
        vec![
            ("consumerGroup", "G"),
            ("topic", topic),
            ("queueId", queue),
            ("queueOffset", offset),
            ("maxMsgNums", "32"),
            ("sysFlag", "4"),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", "15000"),
            ("subscription", "*"),
            ("subVersion", "1"),
            ("expressionType", "TAG"),
        ]
    }

    pub fn pull(&mut self, queue: &str, offset: &str) -> Got {
        let fields = World::pull_fields("T", queue, offset);
        self.ask(11, &fields, b"")
    }

    /// Sends `count` messages `m0`, `m1`.. to one queue of `T`.
    pub fn fill(&mut self, queue: &str, count: usize) {
        for number in 0..count {
            let got = self.send("T", queue, "", format!("m{number}").as_bytes());
            assert_eq!(got.code, ResponseCode::SUCCESS, "{got:?}");
        }
    }
}

pub type Fields<'a> = Vec<(&'a str, &'a str)>;

/// The fields with one of them changed or added.
pub fn with<'a>(mut fields: Fields<'a>, name: &'a str, value: &'a str) -> Fields<'a> {
    fields.retain(|(known, _)| *known != name);
    fields.push((name, value));
    fields
}

/// The fields without one of them.
pub fn without<'a>(mut fields: Fields<'a>, name: &str) -> Fields<'a> {
    fields.retain(|(known, _)| *known != name);
    fields
}

pub fn queue_state(key: u32, first: u64, end: u64) -> QueueState {
    QueueState {
        key: QueueKey(key),
        first: QueueOffset(first),
        next: QueueOffset(end),
        dispatched: QueueOffset(end),
    }
}
