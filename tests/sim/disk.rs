//! A disk that forgets: every file has what is seen and what is on stable storage.
//!
//! ```text
//!  write -> now, its sectors dirty -- sync --> safe          power loss: of the dirty sectors any
//!  name  -> now, an op in its dir  -- sync_dir --> safe      subset, of the ops any prefix
//!  log write: flying until it ends: its sectors may survive one by one, old or new
//! ```
//!
//! Each call is one step. The disk dies before a chosen step: from then on every call fails, and
//! [`Disk::lose`] makes what the next start finds.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use shards::files::{Entry, Files, Space};

use crate::rng::Rng;

pub const SECTOR: usize = 512;

/// A switch that makes the simulated world wrong, so that an oracle must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Durable writes are answered before they are durable.
    AckBeforeFlush,
    /// Directory syncs do nothing.
    NoDirSync,
    /// Zeros are not written.
    NoZeroing,
    /// Nothing is synced while a store is opened.
    NoSyncAtOpen,
    /// A letter is lost now and then.
    DroppedLetter,
    /// Nobody hears that an edge has room again.
    DroppedRoom,
    /// Consumers see what is written but not durable.
    EarlyVisible,
    /// A connection's slot is used again under the same generation.
    SlotReused,
}

/// Chances of failure, each once in so many calls; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub sync_fails: u64,
    pub write_fails: u64,
    pub short_write: u64,
    pub no_space: u64,
    pub read_fails: u64,
    pub stall: u64,
}

/// How a machine goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The process alone: what was written stays.
    Process,
    /// The power: of what is not synced, what the pattern says.
    Power(Pattern),
}

/// Which of the unsynced sectors survive, in the order in which they would be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    None,
    All,
    Percent(u64),
    Prefix(usize),
    Suffix(usize),
    Hole(usize),
    Survivor(usize),
}

type Id = usize;

#[derive(Clone, Debug, Default)]
struct File {
    now: Vec<u8>,
    safe: Vec<u8>,
    dirty: BTreeSet<usize>,
    /// Sectors whose flush failed: seen, but clean in the kernel's eyes.
    lost: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
struct Op {
    /// Both halves of a rename across directories have the same.
    number: u64,
    /// `None` removes. All of it survives or nothing: it is one change of the directory's block.
    changes: Vec<(String, Option<Id>)>,
}

#[derive(Clone, Debug, Default)]
struct Dir {
    now: BTreeMap<String, Id>,
    safe: BTreeMap<String, Id>,
    ops: Vec<Op>,
}

#[derive(Clone, Debug)]
enum Node {
    File(File),
    Dir(Dir),
}

/// A log write on its way to the device.
#[derive(Clone, Debug)]
pub struct Flying {
    node: Id,
    at: usize,
    pub bytes: Vec<u8>,
    sync: bool,
}

#[derive(Clone, Debug)]
pub struct Disk {
    nodes: Vec<Node>,
    rng: Rng,
    pub steps: u64,
    pub die_at: Option<u64>,
    dead: bool,
    /// Of directory ops, in the order made.
    numbers: u64,
    pub flying: Option<Flying>,
    pub faults: Faults,
    pub canary: Option<Canary>,
    pub opening: bool,
    /// Directories in which a core made names that it has not synced.
    unsynced: BTreeSet<PathBuf>,
    /// What went wrong so far, for who must know whether anything did.
    pub failures: u64,
}

fn errno(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn sectors(at: usize, len: usize) -> std::ops::Range<usize> {
    at / SECTOR..(at + len).div_ceil(SECTOR)
}

fn split(path: &Path) -> (&Path, String) {
    let dir = path.parent().expect("nobody names the root");
    let name = path.file_name().and_then(|name| name.to_str());
    (dir, name.expect("names are text").to_string())
}

impl Op {
    fn apply(&self, names: &mut BTreeMap<String, Id>) {
        for (name, node) in &self.changes {
            match node {
                Some(node) => names.insert(name.clone(), *node),
                None => names.remove(name),
            };
        }
    }
}

impl File {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        if self.now.len() < at + bytes.len() {
            self.now.resize(at + bytes.len(), 0);
        }
        self.now[at..at + bytes.len()].copy_from_slice(bytes);
        for sector in sectors(at, bytes.len()) {
            self.dirty.insert(sector);
            self.lost.remove(&sector);
        }
    }

    fn resize(&mut self, bytes: usize) {
        let old = self.now.len();
        self.now.resize(bytes, 0);
        if bytes < old {
            // What is cut off must read as zeros if the file grows again.
            self.dirty.extend(sectors(bytes, old - bytes));
            self.lost.retain(|sector| *sector < bytes.div_ceil(SECTOR));
        }
    }

    /// The sector as it is seen goes to stable storage.
    fn persist(&mut self, sector: usize) {
        let from = sector * SECTOR;
        if self.safe.len() < self.now.len() {
            self.safe.resize(self.now.len(), 0);
        }
        let to = (from + SECTOR).min(self.now.len());
        if from < to {
            self.safe[from..to].copy_from_slice(&self.now[from..to]);
        } else if from < self.safe.len() {
            let end = (from + SECTOR).min(self.safe.len());
            self.safe[from..end].fill(0);
        }
    }

    fn sync(&mut self, which: &BTreeSet<usize>) {
        self.safe.resize(self.now.len(), 0);
        for sector in which {
            self.persist(*sector);
            self.dirty.remove(sector);
        }
    }
}

impl Disk {
    pub fn new(rng: Rng) -> Disk {
        Disk {
            nodes: vec![Node::Dir(Dir::default())],
            rng,
            steps: 0,
            die_at: None,
            dead: false,
            numbers: 0,
            flying: None,
            faults: Faults::default(),
            canary: None,
            opening: false,
            unsynced: BTreeSet::new(),
            failures: 0,
        }
    }

