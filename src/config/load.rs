//! From flags, file, environment and defaults to a configuration; the earlier of these wins.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::knobs::{self, Change, Knob, Range, Setting, Usage, ValueError};
use super::properties::{self, Entry, PropertiesError, TEXT_BYTES_MAX};
use super::values::Addresses;

/// The environment variable that names the name servers.
pub const NAMESRV_ADDR: &str = "NAMESRV_ADDR";

/// What the machine says, gathered once, so that reading a file is a function of its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// Default of `brokerName`.
    pub host_name: String,
    /// Address of the interface of the way out; default of `brokerIP1`.
    pub local_address: String,
    /// Where `store` and `namesrv` are by default.
    pub home: PathBuf,
    /// The text of [`NAMESRV_ADDR`].
    pub namesrv_addr: Option<Addresses>,
}

impl Surroundings {
    /// Asks the machine. What it does not say becomes `broker-a`, `127.0.0.1` and the working
    /// directory. Fails on a malformed [`NAMESRV_ADDR`].
    pub fn of_this_process() -> Result<Self, LoadError> {
        let namesrv_addr = match std::env::var(NAMESRV_ADDR) {
            Ok(text) => Some(Addresses::read(&text, &Range::Addresses).map_err(|error| {
                LoadError::Problems(vec![Problem::Value {
                    place: Place::Environment(NAMESRV_ADDR),
                    key: "namesrvAddr",
                    value: text,
                    error,
                }])
            })?),
            Err(_) => None,
        };
        let host_name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        Ok(Self {
            host_name: if host_name.is_empty() {
                "broker-a".to_owned()
            } else {
                host_name
            },
            local_address: local_address().unwrap_or_else(|_| "127.0.0.1".to_owned()),
            home: std::env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from),
            namesrv_addr,
        })
    }
}

/// The kernel's choice of source for an address of the documentation range; nothing is sent.
fn local_address() -> io::Result<String> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("198.51.100.1:9")?;
    Ok(socket.local_addr()?.ip().to_string())
}

/// A command line flag that says what a key of the file could say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The flag as typed, for messages: `--broker-port`.
    pub flag: &'static str,
    /// The key it sets.
    pub key: &'static str,
    /// Its value.
    pub value: String,
}

/// A configuration and what an operator should know about how it came to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded<C> {
    /// The configuration, complete.
    pub config: C,
    /// To be logged as warnings, one line each.
    pub notices: Vec<Notice>,
}

/// Something that was accepted but should be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Keys of the file that have no effect, in the file's order.
    Unused {
        /// The file.
        file: String,
        /// The keys.
        keys: Vec<&'static str>,
    },
    /// A key stands twice; the later line counts, as in Java.
    Repeated {
        /// Where the line that counts is.
        place: Place,
        /// The key.
        key: &'static str,
    },
    /// A master was given another id than 0.
    MasterHasIdZero {
        /// The id that was given.
        given: u64,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unused { file, keys } => {
                write!(
                    f,
                    "{file}: accepted, but without effect here: {}",
                    keys.join(", ")
                )
            }
            Self::Repeated { place, key } => {
                write!(
                    f,
                    "{place}: {key} stood in the file before; this line counts"
                )
            }
            Self::MasterHasIdZero { given } => {
                write!(
                    f,
                    "brokerId={given} was taken as 0: this broker is a master"
                )
            }
        }
    }
}

/// Where a value was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A line of a file, counted from 1.
    Line {
        /// The file as it was named.
        file: String,
        /// The line.
        line: u32,
    },
    /// A command line flag.
    Flag(&'static str),
    /// An environment variable.
    Environment(&'static str),
    /// A request (codes 25, 318).
    Request,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line } => write!(f, "{file}:{line}"),
            Self::Flag(flag) => f.write_str(flag),
            Self::Environment(variable) => write!(f, "environment variable {variable}"),
            Self::Request => f.write_str("request"),
        }
    }
}

