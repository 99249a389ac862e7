//! Jobs as steps: what a death after any of them leaves behind.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shards::LogOffset;
use shards::files::{
    Entry, Files, Job, JobDone, JobError, LogDir, SegmentTable, Space, carry_out, leftovers,
    with_suffix,
};
use shards::real_files::RealFiles;
use shards::segments::{OpenError, Segments, parse_segment_name, segment_name};

/// One file's bytes: as written, and as they survive a power loss.
#[derive(Clone, Debug, Default, PartialEq)]
struct Node {
    now: Vec<u8>,
    durable: Vec<u8>,
}

/// A disk in memory that dies before a given step. Names point to numbered nodes; both the names
/// of a directory and the bytes of a node are durable only after their flush.
#[derive(Clone, Debug, Default)]
struct MemoryDisk {
    nodes: Vec<Node>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    /// Steps that are still carried out.
    steps_left: usize,
    steps: Vec<String>,
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

impl MemoryDisk {
    fn step(&mut self, what: &str, path: &Path) -> io::Result<()> {
        if self.steps_left == 0 {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.steps_left -= 1;
        let name = path.strip_prefix("/").unwrap_or(path);
        self.steps.push(format!("{what} {}", name.display()));
        Ok(())
    }

    fn node(&mut self, path: &Path) -> io::Result<&mut Node> {
        let number = *self.names.get(path).ok_or_else(gone)?;
        Ok(&mut self.nodes[number])
    }

    fn holds(path: &Path, bytes: &[u8]) -> MemoryDisk {
        let node = Node {
            now: bytes.to_vec(),
            durable: bytes.to_vec(),
        };
        let names = BTreeMap::from([(path.to_owned(), 0)]);
        MemoryDisk {
            nodes: vec![node],
            durable_names: names.clone(),
            names,
            ..MemoryDisk::default()
        }
    }

    /// What the death of the process, and two losses of power, leave of each file: all; only what
    /// was flushed; every name, but only flushed bytes.
    fn after_death(&self) -> [BTreeMap<PathBuf, Vec<u8>>; 3] {
        let all = |names: &BTreeMap<PathBuf, usize>, durable: bool| {
            let bytes = |number: &usize| {
                let node = &self.nodes[*number];
                if durable { &node.durable } else { &node.now }.clone()
            };
            names
                .iter()
                .map(|(name, number)| (name.clone(), bytes(number)))
                .collect()
        };
        [
            all(&self.names, false),
            all(&self.durable_names, true),
            all(&self.names, true),
        ]
    }
}

impl Files for MemoryDisk {
    fn list(&mut self, dir: &Path) -> io::Result<Vec<Entry>> {
        let files = self
            .names
            .iter()
            .filter(|(name, _)| name.parent() == Some(dir));
        Ok(files
            .map(|(name, number)| Entry {
                name: name
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned())
                    .unwrap_or_default(),
                bytes: self.nodes[*number].now.len() as u64,
                is_dir: false,
                modified_ms: 0,
            })
            .collect())
    }
    fn make_dir_all(&mut self, dir: &Path) -> io::Result<()> {
        self.step("mkdir", dir)
    }
    fn len(&mut self, path: &Path) -> io::Result<u64> {
        Ok(self.node(path)?.now.len() as u64)
    }
    fn create(&mut self, path: &Path, bytes: u64, _: bool) -> io::Result<()> {
        self.step("create", path)?;
        let now = vec![0; bytes as usize];
        match self.names.get(path) {
            Some(&number) => self.nodes[number].now = now,
            None => {
                self.names.insert(path.to_owned(), self.nodes.len());
                let durable = Vec::new();
                self.nodes.push(Node { now, durable });
            }
        }
        Ok(())
    }
    fn read_at(&mut self, path: &Path, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = &self.node(path)?.now;
        let from = bytes.get(at as usize..).unwrap_or_default();
        let len = from.len().min(buf.len());
        buf[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }
    fn write_at(&mut self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.step("write", path)?;
        let end = at as usize + bytes.len();
        let now = &mut self.node(path)?.now;
        now.resize(now.len().max(end), 0);
        now[at as usize..end].copy_from_slice(bytes);
        Ok(())
    }
    fn truncate(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        self.step("truncate", path)?;
        self.node(path)?.now.resize(bytes as usize, 0);
        Ok(())
    }
    fn sync(&mut self, path: &Path) -> io::Result<()> {
        self.step("sync", path)?;
        let node = self.node(path)?;
        node.durable.clone_from(&node.now);
        Ok(())
    }
    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        self.step("sync_dir", dir)?;
        self.durable_names
            .retain(|name, _| name.parent() != Some(dir));
        for (name, number) in &self.names {
            if name.parent() == Some(dir) {
                self.durable_names.insert(name.clone(), *number);
            }
        }
        Ok(())
    }
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step("rename", from)?;
        let number = self.names.remove(from).ok_or_else(gone)?;
        self.names.insert(to.to_owned(), number);
        Ok(())
    }
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        if !self.names.contains_key(path) {
            return Err(gone());
        }
        self.step("remove", path)?;
        self.names.remove(path);
        Ok(())
    }
    fn space(&mut self, _: &Path) -> io::Result<Space> {
        Ok(Space { used: 1, free: 2 })
    }
}

