//! README's programs and commands, run as they stand there.

use crate::support::toolchain::{Kind, built, go, java5_jars, javac, needs};
use crate::support::{Outcome, PATIENCE, Stop, ensure, failed, scratch, sources, wait_for, world};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The name server of README's text.
const README_NAMESRV: &str = "127.0.0.1:9876";

fn shown(file: &str) -> PathBuf {
    sources().join("readme").join(file)
}

/// What runs below is what README shows.
pub fn readme_shows_the_programs_that_run_here() -> Outcome {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"))?;
    for file in ["Quick.java", "quick.go", "mqadmin.txt"] {
        let text = fs::read_to_string(shown(file))?;
        ensure(readme.contains(text.trim_end()), || {
            format!("README.md does not show {file} as it is")
        })?;
    }
    Ok(())
}

pub fn readme_java_program_sends_and_receives() -> Outcome {
    needs("java", "-version")?;
    let class_path = javac(
        &scratch().join("readme"),
        &java5_jars()?,
        &[shown("Quick.java")],
    )?;
    let mut command = Command::new("java");
    command.arg(format!("-Duser.home={}", scratch().join("home").display()));
    command.args(["-cp", &class_path, "Quick", world::broker()?.namesrv()]);
    let printed = run(command, "readme-java")?;
    for line in ["sent: SEND_OK", "received: hello from Java"] {
        ensure(printed.lines().any(|printed| printed == line), || {
            format!("no {line}: {printed}")
        })?;
    }
    Ok(())
}

pub fn readme_go_program_sends_and_receives() -> Outcome {
    needs("go", "version")?;
    let program = scratch().join("readme-go-program");
    built(
        go().arg("build")
            .arg("-o")
            .arg(&program)
            .arg(shown("quick.go")),
    )?;
    let mut command = Command::new(program);
    command.arg(world::broker()?.namesrv());
    let printed = run(command, "readme-go")?;
    for line in ["sent: true", "received: hello from Go"] {
        ensure(printed.lines().any(|printed| printed == line), || {
            format!("no {line}: {printed}")
        })?;
    }
    Ok(())
}

pub fn readme_mqadmin_commands_work() -> Outcome {
    let program = world::program(Kind::Java5)?;
    let broker = world::broker()?;
    let commands = fs::read_to_string(shown("mqadmin.txt"))?;
    let expected = [
        format!("create topic to {} success.", broker.address()),
        "\"queueDatas\"".to_owned(),
    ];
    ensure(commands.lines().count() == expected.len(), || {
        commands.clone()
    })?;
    for (line, expected) in commands.lines().zip(expected) {
        let Some(words) = line.strip_prefix("mqadmin ") else {
            return failed(format!("not mqadmin: {line}"));
        };
        let printed = program.admin(&words.replace(README_NAMESRV, broker.namesrv()))?;
        ensure(printed.contains(&expected), || format!("{line}: {printed}"))?;
    }
    world::wait_route(broker.namesrv(), "Quick")?;
    Ok(())
}

/// Runs a program to its end within the patience; returns what it printed.
fn run(mut command: Command, name: &str) -> Outcome<String> {
    let out = scratch().join(format!("{name}.out"));
    let log = File::create(scratch().join(format!("{name}.log")))?;
    command
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(log);
    let mut child = command.spawn()?;
    let ended = wait_for(&format!("the end of {name}"), PATIENCE, || {
        Ok(child.try_wait()?)
    });
    let printed = fs::read_to_string(&out)?;
    match ended {
        Ok(status) if status.success() => Ok(printed),
        Ok(status) => failed(format!("{name}: {status}, printed {printed}")),
        Err(stop) => {
            child.kill()?;
            child.wait()?;
            Err(Stop::Failed(format!("{stop}; printed {printed}")))
        }
    }
}
