//! A message as it is handed to the receiver. remoting 12 and 13.

use std::borrow::Cow;
use std::io::{self, Read};

use flate2::read::ZlibDecoder;

use crate::wire::message_id::{MessageId, encode_offset_id};
use crate::wire::properties::{Properties, names};
use crate::wire::record::{Record, sys_flag};

/// Bodies that unpack to more stay packed: a small message must not fill the memory.
const UNPACKED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Bits of the sys flag that say how a compressed body is packed; 0 means zlib.
const PACKING_MASK: i32 = 0x700;
const PACKING_LZ4: i32 = 0x100;
const PACKING_ZSTD: i32 = 0x200;

/// How a body is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// RFC 1950: only if it is damaged, or unpacks to more than 64 MiB.
    Zlib,
    /// Not unpacked here.
    Lz4,
    /// Not unpacked here.
    Zstd,
    /// A kind that nobody knows.
    Unknown,
}

/// A message of a topic.
#[derive(Clone, Debug)]
pub struct Received<'a> {
    /// The topic it was first sent to.
    pub topic: &'a str,
    /// The body, unpacked unless `packing` says otherwise.
    pub body: Cow<'a, [u8]>,
    /// Set if the body is still packed.
    pub packing: Option<Packing>,
    /// The client's id of the message, or the broker's if it has none.
    pub msg_id: Cow<'a, str>,
    /// The broker's id of the stored message.
    pub offset_id: MessageId,
    /// Its tag.
    pub tag: Option<&'a str>,
    /// Its keys, separated by blanks.
    pub keys: Option<&'a str>,
    /// All its properties.
    pub properties: Properties<'a>,
    /// The broker that has it.
    pub broker: &'a str,
    /// The queue there.
    pub queue_id: i32,
    /// Its number in the queue.
    pub queue_offset: u64,
    /// When it was made: milliseconds since 1970, by the sender's clock.
    pub born_ms: i64,
    /// When it was stored, by the broker's clock.
    pub stored_ms: i64,
    /// How often members of the group gave it back.
    pub reconsume_times: i32,
}

impl<'a> Received<'a> {
    /// A record of a pull's answer from a broker of that name.
    pub(super) fn new(broker: &'a str, record: &Record<'a>) -> Received<'a> {
        let properties = record.properties();
        let offset_id = encode_offset_id(record.store_host(), record.log_offset());
        let (body, packing) = unpack(record.sys_flag(), record.body());
        let msg_id = match properties.text(names::UNIQUE_KEY) {
            Some(id) => Cow::Borrowed(id),
            None => Cow::Owned(offset_id.to_string()),
        };
        Received {
            topic: properties
                .text(names::RETRY_TOPIC)
                .unwrap_or(record.topic()),
            body,
            packing,
            msg_id,
            offset_id,
            tag: properties.text(names::TAGS),
            keys: properties.text(names::KEYS),
            properties,
            broker,
            queue_id: record.queue_id(),
            queue_offset: record.queue_offset(),
            born_ms: record.born_timestamp(),
            stored_ms: record.store_timestamp(),
            reconsume_times: record.reconsume_times(),
        }
    }
}

/// A body that cannot be unpacked is handed on as it is: one bad message must not stop the others.
fn unpack(flag: i32, body: &[u8]) -> (Cow<'_, [u8]>, Option<Packing>) {
    if flag & sys_flag::COMPRESSED == 0 {
        return (Cow::Borrowed(body), None);
    }
    let packing = match flag & PACKING_MASK {
        PACKING_LZ4 => Packing::Lz4,
        PACKING_ZSTD => Packing::Zstd,
        0 | 0x300 => match inflate(body) {
            Ok(plain) if plain.len() as u64 <= UNPACKED_BYTES_MAX => {
                return (Cow::Owned(plain), None);
            }
            _ => Packing::Zlib,
        },
        _ => Packing::Unknown,
    };
    (Cow::Borrowed(body), Some(packing))
}

fn inflate(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    ZlibDecoder::new(body)
        .take(UNPACKED_BYTES_MAX + 1)
        .read_to_end(&mut plain)?;
    Ok(plain)
}
