//! The command line: what can be said, and what of it a configuration file could have said.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::knobs::{Range, Setting, ValueError};
use crate::config::{Addresses, Flag};

/// Where a name server listens unless it was told otherwise.
pub const NAMESRV_DEFAULT: &str = "127.0.0.1:9876";

/// Where a standalone process keeps its files unless it is told otherwise.
pub const DATA_DIR_DEFAULT: &str = "ringmq-data";

const EXAMPLES: &str = "\
Try it:
  ringmq standalone                                  name server and broker on this machine
  ringmq send --topic greetings 'hello'              in another terminal
  ringmq receive --topic greetings --group readers   and read it back

Every Apache RocketMQ client can use it: point it at the name server, 127.0.0.1:9876.";

/// A message broker with RocketMQ's protocol and files: acknowledged means durable
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(name = "ringmq", version, about, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program is asked to do.
#[derive(Debug, Clone, PartialEq, Subcommand)]
pub enum Command {
    /// Run a name server and a broker in one process; the quickest way to start
    Standalone(Standalone),
    /// Run a broker that registers with name servers
    Broker(Broker),
    /// Run a name server, which tells clients where the brokers are
    Namesrv(Namesrv),
    /// Send one message
    Send(SendMessage),
    /// Receive messages and print their bodies, one a line
    Receive(Receive),
    /// List the keys of a configuration file with range, default and effect
    Keys(Keys),
}

/// `ringmq standalone`.
#[derive(Debug, Clone, PartialEq, Default, Args)]
pub struct Standalone {
    /// Directory for messages and settings; made if it is not there [default: ringmq-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// Address to listen on; 0.0.0.0 lets other machines in (nobody is asked for a password)
    /// [default: 127.0.0.1]
    #[arg(long, value_name = "ADDR")]
    pub bind: Option<String>,

    /// Port of the name server, the one that clients are given; 0 for any free one
    #[arg(long, value_name = "N", default_value_t = 9876)]
    pub namesrv_port: u16,

    /// Port of the broker, which clients learn from the name server; 0 for any free one
    /// [default: 10911]
    #[arg(long, value_name = "N")]
    pub broker_port: Option<u16>,

    /// Configuration file of the broker, in RocketMQ's format; flags override it
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// How the process uses this machine.
    #[command(flatten)]
    pub machine: Machine,
}

/// `ringmq broker`.
#[derive(Debug, Clone, PartialEq, Default, Args)]
pub struct Broker {
    /// Configuration file in RocketMQ's format; `ringmq keys` lists what can be in it
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Name servers to register with, host:port;host:port; overrides namesrvAddr of the file and
    /// the environment variable NAMESRV_ADDR
    #[arg(short = 'n', long, value_name = "ADDRS", value_parser = addresses)]
    pub namesrv: Option<Addresses>,

    /// How the process uses this machine.
    #[command(flatten)]
    pub machine: Machine,
}

/// What standalone process and broker can both be told about the machine.
#[derive(Debug, Clone, PartialEq, Default, Args)]
pub struct Machine {
    /// When a send is answered: sync, when the message is on stable storage; async, when it is
    /// written, so that a power failure can lose it [default: sync]
    #[arg(long, value_name = "MODE")]
    pub flush: Option<Flush>,

    /// File that says which part runs on which CPU; see tuning/README.md [default: by the number
    /// of CPUs]
    #[arg(long, value_name = "FILE")]
    pub cores: Option<PathBuf>,

    /// Start although the file system cannot keep what it is given (tmpfs, overlay, no write
    /// barriers): acknowledged messages may be lost
    #[arg(long)]
    pub accept_unsafe_store: bool,
}

/// When a send is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Flush {
    /// On stable storage
    Sync,
    /// Written, and flushed twice a second
    Async,
}

/// `ringmq namesrv`.
#[derive(Debug, Clone, PartialEq, Default, Args)]
pub struct Namesrv {
    /// Configuration file in RocketMQ's format; `ringmq keys --namesrv` lists what can be in it
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `ringmq send`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct SendMessage {
    /// Topic to send to; made by the first message unless the broker forbids it
    #[arg(long)]
    pub topic: String,

    /// Tag that receivers can filter by
    #[arg(long)]
    pub tag: Option<String>,

    /// Key that the message can be looked up by
    #[arg(long)]
    pub key: Option<String>,

    /// Where to ask for the topic's brokers.
    #[command(flatten)]
    pub at: At,

    /// The message
    pub body: String,
}

/// `ringmq receive`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct Receive {
    /// Topic to receive from
    #[arg(long)]
    pub topic: String,

    /// Name under which the broker remembers what has been received
    #[arg(long)]
    pub group: String,

    /// Wait for more messages instead of ending when all are received
    #[arg(long)]
    pub follow: bool,

    /// Where to ask for the topic's brokers.
    #[command(flatten)]
    pub at: At,
}

