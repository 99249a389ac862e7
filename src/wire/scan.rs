//! What the JSON header and the JSON bodies have in common: strings, words, blanks.

/// Where a text could not be read, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why} at byte {at}")]
pub struct ScanError {
    /// Position in the text where reading stopped.
    pub at: u32,
    /// What was wrong there.
    pub why: &'static str,
}

const BYTE_ORDER_MARK: &str = "\u{FEFF}";

/// A piece of text where it was read, or, unescaped, in a buffer beside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    start: u32,
    end: u32,
    unescaped: bool,
}

impl Text {
    pub fn in_header(start: usize, end: usize) -> Text {
        Text::new(start, end, false)
    }

    pub fn in_scratch(start: usize, end: usize) -> Text {
        Text::new(start, end, true)
    }

    fn new(start: usize, end: usize, unescaped: bool) -> Text {
        let small =
            "a header is below 16 MiB and grows at most threefold when its text is repaired";
        Text {
            start: u32::try_from(start).expect(small),
            end: u32::try_from(end).expect(small),
            unescaped,
        }
    }

    pub fn of<'a>(self, header: &'a str, scratch: &'a str) -> &'a str {
        let source = if self.unescaped { scratch } else { header };
        source
            .get(self.start as usize..self.end as usize)
            .expect("the scanner cuts at quotes and separators, which are characters of their own")
    }
}

/// A position in a text.
pub(super) struct Scanner<'a> {
    pub text: &'a str,
    pub at: usize,
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a str) -> Scanner<'a> {
        Scanner { text, at: 0 }
    }

    /// A string whose opening quote is next. Borrowed where it stands, unless it has escapes.
    pub fn string(&mut self, quote: u8, unescaped: &mut String) -> Result<Text, ScanError> {
        let start = self.at + 1;
        let end = self.plain_until(start, quote)?;
        self.at = end + 1;
        if self.bytes()[end] == quote {
            return Ok(Text::in_header(start, end));
        }
        let unescaped_at = unescaped.len();
        unescaped.push_str(&self.text[start..end]);
        loop {
            self.escape(unescaped)?;
            let start = self.at;
            let end = self.plain_until(start, quote)?;
            unescaped.push_str(&self.text[start..end]);
            self.at = end + 1;
            if self.bytes()[end] == quote {
                return Ok(Text::in_scratch(unescaped_at, unescaped.len()));
            }
        }
    }

    /// Where the next quote or backslash stands.
    fn plain_until(&self, start: usize, quote: u8) -> Result<usize, ScanError> {
        self.bytes()[start.min(self.text.len())..]
            .iter()
            .position(|byte| *byte == quote || *byte == b'\\')
            .map(|count| start + count)
            .ok_or_else(|| self.error("a string without end"))
    }

    /// Skips a string whose opening quote was read.
    pub fn skip_string(&mut self, quote: u8) -> Result<(), ScanError> {
        loop {
            let end = self.plain_until(self.at, quote)?;
            if self.bytes()[end] == quote {
                self.at = end + 1;
                return Ok(());
            }
            self.at = end + 2;
        }
    }

    /// What follows a backslash.
    fn escape(&mut self, unescaped: &mut String) -> Result<(), ScanError> {
        let Some(byte) = self.peek() else {
            return Err(self.error("a string without end"));
        };
        self.at += 1;
        unescaped.push(match byte {
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
    fn utf16_escape(&mut self) -> Result<char, ScanError> {
        let unit = self.hex(4).ok_or_else(|| self.bad_escape())?;
        if !(0xD800..0xDC00).contains(&unit) {
            return Ok(char::from_u32(unit).unwrap_or('?'));
        }
        if self.bytes()[self.at..].starts_with(b"\\u") {
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
        let bytes = self.bytes().get(self.at..self.at + digits)?;
        let value = bytes.iter().try_fold(0, |value, byte| {
            char::from(*byte)
                .to_digit(16)
                .map(|digit| value << 4 | digit)
        })?;
        self.at += digits;
        Some(value)
    }

    /// The bytes from here on that belong together.
    pub fn run(&mut self, belongs: fn(u8) -> bool) -> Text {
        let start = self.at;
        let rest = &self.bytes()[start..];
        let count = rest
            .iter()
            .position(|byte| !belongs(*byte))
            .unwrap_or(rest.len());
        self.at += count;
        Text::in_header(start, self.at)
    }

    pub fn blanks(&mut self) {
        while matches!(
            self.peek(),
            Some(b' ' | b'\n' | b'\r' | b'\t' | 0x0C | 0x08)
        ) {
            self.at += 1;
        }
    }

    pub fn blanks_and_mark(&mut self) {
        self.blanks();
        while self.text[self.at..].starts_with(BYTE_ORDER_MARK) {
            self.at += BYTE_ORDER_MARK.len();
            self.blanks();
        }
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    pub fn peek(&self) -> Option<u8> {
        self.bytes().get(self.at).copied()
    }

    pub fn expect(&mut self, byte: u8, why: &'static str) -> Result<(), ScanError> {
        if self.peek() != Some(byte) {
            return Err(self.error(why));
        }
        self.at += 1;
        Ok(())
    }

    fn bad_escape(&self) -> ScanError {
        self.error("an unknown escape")
    }

    pub fn error(&self, why: &'static str) -> ScanError {
        ScanError {
            at: self.at as u32,
            why,
        }
    }
}

/// What an unquoted key or a word is made of.
pub(super) fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'-') || byte >= 0x80
}

pub(super) fn is_number(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E')
}
