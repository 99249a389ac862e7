//! A reader of the store's files of its own, from the format's description alone (store-format 2, 3
//! and 6): what it finds is compared with what was sent and what was answered.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::disk::Disk;

const MESSAGE_V1: u32 = 0xDAA3_20A7;
const MESSAGE_V2: u32 = 0xDAA3_20AB;
const BLANK: u32 = 0xCBD4_3194;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub at: u64,
    pub size: u32,
    pub queue: i32,
    pub flag: i32,
    pub offset: u64,
    pub sys_flag: i32,
    pub born: i64,
    pub born_host: SocketAddr,
    pub stored: i64,
    pub body: Vec<u8>,
    pub topic: String,
    pub properties: Vec<u8>,
}

impl Record {
    /// Of several properties with one name the last counts.
    pub fn property(&self, name: &str) -> Option<&[u8]> {
        let pairs = self.properties.split(|byte| *byte == 2);
        let mut found = None;
        for pair in pairs {
            let Some(middle) = pair.iter().position(|byte| *byte == 1) else {
                continue;
            };
            if &pair[..middle] == name.as_bytes() {
                found = Some(&pair[middle + 1..]);
            }
        }
        found
    }

    /// Java's hash code of the tag, 0 without one.
    pub fn tags_code(&self) -> i64 {
        let tag = self.property("TAGS").unwrap_or_default();
        let hash = tag.iter().fold(0i32, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(i32::from(*byte))
        });
        i64::from(hash)
    }
}

/// The log as it stands in the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    pub records: Vec<Record>,
    /// Where the next record would go.
    pub end: u64,
}

/// Reads the log from its first segment to the first place that holds no record.
pub fn read_log(disk: &Disk, dir: &Path, segment_bytes: u64) -> Log {
    let mut log = Log::default();
    let names = disk.names(dir);
    let starts = names.iter().filter_map(|name| name.parse::<u64>().ok());
    for start in starts {
        if start != log.end {
            break;
        }
        let bytes = disk.peek(&dir.join(format!("{start:020}")));
        let bytes = bytes.expect("it was listed");
        let mut at = 0;
        loop {
            match read_record(&bytes[at..], start + at as u64) {
                Some(Found::Record(record)) => {
                    at += record.size as usize;
                    log.end = start + at as u64;
                    log.records.push(*record);
                }
                Some(Found::Blank) => {
                    log.end = start + segment_bytes;
                    break;
                }
                None => return log,
            }
        }
    }
    log
}

/// Whether everything from the log's end on is zero; else where not.
pub fn first_nonzero_behind(disk: &Disk, dir: &Path, segment_bytes: u64, end: u64) -> Option<u64> {
    for name in disk.names(dir) {
        let Ok(start) = name.parse::<u64>() else {
            continue;
        };
        if start + segment_bytes <= end {
            continue;
        }
        let from = end.saturating_sub(start) as usize;
        let bytes = disk.peek(&dir.join(&name)).unwrap_or_default();
        let found = bytes.iter().skip(from).position(|byte| *byte != 0);
        if let Some(place) = found {
            return Some(start + (from + place) as u64);
        }
    }
    None
}

/// Whole records back to back, as a pull brings them; `None` if they are anything else.
pub fn read_records(mut bytes: &[u8]) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let position = bytes.get(28..36)?.try_into().ok()?;
        let Some(Found::Record(record)) = read_record(bytes, u64::from_be_bytes(position)) else {
            return None;
        };
        bytes = &bytes[record.size as usize..];
        records.push(*record);
    }
    Some(records)
}

enum Found {
    Record(Box<Record>),
    Blank,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }
    fn i32(&mut self) -> Option<i32> {
        self.u32().map(|word| word as i32)
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }
    fn host(&mut self, is_v6: bool) -> Option<SocketAddr> {
        let ip = if is_v6 {
            IpAddr::from(<[u8; 16]>::try_from(self.take(16)?).ok()?)
        } else {
            IpAddr::from(<[u8; 4]>::try_from(self.take(4)?).ok()?)
        };
        Some(SocketAddr::new(ip, u16::try_from(self.u32()?).ok()?))
    }
}

