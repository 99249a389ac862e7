//! The entrance: which roles live on which cores, starting them and stopping them.
//!
//! [`start`] makes one thread per core. Each is pinned, builds its roles, makes its ring and begins
//! its loop; listeners are bound before, and accept only after [`Running::open_listeners`].

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::Socket;
use thiserror::Error;

use crate::background::Mailbox as JobMailbox;
use crate::background::{Background, BackgroundError, BackgroundPlan, Jobs};
use crate::chunk::Tail;
use crate::conn::{SocketLimits, Sockets};
use crate::disk::{Disk, DiskPlan, Engine};
use crate::faults::Faults;
use crate::hands::{Desk, Hands, Place, Seat};
use crate::idle::{self, Idle};
use crate::ids::{ListenerId, Micros, RoleId};
use crate::inputs::{Incoming, Mesh};
use crate::listen::{Acceptor, Connects, ListenerPlan, Loads, bind};
use crate::mesh::{Doorbell, EdgeSize, Inlet, Marks, Outlets, ROLES_MAX, edge};
use crate::out::Gather;
use crate::range::{Files, Memory};
use crate::receive::Buffers;
use crate::ring::{Ring, RingError};
use crate::role::{App, Mark, Role};
use crate::segments::Segments;
use crate::stall::Counters;
use crate::stop::{Mailbox, Post, Stops};
use crate::turn::{COMPLETIONS_PER_TURN, Core};

/// One pinned thread with one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorePlan {
    /// The CPU that it is pinned to; `None` leaves it to the scheduler.
    pub cpu: Option<usize>,
    pub idle: Idle,
    /// Submissions of one turn, a power of two; four times as many completions.
    pub ring_entries: u32,
}

/// One role and its core.
pub struct RolePlan<R> {
    pub id: RoleId,
    /// Index of the core.
    pub core: usize,
    /// Run on the core's thread after pinning, so that what it allocates is near.
    pub build: Box<dyn FnOnce() -> R + Send>,
}

/// Everything that [`start`] needs.
pub struct Plan<A: App, R> {
    pub cores: Vec<CorePlan>,
    pub roles: Vec<RolePlan<R>>,
    pub listeners: Vec<ListenerPlan>,
    /// The size of the edge from one role to another, if there is one.
    pub edge: Box<dyn Fn(RoleId, RoleId) -> Option<EdgeSize>>,
    /// Marks as the roles find them.
    pub marks: Marks<A::Mark>,
    pub log: Option<LogPlan>,
    /// Who carries out `Effect::Slow`; without it each is answered with `JobError::Busy`.
    pub background: Option<BackgroundPlan>,
    pub limits: SocketLimits,
    /// An input that keeps a role busy for longer is counted as a stall.
    pub stall_threshold: Micros,
}

/// The log and the files beside it, as the cores see them. Every core can read, write and put;
/// which does is the roles' business.
#[derive(Clone)]
pub struct LogPlan {
    pub tail: Tail,
    pub segments: Arc<Segments>,
    pub engine: Engine,
    /// Queue and index files that each core keeps open.
    pub files_max: usize,
    /// Reads of each core under way or unanswered; more wait.
    pub reads_max: usize,
    pub faults: Option<Faults>,
}

/// Why the cores did not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("the plan is wrong: {0}")]
    Plan(PlanError),
    #[error("{addr} is in use: stop the other program or choose another port")]
    AddressInUse { addr: SocketAddr },
    #[error("cannot listen on {addr}: {cause}")]
    Listen { addr: SocketAddr, cause: io::Error },
    #[error("core {core}: {cause}")]
    Ring { core: usize, cause: RingError },
    #[error("core {core} cannot be pinned to CPU {cpu}: it does not exist or is not allowed here")]
    Pin { core: usize, cpu: usize },
    #[error(transparent)]
    Background(#[from] BackgroundError),
    #[error("no thread or descriptor for a core: {0}")]
    Thread(io::Error),
    #[error("core {core} ended while it started")]
    Ended { core: usize },
}

