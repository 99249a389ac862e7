//! What each command does: configuration in, a running process or an exit status out.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use shards::log_lines::{self, LogLines};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::{self, Cli, Command};
use crate::client::{self, ClientError, ReceiveOptions, SendOptions, Stored};
use crate::config::{
    self, BrokerConfig, Flag, FlushDiskType, Layout, LoadError, Loaded, NamesrvConfig,
    Surroundings, allowed_cpus, default_layout,
};
use crate::node::{Node, NodeError, Options};

/// Log lines of cores that may wait for the background thread.
const LOG_LINES_MAX: usize = 4096;

/// Why a command failed. The message says the cause and the cure.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Layout(#[from] config::LayoutError),
    #[error("the CPUs of this process cannot be asked for: {0}")]
    Cpus(std::io::Error),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("the logger cannot be set up: {0}")]
    Logger(log::SetLoggerError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the broker did not stop cleanly; the next start recovers: {0}")]
    Stop(String),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    run(Cli::parse())
}

/// Runs one command.
#[must_use]
pub fn run(cli: Cli) -> ExitCode {
    let done = match cli.command {
        Command::Standalone(standalone) => run_standalone(&standalone),
        Command::Broker(broker) => run_broker(&broker),
        Command::Namesrv(namesrv) => run_namesrv(&namesrv),
        Command::Send(message) => run_send(&message),
        Command::Receive(receive) => run_receive(&receive),
        Command::Keys(keys) => {
            let table = if keys.namesrv {
                config::key_table::<NamesrvConfig>()
            } else {
                config::key_table::<BrokerConfig>()
            };
            print!("{table}");
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringmq: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_standalone(standalone: &cli::Standalone) -> Result<(), CommandError> {
    let lines = logger()?;
    let around = Surroundings::of_this_process()?;
    let file = standalone.config.as_deref();
    let broker = load_broker(file, &standalone.broker_flags(), &around)?;
    let flags = standalone.namesrv_flags(&broker);
    let namesrv = told(config::load::<NamesrvConfig>(None, &flags, &around)?);
    let layout = layout(standalone.machine.cores.as_deref(), true)?;
    serve(
        Options {
            broker: Some(broker),
            namesrv: Some(namesrv),
            layout,
        },
        lines,
    )
}

fn run_broker(broker: &cli::Broker) -> Result<(), CommandError> {
    let lines = logger()?;
    let around = Surroundings::of_this_process()?;
    let config = load_broker(broker.config.as_deref(), &broker.flags(), &around)?;
    let layout = layout(broker.machine.cores.as_deref(), false)?;
    serve(
        Options {
            broker: Some(config),
            namesrv: None,
            layout,
        },
        lines,
    )
}

fn run_namesrv(namesrv: &cli::Namesrv) -> Result<(), CommandError> {
    let lines = logger()?;
    let around = Surroundings::of_this_process()?;
    let config = told(config::load::<NamesrvConfig>(
        namesrv.config.as_deref(),
        &[],
        &around,
    )?);
    let layout = Layout::namesrv_alone(None);
    serve(
        Options {
            broker: None,
            namesrv: Some(config),
            layout,
        },
        lines,
    )
}

fn run_send(message: &cli::SendMessage) -> Result<(), CommandError> {
    warnings();
    let name_servers = name_servers(&message.at)?;
    let sent = client::send(&SendOptions {
        name_servers: &name_servers,
        topic: &message.topic,
        tag: message.tag.as_deref(),
        key: message.key.as_deref(),
        body: message.body.as_bytes(),
    })?;
    println!(
        "msgId={} broker={} queue={} offset={}",
        sent.msg_id, sent.broker, sent.queue_id, sent.queue_offset
    );
    if sent.stored != Stored::Fully {
        eprintln!("ringmq: {}", sent.stored);
    }
    Ok(())
}

fn run_receive(receive: &cli::Receive) -> Result<(), CommandError> {
    warnings();
    let name_servers = name_servers(&receive.at)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone()).map_err(NodeError::Signals)?;
    }
    let options = ReceiveOptions {
        name_servers: &name_servers,
        topic: &receive.topic,
        group: &receive.group,
        follow: receive.follow,
        stop: &stop,
    };
    let mut output = std::io::stdout().lock();
    client::receive(&options, &mut |message| {
        output.write_all(&message.body)?;
        output.write_all(b"\n")?;
        output.flush()
    })?;
    Ok(())
}

/// A client's log lines: what a person at a terminal has to know.
fn warnings() {
    let env = env_logger::Env::default().default_filter_or("warn");
    // Only a test could have set a logger before.
    let _ = env_logger::Builder::from_env(env).try_init();
}

fn name_servers(at: &cli::At) -> Result<Vec<String>, CommandError> {
    let around = Surroundings::of_this_process()?;
    Ok(at.addresses(around.namesrv_addr.as_ref()).0)
}

/// `info` and above to standard error, or what RUST_LOG says.
fn logger() -> Result<LogLines, CommandError> {
    let env = env_logger::Env::default().default_filter_or("info");
    let sink = env_logger::Builder::from_env(env).build();
    let level = sink.filter();
    log_lines::install(Box::new(sink), level, LOG_LINES_MAX).map_err(CommandError::Logger)
}

fn load_broker(
    file: Option<&Path>,
    flags: &[Flag],
    around: &Surroundings,
) -> Result<BrokerConfig, CommandError> {
    let broker = told(config::load::<BrokerConfig>(file, flags, around)?);
    if broker.flush_disk_type == FlushDiskType::AsyncFlush {
        log::warn!("ASYNC_FLUSH: a send is answered before it is on stable storage");
    }
    Ok(broker)
}

fn told<C>(loaded: Loaded<C>) -> C {
    for notice in &loaded.notices {
        log::warn!("{notice}");
    }
    loaded.config
}

fn layout(file: Option<&Path>, namesrv: bool) -> Result<Layout, CommandError> {
    let cpus = allowed_cpus().map_err(CommandError::Cpus)?;
    match file {
        Some(path) => Ok(Layout::load(path, &cpus)?.with_namesrv(namesrv)),
        None => Ok(default_layout(&cpus, namesrv)),
    }
}

/// From start to a clean stop at SIGTERM or SIGINT.
fn serve(options: Options, lines: LogLines) -> Result<(), CommandError> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(NodeError::Signals)?;
    let node = Node::start(options, Some(lines))?;
    println!("{}", node.facts.ready_line());
    if let Some(signal) = signals.forever().next() {
        log::info!("stopping (signal {signal})");
    }
    node.stop().map_err(|errors| {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        CommandError::Stop(texts.join("; "))
    })
}
