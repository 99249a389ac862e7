//! Sends and pulls of new messages allocate nothing once the buffers have grown (DESIGN 3).

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringmq::broker::news::{Boot, GroupSettings, Topic};
use ringmq::broker::shard::{Shard, ShardConfig};
use ringmq::ids::{Conn, LogOffset, LogRange, Micros, Millis, QueueKey, QueueOffset};
use ringmq::role::{self, DISPATCH, Effect, Effects, Input, LOG, Letter, Mark, Stored};
use ringmq::wire::{Encoding, RequestCode, RequestHead, encode_request};
use shards::mesh::{Inlet, Outlets, edge};
use shards::role::{Body, Role};
use shards::{ListenerId, Now};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONN: Conn = Conn {
    core: 0,
    slot: 0,
    generation: 1,
};
const ROUNDS_TO_WARM_UP: usize = 5_000;
const ROUNDS: usize = 20_000;
/// The hash code of TagA.
const TAG_A: u64 = 2_598_919;

struct Bench {
    shard: Shard,
    outlets: Outlets<Letter>,
    log: Inlet<Letter>,
    list: Vec<Effect>,
    bytes: Vec<u8>,
    ranges: Vec<LogRange>,
    now: Now,
    log_end: u64,
    queue_end: u64,
    send: Vec<u8>,
    pull: Vec<u8>,
    replies: usize,
    bodies: usize,
}

impl Bench {
    fn new() -> Bench {
        let config = ShardConfig::new(0, 1, "127.0.0.1:10911".parse().expect("an address"));
        let (outlet, log) = edge(role::edge(role::SHARD_0, LOG).expect("shards append"));
        let mut outlets = Outlets::new();
        outlets.connect(LOG, outlet);
        let mut bench = Bench {
            shard: Shard::new(config, &Arc::new(boot())),
            outlets,
            log,
            list: Vec::new(),
            bytes: Vec::new(),
            ranges: Vec::new(),
            now: Now {
                mono: Micros(1),
                wall: Millis(1_795_986_781_000),
            },
            log_end: 0,
            queue_end: 0,
            send: send_frame(),
            pull: pull_frame(false),
            replies: 0,
            bodies: 0,
        };
        bench.handle(Input::Opened {
            conn: CONN,
            listener: ListenerId(0),
            peer: "127.0.0.1:5000".parse().expect("an address"),
        });
        bench
    }

    fn handle(&mut self, input: Input<'_>) {
        let mut fx = Effects {
            list: &mut self.list,
            bytes: &mut self.bytes,
            ranges: &mut self.ranges,
            outlets: &mut self.outlets,
        };
        self.shard.handle(self.now, input, &mut fx);
        for effect in self.list.drain(..) {
            match effect {
                Effect::Reply { body, .. } => {
                    self.replies += 1;
                    self.bodies += usize::from(body != Body::None);
                }
                other => panic!("{other:?}"),
            }
        }
        self.bytes.clear();
        self.ranges.clear();
    }

    fn hear(&mut self, from: ringmq::ids::RoleId, letter: Letter, payload: &[u8]) {
        self.handle(Input::Letter {
            from,
            letter,
            payload,
        });
    }

    /// One message from its frame to where its owner knows that it can be read.
    fn send(&mut self) {
        let bytes = std::mem::take(&mut self.send);
        self.handle(Input::Frame {
            conn: CONN,
            bytes: &bytes,
        });
        self.send = bytes;
        let Some((Letter::Append { ask, queue, .. }, record)) = self.log.peek() else {
            panic!("the log hears of the send");
        };
        let size = record.len() as u32;
        self.log.release();
        let stored = Stored {
            log_offset: LogOffset(self.log_end),
            queue_offset: QueueOffset(self.queue_end),
            store_timestamp: self.now.wall,
            flush_timed_out: false,
        };
        let mut unit = [0; 20];
        unit[..8].copy_from_slice(&self.log_end.to_be_bytes());
        unit[8..12].copy_from_slice(&size.to_be_bytes());
        unit[12..].copy_from_slice(&TAG_A.to_be_bytes());
        self.log_end += u64::from(size);
        self.queue_end += 1;
        self.now.mono.0 += 50;
        let result = Ok(stored);
        self.hear(LOG, Letter::Appended { ask, result }, &[]);
        self.handle(Input::Mark(Mark::Visible(LogOffset(self.log_end))));
        let next = QueueOffset(self.queue_end);
        self.hear(DISPATCH, Letter::Readable { queue, next }, &unit);
        self.handle(Input::Settled);
    }

