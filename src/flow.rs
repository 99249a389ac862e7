//! Work of many steps that reads top to bottom: an `async fn` on a deterministic executor of our
//! own.
//!
//! No runtime and no wakers: a flow waits for the answer to one ticket, and is polled when that
//! answer comes. Everything a flow asks becomes an effect or a letter of the role it lives in, so
//! flows run in the simulator like the rest of the role.
//!
//! ```text
//!  role.handle(Read{ticket,..}) -> Flows::answer(ticket, ..) -> the flow runs on to its next await
//!                                         |
//!                     what it asked for  <-+  drained into Effects by Flows::drain
//! ```
//!
//! A role with flows keeps its state in an `Rc<RefCell<S>>`; a flow reaches it only through
//! [`Cx::with`], never across an await, and `handle` holds no borrow while flows are polled.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use shards::files::{Job, JobDone};
use shards::role::{ReadAt, ReadError};

use crate::ids::{Conn, LogRange, Micros, RoleId, Ticket};
use crate::role::{Effect, Effects, Letter};

/// Tickets with this bit belong to flows; the role's own tickets do not have it.
pub const FLOW_TICKET: u64 = 1 << 63;

/// What a flow waits for.
#[derive(Debug)]
pub enum Answer {
    Read(Result<Vec<u8>, ReadError>),
    Slow(JobDone),
    /// A letter that came back with the flow's ask number, and its payload.
    Letter(Letter, Vec<u8>),
    /// The time has come.
    Time,
}

/// What a flow has asked for since it was last polled; becomes effects.
enum Ask {
    Read {
        ticket: Ticket,
        at: ReadAt,
        len: u32,
    },
    Slow {
        ticket: Ticket,
        job: Job,
    },
    Tell {
        to: RoleId,
        letter: Letter,
        payload: Vec<u8>,
    },
    Reply {
        conn: Conn,
        head: Vec<u8>,
        ranges: Vec<LogRange>,
    },
}

#[derive(Default)]
struct Desk {
    next: u64,
    asks: Vec<Ask>,
    /// Which flow waits for which ticket.
    waiting: BTreeMap<u64, usize>,
    answers: BTreeMap<u64, Answer>,
    sleepers: BTreeMap<(Micros, u64), ()>,
}

type Running = Pin<Box<dyn Future<Output = ()>>>;

/// The flows of one role over its state `S`.
pub struct Flows<S> {
    running: slab::Slab<Option<Running>>,
    limit: usize,
    desk: Rc<RefCell<Desk>>,
    state: Rc<RefCell<S>>,
    current: Rc<Cell<usize>>,
}

/// A flow's way to the outside.
pub struct Cx<S> {
    desk: Rc<RefCell<Desk>>,
    state: Rc<RefCell<S>>,
    current: Rc<Cell<usize>>,
}

impl<S> Clone for Cx<S> {
    fn clone(&self) -> Self {
        Cx {
            desk: self.desk.clone(),
            state: self.state.clone(),
            current: self.current.clone(),
        }
    }
}

/// Too many flows run already: an answer, not a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many requests of this kind are under way")]
pub struct TooMany;

