//! Volumes by NBD: by a client of bytes, and by other people's programs where they are installed.

mod structured;

use crate::common::{Daemon, noise};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A daemon that speaks NBD, and where.
fn nbd(test: &str) -> (Daemon, String) {
    let mut d = Daemon::new(test);
    d.start();
    let text = "[[target]]\nname = \"n\"\nlisten = [\"127.0.0.1:0\"]\nprotocol = \"nbd\"\n";
    let file = d.path("targets.toml");
    std::fs::write(&file, text).unwrap();
    d.ok(&format!("apply {file}"));
    d.ok("pool create ram --device ram:256M");
    let at = d.port("n").expect("it speaks NBD");
    (d, at)
}

fn volume(d: &Daemon, name: &str, size: &str, block: u32) {
    d.ok(&format!("volume create {name} --pool ram --size {size} --block-size {block}"));
}

/// A client in the transmission phase.
struct Client {
    s: TcpStream,
    len: u64,
}

impl Client {
    /// `None`: there is no such export.
    fn go(at: &str, name: &str) -> Option<Client> {
        let mut s = TcpStream::connect(at).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut greeting = [0; 18];
        s.read_exact(&mut greeting).ok()?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut m = 3u32.to_be_bytes().to_vec();
        m.extend(b"IHAVEOPT");
        m.extend(7u32.to_be_bytes());
        m.extend((name.len() as u32 + 6).to_be_bytes());
        m.extend((name.len() as u32).to_be_bytes());
        m.extend(name.as_bytes());
        m.extend([0, 0]);
        s.write_all(&m).unwrap();
        let mut len = 0;
        loop {
            let mut head = [0; 20];
            s.read_exact(&mut head).ok()?;
            let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
            let mut data = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
            s.read_exact(&mut data).unwrap();
            match kind {
                1 => return Some(Client { s, len }),
                3 if data[..2] == [0, 0] => {
                    len = u64::from_be_bytes(data[2..10].try_into().unwrap());
                }
                3 => {}
                _ => return None,
            }
        }
    }

    fn request(op: u16, flags: u16, at: u64, len: u32, data: &[u8]) -> Vec<u8> {
        let mut m = 0x2560_9513u32.to_be_bytes().to_vec();
        m.extend(flags.to_be_bytes());
        m.extend(op.to_be_bytes());
        m.extend(at.to_be_bytes());
        m.extend(at.to_be_bytes());
        m.extend(len.to_be_bytes());
        m.extend(data);
        m
    }

    fn send(&mut self, op: u16, flags: u16, at: u64, len: u32, data: &[u8]) {
        // Of one that has been closed the reply does not come.
        let _ = self.s.write_all(&Client::request(op, flags, at, len, data));
    }

    /// The error of the next reply, and its cookie.
    fn reply(&mut self) -> (u32, u64) {
        let mut head = [0; 16];
        self.s.read_exact(&mut head).unwrap();
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        (error, u64::from_be_bytes(head[8..].try_into().unwrap()))
    }

    fn write(&mut self, at: u64, data: &[u8]) -> u32 {
        self.send(1, 0, at, data.len() as u32, data);
        self.reply().0
    }

    fn read(&mut self, at: u64, len: usize) -> Result<Vec<u8>, u32> {
        self.send(0, 0, at, len as u32, &[]);
        let (error, _) = self.reply();
        if error > 0 {
            return Err(error);
        }
        let mut data = vec![0; len];
        self.s.read_exact(&mut data).unwrap();
        Ok(data)
    }

    fn other(&mut self, op: u16, at: u64, len: u32) -> u32 {
        self.send(op, 0, at, len, &[]);
        self.reply().0
    }
}

fn run(program: &str, args: &[&str]) -> Option<Output> {
    match Command::new(program).args(args).output() {
        Ok(o) => Some(o),
        Err(_) => {
            println!("SKIPPED: {program} is not installed");
            None
        }
    }
}

