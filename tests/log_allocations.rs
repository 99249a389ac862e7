//! The log role allocates nothing per append, roll, write or answer once it is warm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringmq::broker::news::{Boot, Topic};
use ringmq::ids::{LogOffset, Micros, Millis, QueueKey, Ticket};
use ringmq::limits;
use ringmq::role::{Effect, Effects, Input, Letter, Mark, shard};
use ringmq::store::FlushMode;
use ringmq::store::checkpoint::Checkpoint;
use ringmq::store::log::{Log, LogConfig, LogCounters};
use ringmq::store::recover::{Cut, Recovered};
use ringmq::wire::record::{PropertiesSpec, RecordSpec};
use shards::mesh::{Inlet, Outlets, edge};
use shards::{LogRange, Now, Role};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const SEGMENT: u64 = 1 << 20;

struct Bench {
    log: Log,
    now: Now,
    list: Vec<Effect>,
    bytes: Vec<u8>,
    ranges: Vec<LogRange>,
    outlets: Outlets<Letter>,
    answers: Inlet<Letter>,
    running: Option<Ticket>,
    answered: u64,
}

impl Bench {
    fn new() -> Bench {
        let recovered = Recovered {
            first: LogOffset(0),
            end: LogOffset(0),
            prepared: LogOffset(1000 * SEGMENT),
            segments: Vec::new(),
            durable: None,
            clean: true,
            last_store_timestamp: Millis(0),
            records: 0,
            handed: 0,
            cut: Cut::default(),
            last_block: Vec::new(),
            checkpoint: Checkpoint::default(),
        };
        let topic = Topic {
            name: "Topic".to_owned(),
            read_queues: 1,
            write_queues: 1,
            perm: 6,
            sys_flag: 0,
            multi_tag: false,
            order: false,
            attributes: BTreeMap::new(),
            queues: vec![QueueKey(0)],
        };
        let boot = Boot {
            topics: vec![topic],
            ..Boot::default()
        };
        let config = LogConfig {
            segment_bytes: SEGMENT,
            mode: FlushMode::Sync,
            flush_timeout_ms: 5000,
            flush_interval_ms: 500,
            park_ms: 200,
        };
        let (tail, _) = shards::chunk::tail(limits::TAIL_BYTES_MIN, LogOffset(0)).expect("memory");
        let (outlet, answers) = edge(limits::APPENDED_EDGE);
        let mut outlets = Outlets::new();
        outlets.connect(shard(0), outlet);
        Bench {
            log: Log::new(
                config,
                &recovered,
                &boot,
                tail,
                Arc::<LogCounters>::default(),
            ),
            now: Now {
                mono: Micros(0),
                wall: Millis(1_800_000_000_000),
            },
            list: Vec::new(),
            bytes: Vec::new(),
            ranges: Vec::new(),
            outlets,
            answers,
            running: None,
            answered: 0,
        }
    }

    fn tell(&mut self, input: Input<'_>) {
        let mut fx = Effects {
            list: &mut self.list,
            bytes: &mut self.bytes,
            ranges: &mut self.ranges,
            outlets: &mut self.outlets,
        };
        self.log.handle(self.now, input, &mut fx);
        for effect in self.list.drain(..) {
            if let Effect::Write { ticket, .. } = effect {
                self.running = Some(ticket);
            }
        }
        while let Some((letter, _)) = self.answers.peek() {
            assert!(matches!(letter, Letter::Appended { result: Ok(_), .. }));
            self.answers.release();
            self.answered += 1;
        }
    }

    /// One turn: some appends, the running write ends, the turn settles.
    fn turn(&mut self, record: &[u8]) {
        self.now.mono = self.now.mono.plus_millis(1);
        for ask in 0..16 {
            let letter = Letter::Append {
                ask,
                queue: QueueKey(0),
                count: 1,
                wait: true,
            };
            self.tell(Input::Letter {
                from: shard(0),
                letter,
                payload: record,
            });
        }
        if let Some(ticket) = self.running.take() {
            self.tell(Input::Wrote {
                ticket,
                result: Ok(()),
            });
        }
        self.tell(Input::Settled);
    }
}

#[test]
fn a_warm_log_allocates_nothing() {
    let host: SocketAddr = "10.0.0.1:1234".parse().expect("an address");
    let spec = RecordSpec {
        topic: "Topic",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &[7; 1024],
        properties: PropertiesSpec::default(),
    };
    let mut record = vec![0; spec.encoded_len().expect("it fits")];
    spec.encode(&mut record);
    let mut bench = Bench::new();
    bench.tell(Input::Mark(Mark::Prepared(LogOffset(1000 * SEGMENT))));
    for _ in 0..200 {
        bench.turn(&record);
    }
    let (answered, before) = (bench.answered, ALLOCATIONS.load(Ordering::Relaxed));
    for _ in 0..5000 {
        bench.turn(&record);
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert!(bench.answered - answered > 70_000, "rolls included");
    assert_eq!(allocations, 0);
}
