//! The network part alone: a role that answers every frame at once, and a generator to drive it.
//!
//! `responder [connections] [in flight] [seconds] [park|spin|adaptive] [request bytes]`
//!
//! The responder's core is pinned to CPU 0, the generator to CPU 1. Prints requests per second,
//! latencies, and what the responder's core counted.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::opcode;
use shards::conn::SocketLimits;
use shards::cores::{CorePlan, Plan, RolePlan, Running, start};
use shards::idle::Idle;
use shards::listen::ListenerPlan;
use shards::mesh::Marks;
use shards::ring::{Op, Ring, fd};
use shards::{App, Effects, Input, ListenerId, Mark, Micros, Now, Role, RoleId};

struct Empty;

impl App for Empty {
    type Letter = ();
    type Mark = NoMark;
}

#[derive(Clone, Copy, Debug)]
struct NoMark;

impl Mark for NoMark {
    const KINDS: usize = 0;
    fn new(_: usize, _: u64) -> Self {
        NoMark
    }
    fn kind(self) -> usize {
        0
    }
    fn value(self) -> u64 {
        0
    }
}

/// Length word, header length, the request's opaque, and something behind.
const ANSWER_BYTES: usize = 220;

struct Responder {
    answer: [u8; ANSWER_BYTES],
}

impl Responder {
    fn new() -> Self {
        let mut answer = [7; ANSWER_BYTES];
        answer[..4].copy_from_slice(&(ANSWER_BYTES as u32 - 4).to_be_bytes());
        Responder { answer }
    }
}

impl Role<Empty> for Responder {
    fn handle(&mut self, _: Now, input: Input<'_, Empty>, fx: &mut Effects<'_, Empty>) {
        match input {
            Input::Frame { conn, bytes } if bytes.len() >= 8 => {
                self.answer[8..12].copy_from_slice(&bytes[4..8]);
                fx.reply(conn, |out| out.extend_from_slice(&self.answer));
            }
            Input::Stop => fx.push(shards::Effect::Stopped),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Micros> {
        None
    }

    fn name(&self) -> &'static str {
        "responder"
    }
}

fn serve(idle: Idle) -> Running<Empty> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut running = start(Plan {
        cores: vec![CorePlan {
            cpu: Some(0),
            idle,
            ring_entries: 1024,
        }],
        roles: vec![RolePlan {
            id: RoleId(0),
            core: 0,
            build: Box::new(Responder::new),
        }],
        listeners: vec![ListenerPlan::new(ListenerId(0), addr, vec![RoleId(0)])],
        edge: Box::new(|_, _| None),
        marks: Marks::new(),
        log: None,
        background: None,
        limits: SocketLimits::default(),
        stall_threshold: Micros(10_000),
    })
    .expect("the responder starts");
    running.open_listeners().expect("the port is ours");
    running
}

struct Client {
    socket: TcpStream,
    incoming: Box<[u8]>,
    filled: usize,
    outgoing: Vec<u8>,
    /// When the request with this opaque was made.
    sent_at: Vec<Instant>,
}

struct Generator {
    ring: Ring,
    clients: Vec<Client>,
    request: Vec<u8>,
    latencies: Vec<u32>,
}

impl Generator {
    fn new(addr: SocketAddr, connections: usize, in_flight: usize, request: usize) -> Self {
        let clients = (0..connections).map(|_| {
            let socket = TcpStream::connect(addr).expect("the responder listens");
            socket.set_nodelay(true).expect("a socket option");
            Client {
                socket,
                incoming: vec![0; 64 << 10].into(),
                filled: 0,
                outgoing: Vec::with_capacity(request * in_flight),
                sent_at: vec![Instant::now(); in_flight],
            }
        });
        let mut bytes = vec![1; request];
        bytes[..4].copy_from_slice(&(request as u32 - 4).to_be_bytes());
        Generator {
            clients: clients.collect(),
            ring: Ring::new(1024).expect("io_uring is allowed here"),
            request: bytes,
            latencies: Vec::with_capacity(64 << 20),
        }
    }

    fn ask(&mut self, client: usize, opaque: u32, now: Instant) {
        let request = &mut self.request;
        request[8..12].copy_from_slice(&opaque.to_be_bytes());
        let client = &mut self.clients[client];
        client.sent_at[opaque as usize] = now;
        client.outgoing.extend_from_slice(request);
    }

