//! Cores among themselves: letters, marks, doorbells, sleeping, starting and stopping.

mod common;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use shards::cores::{PlanError, StartError, StopError, start};
use shards::idle::{Idle, clock};
use shards::mesh::EdgeSize;
use shards::stall::Kind;
use shards::{Effect, Effects, Full, Input, Micros, RoleId};

fn tell(fx: &mut Effects<'_, Test>, to: u8, letter: u64, bytes: &[u8]) -> Result<(), Full> {
    fx.tell(RoleId(to), bytes.len(), |lane| {
        lane.copy_from_slice(bytes);
        letter
    })
}

/// Two roles that play a ball back and forth until it has flown `rounds` times.
fn ping_pong(cores: [usize; 2], idle: Idle, rounds: u64) -> (Duration, u64) {
    let (tell_test, said) = said();
    let player = move |me: u8, other: u8| {
        let tell_test = tell_test.clone();
        move || {
            Script::new(move |_, input, fx| {
                let ball = match input {
                    Input::Deadline => 0,
                    Input::Letter {
                        from,
                        letter,
                        payload,
                    } => {
                        assert_eq!(*from, RoleId(other));
                        assert_eq!(*payload, letter.to_be_bytes());
                        *letter
                    }
                    _ => return,
                };
                if ball == rounds {
                    tell_test.send(ball).expect("the test listens");
                } else {
                    let next = ball + 1;
                    tell(fx, other, next, &next.to_be_bytes()).expect("an empty edge");
                }
            })
            .with_deadline(if me == 0 { soon(5) } else { Micros(u64::MAX) })
        }
    };
    let roles = vec![
        role(0, cores[0], player(0, 1)),
        role(1, cores[1], player(1, 0)),
    ];
    let mut plan = plan(1 + cores[1], roles, &[]);
    for core in &mut plan.cores {
        core.idle = idle;
    }
    let running = run(plan);
    let begin = Instant::now();
    assert_eq!(said.next(), rounds);
    let taken = begin.elapsed();
    let rung = running
        .counters()
        .iter()
        .map(|core| core.doorbells_rung.get())
        .sum();
    stop(running, &[0, 1]);
    (taken, rung)
}

#[test]
fn a_doorbell_wakes_whoever_sleeps_every_time() {
    let (_, rung) = ping_pong([0, 1], Idle::Park, 20_000);
    assert!(rung > 10_000, "{rung} doorbells for 20,000 letters");
}

#[test]
fn spinning_cores_need_no_doorbell() {
    let spin = Micros(2_000_000);
    let (_, rung) = ping_pong([0, 1], Idle::Adaptive { spin }, 200);
    assert!(rung < 10, "{rung} doorbells");
}

#[test]
fn roles_of_one_core_use_no_doorbell() {
    let (_, rung) = ping_pong([0, 0], Idle::Park, 20_000);
    assert_eq!(rung, 0);
}

