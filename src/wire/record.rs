//! The stored message: one record of the commit log, and of the bodies that a pull returns.
//! All integers are big-endian.
//!
//! ```text
//! 0            4       8          12         16     20             28           36
//! +------------+-------+----------+----------+------+--------------+------------+
//! | total size | magic | body crc | queue id | flag | queue offset | log offset |
//! +------------+-------+----------+----------+------+--------------+------------+
//! 36         40               48          48+B              56+B         56+B+S
//! +----------+----------------+-----------+-----------------+------------+
//! | sys flag | born timestamp | born host | store timestamp | store host |
//! +----------+----------------+-----------+-----------------+------------+
//! 56+B+S             60+B+S                        68+B+S        72+B+S
//! +------------------+-----------------------------+-------------+------+
//! | reconsume times  | prepared transaction offset | body length | body |
//! +------------------+-----------------------------+-------------+------+
//! 72+B+S+body
//! +------------------+-------+-----------------------+------------+
//! | topic length (W) | topic | properties length i16 | properties |
//! +------------------+-------+-----------------------+------------+
//! ```
//!
//! B and S: 8 for an IPv4 host, 20 for IPv6 (sys flag bits 4 and 5); a host is its address and an
//! i32 port. W: 1 in version 1, 2 in version 2, which only topics above 127 bytes have.
//!
//! The blank record fills a file to its end: `total size` says how far, then its magic, then
//! whatever is there. Spec: `store-format.md` 3 and 17.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::properties::Properties;

mod spec;

pub use spec::{EncodeError, PropertiesSpec, RecordSpec, encode_blank, patch};

const TOTAL_SIZE_AT: usize = 0;
const MAGIC_AT: usize = TOTAL_SIZE_AT + size_of::<i32>();
const BODY_CRC_AT: usize = MAGIC_AT + size_of::<i32>();
const QUEUE_ID_AT: usize = BODY_CRC_AT + size_of::<i32>();
const FLAG_AT: usize = QUEUE_ID_AT + size_of::<i32>();
/// Where the number in the queue stands.
pub const QUEUE_OFFSET_AT: usize = FLAG_AT + size_of::<i32>();
/// Where the record's own position in the log stands.
pub const LOG_OFFSET_AT: usize = QUEUE_OFFSET_AT + size_of::<i64>();
const SYS_FLAG_AT: usize = LOG_OFFSET_AT + size_of::<i64>();
const BORN_TIMESTAMP_AT: usize = SYS_FLAG_AT + size_of::<i32>();
const BORN_HOST_AT: usize = BORN_TIMESTAMP_AT + size_of::<i64>();

const IPV4_HOST_BYTES: usize = 4 + size_of::<i32>();
const IPV6_HOST_BYTES: usize = 16 + size_of::<i32>();

/// A record of version 1 with IPv4 hosts and no body, topic or properties.
pub const RECORD_BYTES_MIN: usize = BORN_HOST_AT
    + 2 * IPV4_HOST_BYTES
    + size_of::<i64>() // store timestamp
    + size_of::<i32>() // reconsume times
    + size_of::<i64>() // prepared transaction offset
    + size_of::<i32>() // body length
    + 1 // topic length
    + size_of::<i16>(); // properties length
const _: () = assert!(QUEUE_OFFSET_AT == 20 && LOG_OFFSET_AT == 28 && BORN_HOST_AT == 48);
const _: () = assert!(RECORD_BYTES_MIN == 91);

/// What a blank record itself takes; so many bytes are left after each file's last record.
pub const BLANK_BYTES: usize = 8;

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const MAGIC_BLANK: u32 = 0xCBD4_3194;

/// Bits of the sys flag (`store-format.md` 3.2).
pub mod sys_flag {
    /// The body is compressed; bits 8 to 10 say how.
    pub const COMPRESSED: i32 = 0x1;
    /// The topic's tags are a list.
    pub const MULTI_TAGS: i32 = 0x2;
    /// Mask of the transaction type: none (0), prepared, commit or rollback.
    pub const TRANSACTION: i32 = 0xC;
    /// A half message.
    pub const TRANSACTION_PREPARED: i32 = 0x4;
    /// A committed message.
    pub const TRANSACTION_COMMIT: i32 = 0x8;
    /// A rolled back message.
    pub const TRANSACTION_ROLLBACK: i32 = 0xC;
    /// The born host is IPv6.
    pub const BORN_HOST_V6: i32 = 0x10;
    /// The store host is IPv6.
    pub const STORE_HOST_V6: i32 = 0x20;
    /// Consumers must take the inner batch apart.
    pub const NEED_UNWRAP: i32 = 0x40;
    /// The body is a batch in one record.
    pub const INNER_BATCH: i32 = 0x80;
}

