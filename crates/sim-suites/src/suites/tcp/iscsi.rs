//! An iSCSI initiator.

use super::link::{Link, exactly};
use super::medium::Counts;
use crate::load::Io;
use crate::srp::Fault;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, Prng, SECONDS};
use weir_mem::Slice;
use weir_proto_iscsi::NO_TAG;
use weir_proto_iscsi::bhs::{LEN, be32, op, put};
use weir_proto_iscsi::intake::{Digests, Intake, Item, digest, padding};
use weir_proto_iscsi::text::{pairs, push};
use weir_proto_scsi::initiator::{self as scsi, Cdb};
use weir_reactor::{LocalFuture, timeout};
use weir_stream::Stream;

/// Bytes of data that a PDU has at most, either way.
const MOST: u32 = 8192;
/// Bytes of a block.
const BLOCK: u64 = 512;

/// How an initiator behaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// Of so many commands one is given up soon.
    pub(super) hasty: u64,
    /// Whether units may be reset or hidden, so that commands end without a word: then none is waited for in vain.
    pub(super) silence: bool,
}

pub(super) struct Iscsi {
    pub(super) link: Link,
    owner: u32,
    pub(super) digests: Digests,
    /// Data may come with a command.
    immediate: bool,
    style: Style,
    pub(super) cmd_sn: Cell<u32>,
    pub(super) stat_sn: Cell<u32>,
    /// The target has answered the logout.
    pub(super) out: Cell<bool>,
    pub(super) fault: Fault,
    pub(super) counts: Rc<Counts>,
    pub(super) rng: RefCell<Prng>,
}

/// A PDU with its padding and digests.
pub(super) fn seal(mut bhs: [u8; LEN], data: &[u8], d: Digests) -> Vec<u8> {
    let [_, a, b, c] = (data.len() as u32).to_be_bytes();
    put(&mut bhs, 5, &[a, b, c]);
    let mut all = bhs.to_vec();
    if d.header {
        all.extend(digest(&bhs));
    }
    if !data.is_empty() {
        let from = all.len();
        all.extend_from_slice(data);
        all.resize(all.len() + padding(data.len()), 0);
        if d.data {
            let sum = digest(&all[from..]);
            all.extend(sum);
        }
    }
    all
}

impl Iscsi {
    /// Logs in. `None`: the connection was lost, or the target lets nobody in now.
    pub(super) async fn connect(
        stream: Box<dyn Stream>,
        (initiator, target): (&str, &str),
        owner: u32,
        style: Style,
        (fault, counts, mut rng): (Fault, Rc<Counts>, Prng),
    ) -> Option<Rc<Iscsi>> {
        let (header, data) = (rng.chance(1, 2), rng.chance(1, 2));
        let immediate = rng.chance(2, 3);
        let said = |yes: bool| if yes { "Yes" } else { "No" };
        let sum = |yes: bool| if yes { "CRC32C" } else { "None" };
        let mut text = Vec::new();
        for (k, v) in [
            ("InitiatorName", initiator),
            ("SessionType", "Normal"),
            ("TargetName", target),
            ("HeaderDigest", sum(header)),
            ("DataDigest", sum(data)),
            ("InitialR2T", "Yes"),
            ("ImmediateData", said(immediate)),
            ("MaxRecvDataSegmentLength", &MOST.to_string()),
            ("MaxBurstLength", "16384"),
            ("FirstBurstLength", "8192"),
        ] {
            push(&mut text, k, v);
        }
        let mut bhs = [0; LEN];
        bhs[0] = 0x43;
        bhs[1] = 0x87;
        // The same name in each life, as Linux has it.
        put(&mut bhs, 8, &[0, 2, 0x3d, 0, 0, owner as u8]);
        put(&mut bhs, 24, &1u32.to_be_bytes());
        stream.send_all(&seal(bhs, &text, Digests::default())).await.ok()?;
        let head = exactly(&*stream, LEN).await?;
        let len = be32(&head, 4) as usize & 0xff_ffff;
        let answer = exactly(&*stream, len + padding(len)).await?;
        let pairs = pairs(answer.get(..len)?).ok()?;
        let agreed = |key: &str, v: &str| pairs.contains(&(key, v));
        if head[0] != op::LOGIN_RESPONSE || head[36] != 0 || head[1] & 0x83 != 0x83 {
            return None;
        }
        Some(Rc::new(Iscsi {
            link: Link::new(stream),
            owner,
            digests: Digests {
                header: agreed("HeaderDigest", "CRC32C"),
                data: agreed("DataDigest", "CRC32C"),
            },
            immediate: immediate && agreed("ImmediateData", "Yes"),
            style,
            cmd_sn: Cell::new(1),
            stat_sn: Cell::new(be32(&head, 24).wrapping_add(1)),
            out: Cell::default(),
            fault,
            counts,
            rng: RefCell::new(rng),
        }))
    }

