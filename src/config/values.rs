//! Values of the files that are more than a number or a text.

use super::knobs::{Range, Setting, ValueError};

/// When "stored" is answered. DESIGN 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushDiskType {
    /// After the record's last byte is on stable storage.
    SyncFlush,
    /// When the record is written; it is flushed every `flushIntervalCommitLog`.
    AsyncFlush,
}

/// Which part a broker has in replication. ha.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerRole {
    /// Takes sends and answers them without waiting for a slave.
    AsyncMaster,
    /// Takes sends and answers them when a slave has them.
    SyncMaster,
    /// Follows a master.
    Slave,
}

macro_rules! word_settings {
    ($type:ty: $($word:literal => $variant:path),+) => {
        impl $type {
            /// The words of the file.
            pub const WORDS: &'static [&'static str] = &[$($word),+];
        }

        impl Setting for $type {
            fn read(text: &str, range: &Range) -> Result<Self, ValueError> {
                match range.word(text)? {
                    $($word => Ok($variant),)+
                    _ => Err(ValueError(*range)),
                }
            }

            fn write(&self) -> String {
                match self {
                    $($variant => $word.to_owned(),)+
                }
            }
        }
    };
}

word_settings!(FlushDiskType:
    "SYNC_FLUSH" => FlushDiskType::SyncFlush,
    "ASYNC_FLUSH" => FlushDiskType::AsyncFlush);
word_settings!(BrokerRole:
    "ASYNC_MASTER" => BrokerRole::AsyncMaster,
    "SYNC_MASTER" => BrokerRole::SyncMaster,
    "SLAVE" => BrokerRole::Slave);

/// Addresses `host:port`; names are not resolved here. At most [`Addresses::MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Addresses(pub Vec<String>);

impl Addresses {
    /// A broker holds a connection to each name server.
    pub const MAX: usize = 32;
}

impl Setting for Addresses {
    fn read(text: &str, range: &Range) -> Result<Self, ValueError> {
        let parts = text
            .split(';')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        let addresses: Vec<String> = parts.map(str::to_owned).collect();
        let good = addresses.iter().all(|address| is_address(address));
        if !good || addresses.len() > Self::MAX {
            return Err(ValueError(*range));
        }
        Ok(Self(addresses))
    }

    fn write(&self) -> String {
        self.0.join(";")
    }
}

fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    // An IPv6 address stands in brackets, else its last group would be taken as the port.
    let plain = !host.is_empty() && !host.contains([':', '/', ' ']);
    let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
    (plain || bracketed) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Hours of the day, local time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hours(pub Vec<u8>);

impl Setting for Hours {
    fn read(text: &str, range: &Range) -> Result<Self, ValueError> {
        let hours: Result<Vec<u8>, _> = text
            .split(';')
            .map(|hour| hour.trim().parse::<u8>())
            .collect();
        match hours {
            Ok(hours) if hours.iter().all(|&hour| hour < 24) && hours.len() <= 24 => {
                Ok(Self(hours))
            }
            _ => Err(ValueError(*range)),
        }
    }

    fn write(&self) -> String {
        let hours: Vec<String> = self.0.iter().map(|hour| format!("{hour:02}")).collect();
        hours.join(";")
    }
}

/// The delay levels, level 1 first, in seconds. At most [`Delays::MAX`]. delivery 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delays(pub Vec<u64>);

const DELAY_UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

impl Delays {
    /// Each level is a queue of the schedule topic.
    pub const MAX: usize = 64;

    const SECONDS_MAX: u64 = 10 * 365 * 86_400;
}

impl Setting for Delays {
    fn read(text: &str, range: &Range) -> Result<Self, ValueError> {
        let delays: Option<Vec<u64>> = text.split(' ').map(delay_seconds).collect();
        match delays {
            Some(delays) if delays.len() <= Self::MAX => Ok(Self(delays)),
            _ => Err(ValueError(*range)),
        }
    }

    fn write(&self) -> String {
        let text = |&seconds: &u64| {
            let whole = DELAY_UNITS.iter().find(|(_, unit)| seconds % unit == 0);
            let (letter, unit) = whole.expect("every number of seconds is whole seconds");
            format!("{}{letter}", seconds / unit)
        };
        self.0.iter().map(text).collect::<Vec<_>>().join(" ")
    }
}

fn delay_seconds(text: &str) -> Option<u64> {
    let unit = DELAY_UNITS
        .iter()
        .find(|(letter, _)| text.ends_with(*letter))?;
    let number: u64 = text[..text.len() - 1].parse().ok()?;
    let seconds = number.checked_mul(unit.1)?;
    (1..=Delays::SECONDS_MAX)
        .contains(&seconds)
        .then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_in_any_case_and_written_as_rocketmq_does() {
        let range = Range::OneOf(FlushDiskType::WORDS);
        assert_eq!(
            FlushDiskType::read("sync_flush", &range),
            Ok(FlushDiskType::SyncFlush)
        );
        assert_eq!(FlushDiskType::AsyncFlush.write(), "ASYNC_FLUSH");
        let error = FlushDiskType::read("SYNC", &range).expect_err("not a word");
        assert_eq!(error.to_string(), "expected one of SYNC_FLUSH, ASYNC_FLUSH");
    }

    #[test]
    fn addresses_are_host_and_port() {
        let read = |text| Addresses::read(text, &Range::Addresses).map(|list| list.0);
        assert_eq!(
            read("127.0.0.1:9876"),
            Ok(vec!["127.0.0.1:9876".to_owned()])
        );
        assert_eq!(
            read("a:1; [::1]:9876 ;"),
            Ok(vec!["a:1".to_owned(), "[::1]:9876".to_owned()])
        );
        assert_eq!(read(""), Ok(vec![]));
        for text in [
            "127.0.0.1",
            "a:0",
            "a:70000",
            ":9876",
            "::1:9876",
            "http://a:80",
            "a b:1",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hours_are_two_digits_of_a_day() {
        assert_eq!(Hours::read("04", &Range::Hours), Ok(Hours(vec![4])));
        assert_eq!(
            Hours::read("00;23", &Range::Hours).map(|hours| hours.write()),
            { Ok("00;23".to_owned()) }
        );
        assert!(Hours::read("24", &Range::Hours).is_err());
        assert!(Hours::read("", &Range::Hours).is_err());
    }

    /// delivery 1: the default table, level by level.
    #[test]
    fn delay_levels_are_the_default_table() {
        let text = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";
        let delays = Delays::read(text, &Range::Delays).expect("the default table");
        assert_eq!(delays.0.len(), 18);
        assert_eq!(delays.0[..6], [1, 5, 10, 30, 60, 120]);
        assert_eq!(delays.0[15..], [1_800, 3_600, 7_200]);
        assert_eq!(delays.write(), text);
        for bad in [
            "1s  5s",
            "1",
            "s",
            "0s",
            "1w",
            "-1s",
            "99999999999999999999d",
            "1é",
        ] {
            assert!(Delays::read(bad, &Range::Delays).is_err(), "{bad}");
        }
    }
}
