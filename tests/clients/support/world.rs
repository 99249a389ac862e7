//! What the tests share, because it takes seconds to start: one broker, and one program of each
//! kind.

use super::broker::Broker;
use super::program::Program;
use super::remoting;
use super::toolchain::Kind;
use super::{Outcome, PATIENCE, scratch, wait_for};
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A thing that is started by the first who needs it. A start that failed is not tried again.
type Once<T> = Mutex<Option<Outcome<Arc<T>>>>;

static BROKER: Once<Broker> = Mutex::new(None);
static PROGRAMS: [Once<Program>; Kind::ALL.len()] = [const { Mutex::new(None) }; Kind::ALL.len()];
static TOPICS: AtomicU32 = AtomicU32::new(0);
static STARTS: AtomicU32 = AtomicU32::new(0);

/// The broker that no test stops.
pub fn broker() -> Outcome<Arc<Broker>> {
    once(&BROKER, || Ok(Arc::new(Broker::start()?)))
}

/// The shared program of this kind.
pub fn program(kind: Kind) -> Outcome<Arc<Program>> {
    once(&PROGRAMS[kind as usize], || own_program(kind))
}

/// A program that shares its process with no other test.
pub fn own_program(kind: Kind) -> Outcome<Arc<Program>> {
    fs::create_dir_all(scratch())?;
    // Two at once would build into one folder.
    static BUILD: Mutex<()> = Mutex::new(());
    let building = lock(&BUILD);
    let command = kind.build()?;
    drop(building);
    let number = STARTS.fetch_add(1, Ordering::Relaxed);
    Program::start(
        command,
        scratch().join(format!("{}-{number}.log", kind.name())),
    )
}

/// A topic of this test alone on the broker, known to its name server; `queues` many.
pub fn topic(broker: &Broker, about: &str, queues: u32) -> Outcome<Topic> {
    let name = format!("{about}_{}", TOPICS.fetch_add(1, Ordering::Relaxed));
    let broker_name = remoting::create_topic(broker.namesrv(), broker.address(), &name, queues)?;
    Ok(Topic { name, broker_name })
}

/// A topic that exists, and the name of the broker that has it.
pub struct Topic {
    pub name: String,
    pub broker_name: String,
}

/// Waits until the name server has a route for the topic.
pub fn wait_route(namesrv: &str, topic: &str) -> Outcome<serde_json::Value> {
    wait_for(&format!("a route of {topic}"), PATIENCE, || {
        remoting::route(namesrv, topic)
    })
}

/// Ends everything that was shared.
pub fn end() {
    for program in &PROGRAMS {
        drop(lock(program).take());
    }
    drop(lock(&BROKER).take());
}

fn once<T>(once: &Once<T>, start: impl FnOnce() -> Outcome<Arc<T>>) -> Outcome<Arc<T>> {
    lock(once).get_or_insert_with(start).clone()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
