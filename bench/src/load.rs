//! The load generator: one thread, one ring, a closed loop over some connections.
//!
//! A turn queues one send for each connection that has requests to make, enters the kernel once,
//! and settles every answer that has come. Nothing is allocated or encoded in it: each connection
//! has as many copies of the frame as it may have in flight, and stamps as many as it sends.
//!
//! A request's time runs from the turn that decided to send it to the turn that saw its answer,
//! so the generator's own work counts as latency, as it does in a client.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::frames::{self, FrameError, Framer, NumberReader, SendFrame, Stamps, Topic};
use crate::record::{Latencies, Traffic, thread_cpu};
use crate::ring::{self, BufferRing};

/// Body bytes of a message.
pub const BODY_BYTES: usize = 1024;
/// Connections of one generator: a completion names its connection in 16 bits.
const CONNECTIONS_MAX: usize = 4_096;
const RECEIVE_BUFFERS: u16 = 128;
const RECEIVE_BUFFER_BYTES: usize = 8 * 1024;
const RECEIVE_GROUP: u16 = 0;
/// How often a turn ends although nothing has come.
static TICK: types::Timespec = types::Timespec::new().nsec(100_000_000);
/// No answer at all for this long is a failure.
const STALL: Duration = Duration::from_secs(10);
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot connect to {address}")]
    Connect {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("the generator's ring failed (io_uring of Linux 6.1 or later is needed)")]
    Ring(#[source] io::Error),
    #[error("{0} connections x {1} in flight is beyond the generator's limits")]
    Shape(usize, usize),
    #[error("the peer closed connection {0}")]
    Closed(usize),
    #[error("connection {0} failed")]
    Socket(usize, #[source] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("an answer with opaque {0}, which is not in flight on that connection")]
    NotAsked(i32),
    #[error("{refused} of {answered} answers had a code other than 0; the first: {first}")]
    Refused {
        refused: u64,
        answered: u64,
        first: String,
    },
    #[error("no answer for 10 s with {0} requests in flight")]
    Stalled(u64),
}

/// How many connections, and how many requests in flight on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub connections: usize,
    pub window: usize,
}

/// A closed loop that keeps its connections between runs.
pub struct Load {
    // Dropped first: nothing may be received into buffers that are gone.
    ring: IoUring,
    buffers: BufferRing,
    connections: Vec<Connection>,
    /// Connections that have something to send and no send in flight.
    ready: Vec<u16>,
    sends_in_flight: usize,
    shape: Shape,
    tally: Tally,
}

struct Connection {
    stream: TcpStream,
    framer: Framer,
    reader: NumberReader,
    /// `window` copies of the frame, sent from the front.
    frames: Box<[u8]>,
    stamps: Stamps,
    slots: Box<[Slot]>,
    /// Slots that are free to be sent.
    free: Vec<u16>,
    queue: u8,
    queues: u8,
    /// Bytes of the send in flight; its frames may not be touched until it is done.
    sending: usize,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// 0 while nothing is in flight.
    opaque: u32,
    round: u32,
    sent_ns: u64,
}

/// What the current run has seen.
struct Tally {
    started: Instant,
    now_ns: u64,
    last_answer_ns: u64,
    answered: u64,
    in_flight: u64,
    refused: u64,
    first_refusal: String,
    latencies: Latencies,
}

