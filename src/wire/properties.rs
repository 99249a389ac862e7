//! The properties text of a message: `name 0x01 value 0x02`, again and again.
//!
//! Spec: `store-format.md` 3.4 and 5. There is no escape, the last separator may be missing
//! (4.9 clients), and what is malformed is skipped, never refused. The text is kept as bytes:
//! batch items can carry invalid UTF-8.

pub use crate::limits::PROPERTIES_BYTES_MAX;

/// Between a name and its value.
pub const NAME_END: u8 = 1;
/// After a value.
pub const VALUE_END: u8 = 2;

const _: () = assert!(
    PROPERTIES_BYTES_MAX == i16::MAX as usize,
    "the length field"
);

/// The shortest entry that is read: one letter, the separator, one letter.
const ENTRY_BYTES_MIN: usize = 3;

/// Property names that the broker itself reads or writes (`store-format.md` 3.9).
#[allow(missing_docs)]
pub mod names {
    pub const KEYS: &str = "KEYS";
    pub const TAGS: &str = "TAGS";
    pub const WAIT: &str = "WAIT";
    pub const DELAY: &str = "DELAY";
    pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
    pub const REAL_TOPIC: &str = "REAL_TOPIC";
    pub const REAL_QUEUE_ID: &str = "REAL_QID";
    pub const TRANSACTION_PREPARED: &str = "TRAN_MSG";
    pub const PRODUCER_GROUP: &str = "PGROUP";
    pub const UNIQUE_KEY: &str = "UNIQ_KEY";
    pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
    pub const MSG_REGION: &str = "MSG_REGION";
    pub const TRACE_ON: &str = "TRACE_ON";
    pub const CLUSTER: &str = "CLUSTER";
    pub const INNER_NUM: &str = "INNER_NUM";
    pub const INNER_BASE: &str = "INNER_BASE";
    pub const INNER_MULTI_DISPATCH: &str = "INNER_MULTI_DISPATCH";
    pub const INNER_MULTI_QUEUE_OFFSET: &str = "INNER_MULTI_QUEUE_OFFSET";
    pub const POP_CK: &str = "POP_CK";
    pub const TIMER_DELAY_SEC: &str = "TIMER_DELAY_SEC";
    pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
    pub const TIMER_OUT_MS: &str = "TIMER_OUT_MS";
    pub const TRANSACTION_ID: &str = "__transactionId__";
    pub const CRC32: &str = "__CRC32#";
}

/// A properties text, read where it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a>(pub &'a [u8]);

impl<'a> Properties<'a> {
    /// The value of a name; of several the last. An empty value counts as none.
    pub fn get(self, name: &str) -> Option<&'a [u8]> {
        let wanted = name.as_bytes();
        self.iter()
            .filter(|(name, _)| *name == wanted)
            .last()
            .map(|(_, value)| value)
    }

    /// The value of a name as text; `None` also if it is not UTF-8.
    pub fn text(self, name: &str) -> Option<&'a str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// The pairs in the order of the text, names that occur twice included.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.0.split(|byte| *byte == VALUE_END).filter_map(pair)
    }

    /// The value of TAGS, or nothing.
    pub fn tags(self) -> Option<&'a [u8]> {
        self.get(names::TAGS)
    }

    /// What a queue's unit holds for the tags: their hash, sign-extended; 0 without tags.
    pub fn tags_code(self) -> i64 {
        self.tags()
            .map_or(0, |tags| i64::from(java_hash_bytes(0, tags)))
    }

    /// The keys under which the message is indexed beside UNIQ_KEY: KEYS split at blanks.
    pub fn keys(self) -> impl Iterator<Item = &'a [u8]> {
        let keys = self.get(names::KEYS).unwrap_or_default();
        keys.split(|byte| *byte == b' ')
            .filter(|key| !key.is_empty())
    }

    /// Whether a zero byte occurs: such text is not stored, so that zeros mean "never written".
    pub fn has_nul(self) -> bool {
        self.0.contains(&0)
    }

    /// Whether another entry can follow without a separator.
    pub fn is_closed(self) -> bool {
        self.0.last().is_none_or(|last| *last == VALUE_END)
    }
}

fn pair(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    if entry.len() < ENTRY_BYTES_MIN {
        return None;
    }
    let at = entry.iter().position(|byte| *byte == NAME_END)?;
    let (name, value) = (&entry[..at], &entry[at + 1..]);
    (!name.is_empty() && !value.is_empty()).then_some((name, value))
}

