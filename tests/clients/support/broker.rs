//! The servers of a test: ringmq in its three forms, or Apache RocketMQ 5.3.3 in its place.

use super::toolchain::{built, java5_jars, peer_script};
use super::{Outcome, ensure, failed, scratch, wait_for};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// From the start of a server to its `ready`; a recovery lies in it.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// A name server and a broker behind it. Dropped, both are killed.
pub enum Broker {
    Ringmq(Ringmq),
    Java(JavaPeer),
}

impl Broker {
    /// ringmq, or the Java broker if the environment has RINGMQ_CLIENTS_PEER=java.
    pub fn start() -> Outcome<Broker> {
        if peer_is_java() {
            return Ok(Broker::Java(JavaPeer::start(&[])?));
        }
        Ok(Broker::Ringmq(Ringmq::standalone()?))
    }

    pub fn namesrv(&self) -> &str {
        match self {
            Broker::Ringmq(ringmq) => &ringmq.namesrv,
            Broker::Java(java) => &java.namesrv,
        }
    }

    pub fn address(&self) -> &str {
        match self {
            Broker::Ringmq(ringmq) => &ringmq.broker,
            Broker::Java(java) => &java.broker,
        }
    }

    /// SIGKILL: what the process has not given to the kernel is gone.
    pub fn kill(&mut self) -> Outcome {
        match self {
            Broker::Ringmq(ringmq) => ringmq.kill(),
            Broker::Java(java) => java.stop("kill"),
        }
    }

    /// SIGTERM; waits for the end.
    pub fn stop(&mut self) -> Outcome {
        match self {
            Broker::Ringmq(ringmq) => ringmq.stop(),
            Broker::Java(java) => java.stop(""),
        }
    }

    /// After `kill` or `stop`: the same store, the same ports.
    pub fn start_again(&mut self) -> Outcome {
        match self {
            Broker::Ringmq(ringmq) => ringmq.start_again(),
            Broker::Java(java) => java.start_again(),
        }
    }
}

pub fn peer_is_java() -> bool {
    std::env::var_os("RINGMQ_CLIENTS_PEER").is_some_and(|peer| peer == "java")
}

/// A ringmq process. `namesrv` or `broker` is empty where it is the other one alone.
pub struct Ringmq {
    pub namesrv: String,
    pub broker: String,
    child: Child,
    folder: TempDir,
    again: Vec<String>,
}

/// Several brokers run beside each other: none should write a gigabyte of zeros ahead.
const SMALL_SEGMENTS: &str = "mappedFileSizeCommitLog=16777216\nbindAddress=127.0.0.1\n\
                              brokerIP1=127.0.0.1\nbrokerName=broker-a\n";

impl Ringmq {
    /// Name server and broker in one process.
    pub fn standalone() -> Outcome<Ringmq> {
        let folder = folder()?;
        let data = folder.path().join("data").display().to_string();
        let (namesrv, broker) = (free_port()?.to_string(), free_port()?.to_string());
        let config = folder.path().join("broker.conf");
        std::fs::write(&config, SMALL_SEGMENTS)?;
        let config = config.display().to_string();
        let arguments = [
            "standalone",
            "-c",
            &config,
            "--data",
            &data,
            "--namesrv-port",
            &namesrv,
            "--broker-port",
            &broker,
        ]
        .map(str::to_owned)
        .to_vec();
        Ringmq::start(folder, arguments)
    }

    /// A name server alone.
    pub fn namesrv() -> Outcome<Ringmq> {
        let folder = folder()?;
        let path = folder.path().display();
        let file = configuration(
            &folder,
            &format!(
                "bindAddress=127.0.0.1\nlistenPort=0\nkvConfigPath={path}/kvConfig.json\n\
                 configStorePath={path}/namesrv.properties\n"
            ),
        )?;
        Ringmq::start(folder, vec!["namesrv".into(), "-c".into(), file])
    }

    /// A broker alone, which registers at the name servers (`;`-separated).
    pub fn broker(name: &str, namesrv: &str) -> Outcome<Ringmq> {
        let folder = folder()?;
        let path = folder.path().display();
        let file = configuration(
            &folder,
            &format!(
                "mappedFileSizeCommitLog=16777216\nbrokerClusterName=DefaultCluster\nbrokerName={name}\nbrokerId=0\n\
                 brokerIP1=127.0.0.1\n\
                 bindAddress=127.0.0.1\nlistenPort=0\nstorePathRootDir={path}/store\n\
                 storePathCommitLog={path}/store/commitlog\n"
            ),
        )?;
        Ringmq::start(
            folder,
            vec![
                "broker".into(),
                "-c".into(),
                file,
                "-n".into(),
                namesrv.into(),
            ],
        )
    }

    fn start(folder: TempDir, arguments: Vec<String>) -> Outcome<Ringmq> {
        let (child, ready) = spawn(folder.path(), &arguments)?;
        let mut ringmq = Ringmq {
            namesrv: address(&ready, "namesrv="),
            broker: address(&ready, "broker="),
            child,
            folder,
            again: arguments,
        };
        let complete = !(ringmq.namesrv.is_empty() && ringmq.broker.is_empty());
        if !complete {
            ringmq.kill()?;
        }
        ensure(complete, || format!("no address in: {ready}"))?;
        Ok(ringmq)
    }

