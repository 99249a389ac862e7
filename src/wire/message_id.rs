//! Message ids: upper-case hex of 16 bytes, or 28 where an address is IPv6.
//!
//! ```text
//! 0            4 | 16   8 | 20        16 | 28
//! +------------+----------+------------+
//! | store host | port i32 | log offset |      offset id: the broker's, made when stored
//! +------------+----------+------------+
//! 0            4 | 16  6 | 18     10 | 22       14 | 26    16 | 28
//! +------------+-------+----------+-------------+---------+
//! | client ip  | pid   | constant | time        | counter |      unique key: the client's
//! |            | u16   | i32      | i32         | u16     |
//! +------------+-------+----------+-------------+---------+
//! ```
//!
//! Spec: `store-format.md` 3.8, `client-behaviour.md` 8.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const IPV4_ID_BYTES: usize = 16;
const IPV6_ID_BYTES: usize = 28;

/// An id as text, 32 or 56 characters, without a place on the heap.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageId {
    text: [u8; 2 * IPV6_ID_BYTES],
    length: u8,
}

impl MessageId {
    fn new(parts: [&[u8]; 4]) -> MessageId {
        const HEX: &[u8; 16] = b"0123456789ABCDEF";
        let mut id = MessageId {
            text: [0; 2 * IPV6_ID_BYTES],
            length: 0,
        };
        for byte in parts.into_iter().flatten() {
            let at = usize::from(id.length);
            id.text[at] = HEX[usize::from(byte >> 4)];
            id.text[at + 1] = HEX[usize::from(byte & 15)];
            id.length += 2;
        }
        id
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        let text = &self.text[..usize::from(self.length)];
        std::str::from_utf8(text).expect("hex digits are ASCII")
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no id of a stored message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageIdError {
    /// Neither 32 nor 56 characters.
    #[error("a message id of {0} characters; 32 or 56 are right")]
    Length(usize),
    /// A character that is no hex digit.
    #[error("a message id with a character that is no hex digit")]
    Digit,
    /// The port does not fit 16 bits: probably a client's unique key.
    #[error("a message id with the port {0}")]
    Port(i32),
}

/// Makes the id under which a stored message can be fetched.
pub fn encode_offset_id(store_host: SocketAddr, log_offset: u64) -> MessageId {
    let port = i32::from(store_host.port()).to_be_bytes();
    let offset = log_offset.to_be_bytes();
    match store_host.ip() {
        IpAddr::V4(ip) => MessageId::new([&ip.octets(), &port, &offset, &[]]),
        IpAddr::V6(ip) => MessageId::new([&ip.octets(), &port, &offset, &[]]),
    }
}

/// Reads host and log offset out of an id; digits in either case.
///
/// # Errors
/// See [`MessageIdError`]. A unique key has the same length and may pass as one.
pub fn decode_offset_id(text: &str) -> Result<(SocketAddr, u64), MessageIdError> {
    let bytes = text.as_bytes();
    let count = bytes.len() / 2;
    if bytes.len() != 2 * IPV4_ID_BYTES && bytes.len() != 2 * IPV6_ID_BYTES {
        return Err(MessageIdError::Length(bytes.len()));
    }
    let mut id = [0; IPV6_ID_BYTES];
    for (place, pair) in id.iter_mut().zip(bytes.chunks_exact(2)) {
        *place = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    let (ip, rest) = id[..count].split_at(count - 12);
    let ip = match <[u8; 4]>::try_from(ip) {
        Ok(four) => IpAddr::V4(Ipv4Addr::from(four)),
        Err(_) => {
            let sixteen = <[u8; 16]>::try_from(ip).expect("28 less 12 bytes are 16");
            IpAddr::V6(Ipv6Addr::from(sixteen))
        }
    };
    let (port, offset) = rest.split_at(4);
    let port = i32::from_be_bytes(port.try_into().expect("12 bytes were left"));
    let offset = u64::from_be_bytes(offset.try_into().expect("12 bytes were left"));
    let port = u16::try_from(port).map_err(|_| MessageIdError::Port(port))?;
    Ok((SocketAddr::new(ip, port), offset))
}

fn digit(character: u8) -> Result<u8, MessageIdError> {
    let digit = char::from(character)
        .to_digit(16)
        .ok_or(MessageIdError::Digit)?;
    Ok(digit as u8)
}

/// What a client's unique key is made of.
#[derive(Clone, Copy, Debug)]
pub struct UniqueKey {
    /// The client's address.
    pub ip: IpAddr,
    /// The low 16 bits of the process id.
    pub process: u16,
    /// Any number that is constant in the process.
    pub constant: u32,
    /// Milliseconds since the first of the month, local time.
    pub month_ms: i32,
    /// Counts the keys.
    pub counter: u16,
}

impl UniqueKey {
    /// The key's text.
    pub fn encode(&self) -> MessageId {
        let mut tail = [0; 8];
        tail[..2].copy_from_slice(&self.process.to_be_bytes());
        tail[2..6].copy_from_slice(&self.constant.to_be_bytes());
        let time = self.month_ms.to_be_bytes();
        let counter = self.counter.to_be_bytes();
        match self.ip {
            IpAddr::V4(ip) => MessageId::new([&ip.octets(), &tail[..6], &time, &counter]),
            IpAddr::V6(ip) => MessageId::new([&ip.octets(), &tail[..6], &time, &counter]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_id_of_the_golden_store_is_made_and_read() {
        let host = "127.0.0.1:20911".parse().unwrap();
        assert_eq!(
            encode_offset_id(host, 0).as_str(),
            "7F000001000051AF0000000000000000"
        );
        let id = "7F000001000051AF00000000000003B6";
        assert_eq!(decode_offset_id(id), Ok((host, 0x3B6)));
        assert_eq!(decode_offset_id(&id.to_lowercase()), Ok((host, 0x3B6)));
        assert_eq!(encode_offset_id(host, 0x3B6).as_str(), id);
    }

    #[test]
    fn an_ipv6_id_is_longer() {
        let host = "[::1]:10911".parse().unwrap();
        let id = encode_offset_id(host, 1 << 40);
        assert_eq!(id.as_str().len(), 56);
        assert_eq!(decode_offset_id(id.as_str()), Ok((host, 1 << 40)));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        assert_eq!(decode_offset_id("7F"), Err(MessageIdError::Length(2)));
        assert_eq!(
            decode_offset_id(&"x".repeat(32)),
            Err(MessageIdError::Digit)
        );
        assert_eq!(
            decode_offset_id(&"F".repeat(32)),
            Err(MessageIdError::Port(-1))
        );
        assert!(decode_offset_id("日本語日本語日本語日本").is_err());
    }

    #[test]
    fn a_unique_key_has_the_parts_in_order() {
        let key = UniqueKey {
            ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            process: 0x0001,
            constant: 0x18B4_AAC2,
            month_ms: 0x100F_4385,
            counter: 1,
        };
        assert_eq!(key.encode().as_str(), "7F000001000118B4AAC2100F43850001");
    }
}