    /// Other draws from here on.
    pub fn reseed(&mut self, seed: u64) {
        self.rng = Rng::new(seed);
    }

    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// One step: nothing happens any more once the disk has died.
    fn step(&mut self) -> io::Result<()> {
        if !self.dead {
            self.steps += 1;
            self.dead = self.die_at == Some(self.steps);
        }
        if self.dead {
            return Err(errno(libc::EIO));
        }
        Ok(())
    }

    fn fails(&mut self, times: u64) -> bool {
        let fails = times > 0 && self.rng.once_in(times);
        self.failures += u64::from(fails);
        fails
    }

    pub fn stalls(&mut self) -> bool {
        self.fails(self.faults.stall)
    }

    // ---- names

    fn find(&self, path: &Path) -> io::Result<Id> {
        let mut node = 0;
        for part in path.iter().skip(1) {
            let Node::Dir(dir) = &self.nodes[node] else {
                return Err(errno(libc::ENOTDIR));
            };
            let name = part.to_str().expect("names are text");
            node = *dir.now.get(name).ok_or_else(|| errno(libc::ENOENT))?;
        }
        Ok(node)
    }

    fn file(&mut self, path: &Path) -> io::Result<&mut File> {
        let id = self.find(path)?;
        match &mut self.nodes[id] {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(errno(libc::EISDIR)),
        }
    }

    fn dir(&mut self, path: &Path) -> io::Result<&mut Dir> {
        let id = self.find(path)?;
        match &mut self.nodes[id] {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(errno(libc::ENOTDIR)),
        }
    }

    fn change(&mut self, dir: &Path, changes: Vec<(String, Option<Id>)>) -> io::Result<()> {
        let number = self.numbers;
        let dir = self.dir(dir)?;
        let op = Op { number, changes };
        op.apply(&mut dir.now);
        dir.ops.push(op);
        Ok(())
    }

    fn name(&mut self, path: &Path, node: Option<Id>) -> io::Result<()> {
        self.numbers += 1;
        let (dir, name) = split(path);
        self.change(dir, vec![(name, node)])
    }

    fn make(&mut self, path: &Path, node: Node) -> io::Result<Id> {
        self.nodes.push(node);
        let id = self.nodes.len() - 1;
        self.name(path, Some(id))?;
        Ok(id)
    }

    /// Makes missing directories; those in which a name was made.
    fn make_dirs(&mut self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let mut made = Vec::new();
        let above: Vec<&Path> = path.ancestors().collect();
        for dir in above.into_iter().rev().skip(1) {
            if self.find(dir).is_err() {
                self.make(dir, Node::Dir(Dir::default()))?;
                made.push(dir.parent().expect("below the root").to_path_buf());
            }
        }
        Ok(made)
    }

    // ---- what a core does

