//! The key-value settings of the name server (100-102, 219). namesrv 2.8.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::wire::bodies::KvTable;
use crate::wire::fastjson::to_ascii_vec;

/// The namespace of ordered topics: topic -> `broker-a:4;broker-b:4`.
pub const ORDER_TOPIC_CONFIG: &str = "ORDER_TOPIC_CONFIG";

/// Values by namespace and key; kept in `kvConfig.json`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KvConfig {
    config_table: BTreeMap<String, BTreeMap<String, String>>,
}

/// Why a value was not set (answered 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KvError {
    /// The table is full.
    #[error("the name server keeps at most {max} settings; delete some first")]
    TooMany {
        /// [`KvConfig::ENTRIES_MAX`].
        max: usize,
    },
    /// Namespace, key or value is too long.
    #[error("{bytes} bytes are too long for a setting; at most {max}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// [`KvConfig::TEXT_BYTES_MAX`].
        max: usize,
    },
}

impl KvConfig {
    /// Most settings: one for each of a lot of ordered topics.
    pub const ENTRIES_MAX: usize = 65_536;

    /// Longest namespace, key or value, in bytes.
    pub const TEXT_BYTES_MAX: usize = 16 << 10;

    /// Reads `kvConfig.json`.
    pub fn from_file(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// What `kvConfig.json` is to hold.
    pub fn to_file(&self) -> Vec<u8> {
        to_ascii_vec(self)
    }

    /// Sets a value (100). True if it has changed, so that the file is to be written.
    pub fn put(&mut self, namespace: &str, key: &str, value: &str) -> Result<bool, KvError> {
        for text in [namespace, key, value] {
            if text.len() > Self::TEXT_BYTES_MAX {
                let max = Self::TEXT_BYTES_MAX;
                return Err(KvError::TooLong {
                    bytes: text.len(),
                    max,
                });
            }
        }
        let old = self.get(namespace, key);
        if old == Some(value) {
            return Ok(false);
        }
        if old.is_none() && self.len() >= Self::ENTRIES_MAX {
            return Err(KvError::TooMany {
                max: Self::ENTRIES_MAX,
            });
        }
        let table = self.config_table.entry(namespace.to_owned()).or_default();
        table.insert(key.to_owned(), value.to_owned());
        Ok(true)
    }

    /// The value of a key (101).
    pub fn get(&self, namespace: &str, key: &str) -> Option<&str> {
        Some(self.config_table.get(namespace)?.get(key)?.as_str())
    }

    /// Deletes a key (102). True if there was one, so that the file is to be written. The
    /// namespace stays, empty, as in Java.
    pub fn delete(&mut self, namespace: &str, key: &str) -> bool {
        let table = self.config_table.get_mut(namespace);
        table.is_some_and(|table| table.remove(key).is_some())
    }

    /// A whole namespace (219), if there ever was one of that name.
    pub fn list(&self, namespace: &str) -> Option<KvTable> {
        let table = self.config_table.get(namespace)?.clone();
        Some(KvTable { table })
    }

    fn len(&self) -> usize {
        // An empty namespace takes a place as well.
        self.config_table
            .values()
            .map(|table| table.len().max(1))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values and bodies of the captured exchanges with 5.3.3.
    #[test]
    fn settings_are_put_listed_and_deleted() {
        let mut kv = KvConfig::default();
        assert_eq!(
            kv.put(ORDER_TOPIC_CONFIG, "CapAdmO", "broker-a:2"),
            Ok(true)
        );
        assert_eq!(
            kv.put(ORDER_TOPIC_CONFIG, "CapAdmO", "broker-a:2"),
            Ok(false)
        );
        assert_eq!(kv.put("Ns2", "k", "v"), Ok(true));
        assert_eq!(kv.get("Ns2", "k"), Some("v"));
        assert_eq!(kv.get("n0", "k"), None);
        let body = to_ascii_vec(&kv.list("Ns2").expect("a namespace"));
        assert_eq!(body, br#"{"table":{"k":"v"}}"#);
        let body = to_ascii_vec(&kv.list(ORDER_TOPIC_CONFIG).expect("a namespace"));
        assert_eq!(body, br#"{"table":{"CapAdmO":"broker-a:2"}}"#);
        assert_eq!(kv.list("n0"), None);
        assert!(kv.delete("Ns2", "k") && !kv.delete("Ns2", "k") && !kv.delete("n0", "k"));
        assert_eq!(kv.list("Ns2"), Some(KvTable::default()));
    }

    /// namesrv 2.8: the file's form.
    #[test]
    fn the_file_is_javas() {
        let mut kv = KvConfig::default();
        kv.put("ns", "k", "v").expect("room");
        assert_eq!(kv.to_file(), br#"{"configTable":{"ns":{"k":"v"}}}"#);
        assert_eq!(
            KvConfig::from_file(&kv.to_file()).expect("its own file"),
            kv
        );
        assert_eq!(
            KvConfig::from_file(b"{}").expect("an empty one"),
            KvConfig::default()
        );
        assert!(KvConfig::from_file(b"").is_err());
    }

    #[test]
    fn settings_are_bounded() {
        let mut kv = KvConfig::default();
        let long = "x".repeat(KvConfig::TEXT_BYTES_MAX + 1);
        let max = KvConfig::TEXT_BYTES_MAX;
        assert_eq!(
            kv.put("n", "k", &long),
            Err(KvError::TooLong {
                bytes: max + 1,
                max
            })
        );
        for number in 0..KvConfig::ENTRIES_MAX {
            let table = kv.config_table.entry("n".to_owned()).or_default();
            table.insert(number.to_string(), String::new());
        }
        let full = KvError::TooMany {
            max: KvConfig::ENTRIES_MAX,
        };
        assert_eq!(kv.put("n", "new", "v"), Err(full));
        assert_eq!(kv.put("n", "0", "v"), Ok(true));
    }
}
