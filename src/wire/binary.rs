//! The binary header, "ROCKETMQ" (`remoting.md` section 3).
//!
//! ```text
//! 0      2          3         5        9      13              17       17 + r
//! +------+----------+---------+--------+------+---------------+--------+------------+---------+
//! | code | language | version | opaque | flag | remark length | remark | ext length | entries |
//! | i16  | u8       | i16     | i32    | i32  | i32 = r       |        | i32        |         |
//! +------+----------+---------+--------+------+---------------+--------+------------+---------+
//! entry: name length i16 | name | value length i32 | value        (no count; until ext length)
//! ```

use super::codes::{Language, RequestCode};
use super::frame::{FrameError, Parts, Scratch};
use super::scan::Text;

const CUT: FrameError = FrameError::Binary("it ends inside a field");
const NEGATIVE: FrameError = FrameError::Binary("a length is negative");

/// Codes that do not fit 16 bits arrive cut; no other code looks like them.
const CODES_CUT_TO_16_BITS: [RequestCode; 8] = [
    RequestCode::POP_MESSAGE,
    RequestCode::ACK_MESSAGE,
    RequestCode::PEEK_MESSAGE,
    RequestCode::CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode::NOTIFICATION,
    RequestCode::POLLING_INFO,
    RequestCode::POP_ROLLBACK,
    RequestCode::BATCH_ACK_MESSAGE,
];

/// Reads a binary header. All texts are copied into the scratch buffer, because only there they
/// are known to be UTF-8; invalid bytes become U+FFFD as in Java.
pub(super) fn decode(header: &[u8], scratch: &mut Scratch) -> Result<Parts, FrameError> {
    let mut input = Input { bytes: header };
    let code = input.i16()?;
    let language = input.take(1)?[0];
    let version = input.i16()?;
    let opaque = input.i32()?;
    let flag = input.i32()?;
    let remark_bytes = input.length()?;
    let remark = input.text(remark_bytes, scratch)?;
    // Java takes a negative length for "no fields" and does not look at what follows.
    let ext_bytes = usize::try_from(input.i32()?).unwrap_or(0);
    let mut entries = Input {
        bytes: input.take(ext_bytes)?,
    };
    while !entries.bytes.is_empty() {
        let name_bytes = usize::try_from(entries.i16()?).map_err(|_| NEGATIVE)?;
        let name = entries.text(name_bytes, scratch)?;
        let value_bytes = entries.length()?;
        let value = entries.text(value_bytes, scratch)?;
        if let (Some(name), Some(value)) = (name, value) {
            scratch.add(name, value)?;
        }
    }
    Ok(Parts {
        code: if flag & 1 == 0 {
            uncut(code)
        } else {
            i32::from(code)
        },
        language: Language::from_code(i64::from(language)).unwrap_or(Language::Other),
        version: i32::from(version),
        opaque,
        flag,
        remark,
    })
}

fn uncut(code: i16) -> i32 {
    CODES_CUT_TO_16_BITS
        .iter()
        .find(|known| known.0 as i16 == code)
        .map_or(i32::from(code), |known| known.0)
}

struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], FrameError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(CUT)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn i16(&mut self) -> Result<i16, FrameError> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(CUT)?;
        self.bytes = rest;
        Ok(i16::from_be_bytes(*word))
    }

    fn i32(&mut self) -> Result<i32, FrameError> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(CUT)?;
        self.bytes = rest;
        Ok(i32::from_be_bytes(*word))
    }

    fn length(&mut self) -> Result<usize, FrameError> {
        usize::try_from(self.i32()?).map_err(|_| NEGATIVE)
    }

    /// A text of no bytes is Java's null.
    fn text(&mut self, count: usize, scratch: &mut Scratch) -> Result<Option<Text>, FrameError> {
        let bytes = self.take(count)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let start = scratch.text.len();
        for chunk in bytes.utf8_chunks() {
            scratch.text.push_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                scratch.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        Ok(Some(Text::in_scratch(start, scratch.text.len())))
    }
}