/// RocketMQ's body checksum: CRC-32 (IEEE) without its top bit.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

/// What the first [`RECORD_BYTES_MIN`] bytes of a record say, for look-ups that need no more.
/// Nothing but magic and size is checked: the caller compares the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// Of the whole record.
    pub size: u32,
    /// The number in the queue.
    pub queue_offset: u64,
    /// The position in the log.
    pub log_offset: u64,
    /// Milliseconds, by the broker's clock.
    pub store_timestamp: i64,
}

impl RecordHead {
    /// Reads the head; `None` if no record begins here.
    pub fn read(bytes: &[u8]) -> Option<RecordHead> {
        let head = bytes.get(..RECORD_BYTES_MIN)?;
        let size = u32_at(head, TOTAL_SIZE_AT);
        let magic = u32_at(head, MAGIC_AT);
        let flag = i32_at(head, SYS_FLAG_AT);
        let timestamp_at = BORN_HOST_AT + host_bytes(flag & sys_flag::BORN_HOST_V6 != 0);
        let whole = (RECORD_BYTES_MIN as u32..=i32::MAX as u32).contains(&size);
        (whole && matches!(magic, MAGIC_V1 | MAGIC_V2)).then(|| RecordHead {
            size,
            queue_offset: u64_at(head, QUEUE_OFFSET_AT),
            log_offset: u64_at(head, LOG_OFFSET_AT),
            store_timestamp: u64_at(head, timestamp_at) as i64,
        })
    }
}

/// Bytes of a log, a file or a peer that may or may not begin with a record.
#[derive(Clone, Copy, Debug)]
pub struct Untrusted<'a>(pub &'a [u8]);

/// What to check beyond lengths and magic.
#[derive(Clone, Copy, Debug, Default)]
pub struct Check {
    /// The record must say that it stands at this log offset.
    pub position: Option<u64>,
    /// The body must have the checksum in the record.
    pub body_crc: bool,
    /// Topic and properties must not hold zero bytes.
    pub no_nul: bool,
}

/// What the bytes begin with.
#[derive(Clone, Copy, Debug)]
pub enum Checked<'a> {
    /// A whole message.
    Message(Record<'a>),
    /// The end of a file: `len` bytes from here on are to be skipped. The caller compares it
    /// with what is left of the file.
    Blank {
        /// As written; at least 8.
        len: u32,
    },
    /// No record.
    Bad(BadRecord),
    /// The lengths inside do not add up to the size in front, which does fit the bytes.
    /// Java's dispatch skips such a record by that size; its recovery stops.
    BadWithSize(u32),
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// Fewer bytes than size and magic take.
    #[error("fewer bytes than a record's head")]
    NoHead,
    /// The magic is none. Also what zeroed bytes give.
    #[error("no record begins here")]
    Magic,
    /// The size is smaller than any record.
    #[error("a size of {0} is none")]
    Size(i32),
    /// The record passes the end of the bytes: of the file, or of the window read so far.
    #[error("the record of {size} bytes is cut")]
    Cut {
        /// The size in front.
        size: u32,
    },
    /// A length inside is negative or passes the end of the bytes.
    #[error("a length inside the record is wrong")]
    Length,
    /// The topic is not UTF-8.
    #[error("the topic is not UTF-8")]
    Topic,
    /// The body's checksum differs.
    #[error("the body does not match its checksum")]
    BodyCrc,
    /// It was written for another place.
    #[error("the record says that it stands at {0}")]
    Position(u64),
    /// Topic or properties hold a zero byte.
    #[error("a zero byte in topic or properties")]
    Nul,
}

