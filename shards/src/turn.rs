//! The loop, one per core.
//!
//! ```text
//!   posts, completions, timers            -> inputs to roles; effects at once
//!   marks, letters, until none are left   -> inputs to roles (bounded rounds)
//!   Settled                               -> roles that heard anything; those that settle late
//!                                            after a submit of what the others asked for
//!   sends of everything queued            -> ring
//!   doorbells of cores that were told     -> eventfd, if they sleep
//!   one enter: submit all of it, and wait if nothing is left to do
//! ```

use crate::hands::{Desk, Hands, Seat};
use crate::idle::{self, Idle, clock, earlier, until};
use crate::ids::Micros;
use crate::inputs::Incoming;
use crate::receive::Buffers;
use crate::ring::Op;
use crate::role::{App, Input, Mark, Now, Role};

/// Completions that one turn takes.
pub(crate) const COMPLETIONS_PER_TURN: usize = 256;
/// Letters that one turn takes from one edge.
const LETTERS_PER_EDGE: usize = 512;
/// Rounds of letters between roles of the same core.
const ROUNDS: usize = 4;
/// How often a core looks whether a full edge has room again, of which no doorbell tells.
const LOOK_FOR_ROOM_US: u64 = 100;
/// Looks between two looks at the clock while spinning.
const LOOKS_PER_CLOCK: u32 = 16;

/// One core: its roles, and everything they use.
pub(crate) struct Core<A: App, R: Role<A>> {
    pub seats: Vec<Seat<A, R>>,
    pub desk: Desk<A>,
    pub hands: Hands<A>,
    pub incoming: Incoming,
    /// Dropped after the ring.
    pub buffers: Buffers,
    pub idle: Idle,
    pub now: Now,
    /// Marks as this core's roles know them.
    pub seen: Vec<u64>,
    pub changed: Vec<A::Mark>,
    pub done: Vec<(Op, i32, u32)>,
}

impl<A: App, R: Role<A>> Core<A, R> {
    /// Runs until told to exit and everything is closed.
    pub fn run(&mut self) {
        while !self.has_ended() {
            self.turn();
            self.rest();
        }
    }

    fn turn(&mut self) {
        self.now = idle::now();
        self.desk.begin_turn(self.now.mono);
        self.hands.begin_turn(self.now.mono);
        self.take_posts();
        self.take_completions();
        self.take_timers();
        for _ in 0..ROUNDS {
            self.tell_what_ended();
            self.tell_marks();
            if !self.tell_letters() {
                break;
            }
        }
        self.tell_room();
        self.tell_settled(false);
        self.hands.flush();
        if self.seats.iter().any(|seat| seat.place.heard) {
            self.hands.ring.submit_queued();
            self.tell_settled(true);
            self.hands.flush();
        }
        self.ring_doorbells();
        self.count_turn();
    }

    fn tell_marks(&mut self) {
        let changed = &mut self.changed;
        self.hands
            .marks
            .changes(&mut self.seen, |mark| changed.push(mark));
        for mark in self.changed.drain(..) {
            let publisher = self.hands.publishers[mark.kind()];
            for seat in &mut self.seats {
                if publisher != Some(seat.place.seat) {
                    let input = Input::Mark(mark);
                    self.desk
                        .tell(&mut seat.place, &mut self.hands, self.now, input);
                }
            }
        }
    }

    /// Tells each role the letters that have arrived; whether there were any.
    fn tell_letters(&mut self) -> bool {
        let mut any = false;
        for seat in &mut self.seats {
            for (from, inlet) in &mut seat.inlets {
                let depth = inlet.depth();
                if depth == 0 {
                    continue;
                }
                any = true;
                self.hands.counters.edge_depth_max.raise_to(depth as u64);
                let count = depth.min(LETTERS_PER_EDGE);
                self.hands.counters.letters.add(count as u64);
                for _ in 0..count {
                    let (letter, payload) = inlet.peek().expect("depth counts letters");
                    let input = Input::Letter {
                        from: *from,
                        letter,
                        payload,
                    };
                    self.desk
                        .tell(&mut seat.place, &mut self.hands, self.now, input);
                    inlet.release();
                }
            }
        }
        any
    }

    fn tell_room(&mut self) {
        for seat in &mut self.seats {
            while let Some(to) = seat.place.outlets.take_room() {
                let input = Input::Room { to };
                self.desk
                    .tell(&mut seat.place, &mut self.hands, self.now, input);
            }
        }
    }

    fn tell_settled(&mut self, late: bool) {
        for seat in &mut self.seats {
            if seat.place.role.settles_late() == late && std::mem::take(&mut seat.place.heard) {
                self.desk
                    .tell(&mut seat.place, &mut self.hands, self.now, Input::Settled);
            }
        }
    }

    fn ring_doorbells(&mut self) {
        let mut told = 0;
        for seat in &mut self.seats {
            told |= seat.place.outlets.take_told();
        }
        let published = std::mem::take(&mut self.hands.published);
        let rung = self.incoming.ring_others(told, published);
        self.hands.counters.doorbells_rung.add(rung);
        self.hands.counters.other_calls.add(rung);
    }

    /// Whether anything waits that needs no enter to be seen.
    fn has_inputs(&mut self) -> bool {
        self.hands.ring.has_completions()
            || self.incoming.has_posts()
            || self.hands.has_news()
            || self.hands.marks.changed(&self.seen)
            || self
                .seats
                .iter()
                .any(|seat| seat.inlets.iter().any(|(_, inlet)| inlet.depth() > 0))
    }

    fn deadline(&self) -> Option<Micros> {
        let look_for_room = Micros(self.now.mono.0 + LOOK_FOR_ROOM_US);
        let mut deadline = self.next_timer();
        for Seat { place, .. } in &self.seats {
            deadline = earlier(deadline, place.role.deadline());
            if place.outlets.waits_for_room() {
                deadline = earlier(deadline, Some(look_for_room));
            }
        }
        deadline
    }

    /// Submits everything; spins or sleeps if nothing is left to do.
    fn rest(&mut self) {
        if self.has_inputs() {
            self.hands.ring.submit();
            return;
        }
        let deadline = self.deadline();
        if self.idle != Idle::Park && self.spin(deadline) {
            return;
        }
        self.incoming.fall_asleep();
        let wait = until(deadline, clock());
        if self.has_inputs() || wait.is_some_and(|wait| wait.is_zero()) {
            self.hands.ring.submit();
        } else {
            self.hands.counters.sleeps.add(1);
            self.hands.ring.submit_and_wait(wait);
        }
        self.incoming.wake_up();
    }

    /// Looks for something to do; whether there is.
    fn spin(&mut self, deadline: Option<Micros>) -> bool {
        self.hands.ring.submit();
        let spin_end = self.idle.spins_until(clock());
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.hands.ring.has_work() {
                    self.hands.ring.submit();
                }
                if self.has_inputs() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = clock();
            if deadline.is_some_and(|at| at <= now) {
                return true;
            }
            if spin_end <= now {
                return false;
            }
        }
    }
}
