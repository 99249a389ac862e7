//! A client program of some language: commands go in line by line, events come out as JSON lines.
//! One program holds many clients, each under a name of its own, and may talk to several brokers.

use super::ledger::{Received, Sent};
use super::{Outcome, PATIENCE, Stop, ensure, failed, wait_for};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Numbers the clients of all programs, so that no two of them send the same body.
static CLIENTS: AtomicU32 = AtomicU32::new(0);

pub struct Program {
    child: Mutex<Child>,
    input: Mutex<Option<ChildStdin>>,
    events: Arc<Mutex<Vec<Value>>>,
    log: PathBuf,
}

impl Program {
    /// Starts the program; what it writes to standard error goes to `log`.
    pub fn start(mut command: Command, log: PathBuf) -> Outcome<Arc<Program>> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .map_err(|error| Stop::Failed(format!("{command:?}: {error}")))?;
        let input = child.stdin.take();
        let output = child.stdout.take().expect("standard output was just piped");
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(event) => lock(&sink).push(event),
                    Err(error) => eprintln!("not an event ({error}): {line}"),
                }
            }
        });
        Ok(Arc::new(Program {
            child: Mutex::new(child),
            input: Mutex::new(input),
            events,
            log,
        }))
    }

    /// A producer of the group.
    pub fn producer(self: &Arc<Self>, namesrv: &str, group: &str) -> Outcome<Client> {
        self.client("p", &format!("producer namesrv={namesrv} group={group}"))
    }

    /// A push consumer of the group, from the topic's first message on. `tags` is a filter such as
    /// `A||B` or `*`.
    pub fn consumer(
        self: &Arc<Self>,
        namesrv: &str,
        group: &str,
        topic: &str,
        tags: &str,
    ) -> Outcome<Client> {
        let command = format!("consumer namesrv={namesrv} group={group} topic={topic} tags={tags}");
        self.client("c", &command)
    }

    /// A consumer that pulls when told; the broker may keep a pull for `suspend_ms` (Java only).
    pub fn puller(
        self: &Arc<Self>,
        namesrv: &str,
        group: &str,
        suspend_ms: u32,
    ) -> Outcome<Client> {
        self.client(
            "l",
            &format!("puller namesrv={namesrv} group={group} suspend={suspend_ms}"),
        )
    }

    /// Runs an mqadmin command line and returns all that it printed (Java 5.x only).
    pub fn admin(self: &Arc<Self>, words: &str) -> Outcome<String> {
        let client = Client {
            program: Arc::clone(self),
            name: unique("a"),
            lives: false,
        };
        client.ask(&format!("admin -- {words}"))?;
        let printed = client.events("printed");
        match printed.first().and_then(|event| event["text"].as_str()) {
            Some(text) => Ok(text.to_owned()),
            None => failed(format!("mqadmin {words}: no output")),
        }
    }

    /// Ends the program: the end of its input is its end.
    pub fn end(&self) {
        drop(lock(&self.input).take());
        let mut child = lock(&self.child);
        let ended = wait_for("the end of a client program", PATIENCE / 10, || {
            Ok(child.try_wait()?)
        });
        if ended.is_err() {
            // It may have died by itself between the last look and here.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn client(self: &Arc<Self>, kind: &str, command: &str) -> Outcome<Client> {
        let client = Client {
            program: Arc::clone(self),
            name: unique(kind),
            lives: true,
        };
        client.ask(command)?;
        Ok(client)
    }

    fn write(&self, line: &str) -> Outcome {
        match lock(&self.input).as_mut() {
            Some(input) => Ok(writeln!(input, "{line}")?),
            None => failed("the program was ended"),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
    }
}

/// One producer or consumer inside a program. Dropped, it is stopped without waiting.
pub struct Client {
    program: Arc<Program>,
    name: String,
    lives: bool,
}

impl Client {
    /// Sends a command (without its `as=`) and waits for its end.
    pub fn ask(&self, command: &str) -> Outcome {
        self.begin(command)?;
        self.done(command.split(' ').next().unwrap_or_default())
    }

    /// Sends a command and does not wait for its end.
    pub fn begin(&self, command: &str) -> Outcome {
        let (verb, rest) = command.split_once(' ').unwrap_or((command, ""));
        self.program
            .write(&format!("{verb} as={} {rest}", self.name))
    }

    /// Waits for the first end of a command of this verb.
    pub fn done(&self, verb: &str) -> Outcome {
        self.done_times(verb, 1)
    }

    /// Sends `count` messages and returns what became of them. All must be answered with SEND_OK.
    /// Not to be mixed with other ways of sending on one client while they run.
    pub fn send(&self, topic: &str, mode: &str, count: usize, more: &str) -> Outcome<Vec<Sent>> {
        let before = self.sent()?.len();
        let ends = self.ends("send").len();
        self.begin(&format!(
            "send topic={topic} mode={mode} count={count} {more}"
        ))?;
        self.done_times("send", ends + 1)?;
        let sent = self.sent()?.split_off(before);
        let failures = self.events("failed");
        ensure(sent.len() == count && failures.is_empty(), || {
            format!("{mode}: {} of {count} sent, {failures:?}", sent.len())
        })?;
        match sent
            .iter()
            .find(|message| !matches!(message.status.as_str(), "SEND_OK" | "ONEWAY"))
        {
            Some(message) => failed(format!("not sent: {message:?}")),
            None => Ok(sent),
        }
    }

    pub fn sent(&self) -> Outcome<Vec<Sent>> {
        self.decoded("sent")
    }

    pub fn received(&self) -> Outcome<Vec<Received>> {
        self.decoded("received")
    }

    /// The bodies of the sends that ended with an error.
    pub fn refused(&self) -> BTreeSet<String> {
        let failures = self.events("failed");
        failures
            .iter()
            .filter_map(|event| Some(event["body"].as_str()?.to_owned()))
            .collect()
    }

    /// Waits until this consumer has got `count` messages, or more.
    pub fn wait_received(&self, count: usize) -> Outcome<Vec<Received>> {
        wait_received(&[self], count)
    }

    /// Waits until this push consumer owns `count` queues of its topic; returns them (Java only).
    pub fn wait_queues(&self, count: usize) -> Outcome<BTreeSet<String>> {
        wait_for(
            &format!("{} owns {count} queues", self.name),
            PATIENCE,
            || {
                self.begin("queues")?;
                std::thread::sleep(std::time::Duration::from_millis(150));
                let known = self.events("queues");
                let text = known
                    .last()
                    .and_then(|event| event["queues"].as_str())
                    .unwrap_or_default();
                let queues: BTreeSet<_> = text
                    .split(',')
                    .filter(|queue| !queue.is_empty())
                    .map(str::to_owned)
                    .collect();
                Ok((queues.len() == count).then_some(queues))
            },
        )
    }

    /// All events of this client with the given name.
    pub fn events(&self, event: &str) -> Vec<Value> {
        let all = lock(&self.program.events);
        all.iter()
            .filter(|e| e["as"] == self.name.as_str() && e["event"] == event)
            .cloned()
            .collect()
    }

    /// Leaves in good order.
    pub fn stop(mut self) -> Outcome {
        self.lives = false;
        self.ask("stop")
    }

    fn decoded<T: DeserializeOwned>(&self, event: &str) -> Outcome<Vec<T>> {
        let decode = |event: Value| {
            let text = event.to_string();
            serde_json::from_value(event).map_err(|error| Stop::Failed(format!("{text}: {error}")))
        };
        self.events(event).into_iter().map(decode).collect()
    }

    fn ends(&self, verb: &str) -> Vec<Value> {
        self.events("done")
            .into_iter()
            .filter(|event| event["verb"] == verb)
            .collect()
    }

    fn done_times(&self, verb: &str, times: usize) -> Outcome {
        let end = wait_for(&format!("{} {verb}", self.name), PATIENCE, || {
            if let Some(status) = lock(&self.program.child).try_wait()? {
                return failed(format!(
                    "the program ended ({status}); see {}",
                    self.program.log.display()
                ));
            }
            Ok(self.ends(verb).into_iter().nth(times - 1))
        })?;
        match end["error"].as_str() {
            Some(error) => failed(format!(
                "{} {verb}: {error}; see {}",
                self.name,
                self.program.log.display()
            )),
            None => Ok(()),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.lives {
            // The test has failed or the program is gone: nobody waits for this client any more.
            let _ = self.begin("stop");
        }
    }
}

/// Waits until the consumers together have got `count` messages, or more. Then a moment longer, in
/// which a message that arrives twice would show.
pub fn wait_received(consumers: &[&Client], count: usize) -> Outcome<Vec<Received>> {
    let gather = || -> Outcome<Vec<Received>> {
        let mut all = Vec::new();
        for consumer in consumers {
            all.extend(consumer.received()?);
        }
        Ok(all)
    };
    let waited = wait_for(&format!("{count} messages"), PATIENCE, || {
        Ok(Some(gather()?).filter(|all| all.len() >= count))
    });
    if let Err(stop) = waited {
        return failed(format!("{stop}; arrived: {:?}", gather()?));
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    gather()
}

fn unique(kind: &str) -> String {
    format!("{kind}{}", CLIENTS.fetch_add(1, Ordering::Relaxed))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