    /// `Effect::Put`: the file is made when missing, as the core does it.
    pub fn put(&mut self, path: &Path, file_bytes: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        if self.fails(self.faults.no_space) {
            return Err(errno(libc::ENOSPC));
        }
        if self.fails(self.faults.write_fails) {
            return Err(errno(libc::EIO));
        }
        if self.find(path).is_err() {
            let dir = path.parent().expect("a file has a directory").to_path_buf();
            let made = self.make_dirs(&dir)?;
            self.unsynced.extend(made);
            self.unsynced.insert(dir);
            self.make(path, Node::File(File::default()))?;
        }
        let file = self.file(path)?;
        if (file.now.len() as u64) < file_bytes {
            file.resize(file_bytes as usize);
        }
        file.write(at as usize, bytes);
        self.write_back(path);
        Ok(())
    }

    /// The kernel writes some dirty sectors back whenever it likes.
    fn write_back(&mut self, path: &Path) {
        if !self.rng.once_in(4) {
            return;
        }
        let mut rng = self.rng.split();
        if let Ok(file) = self.file(path) {
            let dirty: Vec<usize> = file.dirty.iter().copied().collect();
            for sector in dirty.into_iter().filter(|_| rng.percent(50)) {
                file.persist(sector);
            }
        }
    }

    /// What a flush that begins now will make durable.
    pub fn dirty(&self, path: &Path) -> BTreeSet<usize> {
        match self.find(path).map(|id| &self.nodes[id]) {
            Ok(Node::File(file)) => file.dirty.clone(),
            _ => BTreeSet::new(),
        }
    }

    /// The end of `Effect::Sync`, for the sectors that were dirty at its start.
    pub fn sync_sectors(&mut self, path: &Path, which: &BTreeSet<usize>) -> io::Result<()> {
        self.step()?;
        self.sync_some(path, which)
    }

    fn sync_some(&mut self, path: &Path, which: &BTreeSet<usize>) -> io::Result<()> {
        if self.canary == Some(Canary::NoSyncAtOpen) && self.opening {
            return Ok(());
        }
        let fails = self.fails(self.faults.sync_fails);
        let mut rng = self.rng.split();
        let file = self.file(path)?;
        if fails {
            for sector in which.iter().filter(|_| rng.percent(70)) {
                file.dirty.remove(sector);
                file.lost.insert(*sector);
            }
            return Err(errno(libc::EIO));
        }
        file.sync(which);
        Ok(())
    }

    /// Directories to be synced after a file of a core, as the core does it.
    pub fn take_unsynced(&mut self, path: &Path) -> Vec<PathBuf> {
        let dirs: Vec<PathBuf> = path.ancestors().skip(1).map(Path::to_path_buf).collect();
        dirs.into_iter()
            .filter(|dir| self.unsynced.remove(dir))
            .collect()
    }

    pub fn not_synced(&mut self, dirs: Vec<PathBuf>) {
        self.unsynced.extend(dirs);
    }

    /// The start of `Effect::Write`.
    pub fn begin_write(
        &mut self,
        path: &Path,
        at: u64,
        bytes: Vec<u8>,
        sync: bool,
    ) -> io::Result<()> {
        self.step()?;
        assert!(self.flying.is_none(), "one write of the log at a time");
        let node = self.find(path)?;
        let at = at as usize;
        self.flying = Some(Flying {
            node,
            at,
            bytes,
            sync,
        });
        Ok(())
    }

    /// Its end: so many bytes were written, or the write or its flush failed.
    pub fn end_write(&mut self) -> Result<usize, (bool, i32)> {
        if self.step().is_err() {
            return Err((false, libc::EIO));
        }
        let flying = self.flying.take().expect("a write was begun");
        let fails = self.fails(self.faults.write_fails);
        let short = !fails && self.fails(self.faults.short_write);
        let flush_fails = flying.sync && self.fails(self.faults.sync_fails);
        let whole = flying.bytes.len();
        let written = match (fails, short) {
            (true, _) => self.rng.below(whole as u64 / 4096 + 1) as usize * 4096,
            (_, true) => self.rng.below(whole as u64 / 4096) as usize * 4096,
            _ => whole,
        };
        let Node::File(file) = &mut self.nodes[flying.node] else {
            unreachable!("segments are files")
        };
        file.write(flying.at, &flying.bytes[..written.min(whole)]);
        let which: BTreeSet<usize> = sectors(flying.at, written).collect();
        if fails {
            return Err((false, libc::EIO));
        }
        if flush_fails {
            let mut rng = self.rng.split();
            for sector in which.iter().filter(|_| rng.percent(70)) {
                file.dirty.remove(sector);
                file.lost.insert(*sector);
            }
            return Err((true, libc::EIO));
        }
        if flying.sync && !short && self.canary != Some(Canary::AckBeforeFlush) {
            file.sync(&which);
        }
        Ok(written)
    }