#[test]
fn a_sleeping_core_takes_no_time() {
    let running = run(plan(2, vec![role(0, 0, echo), role(1, 1, echo)], &[0]));
    let mut socket = connect(&running);
    send_frame(&mut socket, b"once");
    read_frame(&mut socket);
    let before = cpu_time();
    let turns = |core: usize| running.counters()[core].turns.get();
    let turns_before = turns(0) + turns(1);
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_time() - before;
    assert!(turns(0) + turns(1) - turns_before < 10);
    // Other tests of this process run beside this one, so this is a bound for all of them when it
    // runs alone, and the turns above are the bound when it does not.
    if std::env::var_os("RINGMQ_ALONE").is_some() {
        assert!(used < Duration::from_millis(20), "{used:?}");
    }
    stop(running, &[0, 1]);
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn marks_reach_all_other_roles_latest_value_first_of_all() {
    let (tell_test, said) = said();
    let publisher = || {
        Script::new(|_, input, fx| match input {
            Input::Deadline => {
                for value in 1..=3 {
                    fx.mark(TestMark { kind: 1, value });
                }
                tell(fx, 1, 77, b"").expect("an empty edge");
                tell(fx, 2, 77, b"").expect("an empty edge");
            }
            Input::Mark(mark) => panic!("its own mark: {mark:?}"),
            _ => {}
        })
        .with_deadline(soon(5))
    };
    let listener = |id: u8| {
        let tell_test = tell_test.clone();
        move || {
            let mut heard: Vec<String> = Vec::new();
            Script::new(move |_, input, _| match input {
                Input::Mark(mark) => heard.push(format!("mark {} {}", mark.kind, mark.value)),
                Input::Letter { letter, .. } => heard.push(format!("letter {letter}")),
                Input::Settled => {
                    heard.push("settled".into());
                    if heard.iter().any(|what| what.starts_with("letter")) {
                        let _ = tell_test.send((id, std::mem::take(&mut heard)));
                    }
                }
                _ => {}
            })
        }
    };
    let roles = vec![
        role(0, 0, publisher),
        role(1, 0, listener(1)),
        role(2, 1, listener(2)),
    ];
    let running = run(plan(2, roles, &[]));
    for _ in 0..2 {
        let (id, heard) = said.next();
        let marks: Vec<&String> = heard.iter().filter(|w| w.starts_with("mark")).collect();
        assert_eq!(marks.last().expect("a mark"), &"mark 1 3", "role {id}");
        let letter = heard.iter().position(|what| what == "letter 77");
        let mark = heard.iter().position(|what| what == "mark 1 3");
        assert!(mark < letter, "role {id}: {heard:?}");
        assert_eq!(heard.last().expect("something"), "settled");
        // On the publisher's own core all of it is one turn.
        if id == 1 {
            assert_eq!(heard, ["mark 1 3", "letter 77", "settled"]);
        }
    }
    assert_eq!(running.marks().read(1), 3);
    stop(running, &[0, 1, 2]);
}

#[test]
fn a_refused_sender_hears_of_room_and_no_letter_is_lost_or_turned_around() {
    const LETTERS: u64 = 50_000;
    let (tell_test, said) = said();
    let sender = || {
        let mut next = 0;
        Script::new(move |_, input, fx| {
            if matches!(input, Input::Deadline | Input::Room { to: RoleId(1) }) {
                while next < LETTERS && tell(fx, 1, next, &pattern(100, next as usize)).is_ok() {
                    next += 1;
                }
            }
        })
        .with_deadline(soon(5))
    };
    let receiver = move || {
        let mut expected = 0;
        Script::new(move |_, input, _| {
            if let Input::Letter {
                letter, payload, ..
            } = input
            {
                assert_eq!(*letter, expected);
                assert!(*payload == pattern(100, expected as usize));
                expected += 1;
                if expected == LETTERS {
                    tell_test.send(()).expect("the test listens");
                }
            }
        })
    };
    for core in [0, 1] {
        let roles = vec![role(0, 0, sender), role(1, core, receiver.clone())];
        let mut plan = plan(core + 1, roles, &[]);
        plan.edge = Box::new(|_, _| {
            Some(EdgeSize {
                letters: 4,
                lane_bytes: 350,
            })
        });
        let running = run(plan);
        said.next();
        stop(running, &[0, 1]);
    }
}

#[test]
fn settled_comes_once_after_everything_of_a_turn() {
    let (tell_test, said) = said();
    let build = move || {
        let (mut frames, mut most) = (0, 0);
        Script::new(move |_, input, fx| match input {
            Input::Frame { conn, .. } => {
                frames += 1;
                if frames == 1 {
                    // So that the rest of what was sent is there when the next turn begins.
                    std::thread::sleep(Duration::from_millis(20));
                }
                fx.reply(*conn, |out| framed_into(out, b"done"));
            }
            Input::Settled => {
                most = most.max(frames);
                if frames > 0 {
                    tell_test.send(frames).expect("the test listens");
                }
                frames = 0;
            }
            _ => {}
        })
    };
    let running = run(plan(1, vec![role(0, 0, build)], &[0]));
    let mut sockets: Vec<_> = (0..20).map(|_| connect(&running)).collect();
    wait_until(|| running.connections(RoleId(0)) == 20);
    for socket in &mut sockets {
        send_frame(socket, b"ping");
    }
    let mut turns = Vec::new();
    while turns.iter().sum::<u32>() < 20 {
        turns.push(said.next());
    }
    assert!(turns.len() < 10, "frames per turn: {turns:?}");
    stop(running, &[0]);
}

#[test]
fn a_deadline_comes_when_it_is_due() {
    let (tell_test, said) = said();
    let build = move || {
        let at = soon(60);
        Script::new(move |now, input, _| {
            if matches!(input, Input::Deadline) {
                assert!(now.mono >= at);
                let late = clock().0 - at.0;
                tell_test.send(late).expect("the test listens");
            }
        })
        .with_deadline(at)
    };
    let running = run(plan(1, vec![role(0, 0, build)], &[]));
    assert!(said.next() < 2_000_000);
    assert!(said.nothing_within(Duration::from_millis(100)));
    stop(running, &[0]);
}

#[test]
fn roles_stop_phase_by_phase_after_reading_has_stopped() {
    let order = Arc::new(AtomicU64::new(1));
    let frames_after_stop = Arc::new(AtomicU64::new(0));
    let (tell_test, said) = said();
    let build = |id: u8| {
        let (order, after) = (order.clone(), frames_after_stop.clone());
        let tell_test = tell_test.clone();
        move || {
            let mut stopping = false;
            let mut waiting = None;
            Script::new(move |_, input, fx| match input {
                Input::Frame { conn, .. } => {
                    after.fetch_add(u64::from(stopping), Ordering::SeqCst);
                    waiting.get_or_insert(*conn);
                    tell_test.send((id, 0)).expect("the test listens");
                }
                Input::Stop => {
                    stopping = true;
                    let place = order.fetch_add(1, Ordering::SeqCst);
                    if id == 2 {
                        // Time for frames to come, if any still did.
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    tell_test.send((id, place)).expect("the test listens");
                    if let Some(conn) = waiting {
                        fx.reply(conn, |out| framed_into(out, b"at the end"));
                    }
                    fx.push(Effect::Stopped);
                }
                _ => {}
            })
            .never_stops()
        }
    };
    let roles = vec![
        role(0, 0, build(0)),
        role(1, 1, build(1)),
        role(2, 1, build(2)),
    ];
    let running = run(plan(2, roles, &[0]));
    let mut socket = connect(&running);
    send_frame(&mut socket, b"ping");
    assert_eq!(said.next(), (0, 0));
    // Someone goes on sending as if nothing were.
    let mut noisy = connect(&running);
    let noise = std::thread::spawn(move || {
        let frames = framed(&pattern(100, 1)).repeat(10);
        while std::io::Write::write_all(&mut noisy, &frames).is_ok() {
            std::thread::sleep(Duration::from_micros(50));
        }
    });
    wait_until(|| running.counters()[0].frames.get() > 100);
    let stopper = std::thread::spawn(move || {
        running.stop(&[&[RoleId(0), RoleId(1)], &[RoleId(2)]], PATIENCE)
    });
    let stops = || loop {
        if let (id, place @ 1..) = said.next() {
            return (id, place);
        }
    };
    let mut first = [stops(), stops()];
    first.sort_unstable();
    assert_eq!(first[0].0 + first[1].0, 1);
    assert_eq!(first[0].1 + first[1].1, 3);
    assert_eq!(stops(), (2, 3));
    assert_eq!(read_frame(&mut socket), b"at the end");
    assert!(is_closed_within(&mut socket, PATIENCE));
    assert_eq!(stopper.join().expect("no panic"), Ok(()));
    noise.join().expect("no panic");
    assert_eq!(frames_after_stop.load(Ordering::SeqCst), 0);
}

#[test]
fn a_role_that_does_not_stop_is_named() {
    let build = || Script::new(|_, _, _| {}).never_stops();
    let running = run(plan(1, vec![role(7, 0, build), role(8, 0, echo)], &[8]));
    let stopped = running.stop(&[&[RoleId(7), RoleId(8)]], Duration::from_millis(50));
    assert_eq!(stopped, Err(vec![StopError::TimedOut(vec![RoleId(7)])]));
}

#[test]
fn nothing_is_accepted_before_listeners_open() {
    let running = start(plan(1, vec![role(0, 0, echo)], &[0])).expect("the cores start");
    let addr = running.addr(LISTENER).expect("it was planned");
    assert!(std::net::TcpStream::connect(addr).is_err());
    let mut running = running;
    running.open_listeners().expect("the port is ours");
    let mut socket = connect(&running);
    send_frame(&mut socket, b"ping");
    assert_eq!(read_frame(&mut socket), b"ping");
    stop(running, &[0]);
}

#[test]
fn what_cannot_start_says_why() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("any port is free");
    let addr = taken.local_addr().expect("it is bound");
    let mut busy = plan(1, vec![role(0, 0, echo)], &[0]);
    busy.listeners[0].addr = addr;
    assert!(matches!(
        start(busy),
        Err(StartError::AddressInUse { addr: named }) if named == addr
    ));

    let mut shared = plan(2, vec![], &[]);
    shared.cores[0].cpu = Some(0);
    shared.cores[1].cpu = Some(0);
    shared.cores[1].idle = Idle::Spin;
    assert!(matches!(
        start(shared),
        Err(StartError::Plan(PlanError::SpinOnSharedCpu(1, 0)))
    ));

    let mut nowhere = plan(1, vec![], &[]);
    nowhere.cores[0].cpu = Some(100_000);
    assert!(matches!(
        start(nowhere),
        Err(StartError::Pin {
            core: 0,
            cpu: 100_000
        })
    ));

    let homeless = plan(1, vec![role(3, 1, echo)], &[]);
    assert!(matches!(
        start(homeless),
        Err(StartError::Plan(PlanError::NoCore(RoleId(3))))
    ));

    let twice = plan(1, vec![role(3, 0, echo), role(3, 0, echo)], &[]);
    assert!(matches!(
        start(twice),
        Err(StartError::Plan(PlanError::BadRole(RoleId(3))))
    ));

    let nobody = plan(1, vec![role(3, 0, echo)], &[4]);
    assert!(matches!(
        start(nobody),
        Err(StartError::Plan(PlanError::BadListener(LISTENER)))
    ));

    let broken = || panic!("this role cannot be built");
    let panics = plan(2, vec![role(0, 0, echo), role(1, 1, broken)], &[]);
    assert!(matches!(start(panics), Err(StartError::Ended { core: 1 })));
}

#[test]
fn a_panic_is_reported_with_its_core_and_message() {
    let build = || {
        Script::new(|_, input, _| {
            assert!(!matches!(input, Input::Frame { .. }), "cannot bear frames");
        })
    };
    let running = run(plan(2, vec![role(0, 0, echo), role(1, 1, build)], &[1]));
    let mut socket = connect(&running);
    send_frame(&mut socket, b"ping");
    wait_until(|| running.has_failed());
    let stopped = running.stop(&[&[RoleId(0), RoleId(1)]], PATIENCE);
    let errors = stopped.expect_err("a core has panicked");
    let message = "cannot bear frames".to_owned();
    assert!(errors.contains(&StopError::Panicked { core: 1, message }));
}

#[test]
fn a_stall_is_noted_with_role_and_kind() {
    let build = || {
        Script::new(|_, input, _| {
            if matches!(input, Input::Frame { .. }) {
                std::thread::sleep(Duration::from_millis(250));
            }
        })
    };
    let mut plan = plan(1, vec![role(5, 0, build)], &[5]);
    plan.stall_threshold = Micros(200_000);
    let running = run(plan);
    std::thread::sleep(Duration::from_millis(100));
    let mut socket = connect(&running);
    send_frame(&mut socket, b"ping");
    // A machine that takes the CPU away for long makes stalls of its own.
    wait_until(|| {
        let stalls = running.counters()[0].recent_stalls();
        let of_frame = stalls.iter().find(|stall| stall.kind == Kind::Frame);
        of_frame.is_some_and(|stall| stall.role == RoleId(5) && stall.length.0 >= 200_000)
    });
    assert!(running.counters()[0].longest_turn_us.get() >= 250_000);
    stop(running, &[5]);
}

#[test]
fn many_connections_over_many_cores_with_letters_between() {
    // Each frame goes through the role of the next core and comes back.
    let done = Arc::new(AtomicBool::new(false));
    let build = |me: u8| {
        move || {
            let mut waiting = std::collections::HashMap::new();
            let mut next = 0u64;
            let mut unsent = std::collections::VecDeque::new();
            Script::new(move |_, input, fx| {
                match input {
                    Input::Frame { conn, bytes } => {
                        next += 1;
                        waiting.insert(next, *conn);
                        unsent.push_back(((me + 1) % 3, next << 1, bytes.to_vec()));
                    }
                    Input::Letter {
                        from,
                        letter,
                        payload,
                    } if letter & 1 == 0 => {
                        unsent.push_back((from.0, letter | 1, payload.to_vec()));
                    }
                    Input::Letter {
                        letter, payload, ..
                    } => {
                        let conn = waiting.remove(&(letter >> 1)).expect("asked once");
                        fx.reply(conn, |out| framed_into(out, payload));
                    }
                    _ => {}
                }
                while let Some((to, letter, bytes)) = unsent.pop_front() {
                    if tell(fx, to, letter, &bytes).is_err() {
                        unsent.push_front((to, letter, bytes));
                        break;
                    }
                }
            })
        }
    };
    let roles = vec![
        role(0, 0, build(0)),
        role(1, 1, build(1)),
        role(2, 2, build(2)),
    ];
    let running = run(plan(3, roles, &[0, 1, 2]));
    let clients: Vec<_> = (0..12usize)
        .map(|client| {
            let mut socket = connect(&running);
            std::thread::spawn(move || {
                for round in 0..60usize {
                    let frames: Vec<Vec<u8>> = (0..6)
                        .map(|i| pattern(4 + (client * 37 + round * 11 + i) % 300, client + i))
                        .collect();
                    for frame in &frames {
                        send_frame(&mut socket, frame);
                    }
                    for frame in &frames {
                        assert_eq!(&read_frame(&mut socket), frame);
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("every answer is right");
    }
    done.store(true, Ordering::SeqCst);
    stop(running, &[0, 1, 2]);
}