fn read_record(bytes: &[u8], position: u64) -> Option<Found> {
    let mut reader = Reader(bytes);
    let size = reader.u32()?;
    let magic = reader.u32()?;
    if magic == BLANK {
        return (size as usize == bytes.len()).then_some(Found::Blank);
    }
    if (magic != MESSAGE_V1 && magic != MESSAGE_V2) || size as usize > bytes.len() {
        return None;
    }
    let mut reader = Reader(&bytes[8..size as usize]);
    let crc = reader.u32()?;
    let queue = reader.i32()?;
    let flag = reader.i32()?;
    let offset = reader.u64()?;
    let at = reader.u64()?;
    let sys_flag = reader.i32()?;
    let born = reader.u64()? as i64;
    let born_host = reader.host(sys_flag & 0x10 != 0)?;
    let stored = reader.u64()? as i64;
    reader.host(sys_flag & 0x20 != 0)?;
    reader.take(4 + 8)?;
    let body_bytes = reader.u32()? as usize;
    let body = reader.take(body_bytes)?.to_vec();
    let topic_bytes = if magic == MESSAGE_V1 {
        usize::from(reader.take(1)?[0])
    } else {
        usize::from(u16::from_be_bytes(reader.take(2)?.try_into().ok()?))
    };
    let topic = String::from_utf8(reader.take(topic_bytes)?.to_vec()).ok()?;
    let properties_bytes = u16::from_be_bytes(reader.take(2)?.try_into().ok()?);
    let properties = reader.take(usize::from(properties_bytes))?.to_vec();
    let is_whole = reader.0.is_empty() && at == position && crc == crc32(&body) & 0x7FFF_FFFF;
    let has_nul = topic.contains('\0') || properties.contains(&0);
    (is_whole && !has_nul).then(|| {
        Found::Record(Box::new(Record {
            at,
            size,
            queue,
            flag,
            offset,
            sys_flag,
            born,
            born_host,
            stored,
            body,
            topic,
            properties,
        }))
    })
}

/// CRC-32 as zlib has it, a bit at a time over a table made on the way.
fn crc32(bytes: &[u8]) -> u32 {
    static TABLE: std::sync::OnceLock<[u32; 256]> = std::sync::OnceLock::new();
    let table = TABLE.get_or_init(|| {
        std::array::from_fn(|index| {
            (0..8).fold(index as u32, |crc, _| {
                (crc >> 1) ^ (0xEDB8_8320 & 0u32.wrapping_sub(crc & 1))
            })
        })
    });
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (crc >> 8) ^ table[usize::from(crc as u8 ^ *byte)]
    })
}

/// A unit of a consume queue: log offset, size, tags code.
pub type Unit = (u64, u32, i64);

/// The units of one queue from the files' start up to the first blank one, and whether all behind
/// are blank, too.
pub fn read_queue(disk: &Disk, dir: &Path, file_bytes: u64) -> (Vec<Unit>, bool) {
    let mut units = Vec::new();
    let mut ended = false;
    let mut is_clean = true;
    let mut expected = 0;
    for name in disk.names(dir) {
        let start: u64 = name.parse().unwrap_or(u64::MAX);
        if start != expected {
            return (units, false);
        }
        expected = start + file_bytes;
        for unit in disk
            .peek(&dir.join(&name))
            .unwrap_or_default()
            .chunks_exact(20)
        {
            let mut reader = Reader(unit);
            let found = (reader.u64(), reader.u32(), reader.u64());
            let (Some(at), Some(size), Some(tags)) = found else {
                continue;
            };
            if size == 0 && at == 0 && tags == 0 {
                ended = true;
            } else if ended {
                is_clean = false;
            } else {
                units.push((at, size, tags as i64));
            }
        }
    }
    (units, is_clean)
}

/// What the queues of a log must hold.
pub fn units_of(log: &Log) -> BTreeMap<(String, i32), Vec<Unit>> {
    let mut queues: BTreeMap<(String, i32), Vec<Unit>> = BTreeMap::new();
    for record in &log.records {
        let queue = queues.entry((record.topic.clone(), record.queue));
        let unit = (record.at, record.size, record.tags_code());
        queue.or_default().push(unit);
    }
    queues
}
