//! An SRP path of a host: a nexus with one or two channels. It tells the judge of all that it does and is told.

mod acts;

use super::judge::Judge;
use super::spc::{Code, Pair, RESET};
use crate::srp::{Channel, Ended, Login, Style, channels, sense};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{MILLIS, Prng};
use weir_fabric::Provider;
use weir_mem::{BufPool, Slice};
use weir_proto_scsi::initiator as build;
use weir_proto_srp::login::MultiChannelAction;
use weir_proto_srp::{Form, PortId};
use weir_reactor::{WaitChannel, sleep, spawn_task};

/// Sense of ILLEGAL REQUEST, LOGICAL UNIT NOT SUPPORTED.
const NO_UNIT: (u8, u8, u8) = (5, 0x25, 0);

/// How a command ended, for whoever sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    Good,
    Conflict,
    /// It was not run: a unit attention.
    Attention,
    /// There is no such unit.
    Hidden,
    /// CHECK CONDITION with another sense: key, code and qualifier in one.
    Sense(u8, Code),
    /// It was ended; nothing more of it happens.
    Aborted,
    /// Its channel is gone.
    Lost,
}

/// Settings of a path.
#[derive(Clone)]
pub(super) struct PathConfig {
    pub(super) addr: String,
    pub(super) target: PortId,
    pub(super) initiator: PortId,
    pub(super) channels: usize,
    pub(super) style: Style,
    /// The target can fetch data.
    pub(super) fetched: bool,
    pub(super) native_cm: bool,
}

/// A command with what the judge has to know.
pub(super) struct Command<'a> {
    pub(super) volume: u32,
    pub(super) lun: u16,
    pub(super) cdb: &'a [u8],
    pub(super) out: Option<&'a Slice>,
    pub(super) data_in: Option<&'a Slice>,
    /// Number of the write that it does.
    pub(super) write: Option<u64>,
    /// INQUIRY and its like neither tell of unit attentions nor wait for them.
    pub(super) aside: bool,
}

/// An SRP path.
pub(super) struct Path {
    pub(super) number: usize,
    pub(super) judge: Rc<Judge>,
    provider: Rc<dyn Provider>,
    pub(super) pool: BufPool,
    config: PathConfig,
    channels: RefCell<Vec<Rc<Channel>>>,
    logging_in: WaitChannel,
    pub(super) rng: RefCell<Prng>,
    /// Which volume each LUN has, as the unit itself said.
    beliefs: RefCell<BTreeMap<u16, u32>>,
    closing: Cell<bool>,
    /// The host has logged out, and comes back some time.
    away: Cell<bool>,
    /// Happens when the next login is under way.
    in_login: RefCell<Option<Box<dyn FnOnce()>>>,
}

fn eight(lun: u16) -> u64 {
    u64::from(lun) << 48
}

impl Path {
    pub(super) fn new(
        number: usize,
        judge: Rc<Judge>,
        provider: Rc<dyn Provider>,
        pool: BufPool,
        config: PathConfig,
        rng: Prng,
    ) -> Rc<Path> {
        Rc::new(Path {
            number,
            judge,
            provider,
            pool,
            config,
            channels: RefCell::default(),
            logging_in: WaitChannel::new(1),
            rng: RefCell::new(rng),
            beliefs: RefCell::default(),
            closing: Cell::new(false),
            away: Cell::new(false),
            in_login: RefCell::default(),
        })
    }

    pub(super) fn pair(&self) -> Pair {
        self.judge.paths[self.number].pair
    }

    fn draw<R>(&self, f: impl FnOnce(&mut Prng) -> R) -> R {
        f(&mut self.rng.borrow_mut())
    }

    fn all_up(&self) -> Option<Rc<Channel>> {
        let all = self.channels.borrow();
        if all.is_empty() || all.iter().any(|c| !c.is_up()) {
            return None;
        }
        let k = self.draw(|r| r.below(all.len() as u64)) as usize;
        Some(all[k].clone())
    }

    /// One of the channels; all are made anew when one is missing.
    async fn channel(&self) -> Option<Rc<Channel>> {
        for _ in 0..200 {
            if self.closing.get() || self.away.get() || self.judge.is_wrong() {
                return None;
            }
            if let Some(c) = self.all_up() {
                return Some(c);
            }
            let _mutex = self.logging_in.acquire(1).await;
            let wanted = !self.closing.get() && !self.away.get();
            if self.all_up().is_none() && wanted && !self.login().await {
                sleep(self.draw(|r| r.below(300 * MILLIS))).await;
            }
        }
        None
    }

