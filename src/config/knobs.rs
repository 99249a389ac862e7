//! The knobs: one row per key, and nothing is a knob without a row.
//!
//! A row says the name (RocketMQ's where it has one), the range, the unit, the default, whether it
//! can be changed while the process runs, whether ringmq uses it, one sentence, and where its
//! effect is seen. The rows of the keys that ringmq has a field for stand with that field, in
//! [`BrokerConfig`](super::BrokerConfig) and [`NamesrvConfig`](super::NamesrvConfig); the rows of
//! the keys that are only accepted stand in `unused.rs`. Spec: config-reference.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// One key of a configuration file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Knob {
    /// The key as it stands in the file.
    pub name: &'static str,
    /// What may be written.
    pub range: Range,
    /// Unit of a number; empty where there is none.
    pub unit: &'static str,
    /// The value where nothing says otherwise, as it would stand in a file.
    pub default: &'static str,
    /// Whether it can be changed while the process runs (codes 25 and 318).
    pub change: Change,
    /// Whether ringmq reads it.
    pub usage: Usage,
    /// Values that are in range but not taken, each with the reason.
    pub refused: &'static [Refused],
    /// One sentence: what it does, or why nothing does.
    pub about: &'static str,
    /// The counter, table or answer that shows its effect; empty for an unused key.
    pub shows: &'static str,
}

/// When a changed value takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// At once.
    Live,
    /// At the next start; a change by request is refused.
    AtStart,
}

/// What becomes of a key in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// ringmq acts on it.
    Used,
    /// Accepted so that a RocketMQ file works unchanged, checked, and named in one warning.
    Unused,
}

/// A value that would be dangerous to accept without doing what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The value, compared without regard to case.
    pub value: &'static str,
    /// Cause and cure.
    pub why: &'static str,
}

/// What may be written for a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// `true` or `false` in any case. Java reads every other text as false; here it is an error.
    Flag,
    /// A whole number within the bounds.
    Whole(i64, i64),
    /// A whole number; one outside the bounds is taken as the nearest bound, as in Java.
    Clamped(i64, i64),
    /// A number, with a decimal point or without.
    Fraction(f64, f64),
    /// Text of at most so many bytes.
    Text(usize),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A path of one file or directory; empty means the default of the row's sentence.
    Path,
    /// `host:port` or `host:port;host:port`; may be empty.
    Addresses,
    /// Hours of the day `00`..`23`, separated by `;`.
    Hours,
    /// Delays such as `1s 5m 2h 1d`, separated by single blanks (delivery 1).
    Delays,
}

/// The text is not what the row's range allows. Shows what would be.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("expected {0}")]
pub struct ValueError(pub Range);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Flag => f.write_str("true or false"),
            Self::Whole(min, i64::MAX) => write!(f, "a whole number, {min} or more"),
            Self::Whole(min, max) => write!(f, "a whole number from {min} to {max}"),
            Self::Clamped(min, max) => {
                write!(
                    f,
                    "a whole number; outside {min} to {max} the nearest of the two is taken"
                )
            }
            Self::Fraction(min, max) => write!(f, "a number from {min} to {max}"),
            Self::Text(max) => write!(f, "text of at most {max} bytes"),
            Self::OneOf(words) => write!(f, "one of {}", words.join(", ")),
            Self::Path => f.write_str("one path, without a comma"),
            Self::Addresses => f.write_str("host:port, more of them separated by `;`"),
            Self::Hours => f.write_str("hours from 00 to 23, separated by `;`"),
            Self::Delays => f.write_str("delays such as `1s 5m 2h 1d`, separated by single blanks"),
        }
    }
}