impl Load {
    /// Connects and prepares; nothing is sent yet.
    pub fn connect(address: SocketAddr, topic: &Topic, shape: Shape) -> Result<Self, LoadError> {
        let Shape {
            connections: count,
            window,
        } = shape;
        let fits = 1..=CONNECTIONS_MAX;
        if !fits.contains(&count) || !(1..=frames::WINDOW_MAX).contains(&window) {
            return Err(LoadError::Shape(count, window));
        }
        let entries = (2 * count + 2).next_power_of_two() as u32;
        let ring = ring::ring(entries).map_err(LoadError::Ring)?;
        let buffers = BufferRing::new(&ring, RECEIVE_GROUP, RECEIVE_BUFFERS, RECEIVE_BUFFER_BYTES)
            .map_err(LoadError::Ring)?;
        let mut load = Load {
            ring,
            buffers,
            connections: Vec::with_capacity(count),
            ready: (0..count as u16).collect(),
            sends_in_flight: 0,
            shape,
            tally: Tally::new(),
        };
        for index in 0..count {
            let connection = Connection::open(address, topic, window, index)?;
            load.push(receive(&connection, index as u16))?;
            load.connections.push(connection);
        }
        let tick = opcode::Timeout::new(&raw const TICK)
            .flags(types::TimeoutFlags::MULTISHOT)
            .build()
            .user_data(Event::Tick.number(0));
        load.push(tick)?;
        Ok(load)
    }

    /// Keeps the loop closed for this long and returns what was answered in that time. Requests in
    /// flight at the start count from their own sending; those in flight at the end stay so.
    pub fn run(&mut self, time: Duration) -> Result<Traffic, LoadError> {
        let cpu = thread_cpu();
        let began_ns = self.tally.begin();
        let end_ns = began_ns + time.as_nanos() as u64;
        while self.tally.now_ns < end_ns {
            self.send_all()?;
            self.turn()?;
        }
        self.tally.check()?;
        let seconds = (self.tally.now_ns - began_ns) as f64 / 1e9;
        Ok(Traffic {
            connections: self.shape.connections,
            window: self.shape.window,
            seconds,
            rate_per_second: self.tally.answered as f64 / seconds,
            latency: self.tally.latencies.summary(),
            generator_cores: (thread_cpu() - cpu).as_secs_f64() / seconds,
        })
    }

    /// Waits for the answers that are still due and sends nothing more.
    pub fn drain(mut self) -> Result<(), LoadError> {
        self.tally.begin();
        while self.tally.in_flight > 0 {
            self.turn()?;
        }
        self.tally.check()
    }

    /// Queues a send of everything that is free on each ready connection.
    fn send_all(&mut self) -> Result<(), LoadError> {
        while let Some(index) = self.ready.pop() {
            let now_ns = self.tally.now_ns;
            let connection = &mut self.connections[usize::from(index)];
            self.tally.in_flight += connection.free.len() as u64;
            let entry = connection
                .stamp(now_ns)
                .user_data(Event::Sent.number(index));
            self.sends_in_flight += 1;
            self.push(entry)?;
        }
        Ok(())
    }

    /// Enters the kernel once and settles what has completed.
    fn turn(&mut self) -> Result<(), LoadError> {
        // Sends complete while they are submitted: only one completion more is news.
        match self.ring.submit_and_wait(self.sends_in_flight + 1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(LoadError::Ring(error)),
        }
        self.tally.tell_time()?;
        let mut to_receive = Vec::new();
        for completion in self.ring.completion() {
            let (event, index) = Event::of(completion.user_data());
            let at = usize::from(index);
            match event {
                Event::Tick => continue,
                Event::Sent => {
                    self.connections[at].sent(at, completion.result())?;
                    self.sends_in_flight -= 1;
                    if !self.connections[at].free.is_empty() {
                        self.ready.push(index);
                    }
                }
                Event::Received => {
                    let connection = &mut self.connections[at];
                    let had_none = connection.free.is_empty();
                    if let Some(buffer) = cqueue::buffer_select(completion.flags()) {
                        let length = usize::try_from(completion.result()).unwrap_or(0);
                        let bytes = self.buffers.filled(buffer, length);
                        connection.answers(bytes, &mut self.tally)?;
                        self.buffers.give_back(buffer);
                    }
                    if had_none && !connection.free.is_empty() && connection.sending == 0 {
                        self.ready.push(index);
                    }
                    if !cqueue::more(completion.flags()) {
                        may_receive_again(at, completion.result())?;
                        to_receive.push(index);
                    }
                }
            }
        }
        self.buffers.publish();
        for index in to_receive {
            self.push(receive(&self.connections[usize::from(index)], index))?;
        }
        Ok(())
    }