impl<S: 'static> Flows<S> {
    #[must_use]
    pub fn new(state: Rc<RefCell<S>>, limit: usize) -> Self {
        Flows {
            running: slab::Slab::new(),
            limit,
            desk: Rc::default(),
            state,
            current: Rc::default(),
        }
    }

    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Starts a flow and runs it to its first await. Call [`Flows::drain`] afterwards.
    pub fn start<F>(&mut self, flow: impl FnOnce(Cx<S>) -> F) -> Result<(), TooMany>
    where
        F: Future<Output = ()> + 'static,
    {
        if self.running.len() >= self.limit {
            return Err(TooMany);
        }
        let cx = Cx {
            desk: self.desk.clone(),
            state: self.state.clone(),
            current: self.current.clone(),
        };
        let flow: Running = Box::pin(flow(cx));
        let number = self.running.insert(Some(flow));
        self.poll(number);
        Ok(())
    }

    /// Whether an answer with this number is for a flow.
    #[must_use]
    pub fn is_mine(number: u64) -> bool {
        number & FLOW_TICKET != 0
    }

    /// Hands an answer to the flow that waits for it, and runs that flow. An answer nobody waits
    /// for is dropped: the flow gave up.
    pub fn answer(&mut self, number: u64, answer: Answer) {
        let waiting = self.desk.borrow_mut().waiting.remove(&number);
        if let Some(flow) = waiting {
            self.desk.borrow_mut().answers.insert(number, answer);
            self.poll(flow);
        }
    }

    /// When the next sleeping flow wants to run.
    #[must_use]
    pub fn deadline(&self) -> Option<Micros> {
        self.desk
            .borrow()
            .sleepers
            .keys()
            .next()
            .map(|(time, _)| *time)
    }

    /// Runs the flows whose time has come.
    pub fn wake(&mut self, now: Micros) {
        loop {
            let due = self.desk.borrow().sleepers.keys().next().copied();
            let Some((time, number)) = due.filter(|(time, _)| *time <= now) else {
                return;
            };
            self.desk.borrow_mut().sleepers.remove(&(time, number));
            self.answer(number, Answer::Time);
        }
    }

    fn poll(&mut self, number: usize) {
        // The flow is taken out while it runs: it may start no other, but may end.
        let Some(mut flow) = self.running.get_mut(number).and_then(Option::take) else {
            return;
        };
        self.current.set(number);
        let ended = flow.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match ended {
            Poll::Ready(()) => drop(self.running.remove(number)),
            Poll::Pending => self.running[number] = Some(flow),
        }
    }

    /// Turns what the flows asked for into effects. Letters that find their edge full stay for the
    /// next call.
    pub fn drain(&mut self, fx: &mut Effects<'_>) {
        let asks = std::mem::take(&mut self.desk.borrow_mut().asks);
        let mut kept = Vec::new();
        for ask in asks {
            match ask {
                Ask::Read { ticket, at, len } => fx.push(Effect::Read { ticket, at, len }),
                Ask::Slow { ticket, job } => fx.push(Effect::Slow { ticket, job }),
                Ask::Reply { conn, head, ranges } => {
                    fx.reply_with_log(conn, ranges, |out| out.extend_from_slice(&head));
                }
                Ask::Tell {
                    to,
                    letter,
                    payload,
                } => {
                    let told = fx.tell(to, payload.len(), |lane| {
                        lane.copy_from_slice(&payload);
                        letter
                    });
                    if told.is_err() {
                        kept.push(Ask::Tell {
                            to,
                            letter,
                            payload,
                        });
                    }
                }
            }
        }
        let mut desk = self.desk.borrow_mut();
        kept.append(&mut desk.asks);
        desk.asks = kept;
    }
}