    // ---- the end

    /// How many sectors would be lost or not in a power loss now.
    pub fn unsynced_sectors(&self) -> usize {
        let files = self.nodes.iter().map(|node| match node {
            Node::File(file) => file.dirty.len(),
            Node::Dir(_) => 0,
        });
        let flying = self.flying.as_ref();
        files.sum::<usize>() + flying.map_or(0, |flying| flying.bytes.len() / SECTOR)
    }

    /// The machine goes down; afterwards the disk is as the next start finds it.
    pub fn lose(&mut self, death: Death) {
        match death {
            Death::Process => self.lose_process(),
            Death::Power(pattern) => self.lose_power(pattern),
        }
        self.flying = None;
        self.dead = false;
        self.die_at = None;
        self.unsynced.clear();
    }

    fn lose_process(&mut self) {
        if let Some(flying) = self.flying.take()
            && let Node::File(file) = &mut self.nodes[flying.node]
        {
            let all = flying.bytes.len() / SECTOR;
            let done = match self.rng.below(3) {
                0 => 0,
                1 => all,
                _ => self.rng.below(all as u64 + 1) as usize,
            };
            file.write(flying.at, &flying.bytes[..done * SECTOR]);
        }
        for node in &mut self.nodes {
            let Node::File(file) = node else { continue };
            // A page that the kernel thinks clean may be dropped and read again.
            for sector in std::mem::take(&mut file.lost) {
                if self.rng.percent(50) {
                    let from = sector * SECTOR;
                    let to = (from + SECTOR).min(file.now.len());
                    for at in from..to {
                        file.now[at] = file.safe.get(at).copied().unwrap_or(0);
                    }
                } else {
                    file.lost.insert(sector);
                }
            }
        }
    }

    fn lose_power(&mut self, pattern: Pattern) {
        let mut candidates = Vec::new();
        for (id, node) in self.nodes.iter().enumerate() {
            if let Node::File(file) = node {
                candidates.extend(file.dirty.iter().map(|sector| (id, *sector, None)));
            }
        }
        if let Some(flying) = self.flying.take() {
            for (index, bytes) in flying.bytes.chunks(SECTOR).enumerate() {
                let sector = flying.at / SECTOR + index;
                candidates.push((flying.node, sector, Some(bytes.to_vec())));
            }
        }
        let all = candidates.len();
        for (index, (id, sector, flown)) in candidates.into_iter().enumerate() {
            let survives = match pattern {
                Pattern::None => false,
                Pattern::All => true,
                Pattern::Percent(percent) => self.rng.percent(percent),
                Pattern::Prefix(count) => index < count,
                Pattern::Suffix(count) => index + count >= all,
                Pattern::Hole(hole) => index != hole,
                Pattern::Survivor(survivor) => index == survivor,
            };
            let Node::File(file) = &mut self.nodes[id] else {
                unreachable!("sectors are of files")
            };
            if survives {
                match flown {
                    Some(bytes) => {
                        let from = sector * SECTOR;
                        if file.safe.len() >= from + bytes.len() {
                            file.safe[from..from + bytes.len()].copy_from_slice(&bytes);
                        }
                    }
                    None => file.persist(sector),
                }
            }
        }
        self.lose_sizes();
        self.lose_names();
    }

    /// Sizes that were not synced are old or new.
    fn lose_sizes(&mut self) {
        for node in &mut self.nodes {
            let Node::File(file) = node else { continue };
            if file.safe.len() != file.now.len() && self.rng.percent(50) {
                file.safe.resize(file.now.len(), 0);
            }
            file.now.clone_from(&file.safe);
            file.dirty.clear();
            file.lost.clear();
        }
    }

    /// Either the file system keeps the order of all names, or each directory its own.
    fn lose_names(&mut self) {
        let ordered = self.rng.percent(50);
        let first = self.nodes.iter().filter_map(|node| match node {
            Node::Dir(dir) => dir.ops.first().map(|op| op.number),
            Node::File(_) => None,
        });
        let from = first.min().unwrap_or(self.numbers);
        let cut = self.rng.within(from, self.numbers + 1);
        for node in &mut self.nodes {
            let Node::Dir(dir) = node else { continue };
            let kept = match ordered {
                true => dir.ops.iter().take_while(|op| op.number < cut).count(),
                false => self.rng.below(dir.ops.len() as u64 + 1) as usize,
            };
            for op in dir.ops.drain(..).take(kept) {
                op.apply(&mut dir.safe);
            }
            dir.now.clone_from(&dir.safe);
        }
    }

