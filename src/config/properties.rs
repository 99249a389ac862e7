//! Java properties text: what `broker.conf`, `namesrv.conf` and the bodies of the config requests
//! (25, 318) are written in. config-reference 1.
//!
//! Bytes are read as UTF-8 where they are UTF-8 and as ISO-8859-1 otherwise. A difference to Java:
//! blanks at the end of a value are dropped (Java keeps them, fails to parse the number and keeps
//! the default without a word). An escaped blank (`\ `) stays.

use thiserror::Error;

/// Larger than any real file; a wrong path must not fill the memory.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// One `key=value` of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key, unescaped; may be empty (Java allows it).
    pub key: String,
    /// The value, unescaped, without blanks around it.
    pub value: String,
    /// Where the entry begins, counted from 1.
    pub line: u32,
}

/// Why a text is not properties text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PropertiesError {
    /// The text is longer than [`TEXT_BYTES_MAX`].
    #[error("the text has {bytes} bytes; at most {TEXT_BYTES_MAX} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// A `\u` is not followed by four hexadecimal digits, or names half of a character.
    #[error(
        "line {line}: `\\u` needs four hexadecimal digits of one character; \
         write `\\\\u` for a backslash before a u"
    )]
    BadEscape {
        /// Where the entry begins, counted from 1.
        line: u32,
    },
}

impl PropertiesError {
    /// The line at fault, where there is one.
    pub fn line(&self) -> Option<u32> {
        match self {
            Self::TooLong { .. } => None,
            Self::BadEscape { line } => Some(*line),
        }
    }
}

/// Reads all entries in the order of the text. A repeated key appears repeatedly; Java lets the
/// last one win.
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry>, PropertiesError> {
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(PropertiesError::TooLong { bytes: bytes.len() });
    }
    let text = decode(bytes);
    let mut entries = Vec::new();
    for (line, logical) in logical_lines(&text) {
        let (key, value) = split(&logical);
        entries.push(Entry {
            key: unescape(key).ok_or(PropertiesError::BadEscape { line })?,
            value: unescape(value).ok_or(PropertiesError::BadEscape { line })?,
            line,
        });
    }
    Ok(entries)
}

/// Writes one `key=value` line that [`parse`] and Java read back unchanged: ASCII only.
pub fn write_entry(out: &mut String, key: &str, value: &str) {
    escape(out, key, true);
    out.push('=');
    escape(out, value, false);
    out.push('\n');
}

fn decode(bytes: &[u8]) -> String {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().map(|&byte| char::from(byte)).collect(),
    }
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\x0c')
}

/// Lines that are neither empty nor comments, with those that a backslash continues joined.
fn logical_lines(text: &str) -> Vec<(u32, String)> {
    let mut lines: Vec<(u32, String)> = Vec::new();
    let mut continued = false;
    for (index, natural) in natural_lines(text).enumerate() {
        let rest = natural.trim_start_matches(is_blank);
        if continued {
            let (_, logical) = lines
                .last_mut()
                .expect("a continued line was pushed before");
            logical.push_str(rest);
        } else if rest.is_empty() || rest.starts_with(['#', '!']) {
            continue;
        } else {
            let line = u32::try_from(index + 1).expect("TEXT_BYTES_MAX bounds the lines");
            lines.push((line, rest.to_owned()));
        }
        let (_, logical) = lines.last_mut().expect("this line was pushed or continued");
        continued = ends_in_open_backslash(rest);
        if continued {
            logical.pop();
        }
    }
    lines
}

/// Ends at `\n`, `\r` or `\r\n`, as in Java.
fn natural_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n')
        .flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

fn ends_in_open_backslash(text: &str) -> bool {
    text.chars().rev().take_while(|&c| c == '\\').count() % 2 == 1
}

/// The key ends at the first `=`, `:` or blank that no backslash precedes.
fn split(logical: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = logical.find(|c| {
        if escaped {
            escaped = false;
            return false;
        }
        escaped = c == '\\';
        c == '=' || c == ':' || is_blank(c)
    });
    let (key, rest) = logical.split_at(end.unwrap_or(logical.len()));
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, trim_end(rest.trim_start_matches(is_blank)))
}

/// Drops blanks at the end, but not one that a backslash protects.
fn trim_end(value: &str) -> &str {
    let trimmed = value.trim_end_matches(is_blank);
    if trimmed.len() < value.len() && ends_in_open_backslash(trimmed) {
        // Blanks are one byte each.
        return &value[..trimmed.len() + 1];
    }
    trimmed
}

