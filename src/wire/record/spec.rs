//! Writing records.

use std::net::{IpAddr, SocketAddr};

use super::super::properties::{NAME_END, PROPERTIES_BYTES_MAX, Properties, VALUE_END};
use super::{
    BLANK_BYTES, BORN_HOST_AT, IPV4_HOST_BYTES, LOG_OFFSET_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2,
    QUEUE_OFFSET_AT, RECORD_BYTES_MIN, SYS_FLAG_AT, body_crc, host_bytes, i32_at, sys_flag,
    topic_length_bytes,
};

/// Longer topics are written in version 2. Java counts UTF-16 units, but legal names are ASCII, and
/// of others version 1 could not say the length.
const TOPIC_V1_BYTES_MAX: usize = i8::MAX as usize;
/// The longest topic that a record can hold.
const TOPIC_BYTES_MAX: usize = i16::MAX as usize;

/// Why a record cannot be made. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The topic does not fit its length field.
    #[error("a topic of {bytes} bytes; at most {TOPIC_BYTES_MAX}")]
    TopicTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The properties do not fit their length field.
    #[error("properties of {bytes} bytes; at most {PROPERTIES_BYTES_MAX}")]
    PropertiesTooLong {
        /// Their length, with separators and added pairs.
        bytes: usize,
    },
    /// The whole record does not fit its size field.
    #[error("a record of {bytes} bytes")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// The properties of a record to be written: texts as clients sent them, then pairs of the broker.
/// Separators are added where one is missing, but none after the last text if no pair follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct PropertiesSpec<'a> {
    /// Whole texts in this order; of a batch first the item's, then the request's.
    pub texts: &'a [&'a [u8]],
    /// Pairs that follow. Names and values must not hold bytes 1 and 2.
    pub pairs: &'a [(&'a str, &'a [u8])],
}

impl PropertiesSpec<'_> {
    /// Calls back with each piece of the final text in order.
    fn pieces(&self, mut piece: impl FnMut(&[u8])) {
        let mut closed = true;
        for text in self.texts.iter().filter(|text| !text.is_empty()) {
            if !closed {
                piece(&[VALUE_END]);
            }
            piece(text);
            closed = Properties(text).is_closed();
        }
        for (name, value) in self.pairs {
            if !closed {
                piece(&[VALUE_END]);
            }
            piece(name.as_bytes());
            piece(&[NAME_END]);
            piece(value);
            piece(&[VALUE_END]);
            closed = true;
        }
    }

    fn encoded_len(&self) -> usize {
        let mut bytes = 0;
        self.pieces(|piece| bytes += piece.len());
        bytes
    }
}

/// A record to be written: all but the three fields that are known only when it is appended.
#[derive(Clone, Copy, Debug)]
pub struct RecordSpec<'a> {
    /// Up to 127 characters, 255 for retry topics; the caller checks the name.
    pub topic: &'a str,
    /// The queue of the topic.
    pub queue_id: i32,
    /// The user's flag, kept as it is.
    pub flag: i32,
    /// See [`sys_flag`]; the two host bits are set from the hosts, whatever they are here.
    pub sys_flag: i32,
    /// Milliseconds, by the producer's clock.
    pub born_timestamp: i64,
    /// The producer's address.
    pub born_host: SocketAddr,
    /// The broker's address.
    pub store_host: SocketAddr,
    /// How often consumers had it.
    pub reconsume_times: i32,
    /// Log offset of the half message, else 0.
    pub prepared_transaction_offset: i64,
    /// As it came, compressed or not.
    pub body: &'a [u8],
    /// See [`PropertiesSpec`].
    pub properties: PropertiesSpec<'a>,
}