    /// The whole content as it is seen, for the oracles; no step.
    pub fn peek(&self, path: &Path) -> Option<&[u8]> {
        match &self.nodes[self.find(path).ok()?] {
            Node::File(file) => Some(&file.now),
            Node::Dir(_) => None,
        }
    }

    /// Names in a directory, for the oracles; no step.
    pub fn names(&self, path: &Path) -> Vec<String> {
        match self.find(path).map(|id| &self.nodes[id]) {
            Ok(Node::Dir(dir)) => dir.now.keys().cloned().collect(),
            _ => Vec::new(),
        }
    }
}

impl Files for Disk {
    fn list(&mut self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.step()?;
        let found = self.dir(dir)?.now.clone();
        let entry = |(name, id): (String, Id)| {
            let (bytes, is_dir) = match &self.nodes[id] {
                Node::File(file) => (file.now.len() as u64, false),
                Node::Dir(_) => (4096, true),
            };
            Entry {
                name,
                bytes,
                is_dir,
                modified_ms: 0,
            }
        };
        Ok(found.into_iter().map(entry).collect())
    }

    fn make_dir_all(&mut self, dir: &Path) -> io::Result<()> {
        self.step()?;
        self.make_dirs(dir).map(|_| ())
    }

    fn len(&mut self, path: &Path) -> io::Result<u64> {
        self.step()?;
        let id = self.find(path)?;
        match &self.nodes[id] {
            Node::File(file) => Ok(file.now.len() as u64),
            Node::Dir(_) => Ok(4096),
        }
    }

    fn create(&mut self, path: &Path, bytes: u64, _allocate: bool) -> io::Result<()> {
        self.step()?;
        if self.fails(self.faults.no_space) {
            return Err(errno(libc::ENOSPC));
        }
        if self.find(path).is_err() {
            self.make(path, Node::File(File::default()))?;
        }
        let file = self.file(path)?;
        file.resize(0);
        file.resize(bytes as usize);
        Ok(())
    }

    fn read_at(&mut self, path: &Path, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.step()?;
        if self.fails(self.faults.read_fails) {
            return Err(errno(libc::EIO));
        }
        let file = self.file(path)?;
        let from = (at as usize).min(file.now.len());
        let bytes = &file.now[from..(from + buf.len()).min(file.now.len())];
        buf[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn write_at(&mut self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        if self.fails(self.faults.no_space) {
            return Err(errno(libc::ENOSPC));
        }
        if self.fails(self.faults.write_fails) {
            return Err(errno(libc::EIO));
        }
        if self.canary == Some(Canary::NoZeroing) && bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        self.file(path)?.write(at as usize, bytes);
        self.write_back(path);
        Ok(())
    }

    fn truncate(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        self.step()?;
        self.file(path)?.resize(bytes as usize);
        Ok(())
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        self.step()?;
        let which = self.dirty(path);
        self.sync_some(path, &which)
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        self.step()?;
        let skips = self.canary == Some(Canary::NoDirSync)
            || (self.canary == Some(Canary::NoSyncAtOpen) && self.opening);
        let found = self.dir(dir)?;
        if !skips {
            found.safe.clone_from(&found.now);
            found.ops.clear();
        }
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        let node = self.find(from)?;
        self.numbers += 1;
        let ((from_dir, from), (to_dir, to)) = (split(from), split(to));
        if from_dir == to_dir {
            return self.change(to_dir, vec![(to, Some(node)), (from, None)]);
        }
        self.change(to_dir, vec![(to, Some(node))])?;
        self.change(from_dir, vec![(from, None)])
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.step()?;
        let id = self.find(path)?;
        if let Node::Dir(dir) = &self.nodes[id]
            && !dir.now.is_empty()
        {
            return Err(errno(libc::ENOTEMPTY));
        }
        self.name(path, None)
    }

    fn space(&mut self, _path: &Path) -> io::Result<Space> {
        self.step()?;
        Ok(Space {
            used: 10 << 30,
            free: 90 << 30,
        })
    }
}