    fn send(&mut self, slot: usize) {
        let client = &self.clients[slot];
        let (from, len) = (client.outgoing.as_ptr(), client.outgoing.len() as u32);
        let entry = opcode::Send::new(fd(client.socket.as_raw_fd()), from, len)
            .flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            .build();
        // SAFETY: `outgoing` is cleared only after the submit.
        unsafe { self.ring.push_inline(entry, Op::Send { slot: slot as u32 }) };
    }

    fn receive(&mut self, slot: usize) {
        let client = &mut self.clients[slot];
        let room = &mut client.incoming[client.filled..];
        let entry = opcode::Recv::new(
            fd(client.socket.as_raw_fd()),
            room.as_mut_ptr(),
            room.len() as u32,
        )
        .build();
        // SAFETY: `incoming` is touched only after the completion.
        unsafe { self.ring.push(entry, Op::Receive { slot: slot as u32 }) };
    }

    fn run(&mut self, time: Duration) -> Duration {
        let begin = Instant::now();
        for slot in 0..self.clients.len() {
            for opaque in 0..self.clients[slot].sent_at.len() {
                self.ask(slot, opaque as u32, begin);
            }
            self.send(slot);
            self.receive(slot);
        }
        let mut done = Vec::new();
        let mut asked: Vec<usize> = (0..self.clients.len()).collect();
        while begin.elapsed() < time {
            self.ring.submit_and_wait(Some(Duration::from_secs(5)));
            for slot in asked.drain(..) {
                self.clients[slot].outgoing.clear();
            }
            let now = Instant::now();
            self.ring
                .reap(4096, &mut |op, result, _| done.push((op, result)));
            for (op, result) in done.drain(..) {
                match op {
                    Op::Send { .. } => assert!(result > 0, "a send: {result}"),
                    Op::Receive { slot } => {
                        assert!(result > 0, "a receive: {result}");
                        self.clients[slot as usize].filled += result as usize;
                        self.take(slot as usize, now);
                        asked.push(slot as usize);
                    }
                    _ => unreachable!(),
                }
            }
            for slot in &asked {
                if !self.clients[*slot].outgoing.is_empty() {
                    self.send(*slot);
                }
                self.receive(*slot);
            }
        }
        begin.elapsed()
    }

    fn take(&mut self, slot: usize, now: Instant) {
        let client = &mut self.clients[slot];
        let whole = client.filled / ANSWER_BYTES;
        let mut opaques: smallvec::SmallVec<[u32; 64]> = smallvec::SmallVec::new();
        for answer in client.incoming[..client.filled].chunks_exact(ANSWER_BYTES) {
            let opaque = u32::from_be_bytes(answer[8..12].try_into().expect("four bytes"));
            let latency = now - client.sent_at[opaque as usize];
            self.latencies.push(latency.as_nanos() as u32);
            opaques.push(opaque);
        }
        client
            .incoming
            .copy_within(whole * ANSWER_BYTES..client.filled, 0);
        client.filled -= whole * ANSWER_BYTES;
        for opaque in opaques {
            self.ask(slot, opaque, now);
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: usize| {
        arguments
            .get(place)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (connections, in_flight, seconds) = (number(0, 64), number(1, 1), number(2, 5));
    let idle = match arguments.get(3).map(String::as_str) {
        Some("spin") => Idle::Spin,
        Some("adaptive") => Idle::Adaptive { spin: Micros(50) },
        _ => Idle::Park,
    };
    let request = number(4, 200);
    let running = serve(idle);
    let addr = running.addr(ListenerId(0)).expect("it was planned");
    core_affinity::set_for_current(core_affinity::CoreId { id: 1 });
    let mut generator = Generator::new(addr, connections, in_flight, request);
    let time = generator.run(Duration::from_secs(seconds as u64));
    let count = generator.latencies.len();
    generator.latencies.sort_unstable();
    let at = |share: f64| {
        let place = ((count as f64 * share) as usize).min(count.saturating_sub(1));
        f64::from(generator.latencies.get(place).copied().unwrap_or(0)) / 1000.0
    };
    println!(
        "{connections} x {in_flight} {idle:?}: {:.0} requests/s, us p50 {:.1} p99 {:.1} p99.9 {:.1} max {:.1}",
        count as f64 / time.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
    );
    let counters = &running.counters()[0];
    counters.each(|name, value| {
        if value > 0 {
            println!(
                "  {name}: {value} ({:.3} per request)",
                value as f64 / count as f64
            );
        }
    });
    println!(
        "  generator enters: {:.3} per request",
        generator.ring.enters() as f64 / count as f64
    );
    drop(generator);
    running
        .stop(&[&[RoleId(0)]], Duration::from_secs(2))
        .expect("a clean stop");
}
