//! One seed: several lives of one store, each ended by a death but the last.

use std::io;

use ringmq::boot::{self, Opened};
use ringmq::role::{CONTROL, DISPATCH, INDEX, LOG, Mark};
use ringmq::store::abort;

use crate::cores::World;
use crate::decoder;
use crate::disk::{Death, Disk, Pattern};
use crate::ledger::{Broken, Ledger};
use crate::plan::Plan;
use crate::rng::{Rng, Trace};
use crate::workload::{Commits, Workload};

/// Virtual time that a life may take once its clients have nothing more to ask.
const SETTLE_US: u64 = 60_000_000;
/// Turns of one life, against a world that never comes to rest.
const TURNS_MAX: u64 = 3_000_000;

/// What a seed did, for those who count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub trace: u64,
    pub deaths: u64,
    pub deaths_while_opening: u64,
    pub acknowledged: u64,
    pub consumed: u64,
    pub recovered: u64,
    pub poisoned: u64,
    pub clean_ends: u64,
    /// Failures and stalls of the disk.
    pub failures: u64,
    pub turns: u64,
}

impl Done {
    pub fn add(&mut self, other: Done) {
        self.trace ^= other.trace;
        self.deaths += other.deaths;
        self.deaths_while_opening += other.deaths_while_opening;
        self.acknowledged += other.acknowledged;
        self.consumed += other.consumed;
        self.recovered += other.recovered;
        self.poisoned += other.poisoned;
        self.clean_ends += other.clean_ends;
        self.failures += other.failures;
        self.turns += other.turns;
    }
}

#[derive(Clone)]
pub struct Sim {
    plan: Plan,
    rng: Rng,
    disk: Disk,
    ledger: Ledger,
    commits: Commits,
    trace: Trace,
    mono: u64,
    done: Done,
    /// Whether every death since the last look keeps what was answered.
    counts: bool,
    ended_cleanly: bool,
}

/// How a life ended.
enum End {
    Died,
    Poisoned,
    Rested,
}

impl Sim {
    pub fn new(plan: Plan, mut rng: Rng) -> Sim {
        let mut disk = Disk::new(rng.split());
        disk.canary = plan.canary;
        Sim {
            plan,
            disk,
            ledger: Ledger::default(),
            commits: Commits::new(),
            trace: Trace::default(),
            mono: 0,
            done: Done::default(),
            counts: true,
            ended_cleanly: false,
            rng,
        }
    }

    pub fn run(mut self) -> Result<Done, Broken> {
        let mut deaths = self.plan.deaths;
        let mut life = 0;
        loop {
            life += 1;
            if deaths > 0 {
                self.disk.die_at = Some(self.disk.steps + self.death_after());
            }
            let opened = match self.open() {
                Ok(opened) => opened,
                Err(Some(broken)) => return Err(broken),
                Err(None) => {
                    self.done.deaths_while_opening += 1;
                    deaths = deaths.saturating_sub(1);
                    self.die();
                    continue;
                }
            };
            match self.live(opened, life)? {
                End::Rested if deaths == 0 => break,
                End::Rested | End::Died | End::Poisoned => deaths = deaths.saturating_sub(1),
            }
        }
        self.done.trace = self.trace.0;
        self.done.failures = self.disk.failures;
        self.done.acknowledged = self.ledger.acknowledged;
        self.done.consumed = self.ledger.consumed;
        self.done.recovered = self.ledger.recovered;
        Ok(self.done)
    }

    /// So many steps of the disk from now; sometimes within the opening of the store.
    fn death_after(&mut self) -> u64 {
        match self.rng.below(4) {
            0 => 1 + self.rng.below(60),
            1 => 1 + self.rng.skewed(400),
            _ => 40 + self.rng.below(1500),
        }
    }

    fn draw_death(&mut self) -> Death {
        if self.rng.percent(30) {
            return Death::Process;
        }
        let all = self.disk.unsynced_sectors() as u64 + 1;
        let some = self.rng.below(all) as usize;
        Death::Power(match self.rng.below(8) {
            0 => Pattern::None,
            1 => Pattern::All,
            2 => Pattern::Prefix(some),
            3 => Pattern::Suffix(some),
            4 => Pattern::Hole(some),
            5 => Pattern::Survivor(some),
            6 => Pattern::Percent(50),
            _ => Pattern::Percent(self.rng.below(101)),
        })
    }

    fn die(&mut self) {
        let death = self.draw_death();
        self.done.deaths += 1;
        let keeps = death == Death::Process && self.disk.failures == 0;
        self.counts &= self.plan.is_sync() || keeps;
        self.trace.add(self.disk.steps);
        self.disk.lose(death);
        self.mono += 1_000_000 + self.rng.below(5_000_000);
    }

