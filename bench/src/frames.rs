//! RocketMQ remoting frames as the generator needs them: sends encoded once and stamped in place,
//! answers read without parsing all of their JSON.
//!
//! ```text
//! 0              4                   8                  8+h
//! +--------------+----+--------------+------------------+------
//! | length after | 0  | header       | header, JSON     | body
//! | this field   |    | length h     |                  |
//! +--------------+----+--------------+------------------+------   big-endian
//! ```

/// Length field, serialize type and header length.
pub const PREFIX_BYTES: usize = 8;
/// A frame of 16 MiB or more closes the connection (specification of remoting, section 1).
const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Opaque numbers have this many digits, so that a frame's length never changes.
const OPAQUE_DIGITS: usize = 10;
/// The smallest number of ten digits; the largest used is below `i32::MAX`.
const OPAQUE_FIRST: u32 = 1_000_000_000;
const ROUNDS: u32 = 100_000;
/// Requests in flight per connection: an opaque holds the slot in its last four digits.
pub const WINDOW_MAX: usize = 10_000;
/// A queue number is one digit.
pub const QUEUES_MAX: u32 = 10;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {length} bytes with a header of {header}: not RocketMQ remoting")]
    Lengths { length: usize, header: usize },
    #[error("an answer in serialize type {0}; the request was JSON")]
    NotJson(u8),
    #[error("an answer without code or opaque: {0}")]
    NoNumbers(String),
}

/// Where sends go and what they carry.
#[derive(Clone, Debug)]
pub struct Topic {
    pub name: String,
    pub broker: String,
    /// Sends take the queues in turn; at most `QUEUES_MAX`.
    pub queues: u32,
}

/// A frame of SEND_MESSAGE_V2 (310) in which only digits of fixed places change.
#[derive(Clone)]
pub struct SendFrame {
    pub bytes: Vec<u8>,
    stamps: Stamps,
}

/// The places that differ from one send to the next.
#[derive(Clone, Copy)]
pub struct Stamps {
    frame_bytes: usize,
    opaque_at: usize,
    key_at: usize,
    queue_at: usize,
}

impl SendFrame {
    /// `sender` makes the message keys of one connection differ from those of all others.
    pub fn new(topic: &Topic, body_bytes: usize, sender: u64, born_ms: u64) -> Self {
        let before_key = format!(
            "{{\"code\":310,\"extFields\":{{\"a\":\"RingmqBench\",\"b\":\"{}\",\"c\":\"TBW102\",\
             \"d\":\"4\",\"e\":\"",
            topic.name
        );
        let queue_at = PREFIX_BYTES + before_key.len();
        let before_digits = format!(
            "{before_key}0\",\"f\":\"0\",\"g\":\"{born_ms:013}\",\"h\":\"0\",\
             \"i\":\"UNIQ_KEY\\u0001{sender:022X}"
        );
        let key_at = PREFIX_BYTES + before_digits.len();
        let before_opaque = format!(
            "{before_digits}{OPAQUE_FIRST}\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA\\u0002\",\
             \"j\":\"0\",\"k\":\"false\",\"m\":\"false\",\"n\":\"{}\"}},\"flag\":0,\
             \"language\":\"JAVA\",\"opaque\":",
            topic.broker
        );
        let opaque_at = PREFIX_BYTES + before_opaque.len();
        let header = format!(
            "{before_opaque}{OPAQUE_FIRST},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}}"
        );
        let body: Vec<u8> = (b'a'..=b'z').cycle().take(body_bytes).collect();
        let bytes = frame(header.as_bytes(), &body);
        let stamps = Stamps {
            frame_bytes: bytes.len(),
            opaque_at,
            key_at,
            queue_at,
        };
        SendFrame { bytes, stamps }
    }

    pub fn stamps(&self) -> Stamps {
        self.stamps
    }
}

impl Stamps {
    pub fn frame_bytes(self) -> usize {
        self.frame_bytes
    }

    /// Writes opaque, message key and queue into a copy of the frame.
    pub fn stamp(self, frame: &mut [u8], opaque: u32, queue: u8) {
        let digits = digits(opaque);
        frame[self.opaque_at..self.opaque_at + OPAQUE_DIGITS].copy_from_slice(&digits);
        frame[self.key_at..self.key_at + OPAQUE_DIGITS].copy_from_slice(&digits);
        frame[self.queue_at] = b'0' + queue;
    }
}

/// The opaque of a slot's n-th use.
pub fn opaque(slot: u16, round: u32) -> u32 {
    OPAQUE_FIRST + (round % ROUNDS) * WINDOW_MAX as u32 + u32::from(slot)
}

/// The slot that an opaque names; `None` if it is none of ours.
pub fn slot_of(opaque: u32) -> Option<usize> {
    Some(opaque.checked_sub(OPAQUE_FIRST)? as usize % WINDOW_MAX)
}

fn digits(mut number: u32) -> [u8; OPAQUE_DIGITS] {
    let mut text = [0; OPAQUE_DIGITS];
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    text
}

