//! `ringmq-bench`: how near ringmq comes to what its device and its network can do at all.

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod broker;
mod diskstats;
mod floor;
mod frames;
mod load;
mod machine;
mod quick;
mod record;
mod report;
mod responder;
mod ring;
mod setup;

#[derive(Parser)]
#[command(name = "ringmq-bench", version, about)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure floors, sync-flush sends and idling, and compare them with the goals.
    Quick(quick::Quick),
    /// Be the broker that `quick` measures.
    #[command(name = broker::SERVE, hide = true)]
    Serve {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// 0: measured, and every goal that was measured is met; 1: a goal is missed; 2: a failure.
fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Quick(options) => quick::quick(&options).map_err(Into::into),
        Command::Serve { arguments } => serve(&arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("ringmq-bench: {}", with_causes(&*error));
            ExitCode::from(2)
        }
    }
}

/// Runs a broker until it is told to stop, or until the program that measures it is gone.
fn serve(arguments: &[String]) -> Result<bool, Box<dyn Error>> {
    let stop = Some(rustix::process::Signal::TERM);
    rustix::process::set_parent_process_death_signal(stop)?;
    let own = [
        "ringmq",
        "standalone",
        "--data",
        "data",
        "--namesrv-port",
        "0",
    ];
    let own = own.into_iter().chain(["--broker-port", "0"]);
    let line = own.chain(arguments.iter().map(String::as_str));
    let cli = ringmq::cli::Cli::try_parse_from(line)?;
    Ok(ringmq::commands::run(cli) == ExitCode::SUCCESS)
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
