//! Every bound of the broker with its reason. What depends on another is tied to it below.

use shards::mesh::EdgeSize;

/// The longest frame including its length word (remoting 1): Java's decoder refuses one more.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The longest message body unless `maxMessageSize` says less (store-behaviour 2.4).
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A record's head, topic and properties come on top of its body.
pub const RECORD_BYTES_MAX: usize = BODY_BYTES_MAX + 64 * 1024;
/// Encoded properties of one record: an i16 length (store-format 3.4).
pub const PROPERTIES_BYTES_MAX: usize = 32_767;
/// Topic names of ordinary topics, and of retry and dead-letter topics (store-format 4).
pub const TOPIC_BYTES_MAX: usize = 127;
pub const RETRY_TOPIC_BYTES_MAX: usize = 255;
pub const GROUP_BYTES_MAX: usize = 255;

/// One device write gathers at most this, unless a single record or client batch is longer: longer
/// writes cost the first waiter more than they save the last (64 KiB 107 us, 1 MiB 405 us).
pub const BATCH_BYTES_MAX: u64 = 512 * 1024;
/// The longest write: recovery looks this far beyond a bad record for later ones.
pub const WRITE_BYTES_MAX: u64 = RECORD_BYTES_MAX as u64 + 8192;
/// The tail of the log in memory.
pub const TAIL_BYTES: u64 = 64 * 1024 * 1024;
/// Tests run many brokers beside each other.
pub const TAIL_BYTES_MIN: u64 = 8 * 1024 * 1024;

/// Sends that one shard has told the log and not heard of; also the size of the way back.
pub const APPENDS_IN_FLIGHT_MAX: usize = 4096;
/// Bytes of the same, in the lane.
pub const APPEND_LANE_BYTES: usize = 8 * 1024 * 1024;
/// Sends parked in one shard because the log's lane was full or their topic is being made.
pub const PARKED_SEND_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Parked pulls of one shard, and of one connection.
pub const PARKED_PULLS_MAX: usize = 100_000;
pub const PARKED_PULLS_PER_CONNECTION_MAX: usize = 4096;
/// Parked pulls that one call wakes; the rest follow in the next turns.
pub const WAKES_PER_CALL: usize = 512;
/// Units of a queue's newest messages in memory: as many as this while all windows of the shard
/// together have fewer than `WINDOW_UNITS_FULL` (24 bytes each), else `WINDOW_UNITS_MIN`.
pub const WINDOW_UNITS_MAX: usize = 1024;
pub const WINDOW_UNITS_MIN: usize = 64;
pub const WINDOW_UNITS_FULL: usize = 1 << 20;
/// Units that one pull looks at, whatever `maxMsgNums` says.
pub const SCAN_UNITS_MAX: usize = 8192;
/// Bytes and messages that one pull may bring, whatever the configuration says: all of it with its
/// head fits a frame, and its ranges fit an edge.
pub const PULL_BYTES_MAX: u32 = 8 * 1024 * 1024;
pub const PULL_MESSAGES_MAX: u32 = 4096;
/// Consumer offsets that one shard keeps.
pub const OFFSETS_MAX: usize = 1_000_000;
/// Requests of many steps (cold pulls, searches, look-ups) under way in one shard.
pub const SHARD_FLOWS_MAX: usize = 2048;
/// Letters of one shard that wait for a full edge; and answers in pieces that are gathered.
pub const BACKLOG_BYTES_MAX: usize = 4 * 1024 * 1024;
pub const ASSEMBLED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Topics that one shard waits for.
pub const NEW_TOPICS_MAX: usize = 1024;
/// How long a send waits for its topic: below the clients' time-out of 3 s.
pub const NEW_TOPIC_WAIT_MS: u64 = 2_500;
/// Topics and queues of one broker: the memory budget counts 3 KiB per queue.
pub const TOPICS_MAX: usize = 100_000;
pub const QUEUES_MAX: usize = 400_000;
/// Queues of one topic (RocketMQ's BenchmarkTest has 1,024).
pub const QUEUES_PER_TOPIC_MAX: usize = 65_536;
/// Consumer groups, and members of all groups.
pub const GROUPS_MAX: usize = 100_000;
pub const MEMBERS_MAX: usize = 200_000;

const _: () = assert!(RECORD_BYTES_MAX < FRAME_BYTES_MAX, "a record fits a frame");
const _: () = assert!(
    RECORD_BYTES_MAX < APPEND_LANE_BYTES,
    "a record fits an empty lane"
);
const _: () = assert!(
    WRITE_BYTES_MAX * 2 <= TAIL_BYTES_MIN * 2,
    "two writes fit the tail"
);

const _: () = assert!(
    PULL_MESSAGES_MAX as usize * 12 + 4096 < FORWARD_LANE_BYTES,
    "the ranges of one pull fit an edge"
);

/// A request that is handed on as a whole fits this lane, and so does one piece of an answer.
pub const FORWARD_LANE_BYTES: usize = 256 * 1024;
/// One piece of a long answer between roles.
pub const ANSWER_PIECE_BYTES: usize = 64 * 1024;
/// Requests longer than this are not handed on: no request but a send needs more.
pub const FORWARD_BYTES_MAX: usize = 192 * 1024;

/// The size of each kind of edge (DESIGN 2). Shards <-> log carry the messages.
pub const APPEND_EDGE: EdgeSize = EdgeSize {
    letters: APPENDS_IN_FLIGHT_MAX,
    lane_bytes: APPEND_LANE_BYTES,
};
pub const APPENDED_EDGE: EdgeSize = EdgeSize {
    letters: APPENDS_IN_FLIGHT_MAX,
    lane_bytes: 0,
};
pub const READABLE_EDGE: EdgeSize = EdgeSize {
    letters: 1024,
    lane_bytes: 256 * 1024,
};
pub const ORDINARY_EDGE: EdgeSize = EdgeSize {
    letters: 1024,
    lane_bytes: FORWARD_LANE_BYTES,
};

/// Segments of the log: a blank record's length is an `i32`, tests want small ones.
pub const SEGMENT_BYTES_MIN: u64 = 16 * 1024;
pub const SEGMENT_BYTES_MAX: u64 = (1 << 31) - 4096;
/// Appends that the log keeps aside while it waits for a segment or for room in the tail.
pub const LOG_PARKED_BYTES_MAX: usize = 8 * 1024 * 1024;
pub const LOG_PARKED_MAX: usize = 16 * 1024;
/// Appends in the tail that are not yet written; timed out ones hold no credit any more, so credits
/// alone do not bound them.
pub const LOG_UNWRITTEN_MAX: usize = 64 * 1024;

const _: () = assert!(
    RECORD_BYTES_MAX <= LOG_PARKED_BYTES_MAX,
    "an append can be kept aside"
);
const _: () = assert!(BATCH_BYTES_MAX + 8192 <= WRITE_BYTES_MAX);