    /// Opens the store and looks at what is there. `Err(None)`: the disk died meanwhile.
    fn open(&mut self) -> Result<Opened, Option<Broken>> {
        self.disk.opening = true;
        self.disk.faults = Default::default();
        let opened = boot::open(&mut self.disk, &self.plan.store);
        let begun = opened
            .map_err(|error| error.to_string())
            .and_then(|opened| {
                self.check_twice(&opened)?;
                let begun = abort::begin_run(&mut self.disk, &self.plan.store.root, 1);
                begun.map_err(|error: io::Error| error.to_string())?;
                Ok(opened)
            });
        self.disk.opening = false;
        if self.disk.is_dead() {
            return Err(None);
        }
        let opened = begun.map_err(|error| Some(format!("the store does not open: {error}")))?;
        self.check_log(&opened).map_err(Some)?;
        Ok(opened)
    }

    /// Opening a store that was just opened changes nothing more.
    fn check_twice(&mut self, opened: &Opened) -> Result<(), Broken> {
        if self.disk.is_dead() || !self.rng.once_in(3) {
            return Ok(());
        }
        let mut again = self.disk.clone();
        again.die_at = None;
        if self.rng.once_in(2) {
            again.lose(Death::Power(Pattern::Percent(50)));
            again.opening = true;
        }
        let second = boot::open(&mut again, &self.plan.store);
        let second = second.map_err(|error| format!("it opens once, not twice: {error}"))?;
        let (one, two) = (&opened.recovered, &second.recovered);
        let ends = (one.end, one.first, one.prepared) == (two.end, two.first, two.prepared);
        let dir = &self.plan.store.log_dir;
        let bytes = self.plan.store.segment_bytes;
        let logs =
            decoder::read_log(&self.disk, dir, bytes) == decoder::read_log(&again, dir, bytes);
        let next = |opened: &Opened| -> Vec<u64> {
            let queues = opened.boot.queues.iter();
            queues.map(|queue| queue.next.0).collect()
        };
        if !ends || !logs || next(opened) != next(&second) {
            let all = next(opened).into_iter().zip(next(&second)).enumerate();
            let others: Vec<_> = all.filter(|(_, (one, two))| one != two).collect();
            return Err(format!(
                "opening twice is not opening once: {:?}, then {:?}; same log: {logs}; other next \
                 offsets: {others:?}",
                (one.end, one.first, one.prepared),
                (two.end, two.first, two.prepared),
            ));
        }
        Ok(())
    }

    fn check_log(&mut self, opened: &Opened) -> Result<(), Broken> {
        let store = &self.plan.store;
        let log = decoder::read_log(&self.disk, &store.log_dir, store.segment_bytes);
        let end = opened.recovered.end.0;
        if log.end != end {
            return Err(format!(
                "the log ends at {} but recovery says {end}",
                log.end
            ));
        }
        let dirt =
            decoder::first_nonzero_behind(&self.disk, &store.log_dir, store.segment_bytes, end);
        if let Some(at) = dirt {
            return Err(format!("{at} is not zero, behind the log's end at {end}"));
        }
        if self.ended_cleanly && !opened.recovered.clean {
            return Err("a clean end looks like a crash".to_string());
        }
        self.check_offsets(opened)?;
        self.ended_cleanly = false;
        let counts = std::mem::replace(&mut self.counts, true);
        self.ledger.check(&log, counts)
    }

    /// Consumer offsets are ones that were committed, and the last ones after a clean end.
    fn check_offsets(&mut self, opened: &Opened) -> Result<(), Broken> {
        let mut found = Commits::new();
        for (topic, group, queue, offset) in &opened.boot.offsets {
            let key = (group.clone(), (topic.clone(), *queue));
            let (asked_for, _) = self.commits.get(&key).copied().unwrap_or((-1, -1));
            if *offset > asked_for {
                return Err(format!("{key:?} was never committed at {offset}"));
            }
            found.insert(key, (*offset, *offset));
        }
        if self.ended_cleanly {
            for (key, (_, answered)) in &self.commits {
                let saved = found.get(key).map_or(-1, |found| found.0);
                if saved < *answered {
                    return Err(format!(
                        "{key:?} was committed at {answered} but is {saved} after a clean end"
                    ));
                }
            }
        }
        for (key, commit) in &mut self.commits {
            // What a death has forgotten is not promised any more.
            commit.1 = found.get(key).map_or(-1, |found| found.0);
        }
        Ok(())
    }

    /// One life, up to its end; the disk is left as it was then.
    fn life(&mut self, opened: Opened, life: u64) -> Result<End, Broken> {
        self.disk.faults = self.plan.faults;
        let disk = std::mem::replace(&mut self.disk, Disk::new(Rng::new(0)));
        let rng = self.rng.split();
        let mut world = World::new(&self.plan, opened, disk, rng, self.mono);
        let mut workload = Workload::new(&self.plan, self.rng.split(), life, self.mono);
        let ended = self.run_world(&mut world, &mut workload);
        self.trace.add(world.trace.0);
        self.done.turns += world.turns;
        self.mono = world.mono;
        self.disk = world.disk;
        ended
    }

