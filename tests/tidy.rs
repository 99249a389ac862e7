//! Keeps the tree as it is meant to be: what roles may touch, which way imports go, how long files
//! and lines are. An exception is a line here, with its reason.

use std::fs;
use std::path::{Path, PathBuf};

/// Files of `src/` that do rather than decide, with the reason.
const DOERS: [(&str, &str); 5] = [
    (
        "src/node/",
        "starts the process: sockets, files, threads, the clock",
    ),
    ("src/commands.rs", "the command line"),
    ("src/client/", "a blocking client, no role"),
    (
        "src/config/load.rs",
        "reads the configuration file and the environment",
    ),
    (
        "src/config/cores",
        "reads the layout file and asks for the CPUs",
    ),
];

/// What a role must not touch: the world comes to it as inputs and leaves it as effects.
const WORLD: [&str; 12] = [
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::thread",
    "std::process",
    "Instant::now",
    "SystemTime",
    "std::env",
    "std::sync::Mutex",
    "std::sync::mpsc",
    "HashMap::new",
    "RandomState",
];

/// Single lines of deciding files that touch the world, with the reason.
const WORLD_EXCEPTIONS: [(&str, &str, &str); 1] = [(
    "src/namesrv/role.rs",
    "std::fs",
    "reads kvConfig.json before the role starts",
)];

/// `async` belongs into flows; here nothing may suspend.
const STRAIGHT: [&str; 6] = [
    "src/broker/send.rs",
    "src/broker/pull.rs",
    "src/broker/hold.rs",
    "src/store/log.rs",
    "src/store/log/",
    "src/store/dispatch.rs",
];

/// A module of the first column must not import one of the second.
const IMPORTS: [(&str, &[&str]); 4] = [
    (
        "src/wire/",
        &[
            "crate::store",
            "crate::broker",
            "crate::namesrv",
            "crate::node",
            "crate::role",
        ],
    ),
    (
        "src/store/",
        &[
            "crate::node",
            "crate::namesrv",
            "crate::commands",
            "crate::client",
        ],
    ),
    (
        "src/namesrv/",
        &["crate::store", "crate::broker", "crate::node"],
    ),
    ("shards/", &["ringmq::"]),
];

const LINE_CHARS_MAX: usize = 100;
const FILE_LINES_MAX: usize = 850;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below `dir`, as a path from the root and its text.
fn sources(dir: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left = vec![root().join(dir)];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).expect("a folder of the tree") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let name = path.strip_prefix(root()).expect("below the root");
                let text = fs::read_to_string(&path).expect("UTF-8");
                found.push((name.display().to_string(), text));
            }
        }
    }
    assert!(!found.is_empty(), "no sources in {dir}");
    found
}

/// Lines before the first test module, numbered from 1, without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let body = text.split("#[cfg(test)]").next().unwrap_or_default();
    body.lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line.split("//").next().unwrap_or_default()))
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs") || name.contains("golden")
}

#[test]
fn roles_touch_nothing_of_the_world() {
    let mut wrong = Vec::new();
    for (name, text) in sources("src") {
        let does = DOERS.iter().any(|(doer, _)| name.starts_with(doer));
        if does || is_test(&name) || name == "src/main.rs" {
            continue;
        }
        for (number, line) in code(&text) {
            for thing in WORLD.iter().filter(|thing| line.contains(**thing)) {
                let excused = WORLD_EXCEPTIONS
                    .iter()
                    .any(|(file, excused, _)| name == *file && excused == thing);
                if !excused {
                    wrong.push(format!("{name}:{number} uses {thing}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_data_path_never_suspends() {
    let mut wrong = Vec::new();
    for (name, text) in sources("src") {
        if !STRAIGHT.iter().any(|straight| name.starts_with(straight)) || is_test(&name) {
            continue;
        }
        let suspends = |line: &str| line.contains("async ") || line.contains(".await");
        wrong.extend(
            code(&text)
                .filter(|(_, line)| suspends(line))
                .map(|(number, line)| format!("{name}:{number}: {line}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn imports_go_one_way() {
    let mut wrong = Vec::new();
    for (dir, forbidden) in IMPORTS {
        for (name, text) in sources(dir) {
            for (number, line) in code(&text) {
                let found = forbidden.iter().find(|module| line.contains(**module));
                wrong.extend(found.map(|module| format!("{name}:{number} imports {module}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_and_lines_stay_short() {
    let mut wrong = Vec::new();
    for dir in ["src", "shards", "tests", "bench", "tools"] {
        for (name, text) in sources(dir) {
            let lines = text
                .split("#[cfg(test)]\nmod")
                .next()
                .unwrap_or_default()
                .lines()
                .count();
            if lines > FILE_LINES_MAX && !is_test(&name) {
                wrong.push(format!("{name} has {lines} lines"));
            }
            for (number, line) in text.lines().enumerate() {
                let chars = line.chars().count();
                // A long text in a test is data.
                if chars > LINE_CHARS_MAX && !line.contains('"') {
                    wrong.push(format!("{name}:{} has {chars} characters", number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_top_folder_says_what_it_is() {
    for folder in ["src", "shards", "tools", "bench", "tuning", "tests"] {
        let readme = root().join(folder).join("README.md");
        let text = fs::read_to_string(&readme).unwrap_or_default();
        assert!(
            text.lines().count() >= 3,
            "{} says too little",
            readme.display()
        );
    }
}

#[test]
fn the_project_speaks_of_itself_alone() {
    // Assembled here, so that this file does not hold them.
    let words = [
        ["/wo", "rk/"].concat(),
        ["../sha", "red"].concat(),
        ["jfrog", ".io"].concat(),
    ];
    let mut left = vec![root()];
    let mut wrong = Vec::new();
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).expect("a folder of the tree") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if ["target", ".git", "node_modules", "ringmq-data"].contains(&name) {
                continue;
            }
            if path.is_dir() {
                left.push(path);
            } else if let Some(word) = mentions(&path, &words) {
                wrong.push(format!("{} says {word}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn mentions<'w>(path: &Path, words: &'w [String]) -> Option<&'w String> {
    let text = fs::read_to_string(path).ok()?;
    words.iter().find(|word| text.contains(*word))
}