/// Notes what the cores are told, as steps of the same disk would be.
#[derive(Default)]
struct Told(RefCell<Vec<String>>);

impl SegmentTable for Told {
    fn opened(&self, start: LogOffset) -> io::Result<()> {
        self.0.borrow_mut().push(format!("opened {start}"));
        Ok(())
    }
    fn withdrawn(&self, start: LogOffset) {
        self.0.borrow_mut().push(format!("withdrawn {start}"));
    }
    fn files_removed(&self) {
        self.0.borrow_mut().push("removed".to_owned());
    }
}

fn log() -> LogDir {
    LogDir {
        path: "/log".into(),
        segment_bytes: 3 << 20,
    }
}

/// Carries a job out with a death before each of its steps in turn, then to its end; the check
/// sees the disk and whether the job was done. Answers the steps of the whole.
fn at_every_death(
    begin: &MemoryDisk,
    job: &Job,
    mut check: impl FnMut(&MemoryDisk, &[String], bool),
) -> Vec<String> {
    for steps in 0..1000 {
        let mut disk = begin.clone();
        disk.steps_left = steps;
        let told = Told::default();
        let done = carry_out(job, &log(), &mut disk, &told);
        check(&disk, &told.0.borrow(), done == JobDone::Done);
        match done {
            JobDone::Done => return disk.steps,
            JobDone::Failed(JobError::Io { errno, .. }) => assert_eq!(errno, libc::EIO),
            other => panic!("{other:?}"),
        }
    }
    panic!("a job has an end");
}

/// As RocketMQ reads a small file: under its name, else as `.bak` (spec store-format 13).
fn readable(files: &BTreeMap<PathBuf, Vec<u8>>, path: &Path) -> Option<Vec<u8>> {
    let bytes = files.get(path).filter(|bytes| !bytes.is_empty());
    let bak = || files.get(&with_suffix(path, ".bak"));
    bytes.or_else(bak).cloned()
}

#[test]
fn a_replaced_file_is_old_or_new_at_every_death_and_new_when_done() {
    let path = Path::new("/config/topics.json");
    let job = Job::ReplaceFile {
        path: path.to_owned(),
        bytes: b"new".to_vec(),
    };
    let mut seen_old = 0;
    let steps = at_every_death(&MemoryDisk::holds(path, b"old"), &job, |disk, _, done| {
        for files in disk.after_death() {
            match readable(&files, path).as_deref() {
                Some(b"new") => {}
                Some(b"old") if !done => seen_old += 1,
                other => panic!("{other:?} after {:?}", disk.steps),
            }
            if done {
                let bak = with_suffix(path, ".bak");
                assert_eq!(files.get(&bak).map(Vec::as_slice), Some(&b"old"[..]));
            }
        }
    });
    assert!(seen_old > 0);
    assert_eq!(
        steps,
        [
            "create config/topics.json.tmp",
            "write config/topics.json.tmp",
            "sync config/topics.json.tmp",
            "rename config/topics.json",
            "rename config/topics.json.tmp",
            "sync_dir config",
        ]
    );
}

#[test]
fn a_second_attempt_begins_with_a_new_file() {
    let path = Path::new("/config/topics.json");
    let job = Job::ReplaceFile {
        path: path.to_owned(),
        bytes: b"new".to_vec(),
    };
    // Dies before its flush; the pages of that file prove nothing any more.
    let mut disk = MemoryDisk::holds(path, b"old");
    disk.steps_left = 2;
    carry_out(&job, &log(), &mut disk, &Told::default());
    let nodes = disk.nodes.len();
    disk.steps_left = 100;
    let done = carry_out(&job, &log(), &mut disk, &Told::default());
    assert_eq!(done, JobDone::Done);
    assert_eq!(disk.nodes.len(), nodes + 1);
    assert_eq!(disk.after_death()[1][path], b"new");
}