impl Range {
    /// Whether a file may say this.
    pub fn check(&self, text: &str) -> Result<(), ValueError> {
        match *self {
            Self::Flag => self.flag(text).map(drop),
            Self::Whole(..) | Self::Clamped(..) => self.whole(text).map(drop),
            Self::Fraction(min, max) => match text.parse::<f64>() {
                Ok(number) if (min..=max).contains(&number) => Ok(()),
                _ => Err(ValueError(*self)),
            },
            Self::Text(max) if text.len() > max => Err(ValueError(*self)),
            Self::Text(_) => Ok(()),
            Self::OneOf(_) => self.word(text).map(drop),
            Self::Path => PathBuf::read(text, self).map(drop),
            Self::Addresses => super::Addresses::read(text, self).map(drop),
            Self::Hours => super::Hours::read(text, self).map(drop),
            Self::Delays => super::Delays::read(text, self).map(drop),
        }
    }

    fn flag(&self, text: &str) -> Result<bool, ValueError> {
        if text.eq_ignore_ascii_case("true") {
            Ok(true)
        } else if text.eq_ignore_ascii_case("false") {
            Ok(false)
        } else {
            Err(ValueError(*self))
        }
    }

    fn whole(&self, text: &str) -> Result<i64, ValueError> {
        let number: i64 = text.parse().map_err(|_| ValueError(*self))?;
        match *self {
            Self::Clamped(min, max) => Ok(number.clamp(min, max)),
            Self::Whole(min, max) if (min..=max).contains(&number) => Ok(number),
            _ => Err(ValueError(*self)),
        }
    }

    /// The matching word of [`Range::OneOf`], any case.
    pub(super) fn word(&self, text: &str) -> Result<&'static str, ValueError> {
        let Self::OneOf(words) = *self else {
            return Err(ValueError(*self));
        };
        let found = words
            .iter()
            .copied()
            .find(|word| word.eq_ignore_ascii_case(text));
        found.ok_or(ValueError(*self))
    }
}

/// A type that a configuration field can have.
pub trait Setting: Sized {
    /// Reads a value of a file, without blanks around it.
    fn read(text: &str, range: &Range) -> Result<Self, ValueError>;

    /// The value as a file would say it; `read` gives it back.
    fn write(&self) -> String;
}

