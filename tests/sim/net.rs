//! Clients' connections in memory: whole frames in, answers out, resets at any time.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use ringmq::role;
use shards::{Conn, LogRange, RoleId};

use crate::cores::conn;
use crate::rng::Rng;

/// What a shard hears of a connection.
pub enum Piece {
    Opened(Conn, SocketAddr),
    /// Without its length word.
    Frame(Conn, Vec<u8>),
    Closed(Conn),
}

struct Out {
    due: u64,
    head: Vec<u8>,
    ranges: Vec<LogRange>,
}

struct Link {
    seat: RoleId,
    inputs: VecDeque<Piece>,
    out: VecDeque<Out>,
    inbox: VecDeque<Vec<u8>>,
    paused: bool,
    closing: bool,
    /// Nothing goes in or out any more.
    gone: bool,
}

pub struct Net {
    rng: Rng,
    shards: usize,
    links: BTreeMap<Conn, Link>,
    generations: u32,
    /// The canary that never counts on.
    reuses: bool,
}

impl Net {
    pub fn new(rng: Rng, shards: usize, reuses: bool) -> Net {
        Net {
            rng,
            reuses,
            shards,
            links: BTreeMap::new(),
            generations: 0,
        }
    }

    // ---- the clients' side

    pub fn open(&mut self, peer: SocketAddr) -> Conn {
        let shard = self.rng.below(self.shards as u64) as usize;
        // Few slots, so that they are used again.
        let taken = |slot: u32| {
            let mut links = self.links.iter();
            links.any(|(conn, link)| {
                usize::from(conn.core) == shard && conn.slot == slot && !link.gone
            })
        };
        let slot = (0..).find(|slot| !taken(*slot)).expect("there are many");
        self.generations += u32::from(!self.reuses);
        let conn = conn(shard, slot, self.generations);
        let link = Link {
            seat: role::shard(shard),
            inputs: VecDeque::from([Piece::Opened(conn, peer)]),
            out: VecDeque::new(),
            inbox: VecDeque::new(),
            paused: false,
            closing: false,
            gone: false,
        };
        self.links.insert(conn, link);
        conn
    }

    /// A whole frame with its length word.
    pub fn send(&mut self, conn: Conn, frame: &[u8]) {
        let link = self.links.get_mut(&conn).expect("it was opened");
        if !link.gone {
            link.inputs
                .push_back(Piece::Frame(conn, frame[4..].to_vec()));
        }
    }

    /// The peer goes: of what it sent last, some may never arrive.
    pub fn reset(&mut self, conn: Conn) {
        let link = self.links.get_mut(&conn).expect("it was opened");
        if link.gone {
            return;
        }
        let keep = self.rng.below(link.inputs.len() as u64 + 1) as usize;
        let opened = matches!(link.inputs.front(), Some(Piece::Opened(..)));
        link.inputs.truncate(keep.max(usize::from(opened)));
        link.inputs.push_back(Piece::Closed(conn));
        link.out.clear();
        link.gone = true;
        link.paused = false;
    }

    /// The next whole answer, without its length word.
    pub fn receive(&mut self, conn: Conn) -> Option<Vec<u8>> {
        self.links.get_mut(&conn)?.inbox.pop_front()
    }

    pub fn is_open(&self, conn: Conn) -> bool {
        self.links.get(&conn).is_some_and(|link| !link.gone)
    }

    // ---- the broker's side

    pub fn has_input(&self, seat: RoleId) -> bool {
        let mut links = self.links.values().filter(|link| link.seat == seat);
        links.any(Link::has_input)
    }

    pub fn next_input(&mut self, seat: RoleId) -> Option<Piece> {
        let of_seat = |link: &&mut Link| link.seat == seat && link.has_input();
        let mut ready: Vec<&mut Link> = self.links.values_mut().filter(of_seat).collect();
        if ready.is_empty() {
            return None;
        }
        let pick = self.rng.below(ready.len() as u64) as usize;
        ready[pick].inputs.pop_front()
    }

    pub fn reply(&mut self, now: u64, conn: Conn, head: Vec<u8>, ranges: Vec<LogRange>) {
        let delay = self.rng.skewed(3000);
        if let Some(link) = self.links.get_mut(&conn).filter(|link| !link.gone) {
            let last = link.out.back().map_or(0, |out| out.due);
            let due = (now + delay).max(last);
            link.out.push_back(Out { due, head, ranges });
        }
    }

    /// The broker closes: what is queued is still sent.
    pub fn close(&mut self, _now: u64, conn: Conn) {
        if let Some(link) = self.links.get_mut(&conn).filter(|link| !link.gone) {
            link.closing = true;
            link.inputs.clear();
            link.close_if_sent(conn);
        }
    }

    pub fn pause(&mut self, conn: Conn, paused: bool) {
        if let Some(link) = self.links.get_mut(&conn) {
            link.paused = paused;
        }
    }

    pub fn has_due(&self, now: u64) -> bool {
        self.next_due().is_some_and(|due| due <= now)
    }

    pub fn next_due(&self) -> Option<u64> {
        let front = |link: &Link| link.out.front().map(|out| out.due);
        self.links.values().filter_map(front).min()
    }

    /// Some answer whose time has come, its ranges still to be resolved.
    pub fn take_due(&mut self, now: u64) -> Option<(Conn, Vec<u8>, Vec<LogRange>)> {
        let due = |link: &Link| link.out.front().is_some_and(|out| out.due <= now);
        let ready: Vec<Conn> = self
            .links
            .iter()
            .filter(|(_, link)| due(link))
            .map(|(conn, _)| *conn)
            .collect();
        if ready.is_empty() {
            return None;
        }
        let conn = ready[self.rng.below(ready.len() as u64) as usize];
        let out = self.links.get_mut(&conn)?.out.pop_front()?;
        Some((conn, out.head, out.ranges))
    }

    pub fn deliver(&mut self, conn: Conn, frame: Vec<u8>) {
        if let Some(link) = self.links.get_mut(&conn).filter(|link| !link.gone) {
            let length = u32::from_be_bytes(*frame.first_chunk().expect("a length word"));
            assert_eq!(length as usize + 4, frame.len(), "a frame's length word");
            link.inbox.push_back(frame[4..].to_vec());
            link.close_if_sent(conn);
        }
    }
}

impl Link {
    fn has_input(&self) -> bool {
        match self.inputs.front() {
            Some(Piece::Frame(..)) => !self.paused,
            Some(_) => true,
            None => false,
        }
    }

    fn close_if_sent(&mut self, conn: Conn) {
        if self.closing && self.out.is_empty() {
            self.gone = true;
            self.inputs.push_back(Piece::Closed(conn));
        }
    }
}