    fn pull(&mut self, mut offset: u64) {
        let name = b"\"queueOffset\":\"";
        let at = self.pull.windows(name.len()).position(|b| b == name);
        let at = at.expect("the pull has an offset") + name.len();
        for digit in self.pull[at..at + 12].iter_mut().rev() {
            *digit = b'0' + (offset % 10) as u8;
            offset /= 10;
        }
        let bytes = std::mem::take(&mut self.pull);
        self.handle(Input::Frame {
            conn: CONN,
            bytes: &bytes,
        });
        self.pull = bytes;
    }
}

fn boot() -> Boot {
    let topic = Topic {
        name: "T".to_string(),
        read_queues: 1,
        write_queues: 1,
        perm: 6,
        sys_flag: 0,
        multi_tag: false,
        order: false,
        attributes: Default::default(),
        queues: vec![QueueKey(0)],
    };
    let group = GroupSettings {
        name: "G".to_string(),
        consume_enable: true,
        broadcast_enable: true,
        retry_max_times: 16,
        retry_queues: 1,
        sys_flag: 0,
    };
    Boot {
        topics: vec![topic],
        groups: vec![group],
        ..Boot::default()
    }
}

fn frame(code: i32, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let head = RequestHead::new(RequestCode(code), 7);
    let mut bytes = Vec::new();
    encode_request(&mut bytes, Encoding::Json, &head, None, body.len(), |out| {
        for (name, value) in fields {
            out.put_str(name, value);
        }
    });
    bytes.extend_from_slice(body);
    bytes.split_off(4)
}

fn send_frame() -> Vec<u8> {
    let properties =
        "UNIQ_KEY\u{1}7F0000010001186018B4AAC2100F4385\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA\u{2}";
    let fields = [
        ("a", "PG"),
        ("b", "T"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "0"),
        ("f", "0"),
        ("g", "1795986781001"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    frame(310, &fields, &[b'x'; 1024])
}

/// The digits of its offset are written over for each pull.
fn pull_frame(hold: bool) -> Vec<u8> {
    let fields = [
        ("consumerGroup", "G"),
        ("topic", "T"),
        ("queueId", "0"),
        ("queueOffset", "000000000000"),
        ("maxMsgNums", "32"),
        ("sysFlag", if hold { "7" } else { "5" }),
        ("commitOffset", "1"),
        ("suspendTimeoutMillis", "15000"),
        ("subscription", "TagA || TagB"),
        ("subVersion", "1"),
    ];
    frame(11, &fields, b"")
}

fn allocations_of(rounds: usize, mut round: impl FnMut()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..rounds {
        round();
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// One test only: the counter is the process's.
#[test]
fn steady_sends_and_pulls_of_new_messages_allocate_nothing() {
    let mut bench = Bench::new();
    let round = |bench: &mut Bench| {
        bench.send();
        bench.pull(bench.queue_end - 1);
    };
    allocations_of(ROUNDS_TO_WARM_UP, || round(&mut bench));
    let (replies, bodies) = (bench.replies, bench.bodies);
    let allocated = allocations_of(ROUNDS, || round(&mut bench));
    assert_eq!(allocated, 0, "send, then pull");
    assert_eq!(bench.replies - replies, 2 * ROUNDS);
    assert_eq!(
        bench.bodies - bodies,
        ROUNDS,
        "each pull has found its message"
    );

    bench.pull = pull_frame(true);
    let round = |bench: &mut Bench| {
        bench.pull(bench.queue_end);
        bench.send();
    };
    allocations_of(ROUNDS_TO_WARM_UP, || round(&mut bench));
    let bodies = bench.bodies;
    let allocated = allocations_of(ROUNDS, || round(&mut bench));
    assert_eq!(allocated, 0, "pull held, then woken");
    assert_eq!(bench.bodies - bodies, ROUNDS, "each held pull was woken");
}