    /// Takes what the target sends until the connection ends. `Err`: it breaks a rule.
    pub(super) async fn serve(&self) -> Result<(), String> {
        let stream = self.link.stream.clone();
        let mut intake = Intake::new(self.digests, MOST);
        let (mut staging, mut head, mut data) = (vec![0; 5000], None, Vec::new());
        'all: loop {
            let n = match stream.receive_some(&mut staging).await {
                Ok(n) if n > 0 => n,
                _ => break,
            };
            let mut left = &staging[..n];
            loop {
                let (item, more) =
                    intake.next(left).map_err(|e| format!("what the target sends: {e:?}"))?;
                left = more;
                match item {
                    Some(Item::Head(r)) => (head, data) = (Some(r), Vec::new()),
                    Some(Item::Data(d)) => data.extend_from_slice(d),
                    Some(Item::End) => {
                        let Some(r) = head.take() else { continue };
                        if !self.take(&r.0, &data).await? {
                            break 'all;
                        }
                    }
                    // The end of a PDU without data comes behind all that was there.
                    None => break,
                }
            }
        }
        self.link.die();
        Ok(())
    }

    /// A PDU of the target. False: it wants the session to end.
    async fn take(&self, h: &[u8; LEN], data: &[u8]) -> Result<bool, String> {
        let tag = u64::from(be32(h, 16));
        let takes_number = match h[0] & 0x3f {
            op::DATA_IN => h[1] & 1 != 0,
            op::R2T => false,
            op::NOP_IN => be32(h, 16) != NO_TAG,
            _ => true,
        };
        if takes_number {
            let (want, have) = (self.stat_sn.get(), be32(h, 24));
            if want != have {
                return Err(format!("StatSN {have} where {want} is due"));
            }
            self.stat_sn.set(want.wrapping_add(1));
        }
        match h[0] & 0x3f {
            op::DATA_IN => {
                let Some(w) = self.link.find(tag) else { return Err(format!("data for {tag}")) };
                let Some(buf) = &w.buf else { return Err("data for a write".into()) };
                let at = be32(h, 40) as usize;
                if at + data.len() > buf.len() {
                    return Err(format!("data beyond the end: {at} and {}", data.len()));
                }
                buf.write_at(at, data);
                if h[1] & 1 != 0 {
                    self.ended(tag, h[3], &[])?;
                }
            }
            op::R2T => {
                let Some(w) = self.link.find(tag) else { return Ok(true) };
                self.in_turn(tag)?;
                let Some(from) = &w.data else { return Err("an R2T for a read".into()) };
                let (ttt, at, len) = (be32(h, 20), be32(h, 40) as usize, be32(h, 44) as usize);
                if len == 0 || at + len > from.len() || len > 16384 {
                    return Err(format!("an R2T for {len} bytes from {at}"));
                }
                let all = from.to_vec();
                let mut sent = 0;
                for (n, part) in all[at..at + len].chunks(MOST as usize).enumerate() {
                    let mut bhs = [0; LEN];
                    bhs[0] = op::DATA_OUT;
                    sent += part.len();
                    bhs[1] = if sent == len { 0x80 } else { 0 };
                    put(&mut bhs, 16, &(tag as u32).to_be_bytes());
                    put(&mut bhs, 20, &ttt.to_be_bytes());
                    put(&mut bhs, 28, &self.stat_sn.get().to_be_bytes());
                    put(&mut bhs, 36, &(n as u32).to_be_bytes());
                    put(&mut bhs, 40, &((at + sent - part.len()) as u32).to_be_bytes());
                    self.link.send(&seal(bhs, part, self.digests)).await;
                }
            }
            op::RESPONSE => self.ended(tag, h[3], data)?,
            op::TASK_RESPONSE => self.managed(tag, h[2])?,
            op::LOGOUT_RESPONSE if h[2] == 0 => {
                self.out.set(true);
                Counts::one_more(&self.counts.logouts);
                return Ok(false);
            }
            op::NOP_IN if be32(h, 16) != NO_TAG => {
                if !self.link.answer(tag, Ok(())) {
                    return Err(format!("an answer to the ping {tag}, which nobody sent"));
                }
            }
            op::NOP_IN => {
                let mut bhs = [0; LEN];
                bhs[0] = 0x40;
                bhs[1] = 0x80;
                put(&mut bhs, 16, &NO_TAG.to_be_bytes());
                put(&mut bhs, 20, &h[20..24]);
                if be32(h, 20) != NO_TAG {
                    self.link
                        .send_in_turn(|| {
                            put(&mut bhs, 24, &self.cmd_sn.get().to_be_bytes());
                            put(&mut bhs, 28, &self.stat_sn.get().to_be_bytes());
                            seal(bhs, &[], self.digests)
                        })
                        .await;
                }
            }
            op::ASYNC => return Ok(false),
            other => return Err(format!("a PDU of kind {other:02x}, which nobody asked for")),
        }
        Ok(true)
    }

    fn ended(&self, tag: u64, status: u8, data: &[u8]) -> Result<(), String> {
        let done = match status {
            0 => Ok(()),
            // A unit attention, or no unit.
            2 if matches!(data.get(4).map(|k| k & 15), Some(6 | 5 | 2)) => Err(IoError::Aborted),
            // BUSY, TASK ABORTED.
            8 | 0x40 => Err(IoError::Aborted),
            s => return Err(format!("status {s:02x} with {data:02x?}, where nothing is wrong")),
        };
        self.in_turn(tag)?;
        match self.link.answer(tag, done) {
            true => Ok(()),
            false => Err(format!("an answer to {tag}, which nobody asked")),
        }
    }

    async fn ask(&self, cdb: Cdb, buf: Option<Slice>, data: Option<Slice>) -> IoResult {
        if self.style.silence && self.chance(200) {
            self.reset().await;
        }
        let (tag, w) = self.link.begin(buf, data.clone());
        let (reads, len) = match (&w.buf, &data) {
            (Some(b), _) => (true, b.len()),
            (_, Some(d)) => (false, d.len()),
            _ => (true, 0),
        };
        let mut bhs = [0; LEN];
        bhs[0] = op::COMMAND;
        bhs[1] = 0x81
            | if len == 0 {
                0
            } else if reads {
                0x40
            } else {
                0x20
            };
        put(&mut bhs, 16, &(tag as u32).to_be_bytes());
        put(&mut bhs, 20, &(len as u32).to_be_bytes());
        put(&mut bhs, 32, &cdb.padded());
        let now = data.filter(|_| self.immediate).map(|d| d.to_vec()).unwrap_or_default();
        let now = &now[..now.len().min(MOST as usize)];
        if self.chance(40) {
            self.send_early(&w, &mut bhs, now).await;
        } else {
            let command = || {
                w.is_sent.set(true);
                self.number(&mut bhs, now)
            };
            self.link.send_in_turn(command).await;
        }
        let patience = match self.chance(self.style.hasty) {
            true => self.rng.borrow_mut().below(5 * MILLIS),
            false if self.style.silence => 4 * SECONDS,
            false => return self.link.wait(&w).await,
        };
        match timeout(patience, self.link.wait(&w)).await {
            Ok(done) => done,
            Err(_) => self.give_up(tag, &w).await,
        }
    }
}

impl Io for Iscsi {
    fn read(&self, at: u64, buf: Slice) -> LocalFuture<'_, IoResult> {
        let cdb = scsi::read(at / BLOCK, (buf.len() as u64 / BLOCK) as u32, false);
        Box::pin(self.ask(cdb, Some(buf), None))
    }
    fn write(&self, at: u64, buf: Slice, fua: bool) -> LocalFuture<'_, IoResult> {
        let cdb = scsi::write(at / BLOCK, (buf.len() as u64 / BLOCK) as u32, fua);
        Box::pin(self.ask(cdb, None, Some(buf)))
    }
    fn flush(&self) -> LocalFuture<'_, IoResult> {
        Box::pin(self.ask(scsi::sync_cache(0, 0), None, None))
    }
    fn zero(&self, at: u64, len: u64) -> LocalFuture<'_, IoResult> {
        // Of blocks that are written as zeros nobody can tell whose they are, as with the command for that.
        let buf = Slice::heap(len as usize);
        buf.fill(0);
        self.write(at, buf, false)
    }
    fn owner(&self) -> u32 {
        self.owner
    }
}