/// One thing wrong with a configuration: place, cause, cure.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Problem {
    /// No key has this name.
    #[error("{place}: no key is called `{key}`{}", suggestion(*.closest))]
    UnknownKey {
        /// Where it stands.
        place: Place,
        /// The name as written.
        key: String,
        /// The name that was probably meant.
        closest: Option<&'static str>,
    },
    /// The key's range does not allow this value.
    #[error("{place}: {key}={value}: {error}")]
    Value {
        /// Where it stands.
        place: Place,
        /// The key.
        key: &'static str,
        /// The value as written.
        value: String,
        /// What is allowed.
        error: ValueError,
    },
    /// The value is RocketMQ's, but ringmq will not pretend to do what it says.
    #[error("{place}: {key}={value} is refused: {why}")]
    Refused {
        /// Where it stands.
        place: Place,
        /// The key.
        key: &'static str,
        /// The value as written.
        value: String,
        /// Cause and cure.
        why: &'static str,
    },
}

fn suggestion(closest: Option<&'static str>) -> String {
    match closest {
        Some(name) => format!("; did you mean `{name}`?"),
        None => "; remove the line (`ringmq keys` lists all keys)".to_owned(),
    }
}

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// The file is not properties text.
    #[error("{file}: {error}")]
    Properties {
        /// The file.
        file: String,
        /// What is wrong with it.
        error: PropertiesError,
    },
    /// Everything that is wrong with flags and file, one line each.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Problems(Vec<Problem>),
}

/// Why a request did not change the configuration. Nothing of it was applied.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ChangeError {
    /// A key of `configBlackList` (answered 16).
    #[error("Can not update config in black list.")]
    BlackListed,
    /// The body is not properties text.
    #[error("{0}")]
    Properties(#[from] PropertiesError),
    /// The key takes effect at the next start only.
    #[error("{key} takes effect at the next start; set it in the file and restart")]
    AtStart {
        /// The key.
        key: &'static str,
    },
    /// The value is not allowed.
    #[error("{0}")]
    Problem(#[from] Problem),
}

/// What the two configurations have in common.
pub(super) trait Configuration: Default + Clone {
    /// All rows: those with a field first.
    const ROWS: &'static [&'static [Knob]];

    /// Sets the field of a key; false where no field has it.
    fn set(&mut self, name: &str, text: &str) -> Result<bool, ValueError>;

    /// Keys that no request may change, separated by `;`.
    fn black_list(&self) -> &str;

    /// Takes from the environment what a file may override.
    fn before_file(&mut self, _around: &Surroundings) {}

    /// Fills in what depends on the machine or on other keys.
    fn finish(&mut self, around: &Surroundings, notices: &mut Vec<Notice>);
}

/// Reads a file, or takes the defaults where none is named, under the given flags.
#[expect(private_bounds, reason = "the two configurations are the only ones")]
pub fn load<C: Configuration>(
    file: Option<&Path>,
    flags: &[Flag],
    around: &Surroundings,
) -> Result<Loaded<C>, LoadError> {
    let Some(path) = file else {
        return parse("", b"", flags, around);
    };
    let bytes = read_bounded(path).map_err(|error| LoadError::Read {
        file: path.to_owned(),
        error,
    })?;
    parse(&path.display().to_string(), &bytes, flags, around)
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One more than is accepted, so that a longer file is noticed.
    let limit = u64::try_from(TEXT_BYTES_MAX + 1).expect("a megabyte fits");
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// [`load`] for a text that is already there; `file` is its name in messages.
#[expect(private_bounds, reason = "the two configurations are the only ones")]
pub fn parse<C: Configuration>(
    file: &str,
    bytes: &[u8],
    flags: &[Flag],
    around: &Surroundings,
) -> Result<Loaded<C>, LoadError> {
    let entries = properties::parse(bytes).map_err(|error| LoadError::Properties {
        file: file.to_owned(),
        error,
    })?;
    let mut config = C::default();
    config.before_file(around);
    let mut problems = Vec::new();
    let mut notices = Vec::new();
    let mut seen: Vec<&'static Knob> = Vec::new();
    for Entry { key, value, line } in entries {
        let place = Place::Line {
            file: file.to_owned(),
            line,
        };
        match apply(&mut config, place.clone(), &key, &value) {
            Ok(knob) if seen.iter().any(|earlier| earlier.name == knob.name) => {
                notices.push(Notice::Repeated {
                    place,
                    key: knob.name,
                });
            }
            Ok(knob) => seen.push(knob),
            Err(problem) => problems.push(problem),
        }
    }
    for Flag { flag, key, value } in flags {
        if let Err(problem) = apply(&mut config, Place::Flag(flag), key, value) {
            problems.push(problem);
        }
    }
    if !problems.is_empty() {
        return Err(LoadError::Problems(problems));
    }
    seen.retain(|knob| knob.usage == Usage::Unused);
    if !seen.is_empty() {
        let keys = seen.iter().map(|knob| knob.name).collect();
        notices.push(Notice::Unused {
            file: file.to_owned(),
            keys,
        });
    }
    config.finish(around, &mut notices);
    Ok(Loaded { config, notices })
}

/// Checks one key and sets its field, if it has one.
fn apply<C: Configuration>(
    config: &mut C,
    place: Place,
    key: &str,
    value: &str,
) -> Result<&'static Knob, Problem> {
    let Some(knob) = knobs::find(C::ROWS, key) else {
        let closest = knobs::closest(C::ROWS, key);
        return Err(Problem::UnknownKey {
            place,
            key: key.to_owned(),
            closest,
        });
    };
    let refused = knob
        .refused
        .iter()
        .find(|refused| refused.value.eq_ignore_ascii_case(value));
    if let Some(refused) = refused {
        let value = value.to_owned();
        return Err(Problem::Refused {
            place,
            key: knob.name,
            value,
            why: refused.why,
        });
    }
    let set = match config.set(key, value) {
        Ok(false) => knob.range.check(value),
        other => other.map(drop),
    };
    match set {
        Ok(()) => Ok(knob),
        Err(error) => Err(Problem::Value {
            place,
            key: knob.name,
            value: value.to_owned(),
            error,
        }),
    }
}