/// What is wrong with a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    #[error("role {0:?} lives on a core that does not exist")]
    NoCore(RoleId),
    #[error("role {0:?} is there twice, or its number is too high")]
    BadRole(RoleId),
    #[error("listener {0:?} has no candidate, or one that is no role")]
    BadListener(ListenerId),
    #[error("cores {0} and {1} share a CPU, so that neither may spin")]
    SpinOnSharedCpu(usize, usize),
}

/// Running cores.
pub struct Running<A: App> {
    marks: Marks<A::Mark>,
    mesh: Arc<Mesh>,
    stops: Arc<Stops>,
    counters: Vec<Arc<Counters>>,
    listeners: Vec<Listening>,
    threads: Vec<JoinHandle<Result<(), String>>>,
    background: Option<Background>,
}

struct Listening {
    id: ListenerId,
    socket: Socket,
    addr: SocketAddr,
    backlog: i32,
    core: usize,
    open: bool,
}

/// What did not go well when the cores stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StopError {
    #[error("these roles had not stopped in time: {0:?}")]
    TimedOut(Vec<RoleId>),
    #[error("core {core} panicked: {message}")]
    Panicked { core: usize, message: String },
}

/// What one core's thread is made of.
struct CoreParts<A: App, R> {
    core: usize,
    plan: CorePlan,
    /// Idle strategy after what shares the CPU was looked at.
    idle: Idle,
    roles: Vec<RoleParts<A, R>>,
    acceptors: Vec<Acceptor>,
    log: Option<LogPlan>,
    jobs: Option<(Jobs, JobMailbox)>,
    limits: SocketLimits,
    stall_threshold: Micros,
    marks: Marks<A::Mark>,
    mesh: Arc<Mesh>,
    stops: Arc<Stops>,
    counters: Arc<Counters>,
}

struct RoleParts<A: App, R> {
    id: RoleId,
    build: Box<dyn FnOnce() -> R + Send>,
    outlets: Outlets<A::Letter>,
    inlets: Vec<(RoleId, Inlet<A::Letter>)>,
}

/// Starts all cores; returns when each of them serves, or none does.
pub fn start<A: App, R: Role<A> + 'static>(mut plan: Plan<A, R>) -> Result<Running<A>, StartError> {
    check(&plan).map_err(StartError::Plan)?;
    let background = plan.background.take();
    let mut listeners = plan
        .listeners
        .iter()
        .map(|listener| listen_later(listener, &plan))
        .collect::<Result<Vec<_>, _>>()?;
    let mesh = Arc::new(mesh(&plan).map_err(StartError::Thread)?);
    let stops = Arc::new(Stops::default());
    let marks = plan.marks.clone();
    let mut parts = parts(plan, &mesh, &stops);
    let background = match background {
        Some(background) => {
            let (background, ends) = Background::start(background, mesh.doorbells.clone())?;
            for (part, end) in parts.iter_mut().zip(ends) {
                part.jobs = Some(end);
            }
            Some(background)
        }
        None => None,
    };
    for (listening, candidates) in &mut listeners {
        let socket = listening.socket.try_clone().map_err(StartError::Thread)?;
        let acceptor = Acceptor::new(listening.id, socket, std::mem::take(candidates));
        parts[listening.core].acceptors.push(acceptor);
    }
    let mut running = Running {
        marks,
        mesh,
        stops,
        counters: parts.iter().map(|part| part.counters.clone()).collect(),
        listeners: listeners
            .into_iter()
            .map(|(listening, _)| listening)
            .collect(),
        threads: Vec::new(),
        background,
    };
    let (ready, started) = channel();
    for part in parts {
        let ready = ready.clone();
        let thread = std::thread::Builder::new()
            .name(format!("core-{}", part.core))
            .spawn(move || run_core(part, &ready));
        match thread {
            Ok(thread) => running.threads.push(thread),
            Err(error) => {
                running.exit();
                return Err(StartError::Thread(error));
            }
        }
    }
    drop(ready);
    if let Err(error) = all_started(&started, running.threads.len()) {
        running.exit();
        return Err(error);
    }
    Ok(running)
}