    fn push(&mut self, entry: squeue::Entry) -> Result<(), LoadError> {
        // SAFETY: a send's frames live in a box of its connection and are not touched until it
        // has completed; the other entries point at nothing or at a constant; the ring is
        // quiesced before any of it is dropped.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit().map_err(LoadError::Ring)?;
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        ring::quiesce(&self.ring);
    }
}

impl Connection {
    fn open(
        address: SocketAddr,
        topic: &Topic,
        window: usize,
        index: usize,
    ) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Connect { address, source };
        let stream = TcpStream::connect_timeout(&address, CONNECT_PATIENCE).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let born = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let sender = born.as_nanos() as u64 / 65_536 * 65_536 + index as u64;
        let frame = SendFrame::new(topic, BODY_BYTES, sender, born.as_millis() as u64);
        let queues = topic.queues.clamp(1, frames::QUEUES_MAX) as u8;
        Ok(Connection {
            stream,
            framer: Framer::default(),
            reader: NumberReader::default(),
            frames: frame.bytes.repeat(window).into_boxed_slice(),
            stamps: frame.stamps(),
            slots: vec![Slot::default(); window].into_boxed_slice(),
            free: (0..window as u16).collect(),
            queue: index as u8 % queues,
            queues,
            sending: 0,
        })
    }

    /// Stamps a frame for each free slot; what is to be sent is in front.
    fn stamp(&mut self, now_ns: u64) -> squeue::Entry {
        let frames = self.frames.chunks_exact_mut(self.stamps.frame_bytes());
        for (slot, frame) in self.free.iter().zip(frames) {
            let state = &mut self.slots[usize::from(*slot)];
            state.round = state.round.wrapping_add(1);
            state.opaque = frames::opaque(*slot, state.round);
            state.sent_ns = now_ns;
            self.stamps.stamp(frame, state.opaque, self.queue);
            self.queue = if self.queue + 1 == self.queues {
                0
            } else {
                self.queue + 1
            };
        }
        self.sending = self.free.len() * self.stamps.frame_bytes();
        self.free.clear();
        let length = u32::try_from(self.sending).expect("10,000 frames are below 4 GiB");
        opcode::Send::new(
            types::Fd(self.stream.as_raw_fd()),
            self.frames.as_ptr(),
            length,
        )
        .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
        .build()
    }

    fn sent(&mut self, index: usize, result: i32) -> Result<(), LoadError> {
        if usize::try_from(result).is_ok_and(|bytes| bytes == self.sending) {
            self.sending = 0;
            return Ok(());
        }
        // With MSG_WAITALL a short send only happens on a connection that has failed.
        match result {
            0.. => Err(LoadError::Closed(index)),
            _ => Err(LoadError::Socket(
                index,
                io::Error::from_raw_os_error(-result),
            )),
        }
    }

    /// Settles the requests whose answers end in these bytes.
    fn answers(&mut self, bytes: &[u8], tally: &mut Tally) -> Result<(), LoadError> {
        let Connection {
            framer,
            reader,
            slots,
            free,
            ..
        } = self;
        framer.feed(bytes, |header| {
            let (code, opaque) = reader.read(header)?;
            let asked = u32::try_from(opaque).ok().filter(|&asked| asked != 0);
            let index = asked.and_then(frames::slot_of).unwrap_or(usize::MAX);
            let slot = slots
                .get_mut(index)
                .filter(|slot| Some(slot.opaque) == asked);
            let slot = slot.ok_or(LoadError::NotAsked(opaque))?;
            slot.opaque = 0;
            free.push(index as u16);
            tally.answer(code, slot.sent_ns, header);
            Ok(())
        })
    }
}