/// Puts the prefix before a JSON header and a body.
pub fn frame(header: &[u8], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(4 + header.len() + body.len()).expect("frames made here are small");
    let header_bytes = u32::try_from(header.len()).expect("headers made here are small");
    let mut bytes = Vec::with_capacity(4 + length as usize);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&header_bytes.to_be_bytes());
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(body);
    bytes
}

/// Header length and body length of a frame whose first eight bytes these are.
pub fn lengths(prefix: &[u8; PREFIX_BYTES]) -> Result<(usize, usize), FrameError> {
    let [l0, l1, l2, l3, kind, h1, h2, h3] = *prefix;
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    let header = u32::from_be_bytes([0, h1, h2, h3]) as usize;
    if length + 4 > FRAME_BYTES_MAX || header == 0 || length < 4 + header {
        return Err(FrameError::Lengths { length, header });
    }
    if kind != 0 {
        return Err(FrameError::NotJson(kind));
    }
    Ok((header, length - 4 - header))
}

/// Cuts a stream into frames and shows their headers; bodies are passed over.
#[derive(Default)]
pub struct Framer {
    /// The beginning of a frame whose header is not complete.
    begun: Vec<u8>,
    /// Bytes of a body still to pass over.
    skip: usize,
}

impl Framer {
    /// Calls `on_header` for each header that ends in these bytes.
    pub fn feed<E: From<FrameError>>(
        &mut self,
        mut bytes: &[u8],
        mut on_header: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let passed = self.skip.min(bytes.len());
            self.skip -= passed;
            bytes = &bytes[passed..];
            if bytes.is_empty() {
                return Ok(());
            }
            if self.begun.is_empty()
                && let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_BYTES>()
            {
                let (header, body) = lengths(prefix)?;
                if rest.len() >= header {
                    on_header(&rest[..header])?;
                    bytes = &rest[header..];
                    self.skip = body;
                    continue;
                }
            }
            bytes = self.gather(bytes, &mut on_header)?;
        }
    }

    /// Takes what is missing of a header that straddles two receives.
    fn gather<'a, E: From<FrameError>>(
        &mut self,
        bytes: &'a [u8],
        on_header: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<&'a [u8], E> {
        let mut rest = self.take_up_to(PREFIX_BYTES, bytes);
        let Some(prefix) = self.begun.first_chunk::<PREFIX_BYTES>() else {
            return Ok(rest);
        };
        let (header, body) = lengths(prefix)?;
        rest = self.take_up_to(PREFIX_BYTES + header, rest);
        if self.begun.len() == PREFIX_BYTES + header {
            on_header(&self.begun[PREFIX_BYTES..])?;
            self.begun.clear();
            self.skip = body;
        }
        Ok(rest)
    }

    fn take_up_to<'a>(&mut self, want: usize, bytes: &'a [u8]) -> &'a [u8] {
        let taken = want.saturating_sub(self.begun.len()).min(bytes.len());
        self.begun.extend_from_slice(&bytes[..taken]);
        &bytes[taken..]
    }
}

/// Reads two numbers of a JSON header. A peer emits its members in one order, so each is looked
/// for first where it was in the header before; the code counted from the header's start, the
/// opaque from its end, because lengths vary between them.
#[derive(Default)]
pub struct NumberReader {
    code_at: usize,
    opaque_from_end: usize,
}

const CODE: &[u8] = b"\"code\":";
const OPAQUE: &[u8] = b"\"opaque\":";

impl NumberReader {
    /// The top-level members `code` and `opaque`. A quote inside a JSON string is escaped and the
    /// values of `extFields` are strings, so a name with a number after it is a top-level one.
    pub fn read(&mut self, header: &[u8]) -> Result<(i32, i32), FrameError> {
        let numbers = self.code(header).zip(self.opaque(header));
        numbers.ok_or_else(|| FrameError::NoNumbers(String::from_utf8_lossy(header).into_owned()))
    }

    pub fn code(&mut self, header: &[u8]) -> Option<i32> {
        if !holds(header, self.code_at, CODE) {
            self.code_at = find(header, CODE)?;
        }
        number(&header[self.code_at + CODE.len()..])
    }

    pub fn opaque(&mut self, header: &[u8]) -> Option<i32> {
        let hint = header.len().checked_sub(self.opaque_from_end);
        let at = match hint.filter(|&at| holds(header, at, OPAQUE)) {
            Some(at) => at,
            None => find(header, OPAQUE)?,
        };
        self.opaque_from_end = header.len() - at;
        number(&header[at + OPAQUE.len()..])
    }
}

fn holds(header: &[u8], at: usize, name: &[u8]) -> bool {
    header.get(at..).is_some_and(|rest| rest.starts_with(name))
}

fn find(header: &[u8], name: &[u8]) -> Option<usize> {
    let follows = |&at: &usize| number(&header[at + name.len()..]).is_some();
    let hits = header
        .windows(name.len())
        .enumerate()
        .filter(|(_, window)| *window == name);
    hits.map(|(at, _)| at).find(follows)
}