/// Which name servers a client asks.
#[derive(Debug, Clone, PartialEq, Default, Args)]
pub struct At {
    /// Name servers, host:port;host:port [default: NAMESRV_ADDR, else 127.0.0.1:9876]
    #[arg(short = 'n', long, value_name = "ADDRS", value_parser = addresses)]
    pub namesrv: Option<Addresses>,
}

/// `ringmq keys`.
#[derive(Debug, Clone, PartialEq, Default, Args)]
pub struct Keys {
    /// The keys of a name server instead of a broker
    #[arg(long)]
    pub namesrv: bool,
}

fn addresses(text: &str) -> Result<Addresses, ValueError> {
    match Addresses::read(text, &Range::Addresses)? {
        Addresses(list) if list.is_empty() => Err(ValueError(Range::Addresses)),
        addresses => Ok(addresses),
    }
}

impl Standalone {
    /// What the flags say in the words of the broker's file. Without a file, a newcomer's
    /// defaults count: this machine only, files beside where it was started.
    pub fn broker_flags(&self) -> Vec<Flag> {
        let mut flags = Vec::new();
        let is_bare = self.config.is_none();
        let data = self
            .data
            .as_ref()
            .map(|data| data.to_string_lossy().into_owned());
        let default = |text: &str| is_bare.then(|| text.to_owned());
        say(
            &mut flags,
            "--data",
            "storePathRootDir",
            data.or_else(|| default(DATA_DIR_DEFAULT)),
        );
        let bind = self.bind.clone();
        say(
            &mut flags,
            "--bind",
            "bindAddress",
            bind.or_else(|| default("127.0.0.1")),
        );
        say(&mut flags, "standalone", "brokerName", default("broker-a"));
        let port = self.broker_port.map(|port| port.to_string());
        say(&mut flags, "--broker-port", "listenPort", port);
        self.machine.say(&mut flags);
        flags
    }

    /// What they say in the words of the name server's file. It listens where the broker does,
    /// and its settings stand in the broker's directory.
    pub fn namesrv_flags(&self, broker: &crate::config::BrokerConfig) -> Vec<Flag> {
        let mut flags = Vec::new();
        let home = broker.store_path_root_dir.join("namesrv");
        let path = |file: &str| Some(home.join(file).to_string_lossy().into_owned());
        say(
            &mut flags,
            "--bind",
            "bindAddress",
            Some(broker.bind_address.clone()),
        );
        say(
            &mut flags,
            "--namesrv-port",
            "listenPort",
            Some(self.namesrv_port.to_string()),
        );
        say(&mut flags, "--data", "kvConfigPath", path("kvConfig.json"));
        say(
            &mut flags,
            "--data",
            "configStorePath",
            path("namesrv.properties"),
        );
        flags
    }
}

impl Broker {
    /// What the flags say in the words of the file.
    pub fn flags(&self) -> Vec<Flag> {
        let mut flags = Vec::new();
        say(
            &mut flags,
            "-n",
            "namesrvAddr",
            self.namesrv.as_ref().map(Setting::write),
        );
        self.machine.say(&mut flags);
        flags
    }
}

impl Machine {
    fn say(&self, flags: &mut Vec<Flag>) {
        let flush = self.flush.map(|flush| match flush {
            Flush::Sync => "SYNC_FLUSH".to_owned(),
            Flush::Async => "ASYNC_FLUSH".to_owned(),
        });
        say(flags, "--flush", "flushDiskType", flush);
        let unsafe_store = self.accept_unsafe_store.then(|| "true".to_owned());
        say(
            flags,
            "--accept-unsafe-store",
            "acceptUnsafeStore",
            unsafe_store,
        );
    }
}

impl At {
    /// The name servers to ask: of the flag, else of the environment, else the one of this
    /// machine.
    pub fn addresses(&self, environment: Option<&Addresses>) -> Addresses {
        let said = self.namesrv.as_ref().or(environment);
        let said = said.filter(|addresses| !addresses.0.is_empty());
        said.cloned()
            .unwrap_or_else(|| Addresses(vec![NAMESRV_DEFAULT.to_owned()]))
    }
}