#[test]
fn a_first_file_needs_no_old_one() {
    let path = Path::new("/config/topics.json");
    let job = Job::ReplaceFile {
        path: path.to_owned(),
        bytes: b"new".to_vec(),
    };
    at_every_death(&MemoryDisk::default(), &job, |disk, _, done| {
        for files in disk.after_death() {
            let read = readable(&files, path);
            assert!(read.as_deref() == Some(b"new") || (read.is_none() && !done));
        }
    });
}

#[test]
fn a_segment_stands_in_the_log_only_whole_zero_and_durable() {
    let start = LogOffset(6 << 20);
    let job = Job::PrepareSegment {
        start,
        zeroed_bytes: 2 << 20,
    };
    let path = log().segment_path(start);
    at_every_death(&MemoryDisk::default(), &job, |disk, told, done| {
        for files in disk.after_death() {
            match files.get(&path) {
                Some(bytes) => {
                    assert_eq!(bytes.len(), 3 << 20);
                    assert!(bytes.iter().all(|&byte| byte == 0));
                }
                None => assert!(!done, "durable under its name"),
            }
            let others = files
                .keys()
                .filter(|name| name.parent() == Some(&log().path));
            assert_eq!(others.filter(|name| **name != path).count(), 0);
        }
        assert_eq!(told, if done { vec!["opened 6291456"] } else { vec![] });
    });
}

#[test]
fn what_a_death_leaves_of_a_segment_is_found_and_the_job_can_be_repeated() {
    let start = LogOffset(0);
    let job = Job::PrepareSegment {
        start,
        zeroed_bytes: 3 << 20,
    };
    at_every_death(&MemoryDisk::default(), &job, |disk, _, _| {
        let mut disk = disk.clone();
        let in_place = disk.names.contains_key(&log().segment_path(start));
        let made = !disk.names.is_empty();
        let left = leftovers(&log(), &mut disk).expect("it can be listed");
        assert_eq!(left.len(), usize::from(made && !in_place));
        disk.steps_left = 1000;
        let told = Told::default();
        let done = carry_out(&job, &log(), &mut disk, &told);
        assert_eq!(done, JobDone::Done);
        assert_eq!(*told.0.borrow(), ["opened 0"]);
        let durable = &disk.after_death()[1];
        assert_eq!(durable[&log().segment_path(start)].len(), 3 << 20);
    });
}

#[test]
fn a_segment_that_is_there_is_never_written_over() {
    let start = LogOffset(0);
    let path = log().segment_path(start);
    let mut disk = MemoryDisk::holds(&path, &vec![7; 3 << 20]);
    disk.steps_left = 1000;
    let job = Job::PrepareSegment {
        start,
        zeroed_bytes: 3 << 20,
    };
    carry_out(&job, &log(), &mut disk, &Told::default());
    for files in disk.after_death() {
        assert!(files[&path].iter().all(|&byte| byte == 7));
    }
}

#[test]
fn a_retired_segment_leaves_the_log_whole_and_after_the_cores_were_told() {
    let start = LogOffset(0);
    let path = log().segment_path(start);
    let begin = MemoryDisk::holds(&path, &vec![7; 3 << 20]);
    let job = Job::RetireSegment { start };
    let steps = at_every_death(&begin, &job, |disk, told, done| {
        for files in disk.after_death() {
            if let Some(bytes) = files.get(&path) {
                assert_eq!(bytes.len(), 3 << 20, "after {:?}", disk.steps);
                assert!(!done);
            }
        }
        let durable = &disk.after_death()[1];
        // Shrinking begins only when the name is out for good.
        let shrunk = disk.nodes.iter().any(|node| node.now.len() < 3 << 20);
        assert!(!shrunk || !durable.contains_key(&path));
        assert_eq!(told, ["withdrawn 0"]);
        let left = leftovers(&log(), &mut disk.clone()).expect("it can be listed");
        assert_eq!(
            left.is_empty(),
            done || disk.names.contains_key(&path) || disk.names.is_empty()
        );
    });
    assert_eq!(
        steps.last().map(String::as_str),
        Some("sync_dir log/.ringmq")
    );
    // Once more: there is nothing left to do.
    let mut disk = MemoryDisk::default();
    let done = carry_out(&job, &log(), &mut disk, &Told::default());
    assert_eq!(done, JobDone::Done);
}

