//! The JSON header (`remoting.md` section 2), read the way Java's fastjson reads it.
//!
//! Taken beside strict JSON: a byte order mark, blanks around everything, single quotes, unquoted
//! keys, extra commas, raw control characters in strings, numbers as strings and the reverse,
//! fractions (cut), members nobody knows, nested values of any kind as extension values (their
//! text). Refused: anything but one object, text after it, extension fields that are no object,
//! numbers that are none or pass 32 bits, language ordinals beyond the table, invalid UTF-8,
//! nesting beyond [`NESTING_MAX`].

use super::codes::Language;
use super::frame::{FrameError, Parts, Scratch};
use super::scan::{ScanError, Scanner, Text, is_bare, is_number};

/// Levels of nested brackets inside one member. Java's own limit is its stack: thousands.
const NESTING_MAX: usize = 512;

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
    let text = std::str::from_utf8(header).map_err(|error| ScanError {
        at: error.valid_up_to() as u32,
        why: "invalid UTF-8",
    })?;
    let parts = Reader {
        scan: Scanner::new(text),
    }
    .header(scratch)?;
    Ok((text, parts))
}

struct Reader<'a> {
    scan: Scanner<'a>,
}

impl Reader<'_> {
    fn header(&mut self, scratch: &mut Scratch) -> Result<Parts, FrameError> {
        let mut parts = Parts::default();
        self.scan.blanks_and_mark();
        self.scan.expect(b'{', "not an object")?;
        while let Some(key) = self.next_key(scratch)? {
            match key.of(self.scan.text, &scratch.text) {
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
        self.scan.blanks_and_mark();
        if self.scan.at < self.scan.text.len() {
            return Err(self.scan.error("text after the object").into());
        }
        Ok(parts)
    }

    fn ext_fields(&mut self, scratch: &mut Scratch) -> Result<(), FrameError> {
        // Of two `extFields` members Java keeps the last.
        scratch.fields.clear();
        if self.scan.peek() != Some(b'{') {
            return match self.value(scratch)? {
                Value::Null => Ok(()),
                _ => Err(self.scan.error("extFields is not an object").into()),
            };
        }
        self.scan.at += 1;
        while let Some(name) = self.next_key(scratch)? {
            if let Some(value) = self.text_value(scratch)? {
                scratch.add(name, value)?;
            }
        }
        Ok(())
    }

    /// The next key of an object with its colon, or `None` after the closing brace.
    fn next_key(&mut self, scratch: &mut Scratch) -> Result<Option<Text>, FrameError> {
        self.scan.blanks();
        while self.scan.peek() == Some(b',') {
            self.scan.at += 1;
            self.scan.blanks();
        }
        let key = match self.scan.peek() {
            Some(b'}') => {
                self.scan.at += 1;
                return Ok(None);
            }
            Some(quote @ (b'"' | b'\'')) => self.scan.string(quote, &mut scratch.text)?,
            Some(byte) if is_bare(byte) => self.scan.run(is_bare),
            _ => return Err(self.scan.error("a key is missing").into()),
        };
        self.scan.blanks();
        self.scan.expect(b':', "no colon after a key")?;
        self.scan.blanks();
        Ok(Some(key))
    }

    fn value(&mut self, scratch: &mut Scratch) -> Result<Value, FrameError> {
        let value = match self.scan.peek() {
            Some(quote @ (b'"' | b'\'')) => {
                Value::Text(self.scan.string(quote, &mut scratch.text)?)
            }
            Some(b'{' | b'[') => self.nested()?,
            Some(b'0'..=b'9' | b'-' | b'+' | b'.') => Value::Number(self.scan.run(is_number)),
            Some(byte) if is_bare(byte) => {
                let word = self.scan.run(is_bare);
                match word.of(self.scan.text, "") {
                    "true" => Value::True,
                    "false" => Value::False,
                    "null" | "undefined" => Value::Null,
                    _ => return Err(self.scan.error("an unknown word").into()),
                }
            }
            _ => return Err(self.scan.error("a value is missing").into()),
        };
        self.scan.blanks();
        match self.scan.peek() {
            Some(b',' | b'}') => Ok(value),
            _ => Err(self
                .scan
                .error("neither comma nor brace after a value")
                .into()),
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
            Value::Number(digits) => number(digits.of(self.scan.text, "")),
            Value::Text(text) => match text.of(self.scan.text, &scratch.text) {
                "" | "null" | "NULL" => Some(0),
                digits => digits.parse().ok(),
            },
            Value::True => Some(1),
            Value::False => Some(0),
            Value::Null => return Ok(()),
            Value::Nested(_) => None,
        };
        *out = number.ok_or_else(|| self.scan.error("no 32-bit number"))?;
        Ok(())
    }

    fn language(&mut self, scratch: &mut Scratch) -> Result<Language, FrameError> {
        let language = match self.value(scratch)? {
            Value::Text(name) => Some(Language::from_name(name.of(self.scan.text, &scratch.text))),
            Value::Number(digits) => number(digits.of(self.scan.text, ""))
                .and_then(|ordinal| Language::from_code(i64::from(ordinal))),
            Value::Null => Some(Language::Other),
            Value::True | Value::False | Value::Nested(_) => None,
        };
        Ok(language.ok_or_else(|| self.scan.error("no language"))?)
    }

    /// Skips an object or array by its brackets and strings.
    fn nested(&mut self) -> Result<Value, FrameError> {
        let start = self.scan.at;
        let mut is_object = [false; NESTING_MAX];
        let mut depth = 0;
        loop {
            let Some(byte) = self.scan.peek() else {
                return Err(self.scan.error("brackets without end").into());
            };
            self.scan.at += 1;
            match byte {
                b'{' | b'[' => {
                    let level = is_object.get_mut(depth);
                    *level.ok_or_else(|| self.scan.error("nested too deep"))? = byte == b'{';
                    depth += 1;
                }
                b'}' | b']' => {
                    depth -= 1;
                    if is_object[depth] != (byte == b'}') {
                        return Err(self.scan.error("brackets that do not match").into());
                    }
                    if depth == 0 {
                        return Ok(Value::Nested(Text::in_header(start, self.scan.at)));
                    }
                }
                b'"' | b'\'' => self.scan.skip_string(byte)?,
                _ => {}
            }
        }
    }
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
