//! The ring against the real operating system.

use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use weir_base::{IoError, MILLIS};
use weir_disk::{Disk, DiskOp, run};
use weir_mem::Slice;
use weir_reactor::{PollMode, Reactor, completion, sleep, spawn};
use weir_uring::{FileDisk, OpenOptions, Ring, SocketOptions, TcpListener, TcpStream};

fn reactor() -> (Ring, Reactor) {
    let ring = Ring::new().expect("io_uring");
    (ring.clone(), Reactor::new(Rc::new(ring)))
}

struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Scratch(std::env::temp_dir().join(format!("weir-uring-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_file_keeps_what_was_written_and_gives_space_back() {
    let path = Scratch::new("file");
    let (ring, r) = reactor();
    let options = OpenOptions { create: true, len: Some(1 << 20), ..OpenOptions::default() };
    let disk = FileDisk::open(&ring, &path.0, options).unwrap();
    r.block_on(PollMode::default(), async move {
        let data = Slice::heap(65536);
        for i in 0..16 {
            data.sub(i * 4096, 4096).fill(i as u8 + 1);
        }
        run(&disk, DiskOp::Write { offset: 8192, buf: data.clone(), fua: true }).await.unwrap();
        run(&disk, DiskOp::Flush).await.unwrap();
        let back = Slice::heap(65536);
        run(&disk, DiskOp::Read { offset: 8192, buf: back.clone() }).await.unwrap();
        assert_eq!(back.to_vec(), data.to_vec());
        let before = disk.allocated().unwrap();
        assert!(before >= 65536);
        run(&disk, DiskOp::Discard { offset: 8192, len: 32768 }).await.unwrap();
        run(&disk, DiskOp::WriteZeroes { offset: 40960, len: 4096, unmap: false }).await.unwrap();
        assert!(disk.allocated().unwrap() < before);
        run(&disk, DiskOp::Read { offset: 8192, buf: back.clone() }).await.unwrap();
        let v = back.to_vec();
        assert!(v[..36864].iter().all(|b| *b == 0));
        assert_eq!(v[36864], 10);
        let beyond = DiskOp::Read { offset: 1 << 20, buf: back };
        assert_eq!(run(&disk, beyond).await, Err(IoError::OutOfRange));
        assert_eq!(disk.set_len(2 << 20), Ok(()));
        assert_eq!(disk.len(), 2 << 20);
    });
}

#[test]
fn a_read_only_disk_refuses_writes() {
    let path = Scratch::new("ro");
    std::fs::write(&path.0, vec![7u8; 8192]).unwrap();
    let (ring, r) = reactor();
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let disk = FileDisk::open(&ring, &path.0, options).unwrap();
    r.block_on(PollMode::Sleep, async move {
        let buf = Slice::heap(4096);
        run(&disk, DiskOp::Read { offset: 4096, buf: buf.clone() }).await.unwrap();
        assert_eq!(buf.to_vec(), vec![7u8; 4096]);
        let w = run(&disk, DiskOp::Write { offset: 0, buf, fua: false }).await;
        assert_eq!(w, Err(IoError::ReadOnly));
    });
}

#[test]
fn sleeps_until_timers_mail_and_sockets() {
    let (ring, r) = reactor();
    let t0 = std::time::Instant::now();
    r.block_on(PollMode::Sleep, async { sleep(30 * MILLIS).await });
    assert!(t0.elapsed().as_millis() >= 30);

    // Another thread's completion ends a sleep without a deadline.
    let (token, done) = r.enter(completion);
    let handle = r.handle();
    let t = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        handle.complete(token, weir_reactor::Completion::ok(42));
    });
    assert_eq!(r.block_on(PollMode::Sleep, done).len, 42);
    t.join().unwrap();

    // A watched socket too.
    let l = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let ready = Rc::new(RefCell::new(std::collections::VecDeque::new()));
    let watch = ring.watch(l.as_raw_fd(), 5, ready.clone());
    watch.arm(false);
    let addr = l.local_addr().unwrap();
    let ready2 = ready.clone();
    let s = r.block_on(PollMode::Sleep, async move {
        let j = spawn(async move {
            sleep(10 * MILLIS).await;
            TcpStream::connect(addr, SocketOptions::default()).unwrap()
        });
        while ready2.borrow().is_empty() {
            sleep(MILLIS).await;
        }
        j.await.unwrap()
    });
    assert_eq!(ready.borrow_mut().pop_front(), Some(5));
    assert!(!watch.armed());
    assert!(l.try_accept(SocketOptions::default()).unwrap().is_ok());
    drop(s);
}

#[test]
fn a_file_that_was_cut_says_nothing_about_its_data() {
    let path = Scratch::new("cut");
    let (ring, r) = reactor();
    let options = OpenOptions { create: true, len: Some(1 << 20), ..OpenOptions::default() };
    let disk = FileDisk::open(&ring, &path.0, options).unwrap();
    let other = std::fs::OpenOptions::new().write(true).open(&path.0).unwrap();
    other.set_len(6144).unwrap();
    r.block_on(PollMode::default(), async move {
        let read = DiskOp::Read { offset: 4096, buf: Slice::heap(4096) };
        assert_eq!(run(&disk, read.clone()).await, Err(IoError::Path));
        other.set_len(1 << 20).unwrap();
        assert_eq!(run(&disk, read).await, Ok(()));
    });
}

/// A crowd that comes at once waits in the kernel, as far as the system lets it.
#[test]
fn many_may_wait_for_a_listener() {
    let any = (std::net::Ipv4Addr::LOCALHOST, 0).into();
    let listener = weir_uring::TcpListener::bind(any).unwrap();
    let at = listener.local_addr().unwrap();
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let most = most.trim().parse::<usize>().unwrap().min(500);
    let patience = std::time::Duration::from_secs(10);
    let all: Vec<_> =
        (0..most).map(|_| std::net::TcpStream::connect_timeout(&at, patience).unwrap()).collect();
    assert_eq!(all.len(), most);
}