impl RecordSpec<'_> {
    /// The exact length of the encoded record.
    ///
    /// # Errors
    /// A part does not fit its length field.
    pub fn encoded_len(&self) -> Result<usize, EncodeError> {
        let properties = self.properties.encoded_len();
        if properties > PROPERTIES_BYTES_MAX {
            return Err(EncodeError::PropertiesTooLong { bytes: properties });
        }
        if self.topic.len() > TOPIC_BYTES_MAX {
            return Err(EncodeError::TopicTooLong {
                bytes: self.topic.len(),
            });
        }
        let bytes = RECORD_BYTES_MIN - 2 * IPV4_HOST_BYTES - 1
            + host_bytes(self.born_host.is_ipv6())
            + host_bytes(self.store_host.is_ipv6())
            + topic_length_bytes(self.is_v2())
            + self.body.len()
            + self.topic.len()
            + properties;
        if i32::try_from(bytes).is_err() {
            return Err(EncodeError::TooLong { bytes });
        }
        Ok(bytes)
    }

    /// Writes the record; queue offset, log offset and store timestamp are zero until
    /// [`patch`]. Allocates nothing.
    ///
    /// # Panics
    /// If `out` is not exactly [`RecordSpec::encoded_len`] long.
    pub fn encode(&self, out: &mut [u8]) {
        let whole = out.len();
        let mut out = Output { rest: out };
        out.i32(whole as i32);
        out.u32(if self.is_v2() { MAGIC_V2 } else { MAGIC_V1 });
        out.u32(body_crc(self.body));
        out.i32(self.queue_id);
        out.i32(self.flag);
        out.i64(0);
        out.i64(0);
        out.i32(self.true_sys_flag());
        out.i64(self.born_timestamp);
        out.host(self.born_host);
        out.i64(0);
        out.host(self.store_host);
        out.i32(self.reconsume_times);
        out.i64(self.prepared_transaction_offset);
        out.i32(self.body.len() as i32);
        out.bytes(self.body);
        if self.is_v2() {
            out.bytes(&(self.topic.len() as i16).to_be_bytes());
        } else {
            out.bytes(&[self.topic.len() as u8]);
        }
        out.bytes(self.topic.as_bytes());
        out.bytes(&(self.properties.encoded_len() as i16).to_be_bytes());
        self.properties.pieces(|piece| out.bytes(piece));
        assert!(
            out.rest.is_empty(),
            "{} bytes too many for a record of {whole}",
            out.rest.len()
        );
    }

    fn true_sys_flag(&self) -> i32 {
        let mut flag = self.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6);
        if self.born_host.is_ipv6() {
            flag |= sys_flag::BORN_HOST_V6;
        }
        if self.store_host.is_ipv6() {
            flag |= sys_flag::STORE_HOST_V6;
        }
        flag
    }

    fn is_v2(&self) -> bool {
        self.topic.len() > TOPIC_V1_BYTES_MAX
    }
}

/// Writes the three fields that are known when a record is appended.
///
/// # Panics
/// If `record` is shorter than [`RECORD_BYTES_MIN`]: it was not made by [`RecordSpec::encode`].
pub fn patch(record: &mut [u8], queue_offset: u64, log_offset: u64, store_timestamp_ms: i64) {
    assert!(
        record.len() >= RECORD_BYTES_MIN,
        "a record of {} bytes",
        record.len()
    );
    let flag = i32_at(record, SYS_FLAG_AT);
    let timestamp_at = BORN_HOST_AT + host_bytes(flag & sys_flag::BORN_HOST_V6 != 0);
    record[QUEUE_OFFSET_AT..][..8].copy_from_slice(&queue_offset.to_be_bytes());
    record[LOG_OFFSET_AT..][..8].copy_from_slice(&log_offset.to_be_bytes());
    record[timestamp_at..][..8].copy_from_slice(&store_timestamp_ms.to_be_bytes());
}

/// Writes the blank record that closes a file with `left` bytes left.
///
/// # Panics
/// If fewer than [`BLANK_BYTES`] are left.
pub fn encode_blank(left: u32) -> [u8; BLANK_BYTES] {
    assert!(
        left as usize >= BLANK_BYTES,
        "{left} bytes left for a blank record"
    );
    let mut blank = [0; BLANK_BYTES];
    blank[..4].copy_from_slice(&left.to_be_bytes());
    blank[4..].copy_from_slice(&MAGIC_BLANK.to_be_bytes());
    blank
}

/// The part of an output that is still to be written.
struct Output<'a> {
    rest: &'a mut [u8],
}

impl Output<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        let (place, rest) = std::mem::take(&mut self.rest).split_at_mut(bytes.len());
        place.copy_from_slice(bytes);
        self.rest = rest;
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.bytes(&value.to_be_bytes());
    }

    fn i64(&mut self, value: i64) {
        self.bytes(&value.to_be_bytes());
    }

    fn host(&mut self, host: SocketAddr) {
        match host.ip() {
            IpAddr::V4(ip) => self.bytes(&ip.octets()),
            IpAddr::V6(ip) => self.bytes(&ip.octets()),
        }
        self.i32(i32::from(host.port()));
    }
}
