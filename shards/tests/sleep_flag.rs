//! Every interleaving of a core that goes to sleep with cores that have something for it.

mod sync {
    pub use loom::sync::atomic::{AtomicBool, Ordering, fence};
}

#[path = "../src/sleep.rs"]
mod sleep;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize};
use loom::thread;
use sleep::SleepFlag;
use sync::Ordering;

/// `told` stands for letters and marks, `rung` for the eventfd.
#[derive(Default)]
struct Core {
    flag: SleepFlag,
    told: AtomicU64,
    rung: AtomicUsize,
}

fn senders(core: &Arc<Core>, count: usize) -> Vec<thread::JoinHandle<()>> {
    (0..count)
        .map(|_| {
            let core = core.clone();
            thread::spawn(move || {
                core.told.fetch_add(1, Ordering::Release);
                if core.flag.must_wake() {
                    core.rung.fetch_add(1, Ordering::Release);
                }
            })
        })
        .collect()
}

#[test]
fn whoever_sleeps_with_something_told_is_woken() {
    for count in [1, 2] {
        loom::model(move || {
            let core = Arc::new(Core::default());
            let senders = senders(&core, count);
            core.flag.fall_asleep();
            let seen = core.told.load(Ordering::Acquire);
            for sender in senders {
                sender.join().expect("no panic");
            }
            let rung = core.rung.load(Ordering::Acquire);
            assert!(rung <= 1, "one sleep is rung once");
            assert!(
                seen == count as u64 || rung == 1,
                "asleep with {seen} of {count} seen and nobody rang"
            );
        });
    }
}

#[test]
fn whoever_looks_again_after_waking_up_has_seen_everything_or_is_woken_next_time() {
    loom::model(|| {
        let core = Arc::new(Core::default());
        let senders = senders(&core, 1);
        let mut seen = 0;
        for _ in 0..2 {
            core.flag.fall_asleep();
            seen = core.told.load(Ordering::Acquire);
            if seen > 0 || core.rung.load(Ordering::Acquire) > 0 {
                core.flag.wake_up();
            }
        }
        for sender in senders {
            sender.join().expect("no panic");
        }
        assert!(seen == 1 || core.rung.load(Ordering::Acquire) == 1);
    });
}