fn number(text: &[u8]) -> Option<i32> {
    let text = text.trim_ascii_start();
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut value = 0_i64;
    let mut count = 0;
    for digit in text.iter().take_while(|byte| byte.is_ascii_digit()) {
        value = value * 10 + i64::from(digit - b'0');
        count += 1;
        if count > OPAQUE_DIGITS {
            return None;
        }
    }
    if count == 0 {
        return None;
    }
    i32::try_from(if negative { -value } else { value }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers as the real 5.3.3 broker and name server sent them.
    const STORED: &str = "{\"code\":0,\"extFields\":{\"queueId\":\"3\",\"transactionId\":\
        \"FD00000000000000000000000000000246614E0E2F2A94A526B50000\",\"msgId\":\
        \"7F000001000051AF0000000000000000\",\"TRACE_ON\":\"true\",\"MSG_REGION\":\
        \"DefaultRegion\",\"queueOffset\":\"0\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":6,\
        \"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}";
    const NO_ROUTE: &str = "{\"code\":17,\"flag\":1,\"language\":\"JAVA\",\"opaque\":0,\
        \"remark\":\"No topic route info in name server for the topic: CapTopic\\nSee\",\
        \"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}";

    fn topic() -> Topic {
        Topic {
            name: "CapTopic".into(),
            broker: "broker-a".into(),
            queues: 4,
        }
    }

    #[test]
    fn numbers_are_read_with_and_without_a_hint_that_fits() {
        let mut reader = NumberReader::default();
        assert_eq!(reader.read(STORED.as_bytes()).expect("valid"), (0, 6));
        assert_eq!(reader.read(STORED.as_bytes()).expect("valid"), (0, 6));
        assert_eq!(reader.read(NO_ROUTE.as_bytes()).expect("valid"), (17, 0));
        let turned = b"{\"extFields\":{\"code\":\"1\"}, \"opaque\": -5, \"code\": 12}";
        assert_eq!(reader.read(turned).expect("valid"), (12, -5));
        assert!(reader.read(b"{\"code\":1}").is_err());
    }

    #[test]
    fn frames_are_found_wherever_the_stream_is_cut() {
        let mut stream = Vec::new();
        for body in [&b""[..], b"x", &[7; 300]] {
            stream.extend(frame(STORED.as_bytes(), body));
            stream.extend(frame(NO_ROUTE.as_bytes(), body));
        }
        for step in [1, 2, 7, 8, 9, 100, 333, stream.len()] {
            let mut framer = Framer::default();
            let mut headers = Vec::new();
            for piece in stream.chunks(step) {
                let result = framer.feed::<FrameError>(piece, |header| {
                    headers.push(header.to_vec());
                    Ok(())
                });
                result.expect("valid frames");
            }
            assert_eq!(headers.len(), 6, "in steps of {step}");
            assert!(
                headers
                    .chunks(2)
                    .all(|pair| pair[0] == STORED.as_bytes() && pair[1] == NO_ROUTE.as_bytes())
            );
        }
    }

    #[test]
    fn a_stream_that_is_not_remoting_is_an_error() {
        let feed = |bytes: &[u8]| Framer::default().feed::<FrameError>(bytes, |_| Ok(()));
        assert!(matches!(
            feed(b"HTTP/1.1 200 OK"),
            Err(FrameError::Lengths { .. })
        ));
        assert!(matches!(
            feed(&[0, 0, 0, 8, 1, 0, 0, 4]),
            Err(FrameError::NotJson(1))
        ));
        assert!(feed(&[0, 0, 0, 3, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn a_stamped_frame_is_the_request_that_the_protocol_describes() {
        let send = SendFrame::new(&topic(), 1024, 0xFEED, 1_795_985_051_317);
        let mut bytes = send.bytes.clone();
        send.stamps().stamp(&mut bytes, opaque(15, 7), 3);
        let prefix = bytes.first_chunk().expect("a prefix");
        let (header, body) = lengths(prefix).expect("valid");
        assert_eq!((body, bytes.len()), (1024, PREFIX_BYTES + header + 1024));
        let json: serde_json::Value =
            serde_json::from_slice(&bytes[PREFIX_BYTES..PREFIX_BYTES + header]).expect("JSON");
        assert_eq!(json["code"], 310);
        assert_eq!(json["opaque"], 1_000_070_015);
        assert_eq!(json["extFields"]["b"], "CapTopic");
        assert_eq!(json["extFields"]["e"], "3");
        assert_eq!(json["extFields"]["g"], "1795985051317");
        let key = "000000000000000000FEED1000070015";
        let properties = format!("UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01TagA\x02");
        assert_eq!(json["extFields"]["i"], properties);
    }

    #[test]
    fn an_opaque_keeps_its_slot_and_its_ten_digits() {
        for (slot, round) in [(0, 0), (9_999, 99_999), (15, 100_000), (3, u32::MAX)] {
            let number = opaque(slot, round);
            assert_eq!(slot_of(number), Some(usize::from(slot)));
            assert!(i32::try_from(number).is_ok() && number.to_string().len() == 10);
        }
        assert_eq!(slot_of(7), None);
    }
}
