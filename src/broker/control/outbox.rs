//! Letters on their way out of control. An edge without room is no reason to wait: what it does not
//! take now stays here, in order, until `Input::Room`.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{Conn, RoleId};
use crate::limits::ANSWER_PIECE_BYTES;
use crate::role::{Effects, Letter};

/// A client's connection and the role that it lives with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    pub role: RoleId,
    pub conn: Conn,
}

/// Bytes kept back for all receivers together; beyond it, new requests are answered busy.
const KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Default)]
pub struct Outbox {
    kept: BTreeMap<RoleId, VecDeque<(Letter, Vec<u8>)>>,
    kept_bytes: usize,
}

impl Outbox {
    /// Whether receivers are so far behind that nothing more should be taken on.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.kept_bytes > KEPT_BYTES_MAX
    }

    pub fn tell(&mut self, to: RoleId, letter: Letter, payload: &[u8], fx: &mut Effects<'_>) {
        let behind = self.kept.contains_key(&to);
        if behind || !try_tell(to, letter, payload, fx) {
            self.kept_bytes += payload.len();
            self.kept
                .entry(to)
                .or_default()
                .push_back((letter, payload.to_vec()));
        }
    }

    /// Sends a whole frame to a client, in pieces that the edge takes.
    pub fn frame(&mut self, to: Peer, frame: &[u8], fx: &mut Effects<'_>) {
        let mut pieces = frame.chunks(ANSWER_PIECE_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            let more = pieces.peek().is_some();
            let letter = Letter::Reply {
                conn: to.conn,
                head: piece.len() as u32,
                more,
            };
            self.tell(to.role, letter, piece, fx);
        }
    }

    /// Tells what was kept back for `to`, as far as there is room.
    pub fn room(&mut self, to: RoleId, fx: &mut Effects<'_>) {
        let Some(kept) = self.kept.get_mut(&to) else {
            return;
        };
        while let Some((letter, payload)) = kept.front() {
            if !try_tell(to, *letter, payload, fx) {
                return;
            }
            self.kept_bytes -= payload.len();
            kept.pop_front();
        }
        self.kept.remove(&to);
    }
}

fn try_tell(to: RoleId, letter: Letter, payload: &[u8], fx: &mut Effects<'_>) -> bool {
    let told = fx.tell(to, payload.len(), |lane| {
        lane.copy_from_slice(payload);
        letter
    });
    told.is_ok()
}
