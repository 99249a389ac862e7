//! The frame: one request or response on a connection. All integers are big-endian.
//!
//! ```text
//! 0              4          5              8                  8 + header length
//! +--------------+----------+--------------+------------------+--------------+
//! | frame length | encoding | header length| header           | body         |
//! | i32          | u8       | u24          | JSON or binary   | as it comes  |
//! +--------------+----------+--------------+------------------+--------------+
//!                |<------------------- frame length bytes ------------------>|
//! ```
//!
//! Spec: `remoting.md` sections 1 to 4. Reading is as tolerant as Java's; writing is strict.

use super::codes::{Language, RequestCode, ResponseCode};
use super::scan::{ScanError, Text};
use super::{binary, json};

pub use super::write::{ExtWriter, RequestHead, ResponseHead, encode_request, encode_response};

pub use crate::limits::FRAME_BYTES_MAX;

/// The length word, which does not count itself.
pub const LENGTH_BYTES: usize = size_of::<u32>();
/// The word after the length word: encoding and header length.
pub const HEADER_WORD_BYTES: usize = size_of::<u32>();
/// Where the header begins in a whole frame.
pub const HEADER_AT: usize = LENGTH_BYTES + HEADER_WORD_BYTES;
/// More extension fields than any client sends; a frame with more closes its connection.
pub const EXT_FIELDS_MAX: usize = 4096;

/// What a scratch buffer keeps between frames, so that one big header is not paid for forever.
const SCRATCH_KEEP_BYTES: usize = 256 * 1024;

const FLAG_RESPONSE: i32 = 1;
const FLAG_ONEWAY: i32 = 2;

/// How a header is written. The sender's choice; an answer uses the asker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `serializeType` 0.
    Json,
    /// `serializeType` 1, "ROCKETMQ".
    Binary,
}

/// Why a frame cannot be understood. There is no answer to such a frame: the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length word is below 4 or negative.
    #[error("a frame length of {0} has no place for a header")]
    TooShort(i32),
    /// The length word is above [`FRAME_BYTES_MAX`] less its own 4 bytes.
    #[error("a frame length of {0} is above the limit of 16 MiB")]
    TooLong(i32),
    /// The header length is zero or passes the frame's end.
    #[error("a header length of {0} does not fit the frame")]
    HeaderLength(u32),
    /// Neither JSON (0) nor binary (1).
    #[error("{0} is no header encoding")]
    Encoding(u8),
    /// The header is no JSON object that Java would read.
    #[error("the JSON header cannot be read: {0}")]
    Json(#[from] ScanError),
    /// A length in the binary header passes its end.
    #[error("the binary header cannot be read: {0}")]
    Binary(&'static str),
    /// More than [`EXT_FIELDS_MAX`] extension fields.
    #[error("the header has more than {EXT_FIELDS_MAX} extension fields")]
    TooManyFields,
}

/// Reads a length word: the number of bytes that follow it.
///
/// # Errors
/// Below 4, negative, or above [`FRAME_BYTES_MAX`] with the word itself: close the connection.
pub fn frame_length(word: [u8; LENGTH_BYTES]) -> Result<usize, FrameError> {
    let length = i32::from_be_bytes(word);
    match usize::try_from(length) {
        Ok(bytes) if bytes < HEADER_WORD_BYTES => Err(FrameError::TooShort(length)),
        Ok(bytes) if bytes > FRAME_BYTES_MAX - LENGTH_BYTES => Err(FrameError::TooLong(length)),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(FrameError::TooShort(length)),
    }
}

/// Place for what a header needs beside its own bytes: text without escapes and the list of
/// extension fields. Used again and again by one reader; it then allocates no more.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) text: String,
    pub(super) fields: Vec<ExtField>,
}

impl Scratch {
    /// Room for an ordinary header from the start.
    pub fn new() -> Scratch {
        Scratch {
            text: String::with_capacity(1024),
            fields: Vec::with_capacity(32),
        }
    }

    fn clear(&mut self) {
        self.text.clear();
        self.fields.clear();
        if self.text.capacity() > SCRATCH_KEEP_BYTES {
            self.text.shrink_to(SCRATCH_KEEP_BYTES);
        }
    }