fn check<A: App, R>(plan: &Plan<A, R>) -> Result<(), PlanError> {
    let mut seen = [false; ROLES_MAX];
    for role in &plan.roles {
        let known = seen.get_mut(usize::from(role.id.0));
        if known.is_none_or(|known| std::mem::replace(known, true)) {
            return Err(PlanError::BadRole(role.id));
        }
        if role.core >= plan.cores.len() {
            return Err(PlanError::NoCore(role.id));
        }
    }
    for listener in &plan.listeners {
        let exists = |role: &RoleId| seen.get(usize::from(role.0)) == Some(&true);
        if listener.candidates.is_empty() || !listener.candidates.iter().all(exists) {
            return Err(PlanError::BadListener(listener.id));
        }
    }
    for (core, one) in plan.cores.iter().enumerate() {
        if let (Idle::Spin, Some(other)) = (one.idle, sharer(&plan.cores, core)) {
            return Err(PlanError::SpinOnSharedCpu(core, other));
        }
    }
    Ok(())
}

/// Another core on the same CPU.
fn sharer(cores: &[CorePlan], core: usize) -> Option<usize> {
    let cpu = cores[core].cpu?;
    (0..cores.len()).find(|&other| other != core && cores[other].cpu == Some(cpu))
}

fn listen_later<A: App, R>(
    plan: &ListenerPlan,
    whole: &Plan<A, R>,
) -> Result<(Listening, Vec<RoleId>), StartError> {
    let addr = plan.addr;
    let failed = |cause| listen_error(addr, cause);
    let socket = bind(plan).map_err(failed)?;
    let bound = socket.local_addr().map_err(failed)?;
    let first = plan.candidates[0];
    let home = whole.roles.iter().find(|role| role.id == first);
    let listening = Listening {
        id: plan.id,
        socket,
        addr: bound.as_socket().unwrap_or(addr),
        backlog: plan.backlog,
        core: home.expect("the plan was checked").core,
        open: false,
    };
    Ok((listening, plan.candidates.clone()))
}

fn listen_error(addr: SocketAddr, cause: io::Error) -> StartError {
    if cause.kind() == io::ErrorKind::AddrInUse {
        StartError::AddressInUse { addr }
    } else {
        StartError::Listen { addr, cause }
    }
}

fn mesh<A: App, R>(plan: &Plan<A, R>) -> io::Result<Mesh> {
    let mut homes = vec![None; ROLES_MAX];
    let mut residents = vec![0; plan.cores.len()];
    for role in &plan.roles {
        homes[usize::from(role.id.0)] = Some(role.core as u8);
        residents[role.core] |= 1 << role.id.0;
    }
    let doorbells = plan
        .cores
        .iter()
        .map(|_| Doorbell::new().map(Arc::new))
        .collect::<io::Result<Vec<_>>>()?;
    Ok(Mesh {
        doorbells,
        mailboxes: plan.cores.iter().map(|_| Mailbox::default()).collect(),
        loads: Loads::new(),
        homes,
        residents,
        woken_by: plan
            .cores
            .iter()
            .map(|_| AtomicU64::new(u64::MAX))
            .collect(),
        connections_max: plan.limits.connections_max,
    })
}

/// Makes all edges and deals everything out to the cores.
fn parts<A: App, R>(
    plan: Plan<A, R>,
    mesh: &Arc<Mesh>,
    stops: &Arc<Stops>,
) -> Vec<CoreParts<A, R>> {
    let ids: Vec<RoleId> = plan.roles.iter().map(|role| role.id).collect();
    let mut outlets: Vec<Outlets<A::Letter>> = ids.iter().map(|_| Outlets::new()).collect();
    let mut inlets: Vec<Vec<(RoleId, Inlet<A::Letter>)>> = ids.iter().map(|_| vec![]).collect();
    for (from, from_id) in ids.iter().enumerate() {
        for (to, to_id) in ids.iter().enumerate() {
            if let Some(size) = (plan.edge)(*from_id, *to_id) {
                let (outlet, inlet) = edge(size);
                outlets[from].connect(*to_id, outlet);
                inlets[to].push((*from_id, inlet));
            }
        }
    }
    let mut parts: Vec<CoreParts<A, R>> = (0..plan.cores.len())
        .map(|core| CoreParts {
            core,
            plan: plan.cores[core],
            idle: match plan.cores[core].idle {
                Idle::Adaptive { .. } if sharer(&plan.cores, core).is_some() => Idle::Park,
                idle => idle,
            },
            roles: Vec::new(),
            acceptors: Vec::new(),
            log: plan.log.clone(),
            jobs: None,
            limits: plan.limits,
            stall_threshold: plan.stall_threshold,
            marks: plan.marks.clone(),
            mesh: mesh.clone(),
            stops: stops.clone(),
            counters: Arc::new(Counters::default()),
        })
        .collect();
    for ((role, outlets), inlets) in plan.roles.into_iter().zip(outlets).zip(inlets) {
        parts[role.core].roles.push(RoleParts {
            id: role.id,
            build: role.build,
            outlets,
            inlets,
        });
    }
    parts
}

