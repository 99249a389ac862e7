//! Roles made of closures, and plain blocking clients, for tests of running cores.
#![allow(dead_code, reason = "each test file uses its share")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use shards::conn::SocketLimits;
use shards::cores::{CorePlan, Plan, RolePlan, Running, start};
use shards::idle::Idle;
use shards::listen::ListenerPlan;
use shards::mesh::{EdgeSize, Marks};
use shards::{App, Effects, Input, ListenerId, Mark, Micros, Now, Role, RoleId};

pub struct Test;

impl App for Test {
    type Letter = u64;
    type Mark = TestMark;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestMark {
    pub kind: usize,
    pub value: u64,
}

impl Mark for TestMark {
    const KINDS: usize = 3;
    fn new(kind: usize, value: u64) -> Self {
        TestMark { kind, value }
    }
    fn kind(self) -> usize {
        self.kind
    }
    fn value(self) -> u64 {
        self.value
    }
}

type Handle = dyn FnMut(Now, &Input<'_, Test>, &mut Effects<'_, Test>);

/// A role that is one closure; it answers `Stop` by itself unless told otherwise.
pub struct Script {
    handle: Box<Handle>,
    deadline: Option<Micros>,
    stops: bool,
}

impl Script {
    pub fn new(
        handle: impl FnMut(Now, &Input<'_, Test>, &mut Effects<'_, Test>) + 'static,
    ) -> Self {
        Script {
            handle: Box::new(handle),
            deadline: None,
            stops: true,
        }
    }

    /// Lets another script hear what this one hears.
    pub fn call(&mut self, now: Now, input: &Input<'_, Test>, fx: &mut Effects<'_, Test>) {
        (self.handle)(now, input, fx);
    }

    /// Once, at this time.
    pub fn with_deadline(mut self, at: Micros) -> Self {
        self.deadline = Some(at);
        self
    }

    pub fn never_stops(mut self) -> Self {
        self.stops = false;
        self
    }
}

impl Role<Test> for Script {
    fn handle(&mut self, now: Now, input: Input<'_, Test>, fx: &mut Effects<'_, Test>) {
        if matches!(input, Input::Deadline) {
            self.deadline = None;
        }
        (self.handle)(now, &input, fx);
        if self.stops && matches!(input, Input::Stop) {
            fx.push(shards::Effect::Stopped);
        }
    }

    fn deadline(&self) -> Option<Micros> {
        self.deadline
    }

    fn name(&self) -> &'static str {
        "script"
    }
}

pub fn role(
    id: u8,
    core: usize,
    build: impl FnOnce() -> Script + Send + 'static,
) -> RolePlan<Script> {
    RolePlan {
        id: RoleId(id),
        core,
        build: Box::new(build),
    }
}

pub const LISTENER: ListenerId = ListenerId(1);

/// A plan of unpinned, parking cores with one listener for all of `served`.
pub fn plan(cores: usize, roles: Vec<RolePlan<Script>>, served: &[u8]) -> Plan<Test, Script> {
    let core = CorePlan {
        cpu: None,
        idle: Idle::Park,
        ring_entries: 64,
    };
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let candidates: Vec<RoleId> = served.iter().map(|id| RoleId(*id)).collect();
    let listeners = if candidates.is_empty() {
        vec![]
    } else {
        vec![ListenerPlan::new(LISTENER, addr, candidates)]
    };
    Plan {
        cores: vec![core; cores],
        roles,
        listeners,
        edge: Box::new(|from, to| {
            (from != to).then_some(EdgeSize {
                letters: 8,
                lane_bytes: 1024,
            })
        }),
        marks: Marks::new(),
        log: None,
        background: None,
        limits: SocketLimits {
            receive_buffers: 16,
            receive_buffer_bytes: 4096,
            ..SocketLimits::default()
        },
        stall_threshold: Micros(1_000_000),
    }
}

pub fn run(plan: Plan<Test, Script>) -> Running<Test> {
    let mut running = start(plan).expect("the cores start");
    running.open_listeners().expect("the ports are ours");
    running
}

/// Whole frames are answered as they came.
pub fn echo() -> Script {
    Script::new(|_, input, fx| {
        if let Input::Frame { conn, bytes } = input {
            fx.reply(*conn, |out| framed_into(out, bytes));
        }
    })
}

pub fn framed_into(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

pub fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    framed_into(&mut out, bytes);
    out
}

/// Bytes that tell where they belong.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}

pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn connect(running: &Running<Test>) -> TcpStream {
    let addr = running.addr(LISTENER).expect("it was planned");
    let socket = TcpStream::connect(addr).expect("it listens");
    socket.set_nodelay(true).expect("a socket option");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a socket option");
    socket
        .set_write_timeout(Some(PATIENCE))
        .expect("a socket option");
    socket
}

/// The next frame without its length word.
pub fn read_frame(socket: &mut TcpStream) -> Vec<u8> {
    let mut word = [0; 4];
    socket.read_exact(&mut word).expect("a frame comes");
    let mut bytes = vec![0; u32::from_be_bytes(word) as usize];
    socket.read_exact(&mut bytes).expect("a whole frame comes");
    bytes
}

pub fn send_frame(socket: &mut TcpStream, bytes: &[u8]) {
    socket.write_all(&framed(bytes)).expect("the peer reads");
}

/// Whether the peer closes within the time, without sending anything more.
pub fn is_closed_within(socket: &mut TcpStream, time: Duration) -> bool {
    socket
        .set_read_timeout(Some(time))
        .expect("a socket option");
    match socket.read(&mut [0; 16]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

pub fn wait_until(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "it never became true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What roles say to the test.
pub struct Said<T>(pub Receiver<T>);

pub fn said<T>() -> (Sender<T>, Said<T>) {
    let (sender, receiver) = channel();
    (sender, Said(receiver))
}

impl<T> Said<T> {
    pub fn next(&self) -> T {
        self.0
            .recv_timeout(PATIENCE)
            .expect("a role says something")
    }

    pub fn nothing_within(&self, time: Duration) -> bool {
        matches!(self.0.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }
}

/// Milliseconds from now, as a role's deadline.
pub fn soon(millis: u64) -> Micros {
    shards::idle::clock().plus_millis(millis)
}

/// Stops everything; each role in a phase of its own order.
pub fn stop(running: Running<Test>, roles: &[u8]) {
    let roles: Vec<RoleId> = roles.iter().map(|id| RoleId(*id)).collect();
    running
        .stop(&[&roles], PATIENCE)
        .expect("nothing goes wrong");
}
