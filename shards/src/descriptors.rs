//! Open queue and index files of one core: a bounded cache of descriptors.
//!
//! Keyed by directory and number. When it is full, the hand of a clock gives up the first file that
//! was not used since it last came by. A file that is in an operation under way stays open through
//! its own reference. Nothing is shared between cores.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{HashSet, HashTable};
use std::hash::BuildHasher;

use crate::ids::{FileDir, FileRef};

#[derive(Debug)]
struct Entry {
    dir: Arc<FileDir>,
    number: u64,
    file: Arc<File>,
    used: bool,
}

impl Entry {
    fn is(&self, file: &FileRef) -> bool {
        self.number == file.number
            && (Arc::ptr_eq(&self.dir, &file.dir) || self.dir.path == file.dir.path)
    }
}

/// The cache.
#[derive(Debug)]
pub struct Descriptors {
    max: usize,
    entries: Vec<Entry>,
    /// Places in `entries`.
    table: HashTable<u32>,
    hasher: RandomState,
    hand: usize,
    /// Directories in which this core made a name that no flush has made durable.
    unsynced: HashSet<PathBuf, RandomState>,
}

impl Descriptors {
    /// Keeps at most `max` (at least one) files open.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let max = max.max(1);
        Descriptors {
            max,
            entries: Vec::with_capacity(max),
            table: HashTable::with_capacity(max),
            hasher: RandomState::default(),
            hand: 0,
            unsynced: HashSet::default(),
        }
    }

    /// The file, open for reading and writing. With `make`, a missing one is made, sparse and at
    /// its full length, and so are its directories; a shorter one, which a death has left, gets
    /// its length.
    pub fn get(&mut self, file: &FileRef, make: bool) -> io::Result<&Arc<File>> {
        let hash = self.hash(file);
        let found = self
            .table
            .find(hash, |&place| self.entries[place as usize].is(file));
        let place = match found {
            Some(&place) => place as usize,
            None => {
                let opened = self.open(file, make)?;
                self.insert(hash, file, opened)
            }
        };
        let entry = &mut self.entries[place];
        entry.used = true;
        Ok(&entry.file)
    }

    /// Closes files that were removed, so that a new file of the same name is seen.
    pub fn forget_removed(&mut self) {
        self.entries.retain(|entry| {
            let meta = entry.file.metadata();
            meta.is_ok_and(|meta| meta.nlink() > 0)
        });
        self.hand = 0;
        self.table.clear();
        for place in 0..self.entries.len() {
            let entry = &self.entries[place];
            let hash = hash_of(&self.hasher, &entry.dir.path, entry.number);
            self.table.insert_unique(hash, place as u32, |_| {
                unreachable!("a cleared table keeps its room for all")
            });
        }
    }

    /// Directories whose flush makes the name of `path` durable; they count as flushed until
    /// [`Descriptors::not_synced`] says otherwise.
    #[must_use]
    pub fn take_unsynced(&mut self, path: &Path) -> Vec<PathBuf> {
        if self.unsynced.is_empty() {
            return Vec::new();
        }
        path.ancestors()
            .skip(1)
            .filter_map(|dir| self.unsynced.take(dir))
            .collect()
    }

    pub fn not_synced(&mut self, dirs: impl IntoIterator<Item = PathBuf>) {
        self.unsynced.extend(dirs);
    }

    /// Files open now.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.entries.len()
    }

    fn hash(&self, file: &FileRef) -> u64 {
        hash_of(&self.hasher, &file.dir.path, file.number)
    }

    fn insert(&mut self, hash: u64, file: &FileRef, opened: File) -> usize {
        let entry = Entry {
            dir: file.dir.clone(),
            number: file.number,
            file: Arc::new(opened),
            used: true,
        };
        let place = if self.entries.len() < self.max {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let place = self.give_up_one();
            self.entries[place] = entry;
            place
        };
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.table.insert_unique(hash, place as u32, |&place| {
            let entry = &entries[place as usize];
            hash_of(hasher, &entry.dir.path, entry.number)
        });
        place
    }

    /// Takes the entry under the hand out of the table and answers its place.
    fn give_up_one(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &mut self.entries[place];
            if std::mem::take(&mut entry.used) {
                continue;
            }
            let hash = hash_of(&self.hasher, &entry.dir.path, entry.number);
            if let Ok(found) = self.table.find_entry(hash, |&at| at as usize == place) {
                found.remove();
            }
            return place;
        }
    }

    fn open(&mut self, file: &FileRef, make: bool) -> io::Result<File> {
        let path = file.path();
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let opened = match options.open(&path) {
            Err(error) if make && error.kind() == io::ErrorKind::NotFound => {
                self.make_dirs(&file.dir.path)?;
                self.unsynced.insert(file.dir.path.clone());
                options.create(true).truncate(false).open(&path)?
            }
            opened => opened?,
        };
        if make && opened.metadata()?.len() < file.dir.file_bytes {
            opened.set_len(file.dir.file_bytes)?;
        }
        Ok(opened)
    }

    fn make_dirs(&mut self, dir: &Path) -> io::Result<()> {
        let above = dir.parent().unwrap_or(dir);
        let mut made = fs::create_dir(dir);
        let nothing_above = matches!(&made, Err(error) if error.kind() == io::ErrorKind::NotFound);
        if nothing_above && above != dir {
            self.make_dirs(above)?;
            made = fs::create_dir(dir);
        }
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            made => made?,
        }
        self.unsynced.insert(above.to_owned());
        Ok(())
    }
}

