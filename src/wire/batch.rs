//! The body of a batch request: items back to back, each
//!
//! ```text
//! 0            4       8          12     16            20       20 + b              22 + b
//! +------------+-------+----------+------+-------------+--------+-------------------+------------+
//! | total size | magic | body crc | flag | body length | body   | properties length | properties |
//! | i32        | 0     | 0        | i32  | i32 = b     |        | i16               |            |
//! +------------+-------+----------+------+-------------+--------+-------------------+------------+
//! ```
//!
//! Of the head only flag and lengths count, as in Java: any total size is taken.
//! Spec: `store-format.md` 3.7, `broker-requests.md` 1.8.

use super::properties::Properties;

const FLAG_AT: usize = 3 * size_of::<i32>();
const BODY_LENGTH_AT: usize = FLAG_AT + size_of::<i32>();
const BODY_AT: usize = BODY_LENGTH_AT + size_of::<i32>();
/// An item without body and properties.
pub const ITEM_BYTES_MIN: usize = BODY_AT + size_of::<i16>();
const _: () = assert!(ITEM_BYTES_MIN == 22);

/// A batch body that cannot be taken apart. Nothing of it may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// No item at all.
    #[error("a batch without messages")]
    Empty,
    /// The body ends inside an item, or one of its lengths is negative or too long.
    #[error("item {item} of the batch is cut or has a wrong length")]
    Item {
        /// Counted from 0.
        item: u32,
    },
}

/// One message of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchItem<'a> {
    /// The user's flag.
    pub flag: i32,
    /// May be empty.
    pub body: &'a [u8],
    /// The item's own; those of the request are added to them.
    pub properties: Properties<'a>,
}

impl BatchItem<'_> {
    /// Appends the item to a batch body, as clients write it.
    ///
    /// # Panics
    /// If body or properties do not fit their length fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let properties = self.properties.0;
        let total = ITEM_BYTES_MIN + self.body.len() + properties.len();
        let total = i32::try_from(total).expect("a batch is far below 2 GiB");
        let properties_bytes = i16::try_from(properties.len()).expect("properties fit 32767 bytes");
        out.extend_from_slice(&total.to_be_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&self.flag.to_be_bytes());
        out.extend_from_slice(&(self.body.len() as i32).to_be_bytes());
        out.extend_from_slice(self.body);
        out.extend_from_slice(&properties_bytes.to_be_bytes());
        out.extend_from_slice(properties);
    }
}

/// A batch body of which every item was checked.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    bytes: &'a [u8],
    count: u32,
}

impl<'a> Batch<'a> {
    /// Checks all items.
    ///
    /// # Errors
    /// See [`BatchError`].
    pub fn check(body: &'a [u8]) -> Result<Batch<'a>, BatchError> {
        let mut rest = body;
        let mut count = 0;
        while !rest.is_empty() {
            (_, rest) = split(rest).ok_or(BatchError::Item { item: count })?;
            count += 1;
        }
        if count == 0 {
            return Err(BatchError::Empty);
        }
        Ok(Batch { bytes: body, count })
    }

    /// How many messages; at least 1.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The messages in order.
    pub fn iter(&self) -> impl Iterator<Item = BatchItem<'a>> + use<'a> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let (item, after) = split(rest)?;
            rest = after;
            Some(item)
        })
    }
}

fn split(bytes: &[u8]) -> Option<(BatchItem<'_>, &[u8])> {
    let flag = i32::from_be_bytes(*bytes.get(FLAG_AT..)?.first_chunk()?);
    let body_length = i32::from_be_bytes(*bytes.get(BODY_LENGTH_AT..)?.first_chunk()?);
    let body_length = usize::try_from(body_length).ok()?;
    let (body, rest) = bytes.get(BODY_AT..)?.split_at_checked(body_length)?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(i16::from_be_bytes(*length)).ok()?;
    let (properties, rest) = rest.split_at_checked(length)?;
    Some((
        BatchItem {
            flag,
            body,
            properties: Properties(properties),
        },
        rest,
    ))
}
