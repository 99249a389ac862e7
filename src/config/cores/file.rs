//! A layout as it stands in a TOML file.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

use super::check::{Fault, FaultKind};
use super::{Core, Engine, Idle, Layout, RoleKind, SPIN_US_DEFAULT};

/// Why a file is not a layout for this machine.
#[derive(Debug, Error)]
pub enum LayoutError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// The file is not TOML or holds what no field is there for.
    #[error("{file}:{line}: {message}")]
    Toml {
        /// The file.
        file: String,
        /// Where, counted from 1.
        line: usize,
        /// The parser's words.
        message: String,
    },
    /// The layout breaks a rule.
    #[error("{file}:{line}: {fault}")]
    Fault {
        /// The file.
        file: String,
        /// The line of the core at fault, or the first line where the whole layout is.
        line: usize,
        /// The rule and the cure.
        fault: Fault,
    },
}

impl Layout {
    /// Reads and checks a file for a process that may use the CPUs `allowed`.
    pub fn load(file: &Path, allowed: &[usize]) -> Result<Self, LayoutError> {
        let text = fs::read_to_string(file).map_err(|error| LayoutError::Read {
            file: file.to_owned(),
            error,
        })?;
        Self::parse(&file.display().to_string(), &text, allowed)
    }

    /// [`Layout::load`] for a text that is already there; `file` is its name in messages.
    pub fn parse(file: &str, text: &str, allowed: &[usize]) -> Result<Self, LayoutError> {
        let line_at = |position: usize| {
            let before = text.as_bytes().iter().take(position);
            1 + before.filter(|&&byte| byte == b'\n').count()
        };
        let written: WrittenLayout = toml::from_str(text).map_err(|error| LayoutError::Toml {
            file: file.to_owned(),
            line: line_at(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        let line_of = |core: Option<usize>| {
            let written = core.and_then(|core| written.core.get(core));
            written.map_or(1, |core| line_at(core.span().start))
        };
        let layout = written
            .layout()
            .and_then(|layout| layout.check(allowed).map(|()| layout));
        layout.map_err(|fault| LayoutError::Fault {
            file: file.to_owned(),
            line: line_of(fault.core),
            fault,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLayout {
    #[serde(default)]
    log: WrittenLog,
    #[serde(default)]
    background: WrittenBackground,
    #[serde(default)]
    core: Vec<Spanned<WrittenCore>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLog {
    #[serde(default)]
    engine: Engine,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenBackground {
    #[serde(default)]
    cpu: WrittenCpu,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCore {
    #[serde(default)]
    cpu: WrittenCpu,
    roles: Vec<RoleKind>,
    #[serde(default)]
    idle: WrittenIdle,
    spin_us: Option<u32>,
    ring_entries: Option<u32>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenIdle {
    Spin,
    Adaptive,
    #[default]
    Park,
}

/// A number or the word `any`.
#[derive(Clone, Copy, Default)]
struct WrittenCpu(Option<usize>);

impl<'de> Deserialize<'de> for WrittenCpu {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CpuVisitor;
        impl serde::de::Visitor<'_> for CpuVisitor {
            type Value = WrittenCpu;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a CPU, or \"any\"")
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<WrittenCpu, E> {
                let cpu = usize::try_from(number);
                cpu.map(|cpu| WrittenCpu(Some(cpu)))
                    .map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(number), &self))
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<WrittenCpu, E> {
                match word {
                    "any" => Ok(WrittenCpu(None)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
                }
            }
        }
        deserializer.deserialize_any(CpuVisitor)
    }
}

impl WrittenLayout {
    fn layout(&self) -> Result<Layout, Fault> {
        let cores = self.core.iter().enumerate().map(|(number, written)| {
            let fault = |kind| Fault {
                core: Some(number),
                kind,
            };
            written.get_ref().core().map_err(fault)
        });
        Ok(Layout {
            cores: cores.collect::<Result<_, _>>()?,
            engine: self.log.engine,
            background_cpu: self.background.cpu.0,
        })
    }
}

impl WrittenCore {
    fn core(&self) -> Result<Core, FaultKind> {
        let idle = match (self.idle, self.spin_us) {
            (WrittenIdle::Adaptive, time) => Idle::Adaptive {
                spin_us: time.unwrap_or(SPIN_US_DEFAULT),
            },
            (_, Some(_)) => return Err(FaultKind::SpinTime),
            (WrittenIdle::Spin, None) => Idle::Spin,
            (WrittenIdle::Park, None) => Idle::Park,
        };
        let mut core = Core::new(self.cpu.0, &self.roles, idle);
        core.ring_entries = self.ring_entries.unwrap_or(core.ring_entries);
        Ok(core)
    }
}