    fn live(&mut self, opened: Opened, life: u64) -> Result<End, Broken> {
        match self.life(opened, life)? {
            End::Rested => {
                self.ended_cleanly = self.disk.failures == 0;
                self.done.clean_ends += 1;
                self.disk.die_at = None;
                self.check_queues()?;
                if self.ended_cleanly && self.rng.once_in(2) {
                    let death = self.draw_death();
                    self.disk.lose(death);
                }
                self.disk.die_at = None;
                let opened = self.open();
                opened.map_err(|broken| broken.unwrap_or_default())?;
                Ok(End::Rested)
            }
            End::Died => {
                self.die();
                Ok(End::Died)
            }
            End::Poisoned => {
                self.done.poisoned += 1;
                self.die();
                Ok(End::Poisoned)
            }
        }
    }

    fn run_world(&mut self, world: &mut World, workload: &mut Workload) -> Result<End, Broken> {
        let mut settle_until = u64::MAX;
        let mut poisoned_until = u64::MAX;
        let mut rested = false;
        while !rested {
            if world.disk.is_dead() {
                return Ok(End::Died);
            }
            if world.turns > TURNS_MAX {
                return Err("the roles do not come to rest".to_string());
            }
            workload.act(world, &mut self.ledger, &mut self.commits)?;
            if world.mark(Mark::Poisoned(0)) != 0 {
                poisoned_until = poisoned_until.min(world.mono + 2_000_000);
                if world.mono >= poisoned_until {
                    return Ok(End::Poisoned);
                }
            }
            if workload.left == 0 && settle_until == u64::MAX {
                settle_until = world.mono + SETTLE_US;
            }
            let until = workload
                .next_at()
                .unwrap_or(settle_until)
                .min(poisoned_until);
            let moved = world.step(until.max(world.mono + 1));
            if workload.left == 0 && !workload.is_waiting() {
                let behind = world.mark(Mark::Dispatched(Default::default()))
                    < world.mark(Mark::Visible(Default::default()));
                rested = !behind && (!moved || self.rng.once_in(300));
            }
            if world.mono > settle_until.saturating_add(10 * SETTLE_US) {
                return Err("the world does not come to rest".to_string());
            }
        }
        self.stop(world, workload)
    }

    /// Stops the roles in their order, while clients still wait for what they asked.
    fn stop(&mut self, world: &mut World, workload: &mut Workload) -> Result<End, Broken> {
        let shards: Vec<_> = (0..self.plan.shards).map(ringmq::role::shard).collect();
        for group in [&shards[..], &[LOG], &[DISPATCH, INDEX], &[CONTROL]] {
            for role in group {
                world.stop(*role);
            }
            let until = world.mono + SETTLE_US;
            while !group.iter().all(|role| world.has_stopped(*role)) {
                if world.disk.is_dead() {
                    return Ok(End::Died);
                }
                if world.mono > until {
                    let late = group.iter().find(|role| !world.has_stopped(**role));
                    return Err(format!("{late:?} does not stop"));
                }
                workload.act(world, &mut self.ledger, &mut self.commits)?;
                world.step(until + 1);
            }
        }
        Ok(if world.disk.is_dead() {
            End::Died
        } else {
            End::Rested
        })
    }

    /// The store as it stands just before step `step` of the first life: every image that a power
    /// loss can leave of it must keep the promises. The number of images, or `None` where the life
    /// ends before that step.
    pub fn images_at(mut self, step: u64, images: &mut u64) -> Result<bool, Broken> {
        self.disk.die_at = Some(step);
        match self.open() {
            Ok(opened) => match self.life(opened, 1)? {
                End::Died => {}
                End::Poisoned | End::Rested => return Ok(false),
            },
            Err(Some(broken)) => return Err(broken),
            Err(None) => {}
        }
        let sectors = self.disk.unsynced_sectors();
        let mut patterns = vec![Pattern::None, Pattern::All];
        for place in 0..sectors {
            patterns.push(Pattern::Prefix(place));
            patterns.push(Pattern::Suffix(place));
            patterns.push(Pattern::Hole(place));
            patterns.push(Pattern::Survivor(place));
        }
        patterns.extend([25, 50, 75].map(Pattern::Percent));
        for pattern in patterns {
            *images += 1;
            let mut image = self.clone();
            image.disk.reseed(*images);
            image.disk.lose(Death::Power(pattern));
            if let Err(broken) = image.open() {
                let broken = broken.unwrap_or_default();
                return Err(format!("step {step}, {pattern:?}: {broken}"));
            }
        }
        Ok(true)
    }

    /// After a clean end the consume queues say what the log says.
    fn check_queues(&self) -> Result<(), Broken> {
        let store = &self.plan.store;
        let log = decoder::read_log(&self.disk, &store.log_dir, store.segment_bytes);
        let root = store.root.join("consumequeue");
        for ((topic, queue), expected) in decoder::units_of(&log) {
            let dir = root.join(&topic).join(queue.to_string());
            let (units, is_clean) = decoder::read_queue(&self.disk, &dir, store.queue_file_bytes);
            if units != expected || !is_clean {
                let first = units
                    .iter()
                    .zip(&expected)
                    .position(|(one, two)| one != two);
                return Err(format!(
                    "queue {topic}-{queue} has {} units instead of {}, the first other one at \
                     {first:?}, clean: {is_clean}",
                    units.len(),
                    expected.len()
                ));
            }
        }
        Ok(())
    }
}