type Started = Result<(), StartError>;

fn all_started(started: &Receiver<Started>, cores: usize) -> Started {
    (0..cores).try_for_each(|_| started.recv().expect("each core's thread says how it went"))
}

/// A core's thread, from pinning to its end. A panic is a message for whoever stops the cores.
fn run_core<A: App, R: Role<A>>(
    parts: CoreParts<A, R>,
    ready: &Sender<Started>,
) -> Result<(), String> {
    let (core, stops) = (parts.core, parts.stops.clone());
    let run = AssertUnwindSafe(|| match build(parts) {
        Ok(mut built) => {
            let _ = ready.send(Ok(()));
            built.run();
            if !built.is_quiet() {
                // The kernel may still write into its buffers.
                std::mem::forget(built);
            }
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    });
    let result = std::panic::catch_unwind(run).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("without a message").to_owned()
    });
    if result.is_err() {
        // Of no use once the cores have started.
        let _ = ready.send(Err(StartError::Ended { core }));
    }
    stops.core_ended();
    result
}

fn build<A: App, R: Role<A>>(parts: CoreParts<A, R>) -> Result<Core<A, R>, StartError> {
    let core = parts.core;
    if let Some(cpu) = parts.plan.cpu
        && !pin(cpu)
    {
        return Err(StartError::Pin { core, cpu });
    }
    let mut seats = Vec::new();
    let mut seat_of = vec![None; ROLES_MAX];
    for (seat, role) in parts.roles.into_iter().enumerate() {
        seat_of[usize::from(role.id.0)] = Some(seat as u8);
        seats.push(Seat {
            place: Place {
                id: role.id,
                seat: seat as u8,
                role: (role.build)(),
                outlets: role.outlets,
                heard: false,
            },
            inlets: role.inlets,
        });
    }
    let woken_by = seats
        .iter()
        .fold(0, |kinds, seat| kinds | seat.place.role.woken_by());
    parts.mesh.woken_by[core].store(woken_by, Ordering::Relaxed);
    let failed = |cause| StartError::Ring { core, cause };
    let mut ring = Ring::new(parts.plan.ring_entries).map_err(failed)?;
    let buffers = Buffers::new(&ring, &parts.limits).map_err(failed)?;
    let mut incoming = Incoming::new(core, parts.mesh, parts.acceptors, seat_of);
    incoming.watch_doorbell(&mut ring);
    let (jobs, answers) = parts.jobs.unzip();
    incoming.jobs = answers;
    let (limits, log) = (parts.limits, parts.log);
    let segments = log.as_ref().map(|log| &log.segments);
    let files = Files::new(segments, limits.cold_buffers, limits.cold_buffer_bytes);
    let memory = Memory::new(log.as_ref().map(|log| log.tail.clone()));
    let now = idle::now();
    Ok(Core {
        seats,
        desk: Desk::new(parts.stall_threshold, now.mono),
        hands: Hands {
            ring,
            sockets: Sockets::new(core as u8, limits, files, parts.counters.clone()),
            gather: Gather::new(),
            memory,
            disk: log.map(disk),
            flushing: Vec::new(),
            jobs,
            connects: Connects::default(),
            refused: VecDeque::new(),
            marks: parts.marks,
            publishers: vec![None; A::Mark::KINDS],
            published: 0,
            stops: parts.stops,
            counters: parts.counters,
        },
        incoming,
        buffers,
        idle: parts.idle,
        now,
        seen: vec![0; A::Mark::KINDS],
        changed: Vec::with_capacity(A::Mark::KINDS),
        done: Vec::with_capacity(COMPLETIONS_PER_TURN),
    })
}