impl<S: 'static> Cx<S> {
    /// The only way to the role's state: never across an await.
    pub fn with<R>(&self, f: impl FnOnce(&mut S) -> R) -> R {
        f(&mut self.state.borrow_mut())
    }

    /// Reads exactly `len` bytes.
    pub async fn read(&self, at: ReadAt, len: u32) -> Result<Vec<u8>, ReadError> {
        let number = self.number();
        self.ask(Ask::Read {
            ticket: Ticket(number),
            at,
            len,
        });
        match self.wait(number).await {
            Answer::Read(result) => result,
            other => unreachable!("a read was answered by {other:?}"),
        }
    }

    /// Has the background executor do something.
    pub async fn slow(&self, job: Job) -> JobDone {
        let number = self.number();
        self.ask(Ask::Slow {
            ticket: Ticket(number),
            job,
        });
        match self.wait(number).await {
            Answer::Slow(done) => done,
            other => unreachable!("a job was answered by {other:?}"),
        }
    }

    /// Tells another role a letter made from an ask number, and waits for the letter that brings
    /// the number back.
    pub async fn question(
        &self,
        to: RoleId,
        payload: Vec<u8>,
        letter: impl FnOnce(u64) -> Letter,
    ) -> (Letter, Vec<u8>) {
        let number = self.number();
        self.ask(Ask::Tell {
            to,
            letter: letter(number),
            payload,
        });
        match self.wait(number).await {
            Answer::Letter(letter, payload) => (letter, payload),
            other => unreachable!("a question was answered by {other:?}"),
        }
    }

    /// Tells a letter that is not answered.
    pub fn tell(&self, to: RoleId, letter: Letter, payload: Vec<u8>) {
        self.ask(Ask::Tell {
            to,
            letter,
            payload,
        });
    }

    /// Replies to a connection of this role's core: `head` is a whole frame but for `ranges`.
    pub fn reply(&self, conn: Conn, head: Vec<u8>, ranges: Vec<LogRange>) {
        self.ask(Ask::Reply { conn, head, ranges });
    }

    pub async fn sleep_until(&self, time: Micros) {
        let number = self.number();
        self.desk.borrow_mut().sleepers.insert((time, number), ());
        match self.wait(number).await {
            Answer::Time => {}
            other => unreachable!("a sleep was answered by {other:?}"),
        }
    }

    fn number(&self) -> u64 {
        let mut desk = self.desk.borrow_mut();
        desk.next += 1;
        desk.next | FLOW_TICKET
    }

    fn ask(&self, ask: Ask) {
        self.desk.borrow_mut().asks.push(ask);
    }

    async fn wait(&self, number: u64) -> Answer {
        self.desk
            .borrow_mut()
            .waiting
            .insert(number, self.current.get());
        std::future::poll_fn(|_| match self.desk.borrow_mut().answers.remove(&number) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LogOffset;
    use shards::mesh::Outlets;

    struct Bench {
        list: Vec<Effect>,
        bytes: Vec<u8>,
        ranges: Vec<LogRange>,
        outlets: Outlets<Letter>,
    }

    impl Bench {
        fn new() -> Self {
            Bench {
                list: vec![],
                bytes: vec![],
                ranges: vec![],
                outlets: Outlets::new(),
            }
        }

        fn drain<S: 'static>(&mut self, flows: &mut Flows<S>) -> Vec<Effect> {
            let mut fx = Effects {
                list: &mut self.list,
                bytes: &mut self.bytes,
                ranges: &mut self.ranges,
                outlets: &mut self.outlets,
            };
            flows.drain(&mut fx);
            std::mem::take(&mut self.list)
        }
    }

    #[test]
    fn a_flow_runs_from_answer_to_answer() {
        let state = Rc::new(RefCell::new(Vec::<u8>::new()));
        let mut flows = Flows::new(state.clone(), 1);
        let mut bench = Bench::new();
        let started = flows.start(|cx| async move {
            for at in [5, 9] {
                let bytes = cx
                    .read(ReadAt::Log(LogOffset(at)), 1)
                    .await
                    .expect("answered well");
                cx.with(|state| state.extend(bytes));
            }
        });
        assert_eq!(started, Ok(()));
        assert_eq!(flows.start(|_| async {}), Err(TooMany));
        for (at, byte) in [(5, 50), (9, 90)] {
            let effects = bench.drain(&mut flows);
            let [
                Effect::Read {
                    ticket,
                    at: ReadAt::Log(offset),
                    len: 1,
                },
            ] = effects[..]
            else {
                panic!("{effects:?}")
            };
            assert_eq!(offset, LogOffset(at));
            flows.answer(ticket.0, Answer::Read(Ok(vec![byte])));
        }
        assert_eq!(*state.borrow(), [50, 90]);
        assert_eq!(flows.running(), 0);
    }

    #[test]
    fn sleepers_wake_in_order_of_time() {
        let state = Rc::new(RefCell::new(Vec::<u64>::new()));
        let mut flows = Flows::new(state.clone(), 9);
        for time in [30, 10, 20] {
            let started = flows.start(|cx| async move {
                cx.sleep_until(Micros(time)).await;
                cx.with(|state| state.push(time));
            });
            assert_eq!(started, Ok(()));
        }
        assert_eq!(flows.deadline(), Some(Micros(10)));
        flows.wake(Micros(20));
        assert_eq!(*state.borrow(), [10, 20]);
        assert_eq!(flows.deadline(), Some(Micros(30)));
    }
}