/// `None` where a `\u` is malformed.
fn unescape(text: &str) -> Option<String> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let plain = match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('t')) => '\t',
            ('\\', Some('n')) => '\n',
            ('\\', Some('r')) => '\r',
            ('\\', Some('f')) => '\x0c',
            ('\\', Some('u')) => {
                let digits = chars.as_str().get(..4)?;
                if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                    return None;
                }
                units.push(u16::from_str_radix(digits, 16).ok()?);
                chars = chars.as_str()[4..].chars();
                continue;
            }
            ('\\', Some(other)) => other,
            // A backslash at the very end of the text stands for nothing.
            ('\\', None) => break,
            (other, _) => other,
        };
        units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16(&units).ok()
}

fn escape(out: &mut String, text: &str, is_key: bool) {
    let last = text.chars().count().saturating_sub(1);
    for (index, c) in text.chars().enumerate() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0c' => out.push_str("\\f"),
            ' ' if is_key || index == 0 || index == last => out.push_str("\\ "),
            '=' | ':' if is_key => out.extend(['\\', c]),
            '#' | '!' if is_key && index == 0 => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04X}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let entries = parse(text.as_bytes()).expect("properties");
        entries
            .into_iter()
            .map(|entry| (entry.key, entry.value))
            .collect()
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn the_usual_file_gives_keys_values_and_lines() {
        let text = "# a comment\n\nbrokerName = broker-a\n! another\nlistenPort=10911  \nempty=\n";
        let entries = parse(text.as_bytes()).expect("properties");
        let lines: Vec<u32> = entries.iter().map(|entry| entry.line).collect();
        assert_eq!(lines, [3, 5, 6]);
        assert_eq!(
            pairs(text),
            [
                pair("brokerName", "broker-a"),
                pair("listenPort", "10911"),
                pair("empty", "")
            ]
        );
    }

    /// The separators, continuations and escapes that java.util.Properties documents.
    #[test]
    fn separators_continuations_and_escapes_are_javas() {
        assert_eq!(pairs("Truth Beauty"), [pair("Truth", "Beauty")]);
        assert_eq!(pairs(" Truth:Beauty"), [pair("Truth", "Beauty")]);
        assert_eq!(pairs("Truth    :Beauty"), [pair("Truth", "Beauty")]);
        assert_eq!(pairs("cheeses"), [pair("cheeses", "")]);
        assert_eq!(
            pairs("fruits   apple, banana, \\\n   pear, \\\r\n\tmango\nnext=1"),
            [
                pair("fruits", "apple, banana, pear, mango"),
                pair("next", "1")
            ]
        );
        assert_eq!(pairs("path=C:\\\\store\\\\"), [pair("path", "C:\\store\\")]);
        assert_eq!(pairs("a\\=b\\:c\\ d=1"), [pair("a=b:c d", "1")]);
        assert_eq!(pairs("t=\\t\\n\\q"), [pair("t", "\t\nq")]);
        assert_eq!(pairs("#comment\\\nk=v"), [pair("k", "v")]);
        assert_eq!(pairs("k==v"), [pair("k", "=v")]);
    }

    #[test]
    fn unicode_comes_as_escape_as_utf8_and_as_latin1() {
        assert_eq!(
            pairs("k=\\u00e9\\u4E2D\\uD83D\\uDE00"),
            [pair("k", "é中😀")]
        );
        assert_eq!(pairs("k=é中"), [pair("k", "é中")]);
        let latin1 = parse(b"k=\xe9").expect("ISO-8859-1");
        assert_eq!(latin1[0].value, "é");
        let marked = parse(b"\xef\xbb\xbfk=1").expect("a byte order mark is no part of the key");
        assert_eq!(marked[0].key, "k");
    }

    #[test]
    fn a_bad_escape_names_its_line() {
        for text in [
            "a=1\nk=\\u12g4",
            "a=1\nk=\\u12",
            "a=1\nk=\\uD83D",
            "a=1\n\\u+123=1",
        ] {
            let error = parse(text.as_bytes()).expect_err(text);
            assert_eq!(error, PropertiesError::BadEscape { line: 2 }, "{text}");
        }
    }

    #[test]
    fn an_escaped_blank_at_the_end_stays() {
        assert_eq!(pairs("k=v\\   "), [pair("k", "v ")]);
        assert_eq!(pairs("k=v\\\\   "), [pair("k", "v\\")]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(key in "\\PC{1,20}", value in "[\\PC\\n\\t\\r]{0,40}") {
            let mut text = String::new();
            write_entry(&mut text, &key, &value);
            prop_assert!(text.is_ascii());
            prop_assert_eq!(pairs(&text), [pair(&key, &value)]);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
