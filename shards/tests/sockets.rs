//! Connections on the real kernel: framing, partial sends, pausing, closing, bounds.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use shards::role::ConnectError;
use shards::{Conn, Effect, Input, Micros, RoleId, Ticket};

#[test]
fn frames_arrive_whole_however_the_stream_is_split() {
    let running = run(plan(1, vec![role(0, 0, echo)], &[0]));
    let frames: Vec<Vec<u8>> = [4, 5, 30, 4, 100, 4095, 9, 4096]
        .iter()
        .enumerate()
        .map(|(seed, len)| pattern(*len, seed))
        .collect();
    let stream: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
    let mut socket = connect(&running);
    let splits = (1..200).chain((200..stream.len()).step_by(97));
    for split in splits {
        let (first, second) = stream.split_at(split);
        socket.write_all(first).expect("the peer reads");
        if split % 8 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        socket.write_all(second).expect("the peer reads");
        for frame in &frames {
            assert_eq!(&read_frame(&mut socket), frame, "split at {split}");
        }
    }
    for byte in &stream {
        socket
            .write_all(std::slice::from_ref(byte))
            .expect("the peer reads");
    }
    for frame in &frames {
        assert_eq!(&read_frame(&mut socket), frame);
    }
    stop(running, &[0]);
}

#[test]
fn a_frame_of_many_buffers_is_gathered_and_many_frames_follow_it() {
    let running = run(plan(1, vec![role(0, 0, echo)], &[0]));
    let mut socket = connect(&running);
    let mut other = socket.try_clone().expect("a descriptor");
    let frames: Vec<Vec<u8>> = [3 << 20, 10, 200_000, 4, 1 << 20]
        .iter()
        .enumerate()
        .map(|(seed, len)| pattern(*len, seed))
        .collect();
    let sent = frames.clone();
    let writer = std::thread::spawn(move || {
        for frame in sent {
            send_frame(&mut other, &frame);
        }
    });
    for frame in &frames {
        assert!(&read_frame(&mut socket) == frame, "{} bytes", frame.len());
    }
    writer.join().expect("the writer ends");
    stop(running, &[0]);
}

#[test]
fn the_longest_frame_passes_and_a_longer_one_closes() {
    let mut plan = plan(1, vec![role(0, 0, echo)], &[0]);
    plan.limits.frame_bytes_max = 50_000;
    let running = run(plan);
    let longest = pattern(50_000 - 4, 1);
    let mut socket = connect(&running);
    send_frame(&mut socket, &longest);
    assert!(read_frame(&mut socket) == longest);
    for length in [50_000 - 3, u32::MAX, 1 << 31, 0, 3] {
        let mut socket = connect(&running);
        send_frame(&mut socket, b"good");
        socket
            .write_all(&u32::to_be_bytes(length))
            .expect("the peer reads");
        assert_eq!(read_frame(&mut socket), b"good", "before {length}");
        assert!(is_closed_within(&mut socket, PATIENCE), "{length}");
    }
    assert_eq!(running.counters()[0].refused.bad_frame_length.get(), 5);
    stop(running, &[0]);
}

/// Answers each frame with as many bytes as it asks for.
fn generous() -> common::Script {
    Script::new(|_, input, fx| {
        if let Input::Frame { conn, bytes } = input {
            let len = u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"));
            fx.reply(*conn, |out| framed_into(out, &pattern(len as usize, 7)));
        }
    })
}

fn receive_buffer(socket: &TcpStream, bytes: libc::c_int) {
    // SAFETY: an option of this type, for a socket that is open.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as u32,
        )
    };
    assert_eq!(set, 0);
}

