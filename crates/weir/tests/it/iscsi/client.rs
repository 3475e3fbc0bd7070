//! A client of bytes: it knows as much of iSCSI as the tests need, and nothing of Weir's code.

use crate::common::Daemon;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// How it logs in.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) initiator: String,
    pub(crate) isid: u8,
    pub(crate) initial_r2t: bool,
    pub(crate) immediate: bool,
    pub(crate) digests: bool,
    /// What it takes in one PDU.
    pub(crate) max_recv: usize,
    /// What it proves by CHAP.
    pub(crate) secret: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            initiator: "iqn.2026-01.org.example:a".to_owned(),
            isid: 1,
            initial_r2t: false,
            immediate: true,
            digests: false,
            max_recv: 65_536,
            secret: None,
        }
    }
}

/// Name of the port "i".
pub(crate) fn name(d: &Daemon) -> String {
    let t = d.json("target show i");
    let part = |k: &str| t[k].as_str().unwrap().trim_start_matches("0x").to_owned();
    format!("iqn.2026-11.io.weir:{}{}", part("id_ext"), part("ioc_guid"))
}

/// How a command ended.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u8,
    pub(crate) sense: Vec<u8>,
    pub(crate) data: Vec<u8>,
    /// Positive: so much more; negative: so much less.
    pub(crate) residual: i64,
    /// The status came in the last Data-In.
    pub(crate) with_data: bool,
}

impl Answer {
    pub(crate) fn good(self) -> Answer {
        assert_eq!(self.status, 0, "{:02x?}", self.sense);
        self
    }
}

/// A PDU of the target.
pub(crate) struct Pdu {
    pub(crate) head: [u8; 48],
    pub(crate) data: Vec<u8>,
}

pub(crate) fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(b[at..at + 4].try_into().unwrap())
}

/// CRC32C, bit by bit.
fn crc(bytes: &[u8]) -> [u8; 4] {
    let sum = bytes.iter().fold(u32::MAX, |mut c, b| {
        c ^= u32::from(*b);
        (0..8).for_each(|_| c = c >> 1 ^ if c & 1 == 1 { 0x82f6_3b78 } else { 0 });
        c
    });
    (!sum).to_le_bytes()
}

pub(crate) struct Client {
    pub(crate) s: TcpStream,
    digests: bool,
    options: Options,
    pub(crate) cmd_sn: u32,
    pub(crate) stat_sn: u32,
    pub(crate) max_cmd_sn: u32,
    next_tag: u32,
    /// DATA-OUT of commands under way.
    sends: BTreeMap<u32, Vec<u8>>,
}

/// Text of pairs with `|` for NUL.
fn text(t: &str) -> Vec<u8> {
    t.replace('|', "\0").into_bytes()
}

impl Client {
    pub(crate) fn connect(at: &str, options: Options) -> Client {
        let s = TcpStream::connect(at).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        s.set_write_timeout(Some(Duration::from_secs(3))).unwrap();
        s.set_nodelay(true).unwrap();
        Client {
            s,
            digests: false,
            options,
            cmd_sn: 1,
            stat_sn: 0,
            max_cmd_sn: 0,
            next_tag: 1,
            sends: BTreeMap::new(),
        }
    }

