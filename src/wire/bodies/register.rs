//! The body with which a broker registers (`namesrv.md` 2.2): JSON, or packed:
//!
//! ```text
//! zlib( length | DataVersion JSON | topics | (length | topic text)* | length | JSON list of
//!       filter servers | mappings | (length | mapping JSON)* )      every length and count an i32
//! ```

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};

use super::super::fastjson::{self, BodyError, nullable};
use super::topics::{DataVersion, TopicConfig, TopicConfigTable};

/// Older senders put the topic table alone into the body.
pub const WRAPPED_VERSION_MIN: i32 = 37;
/// Newer senders end the packed form with mappings.
pub const TEXT_FORM_VERSION_MIN: i32 = 413;

/// The longest text that a packed body may hold.
const UNPACKED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The first byte of zlib with the usual window.
const ZLIB_FIRST_BYTE: u8 = 0x78;

/// Why a registration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RegisterBodyError {
    /// The JSON, or a JSON inside the packed form.
    #[error(transparent)]
    Json(#[from] BodyError),
    /// Not zlib, or cut.
    #[error("the packed body cannot be unpacked: {0}")]
    Zlib(#[from] std::io::Error),
    /// More than 64 MiB.
    #[error("the packed body holds more than {UNPACKED_BYTES_MAX} bytes")]
    TooLong,
    /// A length passes the end, or a topic's text is none.
    #[error("the packed body is cut or wrong at byte {0}")]
    Packed(usize),
}

/// A registration: a broker's topics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RegisterBody {
    /// Legacy.
    #[serde(deserialize_with = "nullable")]
    pub filter_server_list: Vec<String>,
    /// All topics, or one that has just changed.
    #[serde(deserialize_with = "nullable")]
    pub topic_config_serialize_wrapper: TopicConfigTable,
}

impl RegisterBody {
    /// Reads a registration of a sender of `version`; `compressed` is what its header says, which
    /// 5.x brokers get wrong: a body that is no JSON and looks like zlib is tried as such.
    /// An empty body is an empty table.
    ///
    /// # Errors
    /// See [`RegisterBodyError`].
    pub fn decode(
        body: &[u8],
        compressed: bool,
        version: i32,
    ) -> Result<RegisterBody, RegisterBodyError> {
        if body.is_empty() {
            return Ok(RegisterBody::default());
        }
        if compressed {
            return RegisterBody::unpack(body, version);
        }
        let json = if version < WRAPPED_VERSION_MIN {
            fastjson::from_object(body).map(|table| RegisterBody {
                filter_server_list: Vec::new(),
                topic_config_serialize_wrapper: table,
            })
        } else {
            fastjson::from_object(body)
        };
        match json {
            Err(_) if body[0] == ZLIB_FIRST_BYTE => RegisterBody::unpack(body, version),
            other => Ok(other?),
        }
    }

    /// The JSON form, as all versions from 3.0.11 on read it.
    pub fn encode(&self) -> Vec<u8> {
        fastjson::to_vec(self)
    }

    /// The packed form without mappings, for a name server of any version.
    pub fn pack(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        let table = &self.topic_config_serialize_wrapper;
        push_counted(&mut plain, &fastjson::to_vec(&table.data_version));
        plain.extend_from_slice(&(table.topic_config_table.len() as u32).to_be_bytes());
        for topic in table.topic_config_table.values() {
            push_counted(&mut plain, topic.to_text().as_bytes());
        }
        push_counted(&mut plain, &fastjson::to_vec(&self.filter_server_list));
        plain.extend_from_slice(&0_u32.to_be_bytes());
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder
            .write_all(&plain)
            .expect("a vector takes every write");
        encoder.finish().expect("a vector takes every write")
    }

    fn unpack(body: &[u8], version: i32) -> Result<RegisterBody, RegisterBodyError> {
        let mut plain = Vec::new();
        let mut decoder = ZlibDecoder::new(body).take(UNPACKED_BYTES_MAX as u64 + 1);
        decoder.read_to_end(&mut plain)?;
        if plain.len() > UNPACKED_BYTES_MAX {
            return Err(RegisterBodyError::TooLong);
        }
        let mut input = Counted {
            bytes: &plain,
            at: 0,
        };
        let mut table = TopicConfigTable {
            data_version: fastjson::from_slice::<DataVersion>(input.part()?)?,
            ..TopicConfigTable::default()
        };
        for _ in 0..input.number()? {
            let at = input.at;
            let text = std::str::from_utf8(input.part()?).ok();
            let topic = text
                .and_then(TopicConfig::from_text)
                .ok_or(RegisterBodyError::Packed(at))?;
            table
                .topic_config_table
                .insert(topic.topic_name.clone(), topic);
        }
        let filter_server_list = match input.part()? {
            b"" => Vec::new(),
            json => fastjson::from_slice(json)?,
        };
        if version >= TEXT_FORM_VERSION_MIN {
            for _ in 0..input.number()? {
                let mapping: serde_json::Value = fastjson::from_slice(input.part()?)?;
                if let Some(topic) = mapping.get("topic").and_then(|topic| topic.as_str()) {
                    let topic = topic.to_string();
                    table.topic_queue_mapping_info_map.insert(topic, mapping);
                }
            }
        }
        Ok(RegisterBody {
            filter_server_list,
            topic_config_serialize_wrapper: table,
        })
    }
}

fn push_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

struct Counted<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Counted<'a> {
    fn number(&mut self) -> Result<usize, RegisterBodyError> {
        let cut = RegisterBodyError::Packed(self.at);
        let Some(word) = self.bytes[self.at..].first_chunk() else {
            return Err(cut);
        };
        let number = usize::try_from(i32::from_be_bytes(*word)).map_err(|_| cut)?;
        self.at += size_of::<i32>();
        Ok(number)
    }

    fn part(&mut self) -> Result<&'a [u8], RegisterBodyError> {
        let length = self.number()?;
        let rest = &self.bytes[self.at..];
        let part = rest
            .get(..length)
            .ok_or(RegisterBodyError::Packed(self.at))?;
        self.at += length;
        Ok(part)
    }
}
