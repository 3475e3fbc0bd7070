//! Structured replies and block status.

use super::{Client, MIB, nbd, run, volume};
use std::io::{Read, Write};
use std::net::TcpStream;

/// A reply: its kind, and its data.
type Reply = (u16, Vec<u8>);

/// An option, and the kind of the last reply to it.
fn option(s: &mut TcpStream, code: u32, data: &[u8]) -> u32 {
    let mut m = b"IHAVEOPT".to_vec();
    m.extend(code.to_be_bytes());
    m.extend((data.len() as u32).to_be_bytes());
    m.extend(data);
    s.write_all(&m).unwrap();
    loop {
        let mut head = [0; 20];
        s.read_exact(&mut head).unwrap();
        let mut data = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
        s.read_exact(&mut data).unwrap();
        let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
        if kind == 1 || kind >> 31 == 1 {
            return kind;
        }
    }
}

fn named(name: &str, rest: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), rest].concat()
}

/// A client with structured replies, and the allocation of the export if it wants that.
fn client(at: &str, name: &str, allocation: bool) -> Client {
    let mut s = TcpStream::connect(at).unwrap();
    s.read_exact(&mut [0; 18]).unwrap();
    s.write_all(&3u32.to_be_bytes()).unwrap();
    assert_eq!(option(&mut s, 8, &[]), 1);
    if allocation {
        let query = [&1u32.to_be_bytes()[..], &named("base:allocation", &[])].concat();
        assert_eq!(option(&mut s, 10, &named(name, &query)), 1);
    }
    assert_eq!(option(&mut s, 7, &named(name, &[0, 0])), 1);
    Client { s, len: 0 }
}

/// The next reply, of one chunk.
fn chunk(c: &mut Client) -> Reply {
    let mut head = [0; 20];
    c.s.read_exact(&mut head).unwrap();
    assert_eq!(head[..6], [0x66, 0x8e, 0x33, 0xef, 0, 1], "one chunk, which is the last");
    let mut data = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
    c.s.read_exact(&mut data).unwrap();
    (u16::from_be_bytes([head[6], head[7]]), data)
}

/// Extents of a range: bytes, and whether there is space behind them.
fn status(c: &mut Client, flags: u16, at: u64, len: u32) -> Vec<(u32, bool)> {
    c.send(7, flags, at, len, &[]);
    let (kind, data) = chunk(c);
    assert_eq!((kind, &data[..4]), (5, &[0, 0, 0, 1][..]));
    let word = |b: &[u8]| u32::from_be_bytes(b.try_into().unwrap());
    let extent = |e: &[u8]| {
        let state = word(&e[4..]);
        assert!(state == 0 || state == 3);
        (word(&e[..4]), state == 0)
    };
    data[4..].chunks(8).map(extent).collect()
}

#[test]
fn clients_that_ask_see_where_there_is_space() {
    const M: u32 = MIB as u32;
    let (d, at) = nbd("nbd-status");
    volume(&d, "v", "64M", 4096);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let mut c = client(&at, "v", true);
    assert_eq!(status(&mut c, 0, 0, 64 * M), [(64 * M, false)]);
    for at in [0, 8, 9] {
        c.send(1, 0, at << 20, M, &vec![7; MIB]);
        assert_eq!(c.reply().0, 0);
    }
    let all = [(M, true), (7 * M, false), (2 * M, true), (54 * M, false)];
    assert_eq!(status(&mut c, 0, 0, 64 * M), all);
    assert_eq!(status(&mut c, 8, 0, 64 * M), all[..1], "the first one only");
    assert_eq!(status(&mut c, 0, 8 << 20, 2 * M), [(2 * M, true)], "no more than was asked for");
    // What is given back is a hole again.
    assert_eq!(c.other(4, 8 << 20, M), 0);
    assert_eq!(status(&mut c, 0, 8 << 20, 2 * M), [(M, false), (M, true)]);
    // Reads have their data behind where they are from, errors a chunk of their own.
    c.send(0, 0, 9 << 20, 4096, &[]);
    let (kind, data) = chunk(&mut c);
    assert_eq!((kind, &data[..8]), (1, &(9u64 << 20).to_be_bytes()[..]));
    assert!(data.len() == 4104 && data[8..].iter().all(|b| *b == 7));
    c.send(0, 0, 64 << 20, 4096, &[]);
    assert_eq!(chunk(&mut c), (0x8001, vec![0, 0, 0, 22, 0, 0]));
    c.send(7, 0, 64 << 20, 4096, &[]);
    assert_eq!(chunk(&mut c), (0x8001, vec![0, 0, 0, 22, 0, 0]));
    assert_eq!((c.other(5, 0, 4096), c.other(5, 64 << 20, 4096)), (0, 22), "CACHE");
    // Who has not chosen the context has no answer from it.
    let mut c = client(&at, "v", false);
    c.send(7, 0, 0, 4096, &[]);
    assert_eq!(chunk(&mut c), (0x8001, vec![0, 0, 0, 22, 0, 0]));
    let mut c = Client::go(&at, "v").unwrap();
    assert_eq!(c.other(7, 0, 4096), 22);
    assert_eq!(c.read(9 << 20, 4096).unwrap(), [7; 4096]);
}