impl Setting for bool {
    fn read(text: &str, range: &Range) -> Result<Self, ValueError> {
        range.flag(text)
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

macro_rules! whole_settings {
    ($($type:ty),+) => { $(
        impl Setting for $type {
            fn read(text: &str, range: &Range) -> Result<Self, ValueError> {
                Self::try_from(range.whole(text)?).map_err(|_| ValueError(*range))
            }

            fn write(&self) -> String {
                self.to_string()
            }
        }
    )+ };
}

whole_settings!(u8, u16, u32, u64, i64);

impl Setting for String {
    fn read(text: &str, range: &Range) -> Result<Self, ValueError> {
        range.check(text)?;
        Ok(text.to_owned())
    }

    fn write(&self) -> String {
        self.clone()
    }
}

impl Setting for PathBuf {
    fn read(text: &str, range: &Range) -> Result<Self, ValueError> {
        if text.contains(',') || text.contains('\0') {
            return Err(ValueError(*range));
        }
        Ok(Self::from(text))
    }

    fn write(&self) -> String {
        self.to_string_lossy().into_owned()
    }
}

/// The row of the name, if there is one.
pub fn find(rows: &[&'static [Knob]], name: &str) -> Option<&'static Knob> {
    rows.iter()
        .flat_map(|part| part.iter())
        .find(|knob| knob.name == name)
}

/// The name nearest to a misspelt one, when it is near enough to be meant: case aside, at most one
/// letter in four is wrong.
pub fn closest(rows: &[&'static [Knob]], name: &str) -> Option<&'static str> {
    let wanted = name.to_ascii_lowercase();
    let all = rows.iter().flat_map(|part| part.iter());
    let (distance, nearest) = all
        .map(|knob| {
            (
                edit_distance(&wanted, &knob.name.to_ascii_lowercase()),
                knob.name,
            )
        })
        .min()?;
    (distance <= 1 + name.len() / 4).then_some(nearest)
}

/// Letters to insert, delete or replace to make one text of the other.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, l) in left.chars().enumerate() {
        let mut diagonal = above;
        row[0] = above + 1;
        for (column, &r) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(l != r);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

/// Makes a configuration struct and the rows of its fields from one list.
///
/// A line reads: sentence; key => field: type = default, range, unit, when it can change, whether
/// it is used, where its effect shows.
macro_rules! settings {
    (
        $(#[$outer:meta])*
        pub struct $config:ident;
        $(
            $(#[doc = $about:literal])+
            $name:literal => $field:ident: $type:ty = $default:literal,
                $range:expr, $unit:literal, $change:ident, $usage:ident, $shows:literal
                $(, refused $refused:expr)?;
        )+
    ) => {
        $(#[$outer])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $config {
            $(
                $(#[doc = $about])+
                #[doc = concat!("\n`", $name, "`, default `", $default, "` ", $unit)]
                pub $field: $type,
            )+
        }

        impl $config {
            /// The rows of the fields, in the order of the reference.
            pub const KNOBS: &'static [$crate::config::knobs::Knob] = &[ $(
                $crate::config::knobs::Knob {
                    name: $name,
                    range: $range,
                    unit: $unit,
                    default: $default,
                    change: $crate::config::knobs::Change::$change,
                    usage: $crate::config::knobs::Usage::$usage,
                    refused: {
                        let _refused: &'static [$crate::config::knobs::Refused] = &[];
                        $( let _refused = $refused; )?
                        _refused
                    },
                    about: concat!($($about),+).trim_ascii(),
                    shows: $shows,
                },
            )+ ];

            /// Sets the field of a key. `Ok(false)`: no field has this key.
            fn set(
                &mut self,
                name: &str,
                text: &str,
            ) -> Result<bool, $crate::config::knobs::ValueError> {
                match name {
                    $( $name => self.$field = Setting::read(text, &$range)?, )+
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// Every field as key and value, in the order of the reference.
            pub fn entries(&self) -> Vec<(&'static str, String)> {
                vec![ $( ($name, self.$field.write()), )+ ]
            }
        }

        impl Default for $config {
            /// The defaults of the rows; what depends on the machine is still empty.
            fn default() -> Self {
                Self {
                    $( $field: Setting::read($default, &$range)
                        .expect("a default lies in its range: a test reads them all"), )+
                }
            }
        }
    };
}

pub(super) use settings;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_true_or_false_and_nothing_else() {
        assert_eq!(bool::read("TRUE", &Range::Flag), Ok(true));
        assert_eq!(bool::read("false", &Range::Flag), Ok(false));
        for text in ["yes", "1", "on", ""] {
            assert!(bool::read(text, &Range::Flag).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_keep_to_their_range_or_are_clamped() {
        let port = Range::Whole(1, 65535);
        assert_eq!(u16::read("10911", &port), Ok(10911));
        assert!(u16::read("0", &port).is_err());
        assert!(u16::read("65536", &port).is_err());
        assert!(u16::read("10911x", &port).is_err());
        let period = Range::Clamped(10_000, 60_000);
        assert_eq!(u32::read("1", &period), Ok(10_000));
        assert_eq!(u32::read("90000", &period), Ok(60_000));
        assert_eq!(
            u16::read("0", &port).expect_err("zero").to_string(),
            "expected a whole number from 1 to 65535"
        );
    }

    #[test]
    fn a_misspelt_name_finds_the_one_that_was_meant() {
        let rows = [crate::config::BrokerConfig::KNOBS];
        assert_eq!(
            closest(&rows, "brokerClustername"),
            Some("brokerClusterName")
        );
        assert_eq!(closest(&rows, "listenport"), Some("listenPort"));
        assert_eq!(closest(&rows, "flushDiskTyp"), Some("flushDiskType"));
        assert_eq!(closest(&rows, "somethingElseAltogether"), None);
    }

    #[test]
    fn edit_distance_counts_letters() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("same", "same"), 0);
    }
}