impl Tally {
    fn new() -> Self {
        Tally {
            started: Instant::now(),
            now_ns: 0,
            last_answer_ns: 0,
            answered: 0,
            in_flight: 0,
            refused: 0,
            first_refusal: String::new(),
            latencies: Latencies::new(),
        }
    }

    /// Forgets what was counted, not what is in flight.
    fn begin(&mut self) -> u64 {
        self.now_ns = self.started.elapsed().as_nanos() as u64;
        self.last_answer_ns = self.now_ns;
        self.answered = 0;
        self.latencies.clear();
        self.now_ns
    }

    /// The clock is read once a turn.
    fn tell_time(&mut self) -> Result<(), LoadError> {
        self.now_ns = self.started.elapsed().as_nanos() as u64;
        let silent_ns = self.now_ns - self.last_answer_ns;
        if silent_ns > STALL.as_nanos() as u64 {
            return Err(LoadError::Stalled(self.in_flight));
        }
        Ok(())
    }

    fn answer(&mut self, code: i32, sent_ns: u64, header: &[u8]) {
        self.last_answer_ns = self.now_ns;
        self.answered += 1;
        self.in_flight -= 1;
        self.latencies.record(self.now_ns - sent_ns);
        if code != 0 {
            if self.refused == 0 {
                self.first_refusal = String::from_utf8_lossy(header).into_owned();
            }
            self.refused += 1;
        }
    }

    fn check(&self) -> Result<(), LoadError> {
        if self.refused == 0 {
            return Ok(());
        }
        Err(LoadError::Refused {
            refused: self.refused,
            answered: self.answered,
            first: self.first_refusal.clone(),
        })
    }
}

/// What a completion is about; the connection is in the low 16 bits of its number.
#[derive(Clone, Copy)]
enum Event {
    Received,
    Sent,
    Tick,
}

impl Event {
    fn number(self, connection: u16) -> u64 {
        (self as u64) << 16 | u64::from(connection)
    }

    fn of(number: u64) -> (Event, u16) {
        let event = match number >> 16 {
            0 => Event::Received,
            1 => Event::Sent,
            _ => Event::Tick,
        };
        (event, number as u16)
    }
}

fn receive(connection: &Connection, index: u16) -> squeue::Entry {
    let socket = types::Fd(connection.stream.as_raw_fd());
    opcode::RecvMulti::new(socket, RECEIVE_GROUP)
        .build()
        .user_data(Event::Received.number(index))
}

