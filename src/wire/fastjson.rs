//! The JSON of Java's bodies (`namesrv.md` section 1): not quite JSON.
//!
//! Read beside strict JSON: unquoted keys (`{0:"a"}`), objects as keys
//! (`{{"brokerName":"b","queueId":0,"topic":"t"}:1}`), single quotes, extra commas, raw control
//! characters, half surrogates, a byte order mark, blanks and line ends around everything.
//! Such a text is first written anew as strict JSON, in which an object key is the string of its
//! JSON, and then read by serde. Written is strict JSON, except for [`ObjectWriter::queue_map`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::scan::{ScanError, Scanner, is_bare, is_number};
use super::write::push_json_string;

/// The longest text that is read, and the longest that it may become when written anew.
pub const TEXT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Levels of nested brackets; serde_json has the same limit.
pub const NESTING_MAX: usize = 127;

/// A body that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// Not JSON, not even as Java writes it.
    #[error("the body is no JSON: {0}")]
    Syntax(#[from] ScanError),
    /// JSON that is not what was expected: a field is missing or of another kind.
    #[error("the body does not fit: {0}")]
    Fit(#[from] serde_json::Error),
    /// Beyond [`TEXT_BYTES_MAX`].
    #[error("a body of {0} bytes")]
    TooLong(usize),
}

/// Reads a body.
///
/// # Errors
/// See [`BodyError`]. Text after the value is one.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BodyError> {
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(BodyError::TooLong(bytes.len()));
    }
    match serde_json::from_slice(bytes) {
        Ok(value) => Ok(value),
        Err(error) if error.is_data() => Err(BodyError::Fit(error)),
        Err(_) => {
            let strict = to_strict(&String::from_utf8_lossy(bytes))?;
            Ok(serde_json::from_str(&strict)?)
        }
    }
}

/// Reads a body that is one object. Without this check serde would take an array for a struct.
///
/// # Errors
/// See [`BodyError`]; also anything but an object.
pub fn from_object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BodyError> {
    let mut scan = Scanner::new(std::str::from_utf8(bytes).unwrap_or("{"));
    scan.blanks_and_mark();
    if scan.peek() != Some(b'{') {
        return Err(scan.error("not an object").into());
    }
    from_slice(bytes)
}

/// Writes a body as compact JSON.
///
/// # Panics
/// If a map has keys that are neither text nor numbers; none of ours has.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("bodies have text or numbers as keys and no other errors")
}

/// Writes a body as compact JSON with everything beyond ASCII as `\uXXXX`. A name server's answers
/// are written so: Go's clients cut route data at its commas and colons. namesrv 1.
///
/// # Panics
/// As [`to_vec`].
pub fn to_ascii_vec<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, AsciiOnly);
    let written = value.serialize(&mut serializer);
    written.expect("bodies have text or numbers as keys, and a vector takes every write");
    out
}

struct AsciiOnly;