#[test]
fn a_full_disk_is_told_apart() {
    struct Full;
    impl Files for Full {
        fn list(&mut self, _: &Path) -> io::Result<Vec<Entry>> {
            Err(gone())
        }
        fn make_dir_all(&mut self, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn len(&mut self, _: &Path) -> io::Result<u64> {
            Err(gone())
        }
        fn create(&mut self, _: &Path, bytes: u64, _: bool) -> io::Result<()> {
            let errno = if bytes > 0 {
                libc::ENOSPC
            } else {
                libc::EDQUOT
            };
            Err(io::Error::from_raw_os_error(errno))
        }
        fn read_at(&mut self, _: &Path, _: u64, _: &mut [u8]) -> io::Result<usize> {
            Err(gone())
        }
        fn write_at(&mut self, _: &Path, _: u64, _: &[u8]) -> io::Result<()> {
            Err(gone())
        }
        fn truncate(&mut self, _: &Path, _: u64) -> io::Result<()> {
            Err(gone())
        }
        fn sync(&mut self, _: &Path) -> io::Result<()> {
            Err(gone())
        }
        fn sync_dir(&mut self, _: &Path) -> io::Result<()> {
            Err(gone())
        }
        fn rename(&mut self, _: &Path, _: &Path) -> io::Result<()> {
            Err(gone())
        }
        fn remove(&mut self, _: &Path) -> io::Result<()> {
            Err(gone())
        }
        fn space(&mut self, _: &Path) -> io::Result<Space> {
            Err(gone())
        }
    }
    let jobs = [
        Job::PrepareSegment {
            start: LogOffset(0),
            zeroed_bytes: 0,
        },
        Job::ReplaceFile {
            path: "/x".into(),
            bytes: vec![1],
        },
    ];
    for job in jobs {
        let done = carry_out(&job, &log(), &mut Full, &Told::default());
        assert_eq!(done, JobDone::Failed(JobError::NoSpace));
    }
    let job = Job::Space { path: "/x".into() };
    let failed = carry_out(&job, &log(), &mut Full, &Told::default());
    assert!(matches!(failed, JobDone::Failed(JobError::Io { errno, .. }) if errno == libc::ENOENT));
}

fn real(job: Job) -> JobDone {
    carry_out(&job, &log(), &mut RealFiles::new(), &Told::default())
}

#[test]
fn the_real_files_do_the_same() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let deep = dir.path().join("a/b/c");
    assert_eq!(real(Job::MakeDir { path: deep.clone() }), JobDone::Done);
    assert_eq!(real(Job::MakeDir { path: deep.clone() }), JobDone::Done);
    let path = deep.join("x.json");
    for bytes in [&b"one"[..], b"two", b""] {
        let job = Job::ReplaceFile {
            path: path.clone(),
            bytes: bytes.to_vec(),
        };
        assert_eq!(real(job), JobDone::Done);
        assert_eq!(std::fs::read(&path).expect("it is there"), bytes);
    }
    let bak = std::fs::read(with_suffix(&path, ".bak")).expect("it is there");
    assert_eq!(bak, b"two");
    let mut files = RealFiles::new();
    let names: Vec<String> = files
        .list(&deep)
        .expect("it is there")
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    assert_eq!(names, ["x.json", "x.json.bak"]);
    let space = real(Job::Space { path: deep.clone() });
    assert!(matches!(space, JobDone::Space(space) if space.free > 0 && space.used > 0));
    assert_eq!(real(Job::RemoveFile { path: path.clone() }), JobDone::Done);
    assert_eq!(real(Job::RemoveFile { path }), JobDone::Done);
    let top = dir.path().join("a");
    assert_eq!(real(Job::RemoveTree { path: top.clone() }), JobDone::Done);
    assert!(!top.exists());
    assert_eq!(real(Job::RemoveTree { path: top }), JobDone::Done);
}

#[test]
fn real_reads_end_at_the_end_and_writes_make_a_file_longer() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let path = dir.path().join("f");
    let mut files = RealFiles::new();
    files.create(&path, 10, true).expect("it can be made");
    files.write_at(&path, 8, b"abcd").expect("it can grow");
    let mut bytes = [9; 8];
    assert_eq!(files.read_at(&path, 6, &mut bytes).expect("readable"), 6);
    assert_eq!(&bytes, b"\0\0abcd\x09\x09");
    files.truncate(&path, 9).expect("it can shrink");
    assert_eq!(files.len(&path).expect("there"), 9);
    // More files than are kept open.
    for number in 0..20 {
        let other = dir.path().join(format!("g{number}"));
        files.create(&other, 1, false).expect("it can be made");
    }
    files.write_at(&path, 0, b"x").expect("opened again");
    files
        .rename(&path, &dir.path().join("h"))
        .expect("it can move");
    assert!(files.write_at(&path, 0, b"x").is_err());
}