/// A receive ends without harm when all buffers were in use, or when the kernel gives way.
fn may_receive_again(index: usize, result: i32) -> Result<(), LoadError> {
    match result {
        0 => Err(LoadError::Closed(index)),
        1.. => Ok(()),
        _ if result == -libc::ENOBUFS => Ok(()),
        _ => Err(LoadError::Socket(
            index,
            io::Error::from_raw_os_error(-result),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const WINDOW: usize = 4;

    /// A peer that reads a window of requests and answers with what `answer` makes of their
    /// opaques; nothing closes the connection.
    fn peer(answer: fn(&[i64]) -> Vec<(i32, i64)>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            loop {
                let opaques: Vec<i64> = (0..WINDOW).map_while(|_| request(&mut stream)).collect();
                if opaques.len() < WINDOW {
                    return;
                }
                let answers: Vec<u8> = answer(&opaques).iter().flat_map(encoded).collect();
                if answers.is_empty() || stream.write_all(&answers).is_err() {
                    return;
                }
            }
        });
        address
    }

    fn request(stream: &mut TcpStream) -> Option<i64> {
        let mut prefix = [0; frames::PREFIX_BYTES];
        stream.read_exact(&mut prefix).ok()?;
        let (header, body) = frames::lengths(&prefix).expect("the generator's frames are valid");
        let mut bytes = vec![0; header + body];
        stream.read_exact(&mut bytes).ok()?;
        let json: serde_json::Value = serde_json::from_slice(&bytes[..header]).expect("JSON");
        json["opaque"].as_i64()
    }

    fn encoded((code, opaque): &(i32, i64)) -> Vec<u8> {
        let header = format!("{{\"code\":{code},\"flag\":1,\"opaque\":{opaque},\"version\":479}}");
        frames::frame(header.as_bytes(), b"body")
    }

    fn load(address: SocketAddr) -> Load {
        let topic = Topic {
            name: "T".into(),
            broker: "b".into(),
            queues: 4,
        };
        let shape = Shape {
            connections: 1,
            window: WINDOW,
        };
        Load::connect(address, &topic, shape).expect("connected")
    }

    #[test]
    fn answers_in_any_order_are_counted_and_nothing_is_left_after_draining() {
        let address = peer(|opaques| opaques.iter().rev().map(|&opaque| (0, opaque)).collect());
        let mut load = load(address);
        let traffic = load.run(Duration::from_millis(50)).expect("answered");
        assert!(traffic.answered() >= WINDOW as u64);
        assert!(traffic.latency.p50_us > 0.0 && traffic.latency.max_us < 5e6);
        load.drain().expect("answered");
    }

    #[test]
    fn a_code_other_than_success_fails_the_run_and_shows_the_answer() {
        let address = peer(|opaques| {
            let code = |opaque: i64| if opaque % 4 == 3 { 2 } else { 0 };
            opaques
                .iter()
                .map(|&opaque| (code(opaque), opaque))
                .collect()
        });
        let error = load(address)
            .run(Duration::from_millis(20))
            .expect_err("refused");
        let LoadError::Refused {
            refused,
            answered,
            first,
        } = error
        else {
            panic!("{error}")
        };
        assert!(refused > 0 && refused < answered);
        assert!(first.contains("\"code\":2"));
    }

    #[test]
    fn an_answer_that_nobody_waits_for_fails_the_run() {
        let twice = peer(|opaques| vec![(0, opaques[0]), (0, opaques[0])]);
        let foreign = peer(|opaques| vec![(0, opaques[0] + 100)]);
        let none = peer(|_| vec![(0, 0)]);
        for address in [twice, foreign, none] {
            let error = load(address)
                .run(Duration::from_millis(20))
                .expect_err("not asked");
            assert!(matches!(error, LoadError::NotAsked(_)), "{error}");
        }
    }

    #[test]
    fn a_closed_connection_fails_the_run() {
        let address = peer(|_| Vec::new());
        let error = load(address)
            .run(Duration::from_secs(5))
            .expect_err("closed");
        assert!(
            matches!(error, LoadError::Closed(0) | LoadError::Socket(0, _)),
            "{error}"
        );
    }

    #[test]
    fn the_responder_answers_many_connections() {
        let floor = crate::responder::start_responder().expect("started");
        let address = floor.address;
        let topic = Topic {
            name: "T".into(),
            broker: "b".into(),
            queues: 4,
        };
        for shape in [(1, 1), (64, 1), (16, 16), (3, 300)] {
            let shape = Shape {
                connections: shape.0,
                window: shape.1,
            };
            let mut load = Load::connect(address, &topic, shape).expect("connected");
            let traffic = load.run(Duration::from_millis(30)).expect("answered");
            assert!(
                traffic.answered() as usize >= shape.connections,
                "{shape:?}"
            );
            load.drain().expect("answered");
        }
    }

    #[test]
    fn shapes_beyond_the_limits_are_refused() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let topic = Topic {
            name: "T".into(),
            broker: "b".into(),
            queues: 4,
        };
        for (connections, window) in [(0, 1), (1, 0), (5_000, 1), (1, 10_001)] {
            let result = Load::connect(
                address,
                &topic,
                Shape {
                    connections,
                    window,
                },
            );
            assert!(
                matches!(result, Err(LoadError::Shape(..))),
                "{connections}x{window}"
            );
        }
    }
}