fn say(flags: &mut Vec<Flag>, flag: &'static str, key: &'static str, value: Option<String>) {
    flags.extend(value.map(|value| Flag { flag, key, value }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BrokerConfig, FlushDiskType, NamesrvConfig, Surroundings, parse};
    use clap::CommandFactory;
    use std::path::Path;

    fn command(words: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(words.split_whitespace()).map(|cli| cli.command)
    }

    fn around() -> Surroundings {
        Surroundings {
            host_name: "host-7".to_owned(),
            local_address: "192.0.2.7".to_owned(),
            home: PathBuf::from("/home/op"),
            namesrv_addr: None,
        }
    }

    fn standalone(words: &str) -> Standalone {
        match command(words) {
            Ok(Command::Standalone(standalone)) => standalone,
            other => panic!("expected standalone, not {other:?}"),
        }
    }

    #[test]
    fn the_definitions_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_bare_standalone_process_keeps_to_this_machine() {
        let flags = standalone("ringmq standalone");
        let broker = parse::<BrokerConfig>("", b"", &flags.broker_flags(), &around());
        let broker = broker.expect("defaults").config;
        assert_eq!(broker.broker_address(), "127.0.0.1:10911");
        assert_eq!(broker.broker_name, "broker-a");
        assert_eq!(broker.store_path_root_dir, Path::new("ringmq-data"));
        assert_eq!(broker.flush_disk_type, FlushDiskType::SyncFlush);
        let namesrv = parse::<NamesrvConfig>("", b"", &flags.namesrv_flags(&broker), &around());
        let namesrv = namesrv.expect("defaults").config;
        assert_eq!(
            (namesrv.bind_address.as_str(), namesrv.listen_port),
            ("127.0.0.1", 9_876)
        );
        assert_eq!(
            namesrv.kv_config_path,
            Path::new("ringmq-data/namesrv/kvConfig.json")
        );
    }

    #[test]
    fn flags_of_a_standalone_process_beat_its_file_and_only_those_that_were_given() {
        let file = b"brokerName=mine\nbindAddress=0.0.0.0\nlistenPort=1\nstorePathRootDir=/f\n";
        let flags = standalone(
            "ringmq standalone -c b.conf --broker-port 20911 --flush async \
             --accept-unsafe-store --namesrv-port 1234",
        );
        let broker = parse::<BrokerConfig>("", file, &flags.broker_flags(), &around());
        let broker = broker.expect("a configuration").config;
        assert_eq!(broker.broker_address(), "192.0.2.7:20911");
        assert_eq!(
            (broker.broker_name.as_str(), broker.accept_unsafe_store),
            ("mine", true)
        );
        assert_eq!(broker.store_path_root_dir, Path::new("/f"));
        assert_eq!(broker.flush_disk_type, FlushDiskType::AsyncFlush);
        let namesrv = parse::<NamesrvConfig>("", b"", &flags.namesrv_flags(&broker), &around());
        assert_eq!(namesrv.expect("a configuration").config.listen_port, 1_234);
        let flags = standalone("ringmq standalone -c b.conf --data /d --bind 10.0.0.1");
        let broker = parse::<BrokerConfig>("", file, &flags.broker_flags(), &around());
        let broker = broker.expect("a configuration").config;
        assert_eq!(broker.store_path_root_dir, Path::new("/d"));
        assert_eq!(broker.broker_address(), "10.0.0.1:1");
    }

    #[test]
    fn a_broker_is_told_its_name_servers() {
        let words = "ringmq broker -c b.conf -n a:1;b:2 --cores cores.toml";
        let Ok(Command::Broker(broker)) = command(words) else {
            panic!("a broker")
        };
        assert_eq!(
            broker.machine.cores.as_deref(),
            Some(Path::new("cores.toml"))
        );
        let loaded = parse::<BrokerConfig>("", b"namesrvAddr=c:3", &broker.flags(), &around());
        let config = loaded.expect("a configuration").config;
        assert_eq!(config.namesrv_addr.0, ["a:1", "b:2"]);
        assert!(matches!(command("ringmq broker"), Ok(Command::Broker(_))));
    }

    #[test]
    fn a_client_asks_the_flag_then_the_environment_then_this_machine() {
        let words = "ringmq receive --topic T --group G --follow --namesrv a:1";
        let Ok(Command::Receive(receive)) = command(words) else {
            panic!("receive")
        };
        assert!(receive.follow);
        let environment = Addresses(vec!["e:1".to_owned()]);
        assert_eq!(receive.at.addresses(Some(&environment)).0, ["a:1"]);
        let at = At::default();
        assert_eq!(at.addresses(Some(&environment)).0, ["e:1"]);
        assert_eq!(at.addresses(None).0, ["127.0.0.1:9876"]);
        let words = "ringmq send --topic T --tag t --key k hello";
        let Ok(Command::Send(send)) = command(words) else {
            panic!("send")
        };
        assert_eq!((send.topic.as_str(), send.body.as_str()), ("T", "hello"));
        assert_eq!(
            (send.tag.as_deref(), send.key.as_deref()),
            (Some("t"), Some("k"))
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for words in [
            "ringmq",
            "ringmq standalone --namesrv-port 70000",
            "ringmq standalone --flush never",
            "ringmq broker -n nowhere",
            "ringmq broker -n ;",
            "ringmq send --topic T",
            "ringmq send hello",
            "ringmq receive --topic T",
        ] {
            assert!(command(words).is_err(), "{words}");
        }
        let error = command("ringmq broker -n nowhere")
            .expect_err("no port")
            .to_string();
        assert!(error.contains("host:port"), "{error}");
    }

    #[test]
    fn help_shows_the_first_steps() {
        let help = Cli::command().render_long_help().to_string();
        for words in [
            "ringmq standalone",
            "ringmq send --topic",
            "ringmq receive --topic",
        ] {
            assert!(help.contains(words), "{help}");
        }
    }
}