    fn kill(&mut self) -> Outcome {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn stop(&mut self) -> Outcome {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let Some(pid) = pid else {
            return failed("no process to stop");
        };
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .map_err(std::io::Error::from)?;
        let status = wait_for("the clean stop of ringmq", START_PATIENCE, || {
            Ok(self.child.try_wait()?)
        })?;
        ensure(status.success(), || format!("ringmq stopped with {status}"))
    }

    fn start_again(&mut self) -> Outcome {
        let (child, ready) = spawn(self.folder.path(), &self.again)?;
        self.child = child;
        ensure(address(&ready, "broker=") == self.broker, || {
            format!("another address: {ready}")
        })
    }
}

impl Drop for Ringmq {
    fn drop(&mut self) {
        // Fails only if the process has already been waited for.
        let _ = self.kill();
    }
}

/// Starts ringmq and waits for its line `ready ...`.
fn spawn(folder: &Path, arguments: &[String]) -> Outcome<(Child, String)> {
    let (out, err) = (folder.join("stdout"), folder.join("stderr"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringmq"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::options().create(true).append(true).open(&err)?)
        .spawn()?;
    let ready = wait_for("ringmq's line ready", START_PATIENCE, || {
        if let Some(status) = child.try_wait()? {
            let said = fs::read_to_string(&err).unwrap_or_default();
            return failed(format!("ringmq {arguments:?} ended with {status}: {said}"));
        }
        let text = fs::read_to_string(&out)?;
        // A line without its end is not complete yet.
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        Ok(whole
            .lines()
            .find(|line| line.starts_with("ready "))
            .map(str::to_owned))
    });
    match ready {
        Ok(ready) => Ok((child, ready)),
        Err(stop) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(stop)
        }
    }
}

/// The value behind `key` in ringmq's ready line, or nothing.
fn address(ready: &str, key: &str) -> String {
    ready
        .split(' ')
        .find_map(|word| word.strip_prefix(key))
        .unwrap_or_default()
        .to_owned()
}

/// A port P where nothing listens on P, P-2 and P+1, which a Java broker takes as well. Below the
/// ports that the system gives to outgoing connections: a client that tries a dead server there
/// again and again would in the end reach itself.
fn free_port() -> Outcome<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 256) as u16 * 40;
    for _ in 0..1000 {
        let port = 20_002 + (start + NEXT.fetch_add(4, Ordering::Relaxed)) % 12_000;
        let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port - 2) && free(port) && free(port + 1) {
            return Ok(port);
        }
    }
    failed("no free port")
}

fn configuration(folder: &TempDir, text: &str) -> Outcome<String> {
    let file = folder.path().join("server.conf");
    fs::write(&file, text)?;
    Ok(file.display().to_string())
}

/// A folder for one server, on the disk of the target folder.
fn folder() -> Outcome<TempDir> {
    fs::create_dir_all(scratch())?;
    Ok(tempfile::tempdir_in(scratch())?)
}

/// Apache RocketMQ 5.3.3: a broker `broker-a`, and a name server unless it was given others.
pub struct JavaPeer {
    pub namesrv: String,
    pub broker: String,
    folder: TempDir,
    settings: Vec<String>,
}

impl JavaPeer {
    /// `more` are key=value pairs for the script; later ones win.
    pub fn start(more: &[String]) -> Outcome<JavaPeer> {
        // The script looks for the jars where they were put by this.
        java5_jars()?;
        let namesrv = free_port()?;
        let broker = free_port()?;
        let mut settings = vec![
            format!("namesrvPort={namesrv}"),
            format!("listenPort={broker}"),
            format!("haListenPort={}", broker + 1),
            "mappedFileSizeCommitLog=67108864".into(),
            // On a busy machine a send may wait longer than the usual 0.2 s.
            "waitTimeMillsInSendQueue=20000".into(),
        ];
        settings.extend_from_slice(more);
        let mut peer = JavaPeer {
            namesrv: format!("127.0.0.1:{namesrv}"),
            broker: format!("127.0.0.1:{broker}"),
            folder: folder()?,
            settings,
        };
        peer.start_again()?;
        Ok(peer)
    }

    fn start_again(&mut self) -> Outcome {
        let mut command = self.script("start");
        command.args(&self.settings);
        built(&mut command)
    }

    fn stop(&mut self, how: &str) -> Outcome {
        built(self.script("stop").arg(how))
    }

    fn script(&self, verb: &str) -> Command {
        let mut command = Command::new(peer_script());
        command.arg(verb).arg(self.folder.path());
        command
    }
}

impl Drop for JavaPeer {
    fn drop(&mut self) {
        // Its folder goes away; there is nothing to save and nobody to tell.
        let _ = self.stop("kill");
    }
}