    async fn login(&self) -> bool {
        let old = self.channels.take();
        self.judge.may_lose(self.number);
        self.beliefs.borrow_mut().clear();
        channels::end(old).await;
        for i in 0..self.config.channels {
            let action = match i {
                0 => MultiChannelAction::Terminate,
                _ => MultiChannelAction::Independent,
            };
            let Some(c) = self.one(action).await else { return i > 0 };
            if i == 0 {
                self.judge.logged_in(self.number);
                self.judge.count("logins");
            }
            self.channels.borrow_mut().push(c);
        }
        true
    }

    async fn one(&self, action: MultiChannelAction) -> Option<Rc<Channel>> {
        let c = &self.config;
        let login = Login {
            provider: &*self.provider,
            pool: &self.pool,
            addr: &c.addr,
            initiator: c.initiator,
            target: c.target,
            action,
            style: c.style.clone(),
            form: if c.native_cm { Form::IbCm } else { Form::RdmaCm },
            fault: self.judge.fault.clone(),
        };
        let rng = self.draw(|r| r.fork());
        if let Some(happens) = self.in_login.take() {
            happens();
        }
        let channel = channels::login(login, rng).await.ok()?;
        // A host may give one up for its own reasons, long before it logs in again.
        let (ends, judge, number) = (channel.clone(), self.judge.clone(), self.number);
        spawn_task(async move {
            ends.ended().await;
            judge.may_lose(number);
        });
        Some(channel)
    }

    /// Loses a channel, and so logs in anew; then `happens` does when that is under way.
    pub(super) fn log_in_anew(&self, happens: impl FnOnce() + 'static) {
        *self.in_login.borrow_mut() = Some(Box::new(happens));
        self.drop_one();
    }

    /// Ends all channels and waits until they are gone.
    pub(super) async fn close(&self) {
        self.closing.set(true);
        let _mutex = self.logging_in.acquire(1).await;
        // Others may go on: what it had reserved is theirs.
        self.judge.may_lose(self.number);
        channels::end(self.channels.take()).await;
    }

    /// Logs out; nothing is sent before [`come_back`](Path::come_back).
    pub(super) async fn leave(&self) {
        self.away.set(true);
        let _mutex = self.logging_in.acquire(1).await;
        self.judge.may_lose(self.number);
        self.beliefs.borrow_mut().clear();
        channels::end(self.channels.take()).await;
    }

    /// Logs in again when there is something to do.
    pub(super) fn come_back(&self) {
        self.away.set(false);
    }

    /// Ends one channel, as a cable that is pulled.
    pub(super) fn drop_one(&self) {
        self.judge.may_lose(self.number);
        let all = self.channels.borrow();
        if !all.is_empty() {
            let k = self.draw(|r| r.below(all.len() as u64)) as usize;
            all[k].end();
        }
    }

    /// The volume behind a LUN: asked for where it is not known.
    pub(super) async fn volume(&self, lun: u16) -> Option<u32> {
        if let Some(v) = self.beliefs.borrow().get(&lun) {
            return Some(*v);
        }
        let buf = Slice::heap(64);
        let channel = self.channel().await?;
        let cdb = build::vpd(0x80, 64);
        let ended = channel.command(eight(lun), cdb.as_bytes(), None, Some(&buf)).await;
        let Ended::Answered(a) = ended else { return None };
        if a.status != 0 || !channel.is_up() {
            return None;
        }
        let volume = build::parse_serial(&buf.to_vec())?.trim().parse().ok()?;
        self.beliefs.borrow_mut().insert(lun, volume);
        Some(volume)
    }

    /// A channel to a volume. There is none when the path has logged in anew since it asked what the LUN is.
    async fn channel_to(&self, volume: u32, lun: u16) -> Option<Rc<Channel>> {
        let channel = self.channel().await?;
        (self.beliefs.borrow().get(&lun) == Some(&volume)).then_some(channel)
    }

    /// The next so many commands by each channel are aborted soon.
    pub(super) fn hurry(&self, commands: u32) {
        self.channels.borrow().iter().for_each(|c| c.hurry(commands));
    }

