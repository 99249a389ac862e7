//! Gets the clients from their registries and builds the programs around them, each once: a stamp
//! beside the result names the sources that it was made from.

use super::{Outcome, Stop, failed, scratch, sources};
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The clients that programs exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// rocketmq-client 4.9.8.
    Java4,
    /// rocketmq-client and rocketmq-tools 5.3.3.
    Java5,
    /// rocketmq-client-go v2.1.2.
    Go,
    /// ali-ons 3.12.0.
    Node,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Java4, Kind::Java5, Kind::Go, Kind::Node];

    /// As it stands in the names of tests, topics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Java4 => "java_4_9_8",
            Kind::Java5 => "java_5_3_3",
            Kind::Go => "go_v2",
            Kind::Node => "ali_ons",
        }
    }

    /// The command that starts its program, built if need be.
    pub fn build(self) -> Outcome<Command> {
        match self {
            Kind::Java4 | Kind::Java5 => Ok(java(&java_program(self)?)),
            Kind::Go => Ok(Command::new(go_program()?)),
            Kind::Node => {
                let mut command = Command::new("node");
                command.arg(node_program()?);
                Ok(command)
            }
        }
    }
}

/// `java` with a class path, small and quick to start, with its home in the scratch folder.
pub fn java(class_path: &str) -> Command {
    let mut command = Command::new("java");
    command
        .arg(format!("-Duser.home={}", scratch().join("home").display()))
        .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .args(["-cp", class_path, "Main"]);
    command
}

/// The folder with rocketmq-client 5.3.3, its tools, its broker and its name server.
pub fn java5_jars() -> Outcome<PathBuf> {
    let mut fetch = Command::new(peer_script());
    fetch.arg("fetch");
    jars("5.3.3", fetch)
}

/// The script that starts the Java broker.
pub fn peer_script() -> PathBuf {
    sources().with_file_name("peers").join("rocketmq-java")
}

/// Compiles sources against jars; returns the class path of the two.
pub fn javac(into: &Path, jars: &Path, files: &[PathBuf]) -> Outcome<String> {
    needs("javac", "-version")?;
    let class_path = format!("{}/*", jars.display());
    let stamp = digest(files)?;
    if !stamped(into, stamp) {
        fresh(into)?;
        let mut command = Command::new("javac");
        command
            .arg("-nowarn")
            .arg("-d")
            .arg(into)
            .arg("-cp")
            .arg(&class_path)
            .args(files);
        built(&mut command)?;
        write_stamp(into, stamp)?;
    }
    // Without it the 5.x client would take the broker's settings, which lie among the jars.
    fs::copy(
        sources().join("java5/rmq.logback-test.xml"),
        into.join("rmq.logback-test.xml"),
    )?;
    Ok(format!("{}:{class_path}", into.display()))
}

fn java_program(kind: Kind) -> Outcome<String> {
    needs("java", "-version")?;
    let mut files = with_extension("java", "java")?;
    let into = scratch().join(kind.name());
    if kind == Kind::Java4 {
        return javac(&into, &java4_jars()?, &files);
    }
    files.extend(with_extension("java5", "java")?);
    javac(&into, &java5_jars()?, &files)
}

fn java4_jars() -> Outcome<PathBuf> {
    let mut fetch = Command::new("mvn");
    fetch
        .args(["-q", "-B", "-f"])
        .arg(sources().join("java4/pom.xml"));
    fetch.args(["dependency:copy-dependencies", "-DincludeScope=runtime"]);
    fetch.arg(format!("-DoutputDirectory={}", cache("4.9.8").display()));
    jars("4.9.8", fetch)
}

/// The folder that the command fills with jars, filled once.
fn jars(version: &str, mut fetch: Command) -> Outcome<PathBuf> {
    let folder = cache(version);
    let complete = folder.join(".complete");
    if !complete.exists() {
        needs("mvn", "--version")?;
        fs::create_dir_all(&folder)?;
        fetched(fetch.env("ROCKETMQ_JAVA_LIBS", &folder))?;
        fs::write(complete, version)?;
    }
    Ok(folder)
}

/// Where jars outlive the target folder.
fn cache(version: &str) -> PathBuf {
    let home = env::var_os("HOME").unwrap_or_else(|| "/root".into());
    let cache =
        env::var_os("XDG_CACHE_HOME").map_or_else(|| Path::new(&home).join(".cache"), Into::into);
    cache.join(format!("rocketmq-java-{version}"))
}

fn go_program() -> Outcome<PathBuf> {
    needs("go", "version")?;
    fetched(go().args(["mod", "download"]))?;
    let program = scratch().join("go-client");
    fs::create_dir_all(scratch())?;
    built(go().arg("build").arg("-o").arg(&program).arg("."))?;
    Ok(program)
}

/// `go` in the folder of the client's module, changing nothing there.
pub fn go() -> Command {
    let mut command = Command::new("go");
    command
        .current_dir(sources().join("go"))
        .env("GOFLAGS", "-mod=readonly -buildvcs=false");
    command
}

fn node_program() -> Outcome<PathBuf> {
    needs("node", "--version")?;
    needs("npm", "--version")?;
    let from = sources().join("node");
    let into = scratch().join(Kind::Node.name());
    let parts = ["package.json", "package-lock.json", ".npmrc"];
    let stamp = digest(&parts.map(|part| from.join(part)))?;
    if !stamped(&into, stamp) {
        fresh(&into)?;
        for part in parts {
            fs::copy(from.join(part), into.join(part))?;
        }
        fetched(
            Command::new("npm")
                .args(["ci", "--silent"])
                .current_dir(&into),
        )?;
        write_stamp(&into, stamp)?;
    }
    let program = into.join("client.js");
    fs::copy(from.join("client.js"), &program)?;
    Ok(program)
}

/// The tool is there and runs.
pub fn needs(tool: &str, version: &str) -> Outcome {
    let quiet = Command::new(tool)
        .arg(version)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match quiet {
        Ok(status) if status.success() => Ok(()),
        _ => Err(Stop::Missing(format!("no {tool}"))),
    }
}

/// Runs a step that needs a registry: where it fails, the client is missing.
fn fetched(command: &mut Command) -> Outcome {
    built(command).map_err(|stop| Stop::Missing(format!("{stop}")))
}

/// Runs a step that must not fail.
pub fn built(command: &mut Command) -> Outcome {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    failed(format!(
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&text)
    ))
}

fn with_extension(folder: &str, extension: &str) -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(sources().join(folder))? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new(extension)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn digest(files: &[PathBuf]) -> Outcome<u64> {
    let mut hasher = DefaultHasher::new();
    for file in files {
        fs::read(file)?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn stamped(folder: &Path, stamp: u64) -> bool {
    fs::read_to_string(folder.join("stamp")).is_ok_and(|text| text == format!("{stamp:016x}"))
}

fn write_stamp(folder: &Path, stamp: u64) -> Outcome {
    Ok(fs::write(folder.join("stamp"), format!("{stamp:016x}"))?)
}

/// An empty folder.
fn fresh(folder: &Path) -> Outcome {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(fs::create_dir_all(folder)?)
}
