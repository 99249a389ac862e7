//! Writing frames: length word and header; the caller appends the body.
//!
//! Strict (`remoting.md` section 2): members in Java's order, every extension value a string.

use super::codes::{Language, RequestCode, ResponseCode, VERSION};
use super::frame::{Encoding, FRAME_BYTES_MAX, HEADER_AT, LENGTH_BYTES};

/// A remark longer than this is cut: it may quote what a peer sent.
pub const REMARK_BYTES_MAX: usize = 8 * 1024;

/// The largest header that the 24-bit length can say.
const HEADER_BYTES_MAX: usize = (1 << 24) - 1;

const FLAG_RESPONSE: i32 = 1;

/// The fixed fields of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// What is asked. Above 32767 a binary header carries the low 16 bits.
    pub code: RequestCode,
    /// Who asks.
    pub language: Language,
    /// The asker's version; some clients read it as 16 bits.
    pub version: i32,
    /// The asker's number for this request.
    pub opaque: i32,
    /// 0, or 2 if no answer is wanted.
    pub flag: i32,
}

impl RequestHead {
    /// A request of our own, as the Java of our version would mark it.
    pub fn new(code: RequestCode, opaque: i32) -> RequestHead {
        RequestHead {
            code,
            language: Language::Java,
            version: VERSION,
            opaque,
            flag: 0,
        }
    }

    /// The same request, but nobody waits for an answer.
    pub fn oneway(self) -> RequestHead {
        RequestHead {
            flag: self.flag | 2,
            ..self
        }
    }
}

/// The fixed fields of a response. Language and version are always ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// How it went.
    pub code: ResponseCode,
    /// The number of the request that is answered.
    pub opaque: i32,
}

