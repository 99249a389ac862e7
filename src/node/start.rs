//! Starting, step by step.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use shards::background::BackgroundPlan;
use shards::chunk::{Tail, TailWriter, tail};
use shards::conn::SocketLimits;
use shards::cores::{CorePlan, LogPlan, Plan, RolePlan, start};
use shards::disk::Engine;
use shards::files::{Job, JobDone, LogDir, SegmentTable, carry_out};
use shards::idle;
use shards::listen::ListenerPlan;
use shards::lock::StoreLock;
use shards::log_lines::LogLines;
use shards::mesh::Marks;
use shards::probe::{self, Probe};
use shards::real_files::RealFiles;
use shards::segments::Segments as OpenSegments;

use super::any::Any;
use super::settings::{self, Seeds};
use super::{Facts, Node, NodeError, Options, Roles, report};
use crate::boot::{self, Opened};
use crate::broker::control::{
    Checkpoints, Control, Register, Registered, Segments, ZEROED_AT_FIRST_BYTES,
};
use crate::broker::shard::Shard;
use crate::config::{self, BrokerConfig, Layout, NamesrvConfig, RoleKind};
use crate::ids::{LogOffset, RoleId};
use crate::limits;
use crate::namesrv::{Namesrv, NamesrvSettings, RouteLimits, RouteSettings};
use crate::role::{self, CONTROL, DISPATCH, INDEX, LOG, Mark, NAMESRV};
use crate::store::FlushMode;
use crate::store::abort;
use crate::store::dispatch::Dispatch;
use crate::store::index::Index;
use crate::store::log::Log;

const BROKER: shards::ListenerId = shards::ListenerId(0);
const VIP: shards::ListenerId = shards::ListenerId(1);
const NAME: shards::ListenerId = shards::ListenerId(2);

const CATCH_UP: Duration = Duration::from_secs(600);
/// The first registration normally takes milliseconds; without it the broker serves all the same.
const REGISTER_WITHIN: Duration = Duration::from_secs(3);
const STALL_US: u64 = 10_000;
const JOBS_MAX: usize = 4096;
const OPEN_FILES_PER_CORE: usize = 1024;
const READS_PER_CORE: usize = 16;

/// Roles and where they live.
struct Seats {
    roles: Vec<RolePlan<Any>>,
    listeners: Vec<ListenerPlan>,
}

/// Everything of a broker between opening its store and starting its cores.
struct BrokerParts {
    opened: Opened,
    segments: Arc<OpenSegments>,
    writer: TailWriter,
    tail: Tail,
    prepared: LogOffset,
    segments_end: LogOffset,
    engine: Engine,
    engine_text: String,
    lock: StoreLock,
}