impl<'a> Untrusted<'a> {
    /// Checks the bytes at the front (`store-format.md` 3.6). Follows no length before it is
    /// checked; never panics.
    pub fn check(self, check: Check) -> Checked<'a> {
        match self.examine(check) {
            Ok(checked) => checked,
            Err(bad) => Checked::Bad(bad),
        }
    }

    fn examine(self, check: Check) -> Result<Checked<'a>, BadRecord> {
        let all = self.0;
        let head = all.first_chunk::<BLANK_BYTES>().ok_or(BadRecord::NoHead)?;
        let size = i32_at(head, TOTAL_SIZE_AT);
        let is_v2 = match u32_at(head, MAGIC_AT) {
            MAGIC_V1 => false,
            MAGIC_V2 => true,
            MAGIC_BLANK if size >= BLANK_BYTES as i32 => {
                return Ok(Checked::Blank { len: size as u32 });
            }
            MAGIC_BLANK => return Err(BadRecord::Size(size)),
            _ => return Err(BadRecord::Magic),
        };
        if size < RECORD_BYTES_MIN as i32 {
            return Err(BadRecord::Size(size));
        }
        let size = size as u32;
        if size as usize > all.len() {
            return Err(BadRecord::Cut { size });
        }
        let layout = Layout::walk(all, is_v2)?;
        let body = &all[layout.body_at..layout.topic_length_at];
        if check.body_crc && !body.is_empty() && body_crc(body) != u32_at(all, BODY_CRC_AT) {
            return Err(BadRecord::BodyCrc);
        }
        if layout.end != size as usize {
            return Ok(Checked::BadWithSize(size));
        }
        let topic = &all[layout.topic_at..layout.topic_end];
        let topic = std::str::from_utf8(topic).map_err(|_| BadRecord::Topic)?;
        let record = Record {
            bytes: &all[..layout.end],
            topic,
            layout,
        };
        if let Some(position) = check.position
            && record.log_offset() != position
        {
            return Err(BadRecord::Position(record.log_offset()));
        }
        if check.no_nul && (topic.contains('\0') || record.properties().has_nul()) {
            return Err(BadRecord::Nul);
        }
        Ok(Checked::Message(record))
    }
}

/// Where the parts of variable length are. `properties` run from `properties_at` to `end`.
#[derive(Clone, Copy, Debug)]
struct Layout {
    store_timestamp_at: usize,
    store_host_at: usize,
    reconsume_times_at: usize,
    body_at: usize,
    topic_length_at: usize,
    topic_at: usize,
    topic_end: usize,
    properties_at: usize,
    end: usize,
}

impl Layout {
    /// Adds up the lengths as they stand in the bytes, which are at least [`RECORD_BYTES_MIN`].
    fn walk(bytes: &[u8], is_v2: bool) -> Result<Layout, BadRecord> {
        let flag = i32_at(bytes, SYS_FLAG_AT);
        let store_timestamp_at = BORN_HOST_AT + host_bytes(flag & sys_flag::BORN_HOST_V6 != 0);
        let store_host_at = store_timestamp_at + size_of::<i64>();
        let reconsume_times_at = store_host_at + host_bytes(flag & sys_flag::STORE_HOST_V6 != 0);
        let body_length_at = reconsume_times_at + size_of::<i32>() + size_of::<i64>();
        let body_at = body_length_at + size_of::<i32>();
        let topic_length_at = end_of(bytes, body_at, i64::from(i32_in(bytes, body_length_at)?))?;
        let topic_at = topic_length_at + topic_length_bytes(is_v2);
        let topic_bytes = if is_v2 {
            i64::from(i16_in(bytes, topic_length_at)?)
        } else {
            i64::from(*bytes.get(topic_length_at).ok_or(BadRecord::Length)? as i8)
        };
        let topic_end = end_of(bytes, topic_at, topic_bytes)?;
        let properties_at = topic_end + size_of::<i16>();
        let end = end_of(bytes, properties_at, i64::from(i16_in(bytes, topic_end)?))?;
        Ok(Layout {
            store_timestamp_at,
            store_host_at,
            reconsume_times_at,
            body_at,
            topic_length_at,
            topic_at,
            topic_end,
            properties_at,
            end,
        })
    }
}

/// The end of a part, if it lies within the bytes.
fn end_of(bytes: &[u8], start: usize, length: i64) -> Result<usize, BadRecord> {
    let length = usize::try_from(length).map_err(|_| BadRecord::Length)?;
    match start.checked_add(length) {
        Some(end) if end <= bytes.len() => Ok(end),
        _ => Err(BadRecord::Length),
    }
}

/// A record whose lengths and magic were checked.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    bytes: &'a [u8],
    topic: &'a str,
    layout: Layout,
}

