//! Our reading and writing of bytes against those of the real RocketMQ 5.3.3 (see README.md here).

mod allocations;
mod errors;
mod frames;
mod stores;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// The lines of a packed file.
fn lines(name: &str) -> Vec<Value> {
    let output = Command::new("xz")
        .arg("--decompress")
        .arg("--stdout")
        .arg(golden(name))
        .stderr(Stdio::inherit())
        .output()
        .expect("xz is installed");
    assert!(output.status.success(), "{name} can be unpacked");
    let text = String::from_utf8(output.stdout).expect("the file is UTF-8");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

fn unhex(hex: &str) -> Vec<u8> {
    assert_eq!(hex.len() % 2, 0, "an even number of digits");
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hex digit") as u8;
    hex.as_bytes()
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name]
        .as_str()
        .unwrap_or_else(|| panic!("{name} is a text in {value}"))
}

fn number(value: &Value, name: &str) -> i64 {
    value[name]
        .as_i64()
        .unwrap_or_else(|| panic!("{name} is a number in {value}"))
}