impl Node {
    /// Starts what `options` asks for and returns when every listener accepts.
    ///
    /// # Errors
    /// [`NodeError`]: cause and cure; nothing was served.
    pub fn start(mut options: Options, lines: Option<LogLines>) -> Result<Node, NodeError> {
        probe::raise_open_files();
        let seeds = Seeds::draw();
        let namesrv = options.namesrv.as_ref().map(listen_address).transpose()?;
        let namesrv = namesrv.map(choose_port).transpose()?;
        let any_port = options
            .broker
            .as_ref()
            .is_some_and(|config| config.listen_port == 0);
        let broker = options
            .broker
            .as_mut()
            .map(|config| address(config, namesrv))
            .transpose()?;
        let parts = options
            .broker
            .as_ref()
            .map(|config| open(config, options.layout.engine, seeds))
            .transpose()?;
        if parts
            .as_ref()
            .is_some_and(|parts| parts.engine == Engine::Blocking)
        {
            options.layout = options.layout.with_log_apart();
        }
        let engine = parts
            .as_ref()
            .map_or_else(String::new, |parts| parts.engine_text.clone());
        print!(
            "{}",
            report::table(&options.layout, &engine, options.broker.as_ref())
        );

        let mut seats = Seats {
            roles: Vec::new(),
            listeners: Vec::new(),
        };
        let mut facts = Facts {
            namesrv,
            broker,
            mode: options
                .broker
                .as_ref()
                .map_or(FlushMode::Sync, settings::mode),
            engine: parts
                .as_ref()
                .map_or("none", |parts| engine_name(parts.engine)),
            log: None,
            dispatch: None,
        };
        let marks: Marks<Mark> = Marks::new();
        let registered = Registered::default();
        let mut plan_log = None;
        let mut lock = None;
        let mut end = LogOffset(0);
        let shards = options.layout.shards();
        if let (Some(config), Some(parts), Some(address)) = (&options.broker, parts, broker) {
            end = parts.opened.recovered.end;
            publish(&marks, &parts);
            plan_log = Some(LogPlan {
                tail: parts.tail.clone(),
                segments: parts.segments.clone(),
                engine: parts.engine,
                files_max: OPEN_FILES_PER_CORE,
                reads_max: READS_PER_CORE,
                faults: None,
            });
            seats.listen(config, address, shards, any_port);
            lock = seats.seat_broker(
                config,
                &options.layout,
                parts,
                &registered,
                &mut facts,
                seeds,
            )?;
        }
        if let (Some(config), Some(address)) = (&options.namesrv, namesrv) {
            seats.seat_namesrv(config, &options.layout, address)?;
        }
        let background = BackgroundPlan {
            cpu: options.layout.background_cpu,
            jobs_max: JOBS_MAX,
            segments: plan_log.as_ref().map(|log| log.segments.clone()),
            lines,
        };
        let running = start(Plan {
            cores: options.layout.cores.iter().map(core).collect(),
            roles: seats.roles,
            listeners: seats.listeners,
            edge: Box::new(role::edge),
            marks,
            log: plan_log,
            background: Some(background),
            limits: socket_limits(&options),
            stall_threshold: shards::Micros(STALL_US),
        })?;
        let roles = Roles {
            shards: if options.broker.is_some() { shards } else { 0 },
            namesrv: options.namesrv.is_some(),
        };
        let mut node = Node {
            running,
            roles,
            facts,
            _lock: lock,
        };
        node.go(&options, end, &registered)?;
        Ok(node)
    }