impl<'a> Record<'a> {
    /// The whole record.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The length of the whole record.
    pub fn size(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Version 2: Go, C++ and 4.x clients cannot read it.
    pub fn is_v2(&self) -> bool {
        u32_at(self.bytes, MAGIC_AT) == MAGIC_V2
    }

    /// The checksum as it stands in the record; checked only on demand.
    pub fn body_crc(&self) -> u32 {
        u32_at(self.bytes, BODY_CRC_AT)
    }

    /// The queue of the topic.
    pub fn queue_id(&self) -> i32 {
        i32_at(self.bytes, QUEUE_ID_AT)
    }

    /// The user's flag.
    pub fn flag(&self) -> i32 {
        i32_at(self.bytes, FLAG_AT)
    }

    /// The number in the queue.
    pub fn queue_offset(&self) -> u64 {
        u64_at(self.bytes, QUEUE_OFFSET_AT)
    }

    /// The position in the log.
    pub fn log_offset(&self) -> u64 {
        u64_at(self.bytes, LOG_OFFSET_AT)
    }

    /// See [`sys_flag`].
    pub fn sys_flag(&self) -> i32 {
        i32_at(self.bytes, SYS_FLAG_AT)
    }

    /// Milliseconds, by the producer's clock.
    pub fn born_timestamp(&self) -> i64 {
        u64_at(self.bytes, BORN_TIMESTAMP_AT) as i64
    }

    /// The producer's address.
    pub fn born_host(&self) -> SocketAddr {
        host(&self.bytes[BORN_HOST_AT..self.layout.store_timestamp_at])
    }

    /// Milliseconds, by the broker's clock.
    pub fn store_timestamp(&self) -> i64 {
        u64_at(self.bytes, self.layout.store_timestamp_at) as i64
    }

    /// The broker's address.
    pub fn store_host(&self) -> SocketAddr {
        host(&self.bytes[self.layout.store_host_at..self.layout.reconsume_times_at])
    }

    /// How often consumers had it.
    pub fn reconsume_times(&self) -> i32 {
        i32_at(self.bytes, self.layout.reconsume_times_at)
    }

    /// Log offset of the half message of a committed one, else 0.
    pub fn prepared_transaction_offset(&self) -> i64 {
        u64_at(
            self.bytes,
            self.layout.reconsume_times_at + size_of::<i32>(),
        ) as i64
    }

    /// The body as stored.
    pub fn body(&self) -> &'a [u8] {
        &self.bytes[self.layout.body_at..self.layout.topic_length_at]
    }

    /// The topic.
    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// The properties text.
    pub fn properties(&self) -> Properties<'a> {
        Properties(&self.bytes[self.layout.properties_at..])
    }

    /// See [`Properties::tags_code`].
    pub fn tags_code(&self) -> i64 {
        self.properties().tags_code()
    }

    /// See [`Properties::keys`].
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> {
        self.properties().keys()
    }

    /// Whether the record belongs into its queue: half and rolled back messages do not.
    pub fn needs_dispatch(&self) -> bool {
        matches!(
            self.sys_flag() & sys_flag::TRANSACTION,
            0 | sys_flag::TRANSACTION_COMMIT
        )
    }

    /// Whether the record is found by its keys: all but rolled back ones.
    pub fn needs_index(&self) -> bool {
        self.sys_flag() & sys_flag::TRANSACTION != sys_flag::TRANSACTION_ROLLBACK
    }
}

fn host_bytes(is_ipv6: bool) -> usize {
    if is_ipv6 {
        IPV6_HOST_BYTES
    } else {
        IPV4_HOST_BYTES
    }
}

fn topic_length_bytes(is_v2: bool) -> usize {
    if is_v2 { size_of::<i16>() } else { 1 }
}

/// An address of 4 or 16 bytes and an i32 port, of which 16 bits count.
fn host(bytes: &[u8]) -> SocketAddr {
    let (address, port) = bytes.split_at(bytes.len() - size_of::<i32>());
    let port = i32_at(port, 0) as u16;
    let ip = match <[u8; 4]>::try_from(address) {
        Ok(four) => IpAddr::V4(Ipv4Addr::from(four)),
        Err(_) => {
            let sixteen = <[u8; 16]>::try_from(address).expect("hosts are 8 or 20 bytes");
            IpAddr::V6(Ipv6Addr::from(sixteen))
        }
    };
    SocketAddr::new(ip, port)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes[at..]
        .first_chunk()
        .expect("the caller checked the length");
    u32::from_be_bytes(*word)
}

fn i32_at(bytes: &[u8], at: usize) -> i32 {
    u32_at(bytes, at) as i32
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes[at..]
        .first_chunk()
        .expect("the caller checked the length");
    u64::from_be_bytes(*word)
}

fn i32_in(bytes: &[u8], at: usize) -> Result<i32, BadRecord> {
    let word = bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .ok_or(BadRecord::Length)?;
    Ok(i32::from_be_bytes(*word))
}

fn i16_in(bytes: &[u8], at: usize) -> Result<i16, BadRecord> {
    let word = bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .ok_or(BadRecord::Length)?;
    Ok(i16::from_be_bytes(*word))
}