/// Appends a pair to a text, after the separator that the text may lack.
pub fn append(text: &mut Vec<u8>, name: &str, value: &[u8]) {
    close(text);
    text.extend_from_slice(name.as_bytes());
    text.push(NAME_END);
    text.extend_from_slice(value);
    text.push(VALUE_END);
}

/// Appends a whole text to another, after the separator that the first may lack.
pub fn append_text(text: &mut Vec<u8>, more: &[u8]) {
    if !more.is_empty() {
        close(text);
        text.extend_from_slice(more);
    }
}

/// Appends a text without the entries of one name. The rest stays as it is.
pub fn append_without(text: &mut Vec<u8>, more: &[u8], name: &str) {
    for entry in more.split_inclusive(|byte| *byte == VALUE_END) {
        let named = entry.strip_prefix(name.as_bytes());
        if named.is_none_or(|rest| rest.first() != Some(&NAME_END)) {
            append_text(text, entry);
        }
    }
}

fn close(text: &mut Vec<u8>) {
    if !Properties(text).is_closed() {
        text.push(VALUE_END);
    }
}

/// Java's `String.hashCode`: over UTF-16 units, wrapping.
pub fn java_hash(text: &str) -> i32 {
    java_hash_from(0, text)
}

/// Continues a hash: `java_hash_from(java_hash(a), b)` is the hash of `a` followed by `b`.
pub fn java_hash_from(start: i32, text: &str) -> i32 {
    text.encode_utf16().fold(start, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
}

/// The hash of bytes as Java would decode them: invalid UTF-8 becomes U+FFFD.
pub fn java_hash_bytes(start: i32, bytes: &[u8]) -> i32 {
    bytes.utf8_chunks().fold(start, |hash, chunk| {
        let hash = java_hash_from(hash, chunk.valid());
        if chunk.invalid().is_empty() {
            hash
        } else {
            java_hash_from(hash, "\u{FFFD}")
        }
    })
}

/// The hash in an index entry of `topic#key` (`store-format.md` 9): never negative.
pub fn index_key_hash(topic: &str, key: &[u8]) -> i32 {
    let hash = java_hash_bytes(java_hash_from(java_hash(topic), "#"), key);
    hash.checked_abs().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_spec() {
        assert_eq!(java_hash("TagA"), 2_598_919);
        assert_eq!(java_hash("TagB"), 2_598_920);
        assert_eq!(java_hash("TopicTest#key1"), -1_655_984_460);
        assert_eq!(java_hash("polygenelubricants"), i32::MIN);
        assert_eq!(index_key_hash("TopicTest", b"key1"), 1_655_984_460);
        assert_eq!(
            java_hash_bytes(0, "größe 😀".as_bytes()),
            java_hash("größe 😀")
        );
    }

    #[test]
    fn malformed_entries_are_skipped_and_the_last_of_a_name_wins() {
        let text = b"a\x01\x02\x01v\x02x\x02k\x01v\x02k\x01w\x02a\x01b\x01c\x02z\x01y";
        let pairs: Vec<_> = Properties(text).iter().collect();
        let expected: [(&[u8], &[u8]); 4] =
            [(b"k", b"v"), (b"k", b"w"), (b"a", b"b\x01c"), (b"z", b"y")];
        assert_eq!(pairs, expected);
        assert_eq!(Properties(text).text("k"), Some("w"));
        assert_eq!(Properties(text).text("x"), None);
    }

    #[test]
    fn appending_adds_the_separator_that_old_clients_leave_out() {
        let mut text = b"WAIT\x01true".to_vec();
        append(&mut text, "CLUSTER", b"c");
        assert_eq!(text, b"WAIT\x01true\x02CLUSTER\x01c\x02");
        append_text(&mut text, b"");
        append_text(&mut text, b"k\x01v");
        assert_eq!(text, b"WAIT\x01true\x02CLUSTER\x01c\x02k\x01v");
        let mut less = Vec::new();
        append_without(&mut less, &text, "CLUSTER");
        assert_eq!(less, b"WAIT\x01true\x02k\x01v");
    }

    #[test]
    fn keys_are_split_at_single_blanks() {
        let text = b"KEYS\x01 order-0  user-4\x02TAGS\x01TagA\x02";
        let keys: Vec<_> = Properties(text).keys().collect();
        assert_eq!(keys, [b"order-0".as_slice(), b"user-4"]);
        assert_eq!(Properties(text).tags_code(), 2_598_919);
        assert_eq!(Properties(b"").tags_code(), 0);
        assert!(Properties(b"k\x01a\0b").has_nul());
    }
}