/// Applies the body of a change request (codes 25, 318): all of it or nothing. Keys that nobody
/// knows and keys without effect are passed over, as in Java. Returns the names of the changed
/// keys, in the order of the body.
#[expect(private_bounds, reason = "the two configurations are the only ones")]
pub fn change<C: Configuration>(
    config: &mut C,
    body: &[u8],
) -> Result<Vec<&'static str>, ChangeError> {
    let entries = properties::parse(body)?;
    let listed = |key: &str| {
        config
            .black_list()
            .split(';')
            .any(|black| black.trim() == key)
    };
    if entries.iter().any(|entry| listed(&entry.key)) {
        return Err(ChangeError::BlackListed);
    }
    let mut changed = config.clone();
    let mut names = Vec::new();
    for Entry { key, value, .. } in entries {
        match knobs::find(C::ROWS, &key) {
            None => continue,
            Some(knob) if knob.usage == Usage::Unused => continue,
            Some(knob) if knob.change == Change::AtStart => {
                return Err(ChangeError::AtStart { key: knob.name });
            }
            Some(_) => names.push(apply(&mut changed, Place::Request, &key, &value)?.name),
        }
    }
    *config = changed;
    Ok(names)
}

/// All keys of a configuration for people to read: those with an effect, then those without.
#[expect(private_bounds, reason = "the two configurations are the only ones")]
pub fn key_table<C: Configuration>() -> String {
    let rows = || C::ROWS.iter().flat_map(|part| part.iter());
    let mut table = String::new();
    for knob in rows().filter(|knob| knob.usage == Usage::Used) {
        let Knob {
            name,
            range,
            unit,
            default,
            about,
            shows,
            ..
        } = knob;
        let change = match knob.change {
            Change::Live => "at once",
            Change::AtStart => "at the next start",
        };
        table += &format!("{name}={default}\n    {about}\n    {range}");
        if !unit.is_empty() {
            table += &format!(" ({unit})");
        }
        table += &format!("; a change takes effect {change}; see: {shows}\n");
        for refused in knob.refused {
            table += &format!("    {} is refused: {}\n", refused.value, refused.why);
        }
    }
    table += "\nAccepted, but without effect here:\n";
    for knob in rows().filter(|knob| knob.usage == Usage::Unused) {
        table += &format!("{}={}\n    {}\n", knob.name, knob.default, knob.about);
        for refused in knob.refused {
            table += &format!("    {} is refused: {}\n", refused.value, refused.why);
        }
    }
    table
}