/// Appends the length word and header of a request whose body of `body_bytes` follows.
///
/// # Panics
/// If the frame would pass [`FRAME_BYTES_MAX`]: bodies are bounded by who makes them.
pub fn encode_request(
    out: &mut Vec<u8>,
    encoding: Encoding,
    head: &RequestHead,
    remark: Option<&str>,
    body_bytes: usize,
    ext: impl FnOnce(&mut ExtWriter<'_>),
) {
    let fixed = Fixed {
        code: head.code.0,
        language: head.language,
        version: head.version,
        opaque: head.opaque,
        flag: head.flag,
    };
    encode(out, encoding, &fixed, remark, body_bytes, ext);
}

/// Appends the length word and header of a response whose body of `body_bytes` follows.
///
/// # Panics
/// If the frame would pass [`FRAME_BYTES_MAX`]: bodies are bounded by who makes them.
pub fn encode_response(
    out: &mut Vec<u8>,
    encoding: Encoding,
    head: &ResponseHead,
    remark: Option<&str>,
    body_bytes: usize,
    ext: impl FnOnce(&mut ExtWriter<'_>),
) {
    let fixed = Fixed {
        code: head.code.0,
        language: Language::Java,
        version: VERSION,
        opaque: head.opaque,
        flag: FLAG_RESPONSE,
    };
    encode(out, encoding, &fixed, remark, body_bytes, ext);
}

struct Fixed {
    code: i32,
    language: Language,
    version: i32,
    opaque: i32,
    flag: i32,
}

fn encode(
    out: &mut Vec<u8>,
    encoding: Encoding,
    fixed: &Fixed,
    remark: Option<&str>,
    body_bytes: usize,
    ext: impl FnOnce(&mut ExtWriter<'_>),
) {
    let frame_at = out.len();
    out.extend_from_slice(&[0; HEADER_AT]);
    let remark = remark.map(|text| cut(text, REMARK_BYTES_MAX));
    match encoding {
        Encoding::Json => encode_json(out, fixed, remark, ext),
        Encoding::Binary => encode_binary(out, fixed, remark, ext),
    }
    let header_bytes = out.len() - frame_at - HEADER_AT;
    let frame_bytes = out.len() - frame_at + body_bytes;
    assert!(
        header_bytes <= HEADER_BYTES_MAX,
        "a header of {header_bytes} bytes"
    );
    assert!(
        frame_bytes <= FRAME_BYTES_MAX,
        "a frame of {frame_bytes} bytes"
    );
    let length = (frame_bytes - LENGTH_BYTES) as u32;
    let kind = match encoding {
        Encoding::Json => 0,
        Encoding::Binary => 1 << 24,
    };
    let word = kind | header_bytes as u32;
    out[frame_at..frame_at + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    out[frame_at + LENGTH_BYTES..frame_at + HEADER_AT].copy_from_slice(&word.to_be_bytes());
}

fn encode_json(
    out: &mut Vec<u8>,
    fixed: &Fixed,
    remark: Option<&str>,
    ext: impl FnOnce(&mut ExtWriter<'_>),
) {
    out.extend_from_slice(b"{\"code\":");
    push_decimal(out, i64::from(fixed.code));
    let mut writer = ExtWriter {
        out,
        encoding: Encoding::Json,
        started: false,
    };
    ext(&mut writer);
    if writer.started {
        writer.out.push(b'}');
    }
    out.extend_from_slice(b",\"flag\":");
    push_decimal(out, i64::from(fixed.flag));
    out.extend_from_slice(b",\"language\":\"");
    out.extend_from_slice(fixed.language.name().as_bytes());
    out.extend_from_slice(b"\",\"opaque\":");
    push_decimal(out, i64::from(fixed.opaque));
    if let Some(remark) = remark {
        out.extend_from_slice(b",\"remark\":");
        push_json_string(out, remark);
    }
    out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    push_decimal(out, i64::from(fixed.version));
    out.push(b'}');
}

fn encode_binary(
    out: &mut Vec<u8>,
    fixed: &Fixed,
    remark: Option<&str>,
    ext: impl FnOnce(&mut ExtWriter<'_>),
) {
    out.extend_from_slice(&(fixed.code as i16).to_be_bytes());
    out.push(fixed.language.code());
    out.extend_from_slice(&(fixed.version as i16).to_be_bytes());
    out.extend_from_slice(&fixed.opaque.to_be_bytes());
    out.extend_from_slice(&fixed.flag.to_be_bytes());
    let remark = remark.unwrap_or("");
    out.extend_from_slice(&(remark.len() as u32).to_be_bytes());
    out.extend_from_slice(remark.as_bytes());
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    ext(&mut ExtWriter {
        out,
        encoding: Encoding::Binary,
        started: false,
    });
    let ext_bytes = (out.len() - length_at - 4) as u32;
    out[length_at..length_at + 4].copy_from_slice(&ext_bytes.to_be_bytes());
}

/// Writes extension fields one after another, without allocation beyond the output itself.
#[derive(Debug)]
pub struct ExtWriter<'a> {
    out: &'a mut Vec<u8>,
    encoding: Encoding,
    started: bool,
}

impl ExtWriter<'_> {
    /// A text field. In a binary header an empty value arrives as absent.
    pub fn put_str(&mut self, name: &str, value: &str) {
        match self.encoding {
            Encoding::Json => {
                self.json_name(name);
                push_json_string(self.out, value);
            }
            Encoding::Binary => {
                self.binary_name(name);
                self.out
                    .extend_from_slice(&(value.len() as u32).to_be_bytes());
                self.out.extend_from_slice(value.as_bytes());
            }
        }
    }

    /// A number field, in decimal.
    pub fn put_int(&mut self, name: &str, value: impl Into<i64>) {
        let mut digits = [0; DECIMAL_BYTES_MAX];
        self.put_ascii(name, decimal(value.into(), &mut digits));
    }

    /// A number field for offsets.
    ///
    /// # Panics
    /// Above `i64::MAX`, which no offset reaches.
    pub fn put_u64(&mut self, name: &str, value: u64) {
        self.put_int(name, i64::try_from(value).expect("offsets are below 2^63"));
    }

    /// `true` or `false`.
    pub fn put_bool(&mut self, name: &str, value: bool) {
        self.put_ascii(name, if value { b"true" } else { b"false" });
    }

    /// Makes the field object present although it may stay empty: some clients read it without
    /// a check.
    pub fn present(&mut self) {
        if self.encoding == Encoding::Json && !self.started {
            self.started = true;
            self.out.extend_from_slice(b",\"extFields\":{");
        }
    }

    /// A value that needs no escapes.
    fn put_ascii(&mut self, name: &str, value: &[u8]) {
        match self.encoding {
            Encoding::Json => {
                self.json_name(name);
                self.out.push(b'"');
                self.out.extend_from_slice(value);
                self.out.push(b'"');
            }
            Encoding::Binary => {
                self.binary_name(name);
                self.out
                    .extend_from_slice(&(value.len() as u32).to_be_bytes());
                self.out.extend_from_slice(value);
            }
        }
    }

    fn json_name(&mut self, name: &str) {
        self.present();
        if !self.out.ends_with(b"{") {
            self.out.push(b',');
        }
        push_json_string(self.out, name);
        self.out.push(b':');
    }

    fn binary_name(&mut self, name: &str) {
        let name = cut(name, i16::MAX as usize);
        self.out
            .extend_from_slice(&(name.len() as u16).to_be_bytes());
        self.out.extend_from_slice(name.as_bytes());
    }
}

/// The longest decimal of 64 bits: `-9223372036854775808`.
pub(super) const DECIMAL_BYTES_MAX: usize = 20;

/// The decimal digits of a number, in the given place.
pub(super) fn decimal(value: i64, place: &mut [u8; DECIMAL_BYTES_MAX]) -> &[u8] {
    let mut rest = value.unsigned_abs();
    let mut at = place.len();
    loop {
        at -= 1;
        place[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        place[at] = b'-';
    }
    &place[at..]
}

fn push_decimal(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(decimal(value, &mut [0; DECIMAL_BYTES_MAX]));
}

/// A JSON string with its quotes; control characters are escaped.
pub(super) fn push_json_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let mut plain_from = 0;
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        if *byte >= 0x20 && *byte != b'"' && *byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[plain_from..at]);
        plain_from = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', HEX[high], HEX[low]]);
            }
        }
    }
    out.extend_from_slice(&bytes[plain_from..]);
    out.push(b'"');
}

/// The longest beginning of a text that is not longer than `bytes`.
fn cut(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