#[test]
fn what_is_written_by_nbd_is_read_by_srp_and_back() {
    let (d, at) = nbd("nbd-rw");
    volume(&d, "v", "32M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let mut c = Client::go(&at, "v").expect("it is there");
    assert_eq!(c.len, 32 << 20);
    // The only one is what has no name.
    assert_eq!(Client::go(&at, "").unwrap().len, 32 << 20);
    assert!(Client::go(&at, "w").is_none());
    let data = noise(3, 5 * MIB);
    for (i, part) in data.chunks(640 * 1024).enumerate() {
        assert_eq!(c.write(i as u64 * 640 * 1024, part), 0);
    }
    assert_eq!(c.other(3, 0, 0), 0, "flush");
    assert_eq!(c.read(0, 5 * MIB).unwrap(), data);
    // What comes before the end of a connection, in one piece with it, is done.
    let piece = |op: u16, at: u64, data: &[u8]| {
        let mut m = 0x2560_9513u32.to_be_bytes().to_vec();
        m.extend([0, 0]);
        m.extend(op.to_be_bytes());
        m.extend(at.to_be_bytes());
        m.extend(at.to_be_bytes());
        m.extend((data.len() as u32).to_be_bytes());
        m.extend(data);
        m
    };
    let mut last = Client::go(&at, "v").unwrap();
    let bytes = [piece(1, 20 << 20, &[6; 4096]), piece(3, 0, &[]), piece(2, 0, &[])].concat();
    last.s.write_all(&bytes).unwrap();
    assert_eq!((last.reply().0, last.reply().0), (0, 0));
    assert_eq!(last.s.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(c.read(20 << 20, 4096).unwrap(), [6; 4096]);
    // Many at once, answered in any order.
    for i in 0..200u64 {
        c.send(1, 1, (8 << 20) + i * 4096, 4096, &[i as u8; 4096]);
    }
    let mut answered: Vec<u64> = (0..200)
        .map(|_| c.reply())
        .map(|(e, at)| (at, e))
        .map(|r| {
            assert_eq!(r.1, 0);
            r.0
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..200).map(|i| (8 << 20) + i * 4096).collect::<Vec<u64>>());
    // Zeroes, and a discard of odd bounds.
    assert_eq!(c.other(6, 4096, 8192), 0);
    assert_eq!(c.other(4, 1000, 100_000), 0);
    assert_eq!(c.read(4096, 8192).unwrap(), vec![0; 8192]);
    // What cannot be is refused, and the connection goes on.
    assert_eq!(c.write(32 << 20, &[1; 512]), 28);
    assert_eq!(c.read(u64::MAX - 511, 512), Err(22));
    assert_eq!(c.read(1, 512), Err(22), "half a block");
    assert_eq!(c.other(77, 0, 0), 22);
    c.send(1, 0, 0, 33 << 20, &vec![0; 33 << 20]);
    assert_eq!(c.reply().0, 75, "longer than there may be");
    assert_eq!(c.read(8 << 20, 4096).unwrap(), [0; 4096]);
    let back = d.path("back");
    let srp = d.target();
    d.ok(&format!("read --target {srp} --volume v --length 16m --output {back}"));
    let back = std::fs::read(back).unwrap();
    assert_eq!(back[200 << 10..5 * MIB], data[200 << 10..]);
    assert_eq!(back[(8 << 20) + 4096..(8 << 20) + 8192], [1; 4096]);
    let status = d.json("status");
    let port = status["live"]["ports"].as_array().unwrap().iter().find(|p| p["name"] == "n");
    assert!(port.unwrap()["commands"].as_u64().unwrap() > 200, "{status}");
}

#[test]
fn who_is_let_in_by_nbd() {
    let (d, at) = nbd("nbd-access");
    volume(&d, "mine", "8M", 4096);
    volume(&d, "other", "8M", 4096);
    // Nobody knows this address.
    assert!(Client::go(&at, "mine").is_none());
    d.ok("host create h --port 192.0.2.1");
    d.ok("host create me --port 127.0.0.1");
    d.ok("map create me mine");
    d.ok("map create h other");
    assert!(Client::go(&at, "other").is_none());
    let mut c = Client::go(&at, "mine").unwrap();
    assert_eq!(c.read(0, 512), Err(22), "its blocks are 4096 bytes");
    assert_eq!(c.write(0, &[7; 4096]), 0);
    // Write protection, and the end of a mapping, count at once.
    d.ok("volume set mine --read-only on");
    assert_eq!(c.write(0, &[8; 4096]), 1);
    assert_eq!(c.read(0, 4096).unwrap(), [7; 4096]);
    d.ok("map delete me mine --force");
    assert_eq!(c.read(0, 4096), Err(108));
    assert!(Client::go(&at, "mine").is_none());
    // Another volume by the same number is not taken for it.
    d.ok("map create me other");
    c.send(1, 0, 0, 4096, &[9; 4096]);
    let mut head = [0; 16];
    let answered = c.s.read_exact(&mut head).is_ok();
    assert!(!answered || head[4..8] != [0; 4], "a write went over to another volume");
    let mut other = Client::go(&at, "other").unwrap();
    assert_eq!(other.read(0, 4096).unwrap(), [0; 4096]);
    let events = d.ok("events");
    assert!(events.contains("login.refused"), "{events}");
}

#[test]
fn peers_that_lie_or_stand_still_keep_nobody_out() {
    let (d, at) = nbd("nbd-lie");
    volume(&d, "v", "8M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&at).unwrap()).collect();
    let mut garbage = TcpStream::connect(&at).unwrap();
    garbage.write_all(&[0xff; 4096]).unwrap();
    let mut c = Client::go(&at, "v").unwrap();
    assert_eq!(c.write(0, &[5; 512]), 0);
    // One that asks for much and takes nothing holds up nobody else.
    let mut greedy = Client::go(&at, "v").unwrap();
    for i in 0..64 {
        greedy.send(0, 0, i * 65536, 1 << 20, &[]);
    }
    // Nor one that asks for more than all buffers hold.
    let mut vast = Client::go(&at, "v").unwrap();
    for _ in 0..64 {
        vast.send(0, 0, 0, 8 << 20, &[]);
    }
    assert_eq!(c.read(0, 512).unwrap(), [5; 512]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", d.pid())).unwrap();
    let rss = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = rss.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kib < 400 << 10, "{kib} KiB are resident");
    // Garbage between requests ends a connection, and so does an end within one.
    let mut bad = Client::go(&at, "v").unwrap();
    bad.s.write_all(&[1; 28]).unwrap();
    assert_eq!(bad.s.read(&mut [0; 1]).unwrap_or(0), 0);
    let mut half = Client::go(&at, "v").unwrap();
    half.send(1, 0, 0, 512, &[9; 100]);
    half.s.shutdown(Shutdown::Write).unwrap();
    assert_eq!(half.s.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(c.read(0, 512).unwrap(), [5; 512], "nothing of it was written");
    drop((silent, greedy, vast));
    // Nothing is left of those that have gone, whatever they were owed.
    let begin = Instant::now();
    let there = || {
        let status = d.json("status");
        let ports = status["live"]["ports"].as_array().unwrap();
        ports.iter().find(|p| p["name"] == "n").unwrap()["channels"].as_u64().unwrap()
    };
    while there() != 1 {
        assert!(begin.elapsed() < Duration::from_secs(20), "{} are there", there());
        std::thread::sleep(Duration::from_millis(100));
    }
    // The daemon stops beside open connections.
    let mut d = d;
    d.stop();
}

/// Whoever reads on and on from one volume is not cut off when another one is taken from its host.
/// Also of a client that takes nothing for longer than a fence waits.
#[test]
fn a_busy_connection_outlives_a_fence_of_another_volume() {
    let (d, at) = nbd("nbd-fence");
    volume(&d, "a", "32M", 512);
    volume(&d, "b", "8M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all a");
    d.ok("map create all b");
    let mut c = Client::go(&at, "a").unwrap();
    (0..32).for_each(|_| c.send(0, 0, 0, MIB as u32, &[]));
    std::thread::sleep(Duration::from_millis(300));
    d.ok("map delete all b --force");
    std::thread::sleep(Duration::from_secs(3));
    let mut buf = vec![0; MIB];
    for _ in 0..32 {
        assert_eq!(c.reply().0, 0);
        c.s.read_exact(&mut buf).unwrap();
    }
    assert!(Client::go(&at, "b").is_none());
}

/// A client is killed while a device has a write of it. What its next life writes comes after that.
#[test]
fn what_a_client_leaves_with_a_device_comes_before_what_its_next_life_writes() {
    let (d, at) = nbd("nbd-parting");
    volume(&d, "v", "8M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.ok("layer insert v delay time=1s ops=write --name slow --force");
    let mut first = Client::go(&at, "v").unwrap();
    let begin = Instant::now();
    first.send(1, 0, 0, 4096, &[1; 4096]);
    std::thread::sleep(Duration::from_millis(200));
    drop(first);
    std::thread::sleep(Duration::from_millis(200));
    let mut next = Client::go(&at, "v").unwrap();
    assert_eq!(next.write(0, &[2; 4096]), 0);
    // Side by side they would have taken no more than one second and what went before.
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(1950), "{took:?}: it did not wait for the first one");
    assert_eq!(next.read(0, 4096).unwrap(), [2; 4096]);
}

/// A request that waits for its place in the life that is over is never begun: a killed client's end is behind what it sent.
#[test]
fn what_a_killed_client_has_queued_never_begins_beside_its_next_life() {
    let (d, at) = nbd("nbd-queued");
    volume(&d, "v", "8M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.ok("layer insert v delay time=1s ops=write --name slow --force");
    let mut first = Client::go(&at, "v").unwrap();
    // One more than there are places beside those of other blocks, and one behind it.
    first.send(1, 0, 1 << 20, 512, &[1; 512]);
    std::thread::sleep(Duration::from_millis(100));
    let mut all = Vec::new();
    for n in 1..64 {
        all.extend(Client::request(1, 0, (1 << 20) + n * 512, 512, &[1; 512]));
    }
    all.extend(Client::request(1, 0, 0, 512, &[1; 512]));
    all.extend(Client::request(1, 0, 2 << 20, 512, &[1; 512]));
    first.s.write_all(&all).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(first);
    let mut next = Client::go(&at, "v").unwrap();
    assert_eq!(next.write(0, &[2; 512]), 0);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(next.read(0, 512).unwrap(), [2; 512]);
}

/// So much is on its way that the end of it cannot be seen: the port has no places for what comes, and takes nothing.
#[test]
fn what_is_on_its_way_from_a_killed_client_never_begins_beside_its_next_life() {
    let (d, at) = nbd("nbd-on-its-way");
    volume(&d, "v", "8M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.ok("layer insert v delay time=300ms ops=write --name slow --force");
    let mut first = Client::go(&at, "v").unwrap();
    first.s.set_nonblocking(true).unwrap();
    let one = Client::request(1, 0, 0, 512, &[1; 512]);
    let (all, mut sent, mut last) = (one.repeat(1000), 0, Instant::now());
    while last.elapsed() < Duration::from_millis(500) {
        match first.s.write(&all[sent % one.len()..]) {
            Ok(n) => (sent, last) = (sent + n, Instant::now()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    assert!(sent > 1 << 20, "{sent}");
    drop(first);
    let mut next = Client::go(&at, "v").unwrap();
    assert_eq!(next.write(0, &[2; 512]), 0);
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(250));
        assert_eq!(next.read(0, 512).unwrap(), [2; 512], "after {sent} bytes");
    }
}

/// A client that has much on its way and is there goes on with all of it when another connection of its host comes.
#[test]
fn a_busy_client_that_is_there_goes_on_when_another_comes() {
    let (d, at) = nbd("nbd-there");
    volume(&d, "v", "8M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.ok("layer insert v delay time=1s ops=write --name slow --force");
    let mut first = Client::go(&at, "v").unwrap();
    let all: Vec<u8> =
        (0..200).flat_map(|n| Client::request(1, 0, n * 512, 512, &[3; 512])).collect();
    first.s.write_all(&all).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let mut next = Client::go(&at, "v").unwrap();
    assert_eq!(next.read(1 << 20, 512).unwrap(), [0; 512]);
    let mut replies: Vec<u64> =
        (0..200).map(|_| first.reply()).map(|(e, c)| [c, u64::MAX][usize::from(e != 0)]).collect();
    replies.sort_unstable();
    assert_eq!(replies, (0..200).map(|n| n * 512).collect::<Vec<_>>());
    assert_eq!(next.read(199 * 512, 512).unwrap(), [3; 512]);
}

/// A client that says goodbye has all done that it has asked for, though it sends no more (NBD protocol, `NBD_CMD_DISC`).
#[test]
fn what_was_asked_for_before_goodbye_is_done() {
    let (d, at) = nbd("nbd-goodbye");
    volume(&d, "v", "8M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.ok("layer insert v delay time=500ms ops=write --name slow --force");
    let mut c = Client::go(&at, "v").unwrap();
    let write = |n: u64| Client::request(1, 0, n * 512, 512, &[4; 512]);
    let mut all: Vec<u8> = (0..150).flat_map(write).collect();
    all.extend(Client::request(2, 0, 0, 0, &[]));
    c.s.write_all(&all).unwrap();
    c.s.shutdown(Shutdown::Write).unwrap();
    (0..150).for_each(|_| assert_eq!(c.reply().0, 0));
    assert_eq!(c.s.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(Client::go(&at, "v").unwrap().read(149 * 512, 512).unwrap(), [4; 512]);
}

/// Nobody comes in its place; still what it is to do later is never done.
#[test]
fn what_waits_for_a_busy_volume_ends_with_its_client() {
    let (d, at) = nbd("nbd-given-up");
    volume(&d, "v", "8M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let mut c = Client::go(&at, "v").unwrap();
    d.ok("layer insert v fault error=busy count=1000000 ops=write --name f --force");
    c.send(1, 0, 0, 512, &[1; 512]);
    std::thread::sleep(Duration::from_millis(200));
    drop(c);
    std::thread::sleep(Duration::from_millis(200));
    d.ok("layer remove v f");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(Client::go(&at, "v").unwrap().read(0, 512).unwrap(), [0; 512]);
}

#[test]
fn a_host_with_a_secret_is_not_let_in_by_nbd() {
    use std::os::unix::fs::OpenOptionsExt;
    let (d, at) = nbd("nbd-secret");
    volume(&d, "v", "8M", 512);
    let file = d.path("secret");
    let mut f = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file);
    f.as_mut().unwrap().write_all(b"sixteen bytes are it").unwrap();
    d.ok(&format!("host create me --port 127.0.0.1 --secret-file {file}"));
    d.ok("map create me v");
    assert!(Client::go(&at, "v").is_none());
    d.ok("host set me --no-secret");
    assert_eq!(Client::go(&at, "v").unwrap().len, 8 << 20);
}

#[test]
fn without_a_name_there_is_the_only_volume_or_none() {
    let (d, at) = nbd("nbd-nameless");
    volume(&d, "v", "8M", 512);
    volume(&d, "w", "8M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    assert_eq!(Client::go(&at, "").unwrap().len, 8 << 20);
    d.ok("map create all w");
    assert!(Client::go(&at, "").is_none());
}

#[test]
fn what_may_work_later_is_tried_again() {
    let (d, at) = nbd("nbd-later");
    volume(&d, "v", "8M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let mut c = Client::go(&at, "v").unwrap();
    d.ok("layer insert v fault error=busy count=3 ops=write --name f --force");
    assert_eq!(c.write(0, &[2; 512]), 0);
    // What a device says of its medium is final.
    d.ok("layer remove v f");
    d.ok("layer insert v fault error=medium count=1 ops=write --name f --force");
    assert_eq!(c.write(0, &[3; 512]), 5);
    assert_eq!(c.read(0, 512).unwrap(), [2; 512]);
}

#[test]
fn other_peoples_clients_do_verified_work() {
    let (d, at) = nbd("nbd-strangers");
    volume(&d, "v", "64M", 512);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let uri = format!("nbd://{at}/v");
    if let Some(o) = run("nbdinfo", &["--json", "--list", &format!("nbd://{at}")]) {
        let text = String::from_utf8_lossy(&o.stdout).into_owned();
        assert!(o.status.success() && text.contains("\"export-name\": \"v\""), "{text} {o:?}");
    }
    let (image, back) = (d.path("image"), d.path("back"));
    std::fs::write(&image, noise(9, 64 * MIB)).unwrap();
    if let Some(o) = run("nbdcopy", &["--flush", &image, &uri]) {
        assert!(o.status.success(), "{o:?}");
        let o = run("nbdcopy", &[&uri, &back]).unwrap();
        assert!(o.status.success(), "{o:?}");
        assert!(std::fs::read(&back).unwrap() == std::fs::read(&image).unwrap());
    }
    if let Some(o) = run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &uri]) {
        assert!(o.status.success(), "{o:?}");
        let work = [
            "write -P 0xab 1M 3M",
            "flush",
            "read -P 0xab 1M 3M",
            "write -z 2M 1M",
            "discard 8M 4M",
            "read -P 0 2M 1M",
        ];
        let mut args = vec!["-f", "raw"];
        work.iter().for_each(|w| args.extend(["-c", w]));
        args.push(&uri);
        let o = run("qemu-io", &args).unwrap();
        let text = String::from_utf8_lossy(&o.stdout).into_owned();
        assert!(o.status.success() && !text.contains("failed"), "{text} {o:?}");
    }
}
