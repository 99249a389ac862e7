//! In its steady state a core takes no memory from the heap, frame after frame.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use shards::{Input, RoleId};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This thread is a core's.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTED.get() {
            ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if COUNTED.get() {
            ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: by the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Asks the role of the other core for each answer.
fn front() -> Script {
    COUNTED.set(true);
    let mut conns = Vec::with_capacity(64);
    Script::new(move |_, input, fx| match input {
        Input::Frame { conn, bytes } => {
            conns.push(*conn);
            let told = fx.tell(RoleId(1), bytes.len(), |lane| {
                lane.copy_from_slice(bytes);
                0
            });
            told.expect("the edge is large enough");
        }
        Input::Letter { payload, .. } => {
            let conn = conns.remove(0);
            fx.reply(conn, |out| framed_into(out, payload));
        }
        _ => {}
    })
}

fn back() -> Script {
    COUNTED.set(true);
    let mut value = 0;
    Script::new(move |_, input, fx| {
        if let Input::Letter { payload, .. } = input {
            value += 1;
            fx.mark(TestMark { kind: 1, value });
            let told = fx.tell(RoleId(0), payload.len(), |lane| {
                lane.copy_from_slice(payload);
                0
            });
            told.expect("the edge is large enough");
        }
    })
}

#[test]
fn frames_letters_marks_and_replies_take_no_memory() {
    let mut plan = plan(2, vec![role(0, 0, front), role(1, 1, back)], &[0]);
    plan.edge = Box::new(|from, to| {
        (from != to).then_some(shards::mesh::EdgeSize {
            letters: 64,
            lane_bytes: 100_000,
        })
    });
    let running = run(plan);
    let mut sockets: Vec<_> = (0..4).map(|_| connect(&running)).collect();
    // Longer than a receive buffer, so that frames straddle too.
    let frames: Vec<u8> = (0..5)
        .flat_map(|seed| framed(&pattern(1500, seed)))
        .collect();
    let mut answers = vec![0; frames.len()];
    let mut round = || {
        for socket in &mut sockets {
            socket.write_all(&frames).expect("the peer reads");
            socket.read_exact(&mut answers).expect("answers come");
            assert!(answers == frames);
        }
    };
    (0..100).for_each(|_| round());
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    assert!(before > 0, "the cores are counted");
    (0..500).for_each(|_| round());
    let after = ALLOCATIONS.load(Ordering::SeqCst);
    assert_eq!(after - before, 0, "allocations in 10,000 frames");
    stop(running, &[0, 1]);
}
