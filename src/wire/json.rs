//! The JSON header (`remoting.md` section 2), read the way Java's fastjson reads it.
//!
//! Taken beside strict JSON: a byte order mark, blanks around everything, single quotes, unquoted
//! keys, extra commas, raw control characters in strings, numbers as strings and the reverse,
//! fractions (cut), members nobody knows, nested values of any kind as extension values (their
//! text). Refused: anything but one object, text after it, extension fields that are no object,
//! numbers that are none or pass 32 bits, language ordinals beyond the table, invalid UTF-8,
//! nesting beyond [`NESTING_MAX`].

use super::codes::Language;
use super::frame::{FrameError, Parts, Scratch, Text};

/// Levels of nested brackets inside one member. Java's own limit is its stack: thousands.
const NESTING_MAX: usize = 512;

const BYTE_ORDER_MARK: &str = "\u{FEFF}";

/// A scalar or a skipped structure.
#[derive(Clone, Copy)]
enum Value {
    Text(Text),
    /// Digits as they stand in the header.
    Number(Text),
    True,
    False,
    Null,
    /// An object or array as it stands in the header.
    Nested(Text),
}

/// Reads a JSON header. The returned text is the header itself, into which the parts point.
pub(super) fn decode<'a>(
    header: &'a [u8],
    scratch: &mut Scratch,
) -> Result<(&'a str, Parts), FrameError> {
    let text = std::str::from_utf8(header).map_err(|error| FrameError::Json {
        at: error.valid_up_to() as u32,
        why: "invalid UTF-8",
    })?;
    let mut scanner = Scanner {
        text,
        bytes: header,
        at: 0,
    };
    let parts = scanner.header(scratch)?;
    Ok((text, parts))
}

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn header(&mut self, scratch: &mut Scratch) -> Result<Parts, FrameError> {
        let mut parts = Parts::default();
        self.blanks_and_mark();
        self.expect(b'{', "not an object")?;
        while let Some(key) = self.next_key(scratch)? {
            match key.of(self.text, &scratch.text) {
                "code" => self.number_member(scratch, &mut parts.code)?,
                "flag" => self.number_member(scratch, &mut parts.flag)?,
                "opaque" => self.number_member(scratch, &mut parts.opaque)?,
                "version" => self.number_member(scratch, &mut parts.version)?,
                "language" => parts.language = self.language(scratch)?,
                "remark" => parts.remark = self.text_value(scratch)?,
                "extFields" => self.ext_fields(scratch)?,
                _ => _ = self.value(scratch)?,
            }
        }
        self.blanks_and_mark();
        if self.at < self.bytes.len() {
            return Err(self.error("text after the object"));
        }
        Ok(parts)
    }

    fn ext_fields(&mut self, scratch: &mut Scratch) -> Result<(), FrameError> {
        // Of two `extFields` members Java keeps the last.
        scratch.fields.clear();
        if self.peek() != Some(b'{') {
            return match self.value(scratch)? {
                Value::Null => Ok(()),
                _ => Err(self.error("extFields is not an object")),
            };
        }
        self.at += 1;
        while let Some(name) = self.next_key(scratch)? {
            if let Some(value) = self.text_value(scratch)? {
                scratch.add(name, value)?;
            }
        }
        Ok(())
    }

    /// The next key of an object with its colon, or `None` after the closing brace.
    fn next_key(&mut self, scratch: &mut Scratch) -> Result<Option<Text>, FrameError> {
        self.blanks();
        while self.peek() == Some(b',') {
            self.at += 1;
            self.blanks();
        }
        let key = match self.peek() {
            Some(b'}') => {
                self.at += 1;
                return Ok(None);
            }
            Some(quote @ (b'"' | b'\'')) => self.string(quote, scratch)?,
            Some(byte) if is_bare(byte) => self.run(is_bare),
            _ => return Err(self.error("a key is missing")),
        };
        self.blanks();
        self.expect(b':', "no colon after a key")?;
        self.blanks();
        Ok(Some(key))
    }

    fn value(&mut self, scratch: &mut Scratch) -> Result<Value, FrameError> {
        let value = match self.peek() {
            Some(quote @ (b'"' | b'\'')) => Value::Text(self.string(quote, scratch)?),
            Some(b'{' | b'[') => self.nested()?,
            Some(b'0'..=b'9' | b'-' | b'+' | b'.') => Value::Number(self.run(is_number)),
            Some(byte) if is_bare(byte) => {
                let word = self.run(is_bare);
                match word.of(self.text, "") {
                    "true" => Value::True,
                    "false" => Value::False,
                    "null" | "undefined" => Value::Null,
                    _ => return Err(self.error("an unknown word")),
                }
            }
            _ => return Err(self.error("a value is missing")),
        };
        self.blanks();
        match self.peek() {
            Some(b',' | b'}') => Ok(value),
            _ => Err(self.error("neither comma nor brace after a value")),
        }
    }

    /// Any value as text; `None` for null.
    fn text_value(&mut self, scratch: &mut Scratch) -> Result<Option<Text>, FrameError> {
        Ok(match self.value(scratch)? {
            Value::Text(text) | Value::Number(text) | Value::Nested(text) => Some(text),
            Value::True => Some(word(scratch, "true")),
            Value::False => Some(word(scratch, "false")),
            Value::Null => None,
        })
    }

    fn number_member(&mut self, scratch: &mut Scratch, out: &mut i32) -> Result<(), FrameError> {
        let number = match self.value(scratch)? {
            Value::Number(digits) => number(digits.of(self.text, "")),
            Value::Text(text) => match text.of(self.text, &scratch.text) {
                "" | "null" | "NULL" => Some(0),
                digits => digits.parse().ok(),
            },
            Value::True => Some(1),
            Value::False => Some(0),
            Value::Null => return Ok(()),
            Value::Nested(_) => None,
        };
        *out = number.ok_or_else(|| self.error("no 32-bit number"))?;
        Ok(())
    }

    fn language(&mut self, scratch: &mut Scratch) -> Result<Language, FrameError> {
        let language = match self.value(scratch)? {
            Value::Text(name) => Some(Language::from_name(name.of(self.text, &scratch.text))),
            Value::Number(digits) => number(digits.of(self.text, ""))
                .and_then(|ordinal| Language::from_code(i64::from(ordinal))),
            Value::Null => Some(Language::Other),
            Value::True | Value::False | Value::Nested(_) => None,
        };
        language.ok_or_else(|| self.error("no language"))
    }

    /// A string whose opening quote is next. Borrowed where it stands, unless it has escapes.
    fn string(&mut self, quote: u8, scratch: &mut Scratch) -> Result<Text, FrameError> {
        let start = self.at + 1;
        let end = self.plain_until(start, quote)?;
        self.at = end + 1;
        if self.bytes[end] == quote {
            return Ok(Text::in_header(start, end));
        }
        let unescaped_at = scratch.text.len();
        scratch.text.push_str(&self.text[start..end]);
        loop {
            self.escape(scratch)?;
            let start = self.at;
            let end = self.plain_until(start, quote)?;
            scratch.text.push_str(&self.text[start..end]);
            self.at = end + 1;
            if self.bytes[end] == quote {
                return Ok(Text::in_scratch(unescaped_at, scratch.text.len()));
            }
        }
    }

    /// Where the next quote or backslash stands.
    fn plain_until(&self, start: usize, quote: u8) -> Result<usize, FrameError> {
        self.bytes[start.min(self.bytes.len())..]
            .iter()
            .position(|byte| *byte == quote || *byte == b'\\')
            .map(|count| start + count)
            .ok_or_else(|| self.error("a string without end"))
    }

    /// What follows a backslash.
    fn escape(&mut self, scratch: &mut Scratch) -> Result<(), FrameError> {
        let Some(byte) = self.peek() else {
            return Err(self.error("a string without end"));
        };
        self.at += 1;
        scratch.text.push(match byte {
            b'"' | b'\'' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' | b'F' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'v' => '\u{b}',
            b'0'..=b'7' => char::from(byte - b'0'),
            b'x' => self
                .hex(2)
                .and_then(char::from_u32)
                .ok_or_else(|| self.bad_escape())?,
            b'u' => self.utf16_escape()?,
            _ => return Err(self.bad_escape()),
        });
        Ok(())
    }

    /// One or two `\u` escapes. Half a surrogate pair becomes `?`, as when Java writes it out.
    fn utf16_escape(&mut self) -> Result<char, FrameError> {
        let unit = self.hex(4).ok_or_else(|| self.bad_escape())?;
        if !(0xD800..0xDC00).contains(&unit) {
            return Ok(char::from_u32(unit).unwrap_or('?'));
        }
        if self.bytes[self.at..].starts_with(b"\\u") {
            let back = self.at;
            self.at += 2;
            let low = self.hex(4).ok_or_else(|| self.bad_escape())?;
            if (0xDC00..0xE000).contains(&low) {
                let point = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
                return Ok(char::from_u32(point).unwrap_or('?'));
            }
            self.at = back;
        }
        Ok('?')
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let bytes = self.bytes.get(self.at..self.at + digits)?;
        let value = bytes.iter().try_fold(0, |value, byte| {
            char::from(*byte)
                .to_digit(16)
                .map(|digit| value << 4 | digit)
        })?;
        self.at += digits;
        Some(value)
    }

    /// Skips an object or array by its brackets and strings.
    fn nested(&mut self) -> Result<Value, FrameError> {
        let start = self.at;
        let mut is_object = [false; NESTING_MAX];
        let mut depth = 0;
        loop {
            let Some(byte) = self.peek() else {
                return Err(self.error("brackets without end"));
            };
            self.at += 1;
            match byte {
                b'{' | b'[' => {
                    let level = is_object.get_mut(depth);
                    *level.ok_or_else(|| self.error("nested too deep"))? = byte == b'{';
                    depth += 1;
                }
                b'}' | b']' => {
                    depth -= 1;
                    if is_object[depth] != (byte == b'}') {
                        return Err(self.error("brackets that do not match"));
                    }
                    if depth == 0 {
                        return Ok(Value::Nested(Text::in_header(start, self.at)));
                    }
                }
                b'"' | b'\'' => self.skip_string(byte)?,
                _ => {}
            }
        }
    }

    /// Skips a string whose opening quote was read.
    fn skip_string(&mut self, quote: u8) -> Result<(), FrameError> {
        loop {
            let end = self.plain_until(self.at, quote)?;
            if self.bytes[end] == quote {
                self.at = end + 1;
                return Ok(());
            }
            self.at = end + 2;
        }
    }

    fn run(&mut self, belongs: fn(u8) -> bool) -> Text {
        let start = self.at;
        let rest = &self.bytes[start..];
        let count = rest
            .iter()
            .position(|byte| !belongs(*byte))
            .unwrap_or(rest.len());
        self.at += count;
        Text::in_header(start, self.at)
    }

    fn blanks(&mut self) {
        while matches!(
            self.peek(),
            Some(b' ' | b'\n' | b'\r' | b'\t' | 0x0C | 0x08)
        ) {
            self.at += 1;
        }
    }

    fn blanks_and_mark(&mut self) {
        self.blanks();
        while self.text[self.at..].starts_with(BYTE_ORDER_MARK) {
            self.at += BYTE_ORDER_MARK.len();
            self.blanks();
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8, why: &'static str) -> Result<(), FrameError> {
        if self.peek() != Some(byte) {
            return Err(self.error(why));
        }
        self.at += 1;
        Ok(())
    }

    fn bad_escape(&self) -> FrameError {
        self.error("an unknown escape")
    }

    fn error(&self, why: &'static str) -> FrameError {
        FrameError::Json {
            at: self.at as u32,
            why,
        }
    }
}

/// What an unquoted key or a word is made of.
fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'-') || byte >= 0x80
}

fn is_number(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E')
}

/// A JSON number as 32 bits; a fraction is cut.
fn number(digits: &str) -> Option<i32> {
    if let Ok(exact) = digits.parse() {
        return Some(exact);
    }
    let cut = digits.parse::<f64>().ok()?.trunc();
    (f64::from(i32::MIN)..=f64::from(i32::MAX))
        .contains(&cut)
        .then_some(cut as i32)
}

/// A word that the header may not contain in this form.
fn word(scratch: &mut Scratch, word: &str) -> Text {
    let start = scratch.text.len();
    scratch.text.push_str(word);
    Text::in_scratch(start, scratch.text.len())
}