fn real_log(dir: &Path) -> LogDir {
    LogDir {
        path: dir.to_owned(),
        segment_bytes: 8192,
    }
}

fn prepare(segments: &Arc<Segments>, start: u64) -> JobDone {
    let job = Job::PrepareSegment {
        start: LogOffset(start),
        zeroed_bytes: 8192,
    };
    carry_out(&job, segments.log(), &mut RealFiles::new(), &**segments)
}

#[test]
fn segments_are_opened_found_added_and_taken() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
    let log = real_log(dir.path());
    let segments = Segments::open(log.clone()).expect("an empty log opens");
    assert_eq!(segments.bounds(), None);
    let mut view = segments.view();
    assert!(view.find(LogOffset(0)).is_none());
    for start in [16384, 24576, 8192] {
        assert_eq!(prepare(&segments, start), JobDone::Done);
    }
    // A hole, and what is there already.
    assert!(matches!(prepare(&segments, 40960), JobDone::Failed(_)));
    assert!(segments.add(LogOffset(8192)).is_err());
    let bounds = Some((LogOffset(8192), LogOffset(32768)));
    assert_eq!(segments.bounds(), bounds);
    let found = view.find(LogOffset(24575)).expect("the middle one").clone();
    assert_eq!(
        (found.start(), found.end()),
        (LogOffset(16384), LogOffset(24576))
    );
    assert_eq!(found.position(LogOffset(16394), 8182), Some(10));
    assert_eq!(found.position(LogOffset(16394), 8183), None);
    assert_eq!(found.position(LogOffset(16383), 1), None);
    assert!(view.find(LogOffset(8191)).is_none() && view.find(LogOffset(32768)).is_none());
    drop(found);
    let taken = segments.take(LogOffset(8192)).expect("the first");
    assert!(!Segments::is_unused(&taken), "the view has it");
    assert!(view.refresh());
    assert!(!view.refresh());
    assert!(Segments::is_unused(&taken));
    assert!(view.find(LogOffset(8192)).is_none());
    assert!(view.find(LogOffset(16384)).is_some());
    // The stray that was not admitted stands in the directory; without it all is found again.
    std::fs::remove_file(log.segment_path(LogOffset(40960))).expect("it is there");
    std::fs::remove_file(log.segment_path(LogOffset(8192))).expect("it is there");
    let again = Segments::open(log).expect("a whole log opens");
    let bounds = Some((LogOffset(16384), LogOffset(32768)));
    assert_eq!(again.bounds(), bounds);
}

#[test]
fn a_directory_that_is_no_log_is_refused_with_the_reason() {
    let refused = |names: &[(&str, usize)]| {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch directory");
        std::fs::create_dir(dir.path().join("subdirectory")).expect("makeable");
        for (name, bytes) in names {
            std::fs::write(dir.path().join(name), vec![0; *bytes]).expect("makeable");
        }
        Segments::open(real_log(dir.path())).map(|segments| segments.bounds())
    };
    let (zero, first) = ("00000000000000000000", "00000000000000008192");
    let third = "00000000000000016384";
    assert!(matches!(refused(&[("x", 1)]), Err(OpenError::Stray { .. })));
    let hole = refused(&[(zero, 8192), (third, 8192)]);
    assert!(matches!(hole, Err(OpenError::Hole { missing, .. }) if missing == first));
    let long = refused(&[(zero, 8193)]);
    assert!(matches!(long, Err(OpenError::Length { bytes: 8193, .. })));
    let empty = refused(&[(zero, 0), (first, 8192)]);
    assert!(matches!(empty, Err(OpenError::Length { bytes: 0, .. })));
    // Java leaves an empty last file behind (spec store-format 2).
    let bounds = refused(&[(zero, 8192), (first, 0)]).expect("an empty last file is nothing");
    assert_eq!(bounds, Some((LogOffset(0), LogOffset(8192))));
    let odd = LogDir {
        path: "/nowhere".into(),
        segment_bytes: 1000,
    };
    assert!(matches!(
        Segments::open(odd),
        Err(OpenError::SegmentBytes(1000))
    ));
}

#[test]
fn names_are_twenty_digits() {
    let name = "00000000001073741824";
    assert_eq!(segment_name(LogOffset(1 << 30)), name);
    assert_eq!(parse_segment_name(name.as_ref()), Some(LogOffset(1 << 30)));
    for wrong in [
        "",
        "1073741824",
        "0000000000107374182x",
        "+0000000001073741824",
        "18446744073709551615",
        "000000000010737418240",
    ] {
        assert_eq!(parse_segment_name(wrong.as_ref()), None, "{wrong}");
    }
}