    /// From running cores to accepting listeners.
    fn go(
        &mut self,
        options: &Options,
        end: LogOffset,
        registered: &Registered,
    ) -> Result<(), NodeError> {
        if options.namesrv.is_some() {
            self.running.open_listener(NAME)?;
        }
        let Some(config) = &options.broker else {
            return Ok(());
        };
        let until = Instant::now() + CATCH_UP;
        while self.mark(Mark::Dispatched(LogOffset(0))) < end.0 {
            if Instant::now() > until {
                return Err(NodeError::NotCaughtUp(CATCH_UP));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let root = &config.store_path_root_dir;
        abort::begin_run(&mut RealFiles::new(), root, std::process::id()).map_err(|cause| {
            NodeError::Io {
                path: root.join("abort"),
                cause,
            }
        })?;
        self.running.open_listeners()?;
        let wanted = config.namesrv_addr.0.len() as u64;
        let until = Instant::now() + REGISTER_WITHIN;
        while registered.load(Ordering::Acquire) < wanted {
            if Instant::now() > until {
                log::warn!("not all of {wanted} name servers have taken a registration; trying on");
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Seats {
    fn listen(
        &mut self,
        config: &BrokerConfig,
        address: SocketAddr,
        shards: usize,
        any_port: bool,
    ) {
        let candidates: Vec<RoleId> = (0..shards).map(role::shard).collect();
        let bind = bind_ip(&config.bind_address).unwrap_or(address.ip());
        let mut listen = |id, port| {
            self.listeners.push(ListenerPlan {
                id,
                addr: SocketAddr::new(bind, port),
                candidates: candidates.clone(),
                backlog: config.server_socket_backlog as i32,
                send_buffer_bytes: buffer(config.server_socket_snd_buf_size),
                receive_buffer_bytes: buffer(config.server_socket_rcv_buf_size),
            });
        };
        listen(BROKER, address.port());
        if let Some(port) = config.vip_port().filter(|_| !any_port) {
            listen(VIP, port);
        }
    }

    fn seat(&mut self, id: RoleId, core: usize, build: impl FnOnce() -> Any + Send + 'static) {
        self.roles.push(RolePlan {
            id,
            core,
            build: Box::new(build),
        });
    }

    fn seat_broker(
        &mut self,
        config: &BrokerConfig,
        layout: &Layout,
        parts: BrokerParts,
        registered: &Registered,
        facts: &mut Facts,
        seeds: Seeds,
    ) -> Result<Option<StoreLock>, NodeError> {
        let home = |kind| layout.core_of(kind).unwrap_or(0);
        let shards = layout.shards();
        let BrokerParts {
            opened,
            writer,
            tail,
            prepared,
            segments_end,
            lock,
            ..
        } = parts;
        let Opened {
            tables,
            boot,
            recovered,
            dispatch_from,
            index,
        } = opened;

        let cores = (0..layout.cores.len()).filter(|core| layout.cores[*core].has(RoleKind::Shard));
        let host = facts.broker.expect("a broker has an address");
        for (number, core) in cores.enumerate() {
            let settings = settings::shard(config, (number, shards), host, seeds);
            let boot = boot.clone();
            self.seat(role::shard(number), core, move || {
                Any::Shard(Box::new(Shard::new(settings, &boot)))
            });
        }

        let counters = Arc::default();
        facts.log = Some(Arc::clone(&counters));
        let (settings, log_boot) = (settings::log(config), boot.clone());
        let mut for_log = recovered.clone();
        for_log.prepared = prepared;
        self.seat(LOG, home(RoleKind::Log), move || {
            Any::Log(Box::new(Log::new(
                settings, &for_log, &log_boot, writer, counters,
            )))
        });

        let counters = Arc::default();
        facts.dispatch = Some(Arc::clone(&counters));
        let settings = settings::dispatch(config, shards, dispatch_from, seeds);
        let (dispatch_boot, dispatch_tail) = (boot.clone(), tail.clone());
        self.seat(DISPATCH, home(RoleKind::Dispatch), move || {
            Any::Dispatch(Box::new(Dispatch::new(
                settings,
                &dispatch_boot,
                dispatch_tail,
                counters,
            )))
        });

        let settings = settings::index(config);
        self.seat(INDEX, home(RoleKind::Index), move || {
            Any::Index(Box::new(Index::new(settings, index, tail)))
        });

        let servers = resolve(&config.namesrv_addr.0)?;
        let identity = settings::identity(config);
        let times = (
            u64::from(config.register_name_server_period),
            u64::from(config.register_broker_timeout_mills),
        );
        let permission = i32::from(config.broker_permission);
        let register = Register::new(identity, &servers, times, permission, registered.clone());
        let counters = facts.log.clone().expect("set above");
        let settings = settings::control(config, shards, counters);
        let segments = Segments::new(
            settings::segments(config),
            recovered.end,
            prepared,
            segments_end,
        );
        let found = (recovered.end, dispatch_from);
        let mode = settings::mode(config);
        let root = &config.store_path_root_dir;
        let checkpoints = Checkpoints::new(root, mode, &recovered.checkpoint, found);
        self.seat(CONTROL, home(RoleKind::Control), move || {
            Any::Control(Box::new(Control::new(
                settings,
                tables,
                register,
                segments,
                checkpoints,
            )))
        });
        Ok(Some(lock))
    }

    fn seat_namesrv(
        &mut self,
        config: &NamesrvConfig,
        layout: &Layout,
        address: SocketAddr,
    ) -> Result<(), NodeError> {
        self.listeners.push(ListenerPlan {
            id: NAME,
            addr: address,
            candidates: vec![NAMESRV],
            backlog: config.server_socket_backlog as i32,
            send_buffer_bytes: buffer(config.server_socket_snd_buf_size),
            receive_buffer_bytes: buffer(config.server_socket_rcv_buf_size),
        });
        let kv = crate::namesrv::role::read_kv(&config.kv_config_path).map_err(NodeError::Kv)?;
        let settings = NamesrvSettings {
            routes: RouteSettings {
                support_acting_master: config.support_acting_master,
                delete_topic_with_broker_registration: config.delete_topic_with_broker_registration,
                notify_min_broker_id_changed: config.notify_min_broker_id_changed,
            },
            limits: RouteLimits::default(),
            order_messages: config.order_message_enable,
            return_order_config: config.return_order_topic_config_to_broker,
            list_all_topics: config.enable_all_topic_list,
            list_topics: config.enable_topic_list,
            scan_interval_ms: u64::from(config.scan_not_active_broker_interval),
            kv_path: config.kv_config_path.clone(),
            settings: config.entries(),
        };
        let core = layout.core_of(RoleKind::Namesrv).unwrap_or(0);
        self.seat(NAMESRV, core, move || {
            Any::Namesrv(Box::new(Namesrv::new(settings, kv)))
        });
        Ok(())
    }
}

fn buffer(bytes: u32) -> Option<usize> {
    (bytes > 0).then_some(bytes as usize)
}

fn core(core: &config::Core) -> CorePlan {
    let idle = match core.idle {
        config::Idle::Spin => idle::Idle::Spin,
        config::Idle::Adaptive { spin_us } => idle::Idle::Adaptive {
            spin: shards::Micros(u64::from(spin_us)),
        },
        config::Idle::Park => idle::Idle::Park,
    };
    CorePlan {
        cpu: core.cpu,
        idle,
        ring_entries: core.ring_entries,
    }
}

fn engine_name(engine: Engine) -> &'static str {
    match engine {
        Engine::Ring => "ring",
        Engine::Blocking => "blocking",
    }
}

fn socket_limits(options: &Options) -> SocketLimits {
    let broker = options.broker.as_ref();
    let namesrv = options.namesrv.as_ref();
    let connections = broker.map_or(0, |config| config.max_connections)
        + namesrv.map_or(0, |config| config.max_connections);
    let idle_s = broker
        .map(|config| config.server_channel_max_idle_time_seconds)
        .or(namesrv.map(|config| config.server_channel_max_idle_time_seconds))
        .unwrap_or(120);
    SocketLimits {
        connections_max: connections,
        frame_bytes_max: limits::FRAME_BYTES_MAX as u32,
        idle_close: shards::Micros(u64::from(idle_s) * 1_000_000),
        ..SocketLimits::default()
    }
}

/// Where roles begin.
fn publish(marks: &Marks<Mark>, parts: &BrokerParts) {
    let recovered = &parts.opened.recovered;
    for mark in [
        Mark::Written(recovered.end),
        Mark::Durable(recovered.end),
        Mark::Visible(recovered.end),
        Mark::First(recovered.first),
        Mark::Prepared(parts.prepared),
        Mark::Dispatched(parts.opened.dispatch_from),
        Mark::QueuesDurable(parts.opened.dispatch_from),
    ] {
        marks.publish(mark);
    }
}

/// Opens a broker's store, makes its first segment if there is none, and chooses the engine.
fn open(
    config: &BrokerConfig,
    wanted: config::Engine,
    seeds: Seeds,
) -> Result<BrokerParts, NodeError> {
    let root = &config.store_path_root_dir;
    let lock = StoreLock::take(root)?;
    let io = |path: &Path| {
        let path = path.to_owned();
        move |cause| NodeError::Io { path, cause }
    };
    std::fs::create_dir_all(&config.store_path_commit_log)
        .map_err(io(&config.store_path_commit_log))?;
    let probe = Probe::of(root).map_err(io(root))?;
    log::info!("{}", probe.facts);
    if let Some(reason) = probe.facts.not_durable() {
        let sync = settings::mode(config) == FlushMode::Sync;
        if sync && !config.accept_unsafe_store {
            let (dir, reason) = (root.clone(), reason.to_string());
            return Err(NodeError::NotDurable { dir, reason });
        }
        log::warn!("{}: {reason}", root.display());
    }
    let mut files = RealFiles::new();
    let opened = boot::open(&mut files, &settings::store(config, seeds))?;
    let cut = opened.recovered.cut;
    if cut.bytes > 0 {
        log::warn!(
            "{} bytes behind the log's end at {} were torn by a crash and never acknowledged: cut",
            cut.bytes,
            opened.recovered.end
        );
    }
    let dir = LogDir {
        path: config.store_path_commit_log.clone(),
        segment_bytes: u64::from(config.mapped_file_size_commit_log),
    };
    let segments = OpenSegments::open(dir.clone())?;
    let end = opened.recovered.end;
    let (prepared, segments_end) = match segments.bounds() {
        Some((_, segments_end)) if segments_end > end => (segments_end, segments_end),
        _ => first_segment(&dir, &segments, end, &mut files)?,
    };
    let (writer, tail) = tail(limits::TAIL_BYTES, end).map_err(io(root))?;
    let engine = match wanted {
        config::Engine::Auto => probe.floor.engine(),
        config::Engine::Ring => Engine::Ring,
        config::Engine::Blocking => Engine::Blocking,
    };
    let engine_text = engine_text(&probe, engine);
    let parts = BrokerParts {
        opened,
        segments,
        writer,
        tail,
        prepared,
        segments_end,
        engine,
        engine_text,
        lock,
    };
    Ok(parts)
}

fn engine_text(probe: &Probe, engine: Engine) -> String {
    let us = |time: Option<u32>| time.map_or("none".to_owned(), |us| format!("{us} us"));
    format!(
        "log engine: {}; a durable 4 KiB write takes {} by ring, {} blocking (median{})",
        engine_name(engine),
        us(probe.floor.ring_us),
        us(Some(probe.floor.blocking_us)),
        if probe.measured_now {
            ""
        } else {
            ", measured at an earlier start"
        },
    )
}

/// The segment that a new log, or one that ends at a segment's end, goes on in.
fn first_segment(
    dir: &LogDir,
    segments: &Arc<OpenSegments>,
    end: LogOffset,
    files: &mut RealFiles,
) -> Result<(LogOffset, LogOffset), NodeError> {
    let zeroed_bytes = ZEROED_AT_FIRST_BYTES.min(dir.segment_bytes);
    let job = Job::PrepareSegment {
        start: end,
        zeroed_bytes,
    };
    let table: &dyn SegmentTable = &**segments;
    match carry_out(&job, dir, files, table) {
        JobDone::Failed(error) => Err(NodeError::FirstSegment(error)),
        _ => Ok((end.plus(zeroed_bytes), end.plus(dir.segment_bytes))),
    }
}

fn bind_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

fn listen_address(config: &NamesrvConfig) -> Result<SocketAddr, NodeError> {
    let ip = bind_ip(&config.bind_address).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    Ok(SocketAddr::new(ip, config.listen_port))
}

/// Fixes a port that was left to the kernel, so that roles can be told before they are built.
fn choose_port(address: SocketAddr) -> Result<SocketAddr, NodeError> {
    if address.port() != 0 {
        return Ok(address);
    }
    let chosen = TcpListener::bind(address).and_then(|listener| listener.local_addr());
    chosen.map_err(|cause| NodeError::Port { address, cause })
}

/// Fixes the broker's port and addresses; in one process with a name server, that is the one it
/// registers with. Returns where clients are sent.
fn address(
    config: &mut BrokerConfig,
    namesrv: Option<SocketAddr>,
) -> Result<SocketAddr, NodeError> {
    let bind = bind_ip(&config.bind_address).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    config.listen_port = choose_port(SocketAddr::new(bind, config.listen_port))?.port();
    if config.ha_listen_port == 0 {
        config.ha_listen_port = config.listen_port.saturating_add(1);
    }
    if let Some(namesrv) = namesrv {
        let ip = if namesrv.ip().is_unspecified() {
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        } else {
            namesrv.ip()
        };
        config.namesrv_addr.0 = vec![SocketAddr::new(ip, namesrv.port()).to_string()];
    }
    let address = config.broker_address();
    let resolved = resolve(std::slice::from_ref(&address))?;
    resolved.first().copied().ok_or(NodeError::Address {
        address,
        cause: std::io::Error::other("it has no address"),
    })
}

fn resolve(names: &[String]) -> Result<Vec<SocketAddr>, NodeError> {
    let one = |address: &String| {
        let found = address
            .to_socket_addrs()
            .map(|mut addresses| addresses.next());
        let cause = match found {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => std::io::Error::other("no such host"),
            Err(cause) => cause,
        };
        Err(NodeError::Address {
            address: address.clone(),
            cause,
        })
    };
    names.iter().map(one).collect()
}