fn hash_of(hasher: &RandomState, dir: &Path, number: u64) -> u64 {
    hasher.hash_one((dir.as_os_str(), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(mut dirs: Vec<PathBuf>) -> Vec<PathBuf> {
        dirs.sort();
        dirs
    }

    #[test]
    fn every_directory_with_a_new_name_is_flushed_once() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let root = scratch.path().to_owned();
        let dir = root.join("a/b");
        let mut descriptors = Descriptors::new(1);
        let file = |number| FileRef {
            dir: Arc::new(FileDir {
                path: dir.clone(),
                digits: 20,
                file_bytes: 100,
            }),
            number,
        };
        descriptors.get(&file(0), true).expect("it can be made");
        let all = [root.clone(), root.join("a"), dir.clone()];
        let taken = descriptors.take_unsynced(&file(0).path());
        assert_eq!(sorted(taken.clone()), all);
        assert!(descriptors.take_unsynced(&file(0).path()).is_empty());
        // The flush failed.
        descriptors.not_synced(taken);
        assert_eq!(sorted(descriptors.take_unsynced(&file(0).path())), all);
        // A second file is one more name in one directory; elsewhere there is none.
        descriptors.get(&file(100), true).expect("it can be made");
        assert!(descriptors.take_unsynced(&root.join("c/d")).is_empty());
        let taken = descriptors.take_unsynced(&file(100).path());
        assert_eq!(taken, std::slice::from_ref(&dir));
        descriptors.get(&file(0), true).expect("it is there");
        assert!(descriptors.take_unsynced(&file(0).path()).is_empty());
        assert_eq!(descriptors.open_files(), 1);
    }

    #[test]
    fn what_was_used_stays_when_another_must_go() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut descriptors = Descriptors::new(3);
        let dir = Arc::new(FileDir {
            path: scratch.path().to_owned(),
            digits: 20,
            file_bytes: 1,
        });
        let mut number_of = |number| {
            let dir = dir.clone();
            let file = descriptors.get(&FileRef { dir, number }, true);
            file.expect("it can be made").clone()
        };
        let first: Vec<_> = (0..3).map(&mut number_of).collect();
        // The hand passes all three and takes the first.
        number_of(3);
        assert!(Arc::ptr_eq(&number_of(1), &first[1]));
        // It would be the second's turn, but only the third was not used since.
        number_of(4);
        assert!(Arc::ptr_eq(&number_of(1), &first[1]));
    }
}