/// An export of much that is in pieces is told in parts, and no reply grows with it.
#[test]
fn many_extents_are_told_in_parts() {
    let (d, at) = nbd("nbd-extents");
    volume(&d, "v", "64M", 4096);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let mut c = client(&at, "v", true);
    for n in 0..600 {
        c.send(1, 0, n * 65536, 4096, &[1; 4096]);
        assert_eq!(c.reply().0, 0);
    }
    let (mut at, mut mapped) = (0, 0);
    while at < 600 * 65536 {
        let part = status(&mut c, 0, at, (600 * 65536 - at) as u32);
        assert!(part.len() <= 256 && part.windows(2).all(|w| w[0].1 != w[1].1));
        mapped += part.iter().filter(|e| e.1).map(|e| u64::from(e.0)).sum::<u64>();
        at += part.iter().map(|e| u64::from(e.0)).sum::<u64>();
    }
    assert_eq!((at, mapped), (600 * 65536, 600 * 4096));
}

#[test]
fn other_peoples_clients_see_holes() {
    let (d, at) = nbd("nbd-holes");
    volume(&d, "v", "64M", 4096);
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let mut c = Client::go(&at, "v").unwrap();
    assert_eq!(c.write(16 << 20, &vec![9; MIB]), 0);
    let uri = format!("nbd://{at}/v");
    if let Some(o) = run("nbdinfo", &["--map", "--totals", &uri]) {
        let text = String::from_utf8_lossy(&o.stdout).into_owned();
        assert!(o.status.success(), "{o:?}");
        let has = |bytes: usize, word: &str| {
            text.lines().any(|l| l.contains(&bytes.to_string()) && l.contains(word))
        };
        assert!(has(MIB, "data") && has(63 * MIB, "hole,zero"), "{text}");
    }
    if let Some(o) = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]) {
        let text = String::from_utf8_lossy(&o.stdout).into_owned();
        let all: serde_json::Value = serde_json::from_str(&text).expect("a map");
        let found: Vec<(u64, u64, bool)> = all
            .as_array()
            .unwrap()
            .iter()
            .map(|e| {
                (
                    e["start"].as_u64().unwrap(),
                    e["length"].as_u64().unwrap(),
                    e["data"].as_bool().unwrap(),
                )
            })
            .collect();
        let m = MIB as u64;
        assert_eq!(
            found,
            [(0, 16 * m, false), (16 * m, m, true), (17 * m, 47 * m, false)],
            "{text}"
        );
    }
    let copy = d.path("copy");
    if let Some(o) = run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, &copy]) {
        assert!(o.status.success(), "{o:?}");
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(&copy).unwrap();
        assert!(meta.len() == 64 << 20 && meta.blocks() * 512 <= 4 << 20, "{meta:?}");
        let all = std::fs::read(&copy).unwrap();
        assert!(all[16 * MIB..17 * MIB].iter().all(|b| *b == 9) && all[17 * MIB] == 0);
    }
}