    /// Runs a command to its end.
    pub(super) async fn command(&self, c: Command<'_>) -> Reply {
        let j = &self.judge;
        let Some(channel) = self.channel_to(c.volume, c.lun).await else {
            if let Some(w) = c.write {
                j.over(w);
            }
            return Reply::Lost;
        };
        let who = self.pair();
        let mut flight = None;
        let mut sent = None;
        let on_send = || {
            sent = Some(j.now());
            if let Some(w) = c.write {
                j.sent(w);
            }
        };
        if !c.aside {
            flight = Some(j.with(c.volume, |b| b.attentions.depart(who, j.now())));
        }
        let ended = channel.command_noted(eight(c.lun), c.cdb, c.out, c.data_in, on_send).await;
        if let (Ended::Answered(a), Some(sent)) = (&ended, sent) {
            j.answered(self.number, c.volume, sent, sense(&a.sense) == Some(NO_UNIT));
        }
        if let (Ended::Aborted, Some(sent)) = (&ended, sent)
            && j.now() - sent >= self.config.style.timeout
        {
            j.unanswered(self.number, c.volume, sent, c.cdb);
        }
        let reply = match ended {
            Ended::Aborted => Reply::Aborted,
            Ended::Lost => Reply::Lost,
            Ended::Answered(a) if a.code.is_some() => {
                if self.config.fetched || (c.out.is_none() && c.data_in.is_none()) {
                    j.wrong(format!("command {:02x?} was answered with {:?}", c.cdb, a.code));
                }
                // Of data, or of a descriptor table.
                j.count("data that could not be fetched");
                Reply::Aborted
            }
            Ended::Answered(a) => match (a.status, sense(&a.sense)) {
                (0, _) => Reply::Good,
                (0x18, _) => Reply::Conflict,
                (0x40, _) => Reply::Aborted,
                (2, Some((6, asc, ascq))) => {
                    let code = match asc {
                        0x29 => RESET,
                        _ => u16::from(asc) << 8 | u16::from(ascq),
                    };
                    self.attention(&c, flight.take(), code).await;
                    Reply::Attention
                }
                (2, Some(NO_UNIT)) => Reply::Hidden,
                (2, Some((key, asc, ascq))) => {
                    Reply::Sense(key, u16::from(asc) << 8 | u16::from(ascq))
                }
                _ => {
                    j.wrong(format!("command {:02x?}: unexpected {a:?}", c.cdb));
                    Reply::Aborted
                }
            },
        };
        j.say(|| {
            format!(
                "path {} {who:?} volume {}: {:02x?} ends: {reply:?}",
                self.number, c.volume, c.cdb
            )
        });
        if let Some(f) = flight {
            self.over(&c, f, reply);
        }
        if reply == Reply::Hidden {
            self.beliefs.borrow_mut().remove(&c.lun);
        }
        if let Some(w) = c.write {
            match reply {
                Reply::Conflict | Reply::Attention | Reply::Hidden => j.refused(w),
                Reply::Aborted => {
                    j.count("writes aborted");
                    j.over(w);
                }
                Reply::Sense(..) => j.over(w),
                // GOOD is looked at by who knows what it was.
                Reply::Good | Reply::Lost => {}
            }
        }
        reply
    }

    /// What a command's end says of unit attentions.
    fn over(&self, c: &Command<'_>, flight: u64, reply: Reply) {
        let j = &self.judge;
        let now = j.now();
        let ran = j.with(c.volume, |b| match reply {
            Reply::Good | Reply::Conflict => b.attentions.ran(flight, now),
            _ => {
                b.attentions.vanished(flight, now);
                Ok(())
            }
        });
        match reply {
            Reply::Good | Reply::Conflict => j.meets(self.number, c.volume),
            _ => {}
        }
        if let Err(e) = ran {
            j.wrong(format!("volume {}: {e} ({:02x?})", c.volume, c.cdb));
        }
    }

    async fn attention(&self, c: &Command<'_>, flight: Option<u64>, code: Code) {
        let j = &self.judge;
        j.count("attentions");
        j.say(|| format!("path {} is told {code:04x} by volume {}", self.number, c.volume));
        j.meets(self.number, c.volume);
        let now = j.now();
        if let Some(f) = flight {
            let (told, interlock, again) = j.with(c.volume, |b| {
                let again = b.attentions.sent(f).is_some_and(|s| s <= b.interlocked);
                (
                    b.told(self.pair(), f, code, now),
                    b.keeps_attentions(),
                    b.keeps_attentions() || again,
                )
            });
            if let (Err(e), false) = (told, again) {
                j.wrong(format!("volume {}: {e}", c.volume));
            }
            if interlock {
                // It stays until it is asked for, and the question may be lost.
                j.with(c.volume, |b| b.attentions.stays(self.pair(), code));
                if let Some(channel) = self.channel().await {
                    let buf = Slice::heap(64);
                    let cdb = build::request_sense(false, 32);
                    let f = j.with(c.volume, |b| b.attentions.depart(self.pair(), now));
                    let ended =
                        channel.command(eight(c.lun), cdb.as_bytes(), None, Some(&buf)).await;
                    let (asc, ascq) = ((code >> 8) as u8, code as u8);
                    let asked = matches!(ended, Ended::Answered(a) if a.status == 0)
                        && sense(&buf.to_vec())
                            .is_some_and(|(_, a, q)| a == asc && (code == RESET || q == ascq));
                    j.with(c.volume, |b| {
                        if asked {
                            b.attentions.fetched(self.pair(), code, now);
                        }
                        b.attentions.vanished(f, j.now());
                    });
                }
            }
        }
        // What is behind a LUN may be another unit from here on.
        match code {
            RESET | 0x3f0e | 0x3f03 => self.beliefs.borrow_mut().clear(),
            _ => {}
        }
    }
}
