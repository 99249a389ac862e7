//! Log lines of the cores: writing to standard error can block, so a core only puts its line into a
//! bounded ring, and the background thread hands it to the application's logger.
//!
//! Other threads write at once. A line that finds the ring full is counted as lost.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};

use log::{Level, LevelFilter, Log, Metadata, Record, SetLoggerError};

use crate::background::Bell;

struct Line {
    level: Level,
    target: String,
    text: String,
}

struct RingLogger {
    sink: Box<dyn Log>,
    sender: SyncSender<Line>,
    lost: AtomicU64,
    bell: OnceLock<&'static Bell>,
}

/// The background thread's end of the ring.
pub struct LogLines {
    receiver: Receiver<Line>,
    logger: &'static RingLogger,
    lost_before: u64,
}

thread_local! {
    static ON_CORE: Cell<bool> = const { Cell::new(false) };
}

/// Says that this thread must never block on a log line.
pub fn mark_core_thread() {
    ON_CORE.set(true);
}

/// Makes `sink` the process's logger, with a ring of `lines` for the cores; give the answer to the
/// background executor.
///
/// # Errors
/// When there is a logger already.
pub fn install(
    sink: Box<dyn Log>,
    level: LevelFilter,
    lines: usize,
) -> Result<LogLines, SetLoggerError> {
    let made = ring(sink, lines);
    log::set_logger(made.logger)?;
    log::set_max_level(level);
    Ok(made)
}

fn ring(sink: Box<dyn Log>, lines: usize) -> LogLines {
    let (sender, receiver) = mpsc::sync_channel(lines.max(1));
    let logger: &'static RingLogger = Box::leak(Box::new(RingLogger {
        sink,
        sender,
        lost: AtomicU64::new(0),
        bell: OnceLock::new(),
    }));
    LogLines {
        receiver,
        logger,
        lost_before: 0,
    }
}

impl Log for RingLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.sink.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        if !ON_CORE.get() {
            self.sink.log(record);
            return;
        }
        let line = Line {
            level: record.level(),
            target: record.target().to_owned(),
            text: record.args().to_string(),
        };
        match self.sender.try_send(line) {
            Ok(()) => {
                if let Some(bell) = self.bell.get() {
                    bell.ring();
                }
            }
            Err(TrySendError::Full(_)) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            // There is no background thread any more, and soon no core.
            Err(TrySendError::Disconnected(_)) => self.sink.log(record),
        }
    }

    fn flush(&self) {
        self.sink.flush();
    }
}

impl LogLines {
    /// Lines lost so far because the ring was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.logger.lost.load(Ordering::Relaxed)
    }

    /// Rings `bell` after each line from a core.
    pub(crate) fn ring_with(&mut self, bell: &'static Bell) {
        // A ring serves one executor; a second one would hear nothing but its own tick.
        let _ = self.logger.bell.set(bell);
    }

    /// Hands what is there to the logger; says how many lines were lost since the last time.
    pub(crate) fn write_out(&mut self) {
        let sink = &self.logger.sink;
        for line in self.receiver.try_iter() {
            write(&**sink, line.level, &line.target, &line.text);
        }
        let lost = self.lost();
        if lost > self.lost_before {
            let text = format!("{} log lines were lost", lost - self.lost_before);
            write(&**sink, Level::Warn, module_path!(), &text);
            self.lost_before = lost;
        }
    }
}

impl Drop for LogLines {
    fn drop(&mut self) {
        self.write_out();
    }
}

fn write(sink: &dyn Log, level: Level, target: &str, text: &str) {
    sink.log(
        &Record::builder()
            .level(level)
            .target(target)
            .args(format_args!("{text}"))
            .build(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Log for Kept {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.level() <= Level::Info
        }
        fn log(&self, record: &Record<'_>) {
            let line = format!("{} {} {}", record.level(), record.target(), record.args());
            self.0.lock().expect("no test panics here").push(line);
        }
        fn flush(&self) {}
    }

    fn say(logger: &RingLogger, level: Level, text: &str) {
        write(logger, level, "t", text);
    }

    #[test]
    fn a_core_only_fills_the_ring_and_what_does_not_fit_is_counted() {
        let kept = Kept::default();
        let mut lines = ring(Box::new(kept.clone()), 2);
        let seen = || kept.0.lock().expect("no test panics here").clone();
        let logger = lines.logger;
        say(logger, Level::Info, "from elsewhere");
        assert_eq!(seen(), ["INFO t from elsewhere"]);
        let core = std::thread::spawn(move || {
            mark_core_thread();
            say(logger, Level::Debug, "not wanted");
            for text in ["one", "two", "three", "four"] {
                say(logger, Level::Error, text);
            }
        });
        core.join().expect("the core ends");
        assert_eq!(seen().len(), 1);
        assert_eq!(lines.lost(), 2);
        lines.write_out();
        lines.write_out();
        assert_eq!(
            seen()[1..],
            [
                "ERROR t one",
                "ERROR t two",
                "WARN shards::log_lines 2 log lines were lost"
            ]
        );
    }
}