impl serde_json::ser::Formatter for AsciiOnly {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        for c in fragment.chars() {
            if c.is_ascii() {
                writer.write_all(&[c as u8])?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

/// Writes a text of the dialect anew as strict, compact JSON.
///
/// # Errors
/// Not even the dialect; nested beyond [`NESTING_MAX`]; an object as key inside such a key; too
/// long.
pub fn to_strict(text: &str) -> Result<String, BodyError> {
    let mut rewriter = Rewriter {
        scan: Scanner::new(text),
        out: Vec::with_capacity(text.len() + text.len() / 8),
        unescaped: String::new(),
        in_key: false,
    };
    rewriter.scan.blanks_and_mark();
    rewriter.value(0)?;
    rewriter.scan.blanks_and_mark();
    if rewriter.scan.at < text.len() {
        return Err(rewriter.scan.error("text after the value").into());
    }
    Ok(String::from_utf8(rewriter.out).expect("only whole texts were copied"))
}

struct Rewriter<'a> {
    scan: Scanner<'a>,
    out: Vec<u8>,
    unescaped: String,
    in_key: bool,
}

impl Rewriter<'_> {
    fn value(&mut self, depth: usize) -> Result<(), BodyError> {
        if self.out.len() > TEXT_BYTES_MAX {
            return Err(BodyError::TooLong(self.out.len()));
        }
        match self.scan.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(quote @ (b'"' | b'\'')) => self.string(quote),
            Some(b'0'..=b'9' | b'-' | b'+' | b'.') => self.number(),
            Some(byte) if is_bare(byte) => self.word(),
            _ => Err(self.scan.error("a value is missing").into()),
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), BodyError> {
        self.open(b'{', depth)?;
        while self.next_in(b'{', b'}')? {
            match self.scan.peek() {
                Some(b'{') => self.object_key(depth)?,
                Some(quote @ (b'"' | b'\'')) => self.string(quote)?,
                Some(byte) if is_bare(byte) => {
                    let key = self.scan.run(is_bare);
                    push_json_string(&mut self.out, key.of(self.scan.text, ""));
                }
                _ => return Err(self.scan.error("a key is missing").into()),
            }
            self.scan.blanks();
            self.scan.expect(b':', "no colon after a key")?;
            self.scan.blanks();
            self.out.push(b':');
            self.value(depth + 1)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), BodyError> {
        self.open(b'[', depth)?;
        while self.next_in(b'[', b']')? {
            self.value(depth + 1)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn open(&mut self, bracket: u8, depth: usize) -> Result<(), BodyError> {
        if depth >= NESTING_MAX {
            return Err(self.scan.error("nested too deep").into());
        }
        self.scan.at += 1;
        self.out.push(bracket);
        Ok(())
    }

    /// Goes to the next entry, or past the closing bracket. A comma must stand between entries.
    fn next_in(&mut self, open: u8, close: u8) -> Result<bool, BodyError> {
        let first = self.out.last() == Some(&open);
        let mut comma = first;
        self.scan.blanks();
        while self.scan.peek() == Some(b',') {
            comma = true;
            self.scan.at += 1;
            self.scan.blanks();
        }
        if self.scan.peek() == Some(close) {
            self.scan.at += 1;
            return Ok(false);
        }
        if !comma {
            return Err(self.scan.error("no comma between two entries").into());
        }
        if !first {
            self.out.push(b',');
        }
        Ok(true)
    }

    /// An object as key becomes the string of its JSON. Only one level: escapes would double
    /// with each further one.
    fn object_key(&mut self, depth: usize) -> Result<(), BodyError> {
        if self.in_key {
            return Err(self.scan.error("an object key inside an object key").into());
        }
        self.in_key = true;
        let start = self.out.len();
        self.object(depth + 1)?;
        self.in_key = false;
        let key = self.out.split_off(start);
        let key = String::from_utf8(key).expect("only whole texts were copied");
        push_json_string(&mut self.out, &key);
        Ok(())
    }

    fn string(&mut self, quote: u8) -> Result<(), BodyError> {
        self.unescaped.clear();
        let text = self.scan.string(quote, &mut self.unescaped)?;
        push_json_string(&mut self.out, text.of(self.scan.text, &self.unescaped));
        Ok(())
    }

    fn number(&mut self) -> Result<(), BodyError> {
        let text = self.scan.run(is_number).of(self.scan.text, "");
        let strict = if let Ok(whole) = text.parse::<i64>() {
            whole.to_string()
        } else {
            match text.parse::<f64>() {
                Ok(number) if number.is_finite() => format!("{number:?}"),
                _ => return Err(self.scan.error("no number").into()),
            }
        };
        self.out.extend_from_slice(strict.as_bytes());
        Ok(())
    }

    fn word(&mut self) -> Result<(), BodyError> {
        let strict = match self.scan.run(is_bare).of(self.scan.text, "") {
            "true" => "true",
            "false" => "false",
            "null" | "undefined" | "NaN" => "null",
            _ => return Err(self.scan.error("an unknown word").into()),
        };
        self.out.extend_from_slice(strict.as_bytes());
        Ok(())
    }
}

/// A queue as bodies name it; the members are in Java's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageQueue {
    /// The broker that has it.
    #[serde(default)]
    pub broker_name: String,
    /// Its number in the topic.
    #[serde(default, deserialize_with = "number")]
    pub queue_id: i32,
    /// The topic.
    #[serde(default)]
    pub topic: String,
}

/// A map that Java keys by queue, as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueMap<V>(pub BTreeMap<MessageQueue, V>);

impl<V> Default for QueueMap<V> {
    fn default() -> Self {
        QueueMap(BTreeMap::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for QueueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = QueueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map keyed by queues")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    let queue = serde_json::from_str(&key).map_err(A::Error::custom)?;
                    entries.insert(queue, value);
                }
                Ok(QueueMap(entries))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// Writes one object, member by member, for bodies that hold maps keyed by queues: those are no
/// JSON, and Java and Go read them only in exactly this form. Members go in alphabetical order.
#[derive(Debug)]
pub struct ObjectWriter {
    out: Vec<u8>,
}

impl Default for ObjectWriter {
    fn default() -> Self {
        ObjectWriter::new()
    }
}

impl ObjectWriter {
    /// An object without members.
    pub fn new() -> ObjectWriter {
        ObjectWriter { out: vec![b'{'] }
    }

    /// A member with an ordinary value.
    pub fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> &mut Self {
        self.name(name);
        self.out.extend_from_slice(&to_vec(value));
        self
    }

    /// A member whose value is already text: of another [`ObjectWriter`], mostly.
    pub fn raw(&mut self, name: &str, value: &[u8]) -> &mut Self {
        self.name(name);
        self.out.extend_from_slice(value);
        self
    }

    /// A member `{{"brokerName":"b","queueId":0,"topic":"t"}:value,...}`.
    pub fn queue_map<'q, V: Serialize>(
        &mut self,
        name: &str,
        entries: impl IntoIterator<Item = (&'q MessageQueue, V)>,
    ) -> &mut Self {
        self.name(name);
        self.out.push(b'{');
        let start = self.out.len();
        for (queue, value) in entries {
            if self.out.len() > start {
                self.out.push(b',');
            }
            self.out.extend_from_slice(&to_vec(queue));
            self.out.push(b':');
            self.out.extend_from_slice(&to_vec(&value));
        }
        self.out.push(b'}');
        self
    }

    /// The whole object.
    pub fn finish(&mut self) -> Vec<u8> {
        self.out.push(b'}');
        std::mem::take(&mut self.out)
    }

    fn name(&mut self, name: &str) {
        if self.out.len() > 1 {
            self.out.push(b',');
        }
        push_json_string(&mut self.out, name);
        self.out.push(b':');
    }
}

/// Reads a number that may also come as text or null (0), for `deserialize_with`.
pub(super) fn number<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i64>,
{
    let number = match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::Null => Some(0),
        serde_json::Value::Number(number) => number
            .as_i64()
            .or_else(|| number.as_f64().map(|fraction| fraction as i64)),
        serde_json::Value::String(text) if text.is_empty() => Some(0),
        serde_json::Value::String(text) => text.parse().ok(),
        _ => None,
    };
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| D::Error::custom("no number, or one that is too large"))
}

/// Reads a value of which null means the default, for `deserialize_with`.
pub(super) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dialect_is_written_anew_as_json() {
        let queue = r#"{"brokerName":"b","queueId":0,"topic":"t"}"#;
        let key = queue.replace('"', "\\\"");
        let cases = [
            ("{0:\"a\",-1:2}", r#"{"0":"a","-1":2}"#.to_string()),
            (
                "\u{FEFF} { a : 'it\\'s' , }\n",
                r#"{"a":"it's"}"#.to_string(),
            ),
            (
                "{\"a\":[1,,2.50,+3,.5,NaN,null,true]}",
                r#"{"a":[1,2.5,3,0.5,null,null,true]}"#.into(),
            ),
            (
                "'\\ud83d\\ude00\\ud83d \\x41\\7'",
                "\"😀? A\\u0007\"".to_string(),
            ),
            (
                &format!("{{\"t\":{{{queue}:1}}}}"),
                format!("{{\"t\":{{\"{key}\":1}}}}"),
            ),
            ("[[],{},{\"a\":{}}]", "[[],{},{\"a\":{}}]".to_string()),
        ];
        for (text, strict) in cases {
            assert_eq!(to_strict(text).unwrap(), strict, "{text}");
        }
    }

    #[test]
    fn what_even_java_refuses_is_refused() {
        for text in [
            "", "hello", "{", "{}x", "{a}", "[1 2]", "{\"a\":}", "'\\q'", "{[]:1}", "1e999",
        ] {
            assert!(to_strict(text).is_err(), "{text}");
        }
        assert!(to_strict(&"[".repeat(NESTING_MAX + 1)).is_err());
        let deep = format!("{}{}", "[".repeat(NESTING_MAX), "]".repeat(NESTING_MAX));
        assert!(to_strict(&deep).is_ok());
        assert!(to_strict("{{{\"a\":1}:1}:1}").is_err());
    }

    #[test]
    fn a_map_keyed_by_queues_is_written_as_java_does_and_read_back() {
        let queue = MessageQueue {
            broker_name: "b".into(),
            queue_id: 0,
            topic: "t".into(),
        };
        let other = MessageQueue {
            queue_id: 1,
            ..queue.clone()
        };
        let text = ObjectWriter::new()
            .queue_map("offsetTable", [(&queue, 3), (&other, 4)])
            .field("topicPutTps", &0.0)
            .finish();
        let expected = concat!(
            r#"{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:3,"#,
            r#"{"brokerName":"b","queueId":1,"topic":"t"}:4},"topicPutTps":0.0}"#
        );
        assert_eq!(String::from_utf8(text.clone()).unwrap(), expected);

        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Body {
            offset_table: QueueMap<i64>,
        }
        let body: Body = from_slice(&text).unwrap();
        assert_eq!(
            body.offset_table.0,
            BTreeMap::from([(queue, 3), (other, 4)])
        );
    }
}