    pub(super) fn add(&mut self, name: Text, value: Text) -> Result<(), FrameError> {
        if self.fields.len() >= EXT_FIELDS_MAX {
            return Err(FrameError::TooManyFields);
        }
        self.fields.push(ExtField { name, value });
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ExtField {
    name: Text,
    value: Text,
}

/// What a decoder found; the texts are resolved when the frame is put together.
#[derive(Debug)]
pub(super) struct Parts {
    pub code: i32,
    pub language: Language,
    pub version: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<Text>,
}

impl Default for Parts {
    /// What Java's constructor sets before the members are read. Java makes an opaque up.
    fn default() -> Parts {
        Parts {
            code: 0,
            language: Language::Java,
            version: 0,
            opaque: 0,
            flag: 0,
            remark: None,
        }
    }
}

/// A header as it was received. Texts are borrowed from the frame or from the scratch buffer.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// A request code, or the response code if [`Header::is_response`]. Codes that a binary
    /// header cannot hold are mapped back (`remoting.md` section 3).
    pub code: i32,
    /// The sender's language.
    pub language: Language,
    /// The sender's version (`remoting.md` section 6).
    pub version: i32,
    /// The sender's number for this request; the answer carries the same.
    pub opaque: i32,
    /// Bit 0 marks a response, bit 1 a request that wants no answer.
    pub flag: i32,
    /// Free text, mostly the cause of an error.
    pub remark: Option<&'a str>,
    /// How this header was written.
    pub encoding: Encoding,
    text: &'a str,
    unescaped: &'a str,
    fields: &'a [ExtField],
}

impl<'a> Header<'a> {
    /// A response, or what pretends to be one: a request is never answered with this flag set.
    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// A request that must not be answered.
    pub fn is_oneway(&self) -> bool {
        self.flag & FLAG_ONEWAY != 0
    }

    /// The code of a request.
    pub fn request_code(&self) -> RequestCode {
        RequestCode(self.code)
    }

    /// The code of a response.
    pub fn response_code(&self) -> ResponseCode {
        ResponseCode(self.code)
    }

    /// The value of an extension field; of several with one name the last, as in Java.
    /// A field that was `null` is absent; in a binary header also one that was empty.
    pub fn ext(&self, name: &str) -> Option<&'a str> {
        let found = self
            .fields
            .iter()
            .rev()
            .find(|field| self.resolve(field.name) == name)?;
        Some(self.resolve(found.value))
    }

    /// All extension fields in the order received, names that occur twice included.
    pub fn ext_fields(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let header = *self;
        self.fields
            .iter()
            .map(move |field| (header.resolve(field.name), header.resolve(field.value)))
    }

    fn resolve(&self, text: Text) -> &'a str {
        text.of(self.text, self.unescaped)
    }
}

/// A frame whose header was read and whose lengths fit.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// What it asks or answers.
    pub header: Header<'a>,
    /// The bytes after the header; may be empty.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads a frame without its length word. Allocates nothing once `scratch` has grown to what
    /// a connection's headers need.
    ///
    /// # Errors
    /// Every error means: close the connection, without an answer.
    pub fn decode(bytes: &'a [u8], scratch: &'a mut Scratch) -> Result<Frame<'a>, FrameError> {
        let (word, rest) = bytes
            .split_first_chunk::<HEADER_WORD_BYTES>()
            .ok_or(FrameError::TooShort(bytes.len() as i32))?;
        let header_length = u32::from_be_bytes([0, word[1], word[2], word[3]]);
        if header_length == 0 || header_length as usize > rest.len() {
            return Err(FrameError::HeaderLength(header_length));
        }
        let (header, body) = rest.split_at(header_length as usize);
        scratch.clear();
        let (encoding, text, parts) = match word[0] {
            0 => {
                let (text, parts) = json::decode(header, scratch)?;
                (Encoding::Json, text, parts)
            }
            1 => (Encoding::Binary, "", binary::decode(header, scratch)?),
            other => return Err(FrameError::Encoding(other)),
        };
        let scratch: &'a Scratch = scratch;
        let header = Header {
            code: parts.code,
            language: parts.language,
            version: parts.version,
            opaque: parts.opaque,
            flag: parts.flag,
            remark: parts.remark.map(|remark| remark.of(text, &scratch.text)),
            encoding,
            text,
            unescaped: &scratch.text,
            fields: &scratch.fields,
        };
        Ok(Frame { header, body })
    }
}
