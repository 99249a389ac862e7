//! Files in memory that forget what was not synced: for tests of what survives.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use shards::files::{Entry, Files, Space};

const SECTOR_BYTES: usize = 512;

#[derive(Clone, Default)]
struct Inode {
    durable: Vec<u8>,
    view: Vec<u8>,
}

/// Names and contents, as seen and as durable.
#[derive(Clone, Default)]
pub(crate) struct MemoryFiles {
    inodes: Vec<Inode>,
    durable_names: BTreeMap<PathBuf, usize>,
    names: BTreeMap<PathBuf, usize>,
    /// Changing steps that still work; then everything fails.
    pub steps_left: Option<u64>,
    /// Changing steps made so far.
    pub steps: u64,
    /// Reads of this byte fail.
    pub unreadable: Option<(PathBuf, u64)>,
    /// Paths synced, in order.
    pub synced: Vec<PathBuf>,
}

/// A small generator: tests pass its seed.
pub(crate) struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

impl MemoryFiles {
    /// A file that is there and durable.
    pub fn put(&mut self, path: &Path, bytes: Vec<u8>) {
        self.inodes.push(Inode {
            durable: bytes.clone(),
            view: bytes,
        });
        let inode = self.inodes.len() - 1;
        self.names.insert(path.to_path_buf(), inode);
        self.durable_names.insert(path.to_path_buf(), inode);
    }

    pub fn bytes(&self, path: &Path) -> &[u8] {
        &self.inodes[self.names[path]].view
    }

    /// Changes a file behind everybody's back, durably.
    pub fn edit(&mut self, path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
        let inode = &mut self.inodes[self.names[path]];
        edit(&mut inode.view);
        inode.durable = inode.view.clone();
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.names.keys().cloned().collect()
    }

    /// What is seen and what is durable are the same.
    pub fn is_durable(&self, path: &Path) -> bool {
        let inode = &self.inodes[self.names[path]];
        self.durable_names.get(path) == self.names.get(path) && inode.view == inode.durable
    }

    /// Power is lost: of everything that was not synced, each sector, each length and each name is
    /// old or new.
    pub fn lose_power(&mut self, dice: &mut Dice) {
        for inode in &mut self.inodes {
            let mut left = inode.durable.clone();
            if left.len() != inode.view.len() && dice.roll(2) == 0 {
                left.resize(inode.view.len(), 0);
            }
            let sectors = left.len().div_ceil(SECTOR_BYTES);
            // Often all or nothing, else any subset.
            let odds = [0, 1, 2, 3][dice.roll(4) as usize];
            for sector in 0..sectors {
                let from = sector * SECTOR_BYTES;
                let to = (from + SECTOR_BYTES).min(left.len()).min(inode.view.len());
                if from < to && dice.roll(3) < odds {
                    left[from..to].copy_from_slice(&inode.view[from..to]);
                }
            }
            inode.view = left.clone();
            inode.durable = left;
        }
        let all: Vec<PathBuf> = self
            .names
            .keys()
            .chain(self.durable_names.keys())
            .cloned()
            .collect();
        for name in all {
            let (old, new) = (
                self.durable_names.get(&name).copied(),
                self.names.get(&name).copied(),
            );
            match if dice.roll(2) == 0 { old } else { new } {
                Some(inode) => self.durable_names.insert(name, inode),
                None => self.durable_names.remove(&name),
            };
        }
        self.names = self.durable_names.clone();
        self.steps_left = None;
    }

    fn step(&mut self) -> io::Result<()> {
        match &mut self.steps_left {
            Some(0) => return Err(io::Error::other("the power is gone")),
            Some(left) => *left -= 1,
            None => {}
        }
        self.steps += 1;
        Ok(())
    }

    fn inode(&mut self, path: &Path) -> io::Result<&mut Inode> {
        let inode = *self.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(&mut self.inodes[inode])
    }
}

impl Files for MemoryFiles {
    fn list(&mut self, dir: &Path) -> io::Result<Vec<Entry>> {
        let inside = self
            .names
            .iter()
            .filter(|(path, _)| path.parent() == Some(dir));
        Ok(inside
            .map(|(path, inode)| Entry {
                name: path
                    .file_name()
                    .expect("files have names")
                    .to_str()
                    .expect("text")
                    .to_owned(),
                bytes: self.inodes[*inode].view.len() as u64,
                is_dir: false,
                modified_ms: 0,
            })
            .collect())
    }

    fn make_dir_all(&mut self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn len(&mut self, path: &Path) -> io::Result<u64> {
        Ok(self.inode(path)?.view.len() as u64)
    }

    fn create(&mut self, path: &Path, bytes: u64, _: bool) -> io::Result<()> {
        self.step()?;
        self.inodes.push(Inode {
            durable: Vec::new(),
            view: vec![0; bytes as usize],
        });
        self.names.insert(path.to_path_buf(), self.inodes.len() - 1);
        Ok(())
    }

    fn read_at(&mut self, path: &Path, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        if let Some((bad, byte)) = &self.unreadable
            && bad == path
            && (at..at + buf.len() as u64).contains(byte)
        {
            return Err(io::Error::from_raw_os_error(5));
        }
        let view = &self.inode(path)?.view;
        let from = (at as usize).min(view.len());
        let len = buf.len().min(view.len() - from);
        buf[..len].copy_from_slice(&view[from..from + len]);
        Ok(len)
    }

    fn write_at(&mut self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        let view = &mut self.inode(path)?.view;
        let end = at as usize + bytes.len();
        if view.len() < end {
            view.resize(end, 0);
        }
        view[at as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        self.step()?;
        self.inode(path)?.view.resize(bytes as usize, 0);
        Ok(())
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        self.step()?;
        let inode = self.inode(path)?;
        inode.durable = inode.view.clone();
        self.synced.push(path.to_path_buf());
        Ok(())
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        self.step()?;
        self.durable_names
            .retain(|path, _| path.parent() != Some(dir));
        for (path, inode) in self
            .names
            .iter()
            .filter(|(path, _)| path.parent() == Some(dir))
        {
            self.durable_names.insert(path.clone(), *inode);
        }
        self.synced.push(dir.to_path_buf());
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        let inode = self.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        self.names.insert(to.to_path_buf(), inode);
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(())
    }

    fn space(&mut self, _: &Path) -> io::Result<Space> {
        Ok(Space {
            used: 0,
            free: 1 << 40,
        })
    }
}