    /// Sends a PDU, with its length and digests.
    pub(crate) fn send(&mut self, mut head: [u8; 48], data: &[u8]) {
        head[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let mut m = head.to_vec();
        if self.digests {
            m.extend(crc(&head));
        }
        let mut body = data.to_vec();
        body.resize(data.len().next_multiple_of(4), 0);
        m.extend(&body);
        if self.digests && !body.is_empty() {
            m.extend(crc(&body));
        }
        // Of one that has been closed nothing comes back.
        let _ = self.s.write_all(&m);
    }

    /// The next PDU that says something; `None`: there is none any more. A ping without a tag asks for nothing (RFC 7143 11.19.1).
    pub(crate) fn receive(&mut self) -> Option<Pdu> {
        loop {
            let p = self.receive_any()?;
            let asks = p.head[0] != 0x20 || p.head[16..24] != [0xff; 8];
            if asks {
                return Some(p);
            }
        }
    }

    fn receive_any(&mut self) -> Option<Pdu> {
        let mut head = [0; 48];
        self.s.read_exact(&mut head).ok()?;
        assert_eq!(head[4], 0, "additional segments");
        let mut sum = [0; 4];
        if self.digests {
            self.s.read_exact(&mut sum).ok()?;
            assert_eq!(sum, crc(&head));
        }
        let len = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
        assert!(len <= self.options.max_recv.max(8192), "{len} bytes");
        let mut data = vec![0; len.next_multiple_of(4)];
        self.s.read_exact(&mut data).ok()?;
        if self.digests && len > 0 {
            self.s.read_exact(&mut sum).ok()?;
            assert_eq!(sum, crc(&data));
        }
        data.truncate(len);
        // R2T, a ping and Data-In without status show the next number, or none.
        let shows = match head[0] {
            0x31 => true,
            0x20 => be32(&head, 16) == u32::MAX,
            0x25 => head[1] & 1 == 0,
            _ => false,
        };
        if !shows {
            let sn = be32(&head, 24);
            assert!(self.stat_sn == 0 || sn == self.stat_sn, "StatSN {sn}, not {}", self.stat_sn);
            self.stat_sn = sn.wrapping_add(1);
        }
        let most = be32(&head, 32);
        assert!(most.wrapping_sub(self.max_cmd_sn) as i32 >= 0 || self.max_cmd_sn == 0);
        self.max_cmd_sn = most;
        Some(Pdu { head, data })
    }

    pub(crate) fn login_request(&mut self, flags: u8, keys: &[u8]) -> Option<Pdu> {
        let mut h = [0; 48];
        (h[0], h[1]) = (0x43, flags);
        h[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, self.options.isid]);
        h[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        h[28..32].copy_from_slice(&self.stat_sn.to_be_bytes());
        self.send(h, keys);
        let p = self.receive()?;
        assert_eq!(p.head[0], 0x23);
        Some(p)
    }

    /// Logs in. An error is the status of the response; 0 if there was none.
    pub(crate) fn log_in(at: &str, target: &str, options: Options) -> Result<Client, u16> {
        let mut c = Client::connect(at, options);
        let o = c.options.clone();
        c.log_in_by(&format!("TargetName={target}|SessionType=Normal|"), o.secret.as_deref())?;
        c.digests = o.digests;
        c.ready(0);
        Ok(c)
    }

    /// Hears what a unit has to tell before it is used: that it is new, or has changed.
    pub(crate) fn ready(&mut self, lun: u8) {
        loop {
            let a = self.at_lun(lun, &[0; 6], 0, &[]);
            if a.status != 2 || a.sense[2] & 15 != 6 {
                return;
            }
        }
    }

    pub(crate) fn log_in_by(&mut self, who: &str, secret: Option<&str>) -> Result<(), u16> {
        let o = self.options.clone();
        let who = format!("InitiatorName={}|{who}", o.initiator);
        let status = |p: Option<Pdu>| {
            let p = p.ok_or(0u16)?;
            match u16::from_be_bytes([p.head[36], p.head[37]]) {
                0 => Ok(p),
                status => Err(status),
            }
        };
        let (yes, no) = ("Yes", "No");
        let keys = format!(
            "HeaderDigest={0}|DataDigest={0}|InitialR2T={1}|ImmediateData={2}|MaxRecvDataSegmentLength={3}|\
             MaxBurstLength=262144|FirstBurstLength=65536|",
            if o.digests { "CRC32C,None" } else { "None" },
            if o.initial_r2t { yes } else { no },
            if o.immediate { yes } else { no },
            o.max_recv,
        );
        let Some(secret) = secret else {
            let p = status(self.login_request(0x87, &text(&format!("{who}{keys}"))))?;
            assert_eq!(p.head[1], 0x87);
            return Ok(());
        };
        status(self.login_request(0x81, &text(&format!("{who}AuthMethod=CHAP,None|"))))?;
        let p = status(self.login_request(0x00, &text("CHAP_A=7|")))?;
        let all = String::from_utf8(p.data).unwrap();
        let value = |k: &str| all.split('\0').find_map(|p| p.strip_prefix(k)).unwrap().to_owned();
        let hex = value("CHAP_C=0x");
        let challenge: Vec<u8> = (0..hex.len() / 2)
            .map(|i| u8::from_str_radix(&hex[2 * i..][..2], 16).unwrap())
            .collect();
        let id: u8 = value("CHAP_I=").parse().unwrap();
        let r = sha256(&[&[id][..], secret.as_bytes(), &challenge].concat());
        status(self.login_request(0x81, &text(&format!("CHAP_N=me|CHAP_R=0x{r}|"))))?;
        let p = status(self.login_request(0x87, &text(&keys)))?;
        assert_eq!(p.head[1], 0x87);
        Ok(())
    }

    /// What a discovery session is told; nothing if it is refused.
    pub(crate) fn discover(at: &str, initiator: &str) -> Vec<u8> {
        let options = Options { initiator: initiator.to_owned(), ..Options::default() };
        let mut c = Client::connect(at, options);
        if c.log_in_by("SessionType=Discovery|", None).is_err() {
            return Vec::new();
        }
        let mut h = c.head(0x04, 0x80);
        h[20..24].fill(0xff);
        c.numbered(&mut h);
        c.send(h, b"SendTargets=All\0");
        let p = c.receive().unwrap();
        assert_eq!((p.head[0], p.head[1]), (0x24, 0x80));
        c.log_out();
        p.data
    }

    fn head(&mut self, op: u8, flags: u8) -> [u8; 48] {
        let mut h = [0; 48];
        (h[0], h[1]) = (op, flags);
        h[16..20].copy_from_slice(&self.next_tag.to_be_bytes());
        self.next_tag += 1;
        h[28..32].copy_from_slice(&self.stat_sn.to_be_bytes());
        h
    }

    /// Gives a request its number.
    fn numbered(&mut self, h: &mut [u8; 48]) {
        h[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
    }

    /// Sends a command; what it brings goes as far as it may without being asked for. Gives its tag.
    pub(crate) fn send_command(&mut self, lun: u8, cdb: &[u8], room: usize, data: &[u8]) -> u32 {
        const FIRST: usize = 65_536;
        let o = self.options.clone();
        let flags = if room > 0 { 0x40 } else { 0 } | if data.is_empty() { 0 } else { 0x20 };
        let mut h = self.head(0x01, flags | 1);
        let tag = be32(&h, 16);
        h[9] = lun;
        h[20..24].copy_from_slice(&(room.max(data.len()) as u32).to_be_bytes());
        h[32..32 + cdb.len()].copy_from_slice(cdb);
        self.numbered(&mut h);
        let first = data.len().min(FIRST);
        let now = if o.immediate { first.min(8192) } else { 0 };
        let by_itself = if o.initial_r2t { now } else { first };
        if by_itself == now {
            h[1] |= 0x80;
        }
        self.send(h, &data[..now]);
        if by_itself > now {
            self.send_data(tag, u32::MAX, now, &data[now..by_itself]);
        }
        self.sends.insert(tag, data.to_vec());
        tag
    }

    /// One sequence of Data-Out.
    fn send_data(&mut self, tag: u32, ttt: u32, at: usize, data: &[u8]) {
        let parts: Vec<&[u8]> = data.chunks(20_000).collect();
        let mut offset = at;
        for (i, part) in parts.iter().enumerate() {
            let mut h = [0; 48];
            h[0] = 0x05;
            h[1] = if i + 1 == parts.len() { 0x80 } else { 0 };
            h[16..20].copy_from_slice(&tag.to_be_bytes());
            h[20..24].copy_from_slice(&ttt.to_be_bytes());
            h[36..40].copy_from_slice(&(i as u32).to_be_bytes());
            h[40..44].copy_from_slice(&(offset as u32).to_be_bytes());
            self.send(h, part);
            offset += part.len();
        }
    }

    /// The answer to the next command that ends; what is asked for is sent.
    pub(crate) fn answer(&mut self) -> Answer {
        let mut a = Answer::default();
        let mut expected = 0;
        loop {
            let Pdu { head: h, data } = self.receive().expect("an answer");
            let tag = be32(&h, 16);
            match h[0] {
                0x31 => {
                    let (at, len) = (be32(&h, 40) as usize, be32(&h, 44) as usize);
                    assert!(len > 0 && len <= 262_144);
                    let all = self.sends[&tag].clone();
                    self.send_data(tag, be32(&h, 20), at, &all[at..at + len]);
                }
                0x25 => {
                    assert_eq!(be32(&h, 36), expected, "DataSN");
                    expected += 1;
                    assert_eq!(be32(&h, 40) as usize, a.data.len(), "in order");
                    a.data.extend(data);
                    if h[1] & 1 == 0 {
                        continue;
                    }
                    a.with_data = true;
                }
                0x21 => {
                    assert_eq!(h[2], 0);
                    if !data.is_empty() {
                        let n = usize::from(u16::from_be_bytes([data[0], data[1]]));
                        assert_eq!(n + 2, data.len());
                        a.sense = data[2..].to_vec();
                    }
                }
                op => panic!("unexpected PDU {op:02x}, {:02x?}", &h[..4]),
            }
            if h[0] == 0x21 || a.with_data {
                a.status = h[3];
                let n = i64::from(be32(&h, 44));
                a.residual = match h[1] & 6 {
                    0 => 0,
                    2 => -n,
                    4 => n,
                    _ => panic!("under and over"),
                };
                self.sends.remove(&tag);
                return a;
            }
        }
    }

    pub(crate) fn at_lun(&mut self, lun: u8, cdb: &[u8], room: usize, data: &[u8]) -> Answer {
        self.send_command(lun, cdb, room, data);
        self.answer()
    }

    pub(crate) fn command(&mut self, cdb: &[u8], room: usize, data: &[u8]) -> Answer {
        self.at_lun(0, cdb, room, data)
    }

    fn cdb10(op: u8, lba: u32, blocks: usize) -> [u8; 10] {
        let ([a, b, c, d], [x, y]) = (lba.to_be_bytes(), (blocks as u16).to_be_bytes());
        [op, 0, a, b, c, d, 0, x, y, 0]
    }

    pub(crate) fn read10(&mut self, lba: u32, block: usize, len: usize) -> Answer {
        self.command(&Client::cdb10(0x28, lba, len / block), len, &[])
    }

    pub(crate) fn write10(&mut self, lba: u32, block: usize, data: &[u8]) -> Answer {
        self.send_write10(lba, block, data);
        self.answer()
    }

    pub(crate) fn send_write10(&mut self, lba: u32, block: usize, data: &[u8]) -> u32 {
        self.send_command(0, &Client::cdb10(0x2a, lba, data.len() / block), 0, data)
    }

    /// A write of eight blocks of which no data come, though they are asked for. Gives its tag.
    pub(crate) fn send_unfinished_write(&mut self, lba: u32, block: usize) -> u32 {
        let mut h = self.head(0x01, 0xa1);
        h[20..24].copy_from_slice(&(8 * block as u32).to_be_bytes());
        h[32..42].copy_from_slice(&Client::cdb10(0x2a, lba, 8));
        self.numbered(&mut h);
        self.send(h, &[]);
        let p = self.receive().unwrap();
        assert_eq!((p.head[0], be32(&p.head, 16)), (0x31, be32(&h, 16)));
        be32(&h, 16)
    }

    /// A task management function, immediate; gives the response.
    pub(crate) fn manage(&mut self, function: u8, lun: u8, tag: u32) -> u8 {
        let mut h = self.head(0x42, 0x80 | function);
        h[9] = lun;
        h[20..24].copy_from_slice(&tag.to_be_bytes());
        h[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.send(h, &[]);
        let p = self.receive().unwrap();
        assert_eq!((p.head[0], p.data.len()), (0x22, 0));
        p.head[2]
    }

    pub(crate) fn ping(&mut self, data: &[u8]) -> Vec<u8> {
        let mut h = self.head(0x40, 0x80);
        h[20..24].fill(0xff);
        h[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.send(h, data);
        let p = self.receive().unwrap();
        assert_eq!(p.head[0], 0x20);
        p.data
    }

    pub(crate) fn log_out(mut self) {
        let mut h = self.head(0x46, 0x80);
        h[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.send(h, &[]);
        let p = self.receive().unwrap();
        assert_eq!((p.head[0], p.head[2], p.data.len()), (0x26, 0, 0));
        assert!(self.is_closed());
    }

    /// Nothing but news comes before the end of the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        let _ = self.s.shutdown(Shutdown::Write);
        while let Some(p) = self.receive() {
            assert!(matches!(p.head[0], 0x20 | 0x31 | 0x32 | 0x3f), "{:02x?}", p.head);
        }
        true
    }
}

/// SHA-256 by the program of that name, in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    let mut p = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    p.stdin.take().unwrap().write_all(bytes).unwrap();
    let out = p.wait_with_output().unwrap().stdout;
    String::from_utf8(out).unwrap()[..64].to_owned()
}