fn pin(cpu: usize) -> bool {
    cpu < libc::CPU_SETSIZE as usize
        && core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
}

fn disk(log: LogPlan) -> Disk {
    let plan = DiskPlan {
        engine: log.engine,
        files_max: log.files_max,
        reads_max: log.reads_max,
        faults: log.faults,
    };
    Disk::new(plan, &log.segments, log.tail)
}

impl<A: App> Running<A> {
    /// The marks, to be read.
    #[must_use]
    pub fn marks(&self) -> &Marks<A::Mark> {
        &self.marks
    }

    /// The counters of each core.
    #[must_use]
    pub fn counters(&self) -> &[Arc<Counters>] {
        &self.counters
    }

    /// The background executor, if the plan had one.
    #[must_use]
    pub fn background(&self) -> Option<&Background> {
        self.background.as_ref()
    }

    /// Open connections of a role.
    #[must_use]
    pub fn connections(&self, role: RoleId) -> u32 {
        self.mesh.loads.of(role)
    }

    /// Where a listener is bound, its port chosen if that was asked for.
    #[must_use]
    pub fn addr(&self, listener: ListenerId) -> Option<SocketAddr> {
        let listening = self.listeners.iter().find(|l| l.id == listener)?;
        Some(listening.addr)
    }

    /// Begins to listen and to accept on every listener.
    pub fn open_listeners(&mut self) -> Result<(), StartError> {
        let ids: Vec<ListenerId> = self.listeners.iter().map(|listener| listener.id).collect();
        ids.into_iter().try_for_each(|id| self.open_listener(id))
    }

    /// Begins to listen and to accept on one listener.
    pub fn open_listener(&mut self, id: ListenerId) -> Result<(), StartError> {
        for listener in self.listeners.iter_mut().filter(|l| l.id == id && !l.open) {
            let addr = listener.addr;
            let listen = listener.socket.listen(listener.backlog);
            listen.map_err(|cause| listen_error(addr, cause))?;
            listener.open = true;
            self.mesh.post(listener.core, Post::Open(id));
        }
        Ok(())
    }

    /// Whether a core has ended, which none does before it is stopped unless it panicked.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Stops accepting and reading, then stops the roles phase by phase, each phase when all roles
    /// of the one before have stopped or `phase_within` is over; then sends what is queued, closes
    /// all connections and ends the cores.
    pub fn stop(
        mut self,
        phases: &[&[RoleId]],
        phase_within: Duration,
    ) -> Result<(), Vec<StopError>> {
        for core in 0..self.counters.len() {
            self.mesh.post(core, Post::StopAccepting);
            self.mesh.post(core, Post::StopReading);
        }
        let mut late = 0;
        for phase in phases {
            for role in *phase {
                self.mesh.post(self.mesh.home(*role), Post::Stop(*role));
            }
            let roles = phase.iter().fold(0, |roles, role| roles | 1u64 << role.0);
            late |= self.stops.wait(roles, Instant::now() + phase_within);
        }
        let mut errors = self.exit();
        if late != 0 {
            let roles = (0..ROLES_MAX as u8).filter(|role| late >> role & 1 == 1);
            errors.insert(0, StopError::TimedOut(roles.map(RoleId).collect()));
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(errors)
        }
    }

    fn exit(&mut self) -> Vec<StopError> {
        for core in 0..self.counters.len() {
            self.mesh.post(core, Post::Exit);
        }
        let mut errors = Vec::new();
        for (core, thread) in self.threads.drain(..).enumerate() {
            let ended = thread.join().unwrap_or_else(|_| Err("twice".to_owned()));
            if let Err(message) = ended {
                errors.push(StopError::Panicked { core, message });
            }
        }
        if let Some(background) = self.background.take() {
            background.stop();
        }
        errors
    }
}

impl<A: App> Drop for Running<A> {
    fn drop(&mut self) {
        self.exit();
    }
}