#[test]
fn a_slow_reader_gets_every_byte_in_order() {
    let mut plan = plan(1, vec![role(0, 0, generous)], &[0]);
    plan.listeners[0].send_buffer_bytes = Some(4096);
    let running = run(plan);
    let mut socket = connect(&running);
    receive_buffer(&socket, 2048);
    let lengths = [600_000u32, 4, 70_000, 1, 300_000];
    for len in lengths {
        send_frame(&mut socket, &len.to_be_bytes());
    }
    for len in lengths {
        let mut word = [0; 4];
        socket.read_exact(&mut word).expect("a frame comes");
        assert_eq!(u32::from_be_bytes(word), len);
        let expected = pattern(len as usize, 7);
        let mut at = 0;
        let mut buffer = [0; 5000];
        while at < expected.len() {
            let want = buffer.len().min(expected.len() - at);
            let got = socket.read(&mut buffer[..want]).expect("more comes");
            assert!(got > 0 && buffer[..got] == expected[at..at + got]);
            at += got;
            if at % 16 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
    assert!(running.counters()[0].sends_blocked.get() > 3);
    stop(running, &[0]);
}

#[test]
fn a_connection_with_too_much_queued_is_not_read_until_it_takes_it() {
    let heard = Arc::new(AtomicU64::new(0));
    let counted = heard.clone();
    let build = move || {
        let mut inner = generous();
        Script::new(move |now, input, fx| {
            if matches!(input, Input::Frame { .. }) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            inner.call(now, input, fx);
        })
    };
    let mut plan = plan(1, vec![role(0, 0, build)], &[0]);
    plan.listeners[0].send_buffer_bytes = Some(4096);
    plan.limits.out_queue_bytes_max = 100_000;
    let running = run(plan);
    let mut socket = connect(&running);
    receive_buffer(&socket, 40_000);
    let mut all = Vec::new();
    for _ in 0..50 {
        framed_into(&mut all, &30_000u32.to_be_bytes());
    }
    socket.write_all(&all).expect("the peer reads");
    wait_until(|| running.counters()[0].held_by_out_queue.get() > 0);
    std::thread::sleep(Duration::from_millis(50));
    let early = heard.load(Ordering::SeqCst);
    assert!((4..12).contains(&early), "{early} frames were delivered");
    for _ in 0..50 {
        assert!(read_frame(&mut socket) == pattern(30_000, 7));
    }
    assert_eq!(heard.load(Ordering::SeqCst), 50);
    stop(running, &[0]);
}

#[test]
fn a_peer_that_takes_nothing_is_closed_and_an_idle_one_too() {
    let (tell, said) = said();
    let build = move || {
        let mut inner = generous();
        Script::new(move |now, input, fx| {
            inner.call(now, input, fx);
            if let Input::Closed { .. } = input {
                tell.send(now.mono).expect("the test listens");
            }
        })
    };
    let mut plan = plan(1, vec![role(0, 0, build)], &[0]);
    plan.listeners[0].send_buffer_bytes = Some(4096);
    plan.limits.stall_close = Micros(200_000);
    plan.limits.idle_close = Micros(300_000);
    let running = run(plan);
    let mut stalled = connect(&running);
    let begin = shards::idle::clock();
    send_frame(&mut stalled, &5_000_000u32.to_be_bytes());
    let at = said.next();
    let refused = &running.counters()[0].refused;
    assert_eq!((refused.stalled_reader.get(), refused.idle.get()), (1, 0));
    assert!(at.0 - begin.0 >= 200_000);
    let mut idle = connect(&running);
    send_frame(&mut idle, &4u32.to_be_bytes());
    read_frame(&mut idle);
    assert!(is_closed_within(&mut idle, PATIENCE));
    assert_eq!((refused.stalled_reader.get(), refused.idle.get()), (1, 1));
    stop(running, &[0]);
}

#[test]
fn a_paused_connection_delivers_nothing_and_loses_nothing() {
    let (tell, said) = said();
    let resumed = Arc::new(AtomicBool::new(false));
    let resume = resumed.clone();
    let build = move || {
        let mut held: Option<Conn> = None;
        Script::new(move |_, input, fx| match input {
            Input::Frame { conn, bytes } => {
                if *bytes == b"stop here" {
                    fx.push(Effect::Pause { conn: *conn });
                    held = Some(*conn);
                }
                tell.send(bytes.to_vec()).expect("the test listens");
            }
            Input::Mark(_) if resume.load(Ordering::SeqCst) => {
                if let Some(conn) = held.take() {
                    fx.push(Effect::Resume { conn });
                }
            }
            _ => {}
        })
    };
    let ticker = || {
        let mut value = 0;
        Script::new(move |_, input, fx| {
            if matches!(input, Input::Frame { .. }) {
                value += 1;
                fx.mark(TestMark { kind: 0, value });
            }
        })
    };
    let roles = vec![role(0, 0, build), role(1, 1, ticker)];
    let mut plan = plan(2, roles, &[0]);
    let mut second = plan.listeners[0].clone();
    (second.id, second.candidates) = (shards::ListenerId(2), vec![RoleId(1)]);
    plan.listeners.push(second);
    let running = run(plan);
    let mut socket = connect(&running);
    let before: Vec<Vec<u8>> = vec![pattern(10, 1), b"stop here".to_vec()];
    let after: Vec<Vec<u8>> = (0..40).map(|seed| pattern(900, seed)).collect();
    let all: Vec<u8> = before
        .iter()
        .chain(&after)
        .flat_map(|f| framed(f))
        .collect();
    socket.write_all(&all[..20_000]).expect("the peer reads");
    for frame in &before {
        assert_eq!(&said.next(), frame);
    }
    socket.write_all(&all[20_000..]).expect("the peer reads");
    assert!(said.nothing_within(Duration::from_millis(60)));
    resumed.store(true, Ordering::SeqCst);
    let addr = running.addr(shards::ListenerId(2)).expect("planned");
    let mut tick = TcpStream::connect(addr).expect("it listens");
    send_frame(&mut tick, b"tick");
    for frame in &after {
        assert!(&said.next() == frame);
    }
    send_frame(&mut socket, b"and on");
    assert_eq!(said.next(), b"and on");
    stop(running, &[0, 1]);
}

#[test]
fn close_sends_what_is_queued_first_and_tells_once() {
    let (tell, said) = said();
    let build = move || {
        Script::new(move |_, input, fx| match input {
            Input::Frame { conn, bytes } => {
                let conn = *conn;
                fx.reply(conn, |out| framed_into(out, &pattern(2_000_000, 3)));
                fx.reply(conn, |out| framed_into(out, bytes));
                fx.push(Effect::Close { conn });
                fx.reply(conn, |out| framed_into(out, b"too late"));
            }
            Input::Closed { conn } => tell.send(*conn).expect("the test listens"),
            _ => {}
        })
    };
    let mut plan = plan(1, vec![role(0, 0, build)], &[0]);
    plan.listeners[0].send_buffer_bytes = Some(4096);
    let running = run(plan);
    let mut socket = connect(&running);
    receive_buffer(&socket, 40_000);
    send_frame(&mut socket, b"last words");
    assert!(said.nothing_within(Duration::from_millis(30)));
    assert!(read_frame(&mut socket) == pattern(2_000_000, 3));
    assert_eq!(read_frame(&mut socket), b"last words");
    assert!(is_closed_within(&mut socket, PATIENCE));
    said.next();
    assert!(said.nothing_within(Duration::from_millis(30)));
    assert_eq!(running.counters()[0].refused.reply_to_gone.get(), 1);
    stop(running, &[0]);
}

#[test]
fn the_end_of_the_peers_stream_is_told_and_queued_replies_still_go_out() {
    let (tell, said) = said();
    let build = move || {
        let mut inner = generous();
        Script::new(move |now, input, fx| {
            inner.call(now, input, fx);
            if let Input::Closed { conn } = input {
                tell.send(*conn).expect("the test listens");
            }
        })
    };
    let running = run(plan(1, vec![role(0, 0, build)], &[0]));
    let mut socket = connect(&running);
    send_frame(&mut socket, &3_000_000u32.to_be_bytes());
    socket.shutdown(Shutdown::Write).expect("it is open");
    said.next();
    assert!(read_frame(&mut socket) == pattern(3_000_000, 7));
    assert!(is_closed_within(&mut socket, PATIENCE));
    wait_until(|| running.counters()[0].connections.get() == 0);
    stop(running, &[0]);
}

#[test]
fn a_reply_to_a_gone_connection_never_reaches_its_successor() {
    let (tell, said) = said();
    let build = move || {
        let mut gone: Vec<Conn> = Vec::new();
        let mut seen: Vec<Conn> = Vec::new();
        Script::new(move |_, input, fx| match input {
            Input::Opened { conn, .. } => {
                assert!(!seen.contains(conn), "{conn:?} was there before");
                seen.push(*conn);
                tell.send(*conn).expect("the test listens");
            }
            Input::Closed { conn } => gone.push(*conn),
            Input::Frame { conn, bytes } => {
                for old in &gone {
                    fx.reply(*old, |out| framed_into(out, b"not for you"));
                    fx.push(Effect::Close { conn: *old });
                }
                fx.reply(*conn, |out| framed_into(out, bytes));
            }
            _ => {}
        })
    };
    let running = run(plan(1, vec![role(0, 0, build)], &[0]));
    let mut slots = Vec::new();
    for round in 0..50usize {
        let mut socket = connect(&running);
        slots.push(said.next().slot);
        send_frame(&mut socket, &pattern(10, round));
        assert_eq!(read_frame(&mut socket), pattern(10, round));
        drop(socket);
        wait_until(|| running.counters()[0].connections.get() == 0);
    }
    assert!(slots.iter().all(|slot| *slot == 0), "slots are used again");
    let dropped = running.counters()[0].refused.reply_to_gone.get();
    assert_eq!(dropped, (0..50).sum::<u64>());
    stop(running, &[0]);
}

#[test]
fn peers_that_vanish_in_the_middle_leave_nothing_behind() {
    let running = run(plan(1, vec![role(0, 0, generous)], &[0]));
    for round in 0..200u32 {
        let mut socket = connect(&running);
        let all: Vec<u8> = (0..10)
            .flat_map(|_| framed(&(round * 100).to_be_bytes()))
            .collect();
        let _ = socket.write_all(&all[..(round as usize * 7) % all.len()]);
        if round % 3 == 0 {
            // Unread bytes make the close a reset.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    wait_until(|| {
        let counters = &running.counters()[0];
        counters.accepted.get() == 200 && counters.connections.get() == 0
    });
    assert_eq!(running.connections(RoleId(0)), 0);
    let mut socket = connect(&running);
    send_frame(&mut socket, &4u32.to_be_bytes());
    assert_eq!(read_frame(&mut socket).len(), 4);
    stop(running, &[0]);
}

#[test]
fn one_connection_too_many_is_accepted_and_closed() {
    let mut plan = plan(1, vec![role(0, 0, echo)], &[0]);
    plan.limits.connections_max = 3;
    let running = run(plan);
    let mut open: Vec<TcpStream> = (0..3).map(|_| connect(&running)).collect();
    for socket in &mut open {
        send_frame(socket, b"ping");
        assert_eq!(read_frame(socket), b"ping");
    }
    let mut refused = connect(&running);
    assert!(is_closed_within(&mut refused, PATIENCE));
    let counted = &running.counters()[0].refused.too_many_connections;
    assert_eq!(counted.get(), 1);
    drop(open.pop());
    wait_until(|| running.connections(RoleId(0)) == 2);
    let mut socket = connect(&running);
    send_frame(&mut socket, b"ping");
    assert_eq!(read_frame(&mut socket), b"ping");
    stop(running, &[0]);
}

#[test]
fn connections_are_dealt_to_the_role_with_the_fewest() {
    let roles = vec![role(0, 0, echo), role(1, 1, echo), role(2, 1, echo)];
    let running = run(plan(2, roles, &[0, 1, 2]));
    let count = |id| running.connections(RoleId(id));
    let mut sockets: Vec<TcpStream> = (0..12).map(|_| connect(&running)).collect();
    for (seed, socket) in sockets.iter_mut().enumerate() {
        send_frame(socket, &pattern(50, seed));
        assert_eq!(read_frame(socket), pattern(50, seed));
    }
    assert_eq!((count(0), count(1), count(2)), (4, 4, 4));
    // They were dealt in turn, so these two are of the same role.
    drop(sockets.swap_remove(3));
    drop(sockets.swap_remove(0));
    wait_until(|| count(0) + count(1) + count(2) == 10);
    let more: Vec<TcpStream> = (0..2).map(|_| connect(&running)).collect();
    wait_until(|| (count(0), count(1), count(2)) == (4, 4, 4));
    drop(more);
    stop(running, &[0, 1, 2]);
}

#[test]
fn outbound_connects_succeed_are_refused_or_time_out() {
    let target = TcpListener::bind("127.0.0.1:0").expect("any port is free");
    let open = target.local_addr().expect("it is bound");
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("any port is free");
        listener.local_addr().expect("it is bound")
    };
    // A listener whose backlog is full answers nobody.
    let full =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
    full.bind(&any.into()).expect("any port is free");
    full.listen(0).expect("it is bound");
    let silent = full
        .local_addr()
        .expect("it is bound")
        .as_socket()
        .expect("an address");
    let _fills: Vec<TcpStream> = (0..4)
        .filter_map(|_| TcpStream::connect_timeout(&silent, Duration::from_millis(50)).ok())
        .collect();
    let (tell, said) = said();
    let build = move || {
        Script::new(move |_, input, fx| match input {
            Input::Deadline => {
                for (ticket, addr) in [open, closed, silent].into_iter().enumerate() {
                    let ticket = Ticket(ticket as u64);
                    fx.push(Effect::Connect { ticket, addr });
                }
            }
            Input::Connected { ticket, result } => {
                if let Ok(conn) = result {
                    fx.reply(*conn, |out| framed_into(out, b"hello"));
                }
                tell.send((ticket.0, result.map(|_| ())))
                    .expect("the test listens");
            }
            Input::Frame { conn, bytes } => {
                assert_eq!(*bytes, b"welcome");
                fx.push(Effect::Close { conn: *conn });
            }
            _ => {}
        })
        .with_deadline(soon(1))
    };
    let mut plan = plan(1, vec![role(0, 0, build)], &[]);
    plan.limits.connect_within = Micros(150_000);
    let running = run(plan);
    let (mut peer, _) = target.accept().expect("it connects");
    assert_eq!(read_frame(&mut peer), b"hello");
    send_frame(&mut peer, b"welcome");
    assert!(is_closed_within(&mut peer, PATIENCE));
    let mut results = [said.next(), said.next(), said.next()];
    results.sort_by_key(|(ticket, _)| *ticket);
    let refused = Err(ConnectError::Io(libc::ECONNREFUSED));
    let expected = [(0, Ok(())), (1, refused), (2, Err(ConnectError::TimedOut))];
    assert_eq!(results, expected);
    stop(running, &[0]);
}
