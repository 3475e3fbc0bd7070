//! An SRP path of a host: a nexus with one or two channels. It tells the judge of all that it does and is told.

use super::judge::Judge;
use super::spc::{Act, Code, MODES, Pair, RESET, Said};
use crate::srp::{Channel, Ended, Login, NoChannel, Style, sense};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_fabric::Provider;
use weir_mem::{BufPool, Slice};
use weir_proto_scsi::cdb::{PrIn, PrOut};
use weir_proto_scsi::initiator as build;
use weir_proto_scsi::pr::PrType;
use weir_proto_scsi::transport_id::TransportId;
use weir_proto_srp::login::MultiChannelAction;
use weir_proto_srp::{Form, PortId, RspCode, TaskFunction};
use weir_reactor::{WaitChannel, sleep, timeout};

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
        for c in &old {
            c.end();
        }
        for c in old {
            c.gone().await;
        }
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
        match timeout(30 * SECONDS, Channel::login(login, rng)).await {
            Ok(Ok(c)) => Some(c),
            Ok(Err(NoChannel::Wrong(what))) => {
                self.judge.wrong(what);
                None
            }
            Ok(Err(NoChannel::Refused(_))) => None,
            Err(_) => {
                self.judge.wrong("a login has hung for 30 seconds".to_string());
                None
            }
        }
    }

    /// Ends all channels and waits until they are gone.
    pub(super) async fn close(&self) {
        self.closing.set(true);
        let _mutex = self.logging_in.acquire(1).await;
        let all = self.channels.take();
        for c in &all {
            c.end();
        }
        for c in all {
            c.gone().await;
        }
    }

    /// Logs out; nothing is sent before [`come_back`](Path::come_back).
    pub(super) async fn leave(&self) {
        self.away.set(true);
        let _mutex = self.logging_in.acquire(1).await;
        self.judge.may_lose(self.number);
        self.beliefs.borrow_mut().clear();
        let all = self.channels.take();
        for c in &all {
            c.end();
        }
        for c in all {
            c.gone().await;
        }
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
        if let (Ended::Answered(_), Some(sent)) = (&ended, sent) {
            j.answered(self.number, c.volume, sent);
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
                (2, Some((5, 0x25, 0))) => Reply::Hidden,
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
                    b.attentions.told(f, code, now),
                    b.keeps_attentions(),
                    b.keeps_attentions() || again,
                )
            });
            if let (Err(e), false) = (told, again) {
                j.wrong(format!("volume {}: {e}", c.volume));
            }
            if interlock && let Some(channel) = self.channel().await {
                // It stays until it is asked for.
                let buf = Slice::heap(64);
                let cdb = build::request_sense(false, 32);
                let f = j.with(c.volume, |b| b.attentions.depart(self.pair(), now));
                channel.command(eight(c.lun), cdb.as_bytes(), None, Some(&buf)).await;
                j.with(c.volume, |b| b.attentions.vanished(f, j.now()));
            }
        }
        // What is behind a LUN may be another unit from here on.
        match code {
            RESET | 0x3f0e | 0x3f03 => self.beliefs.borrow_mut().clear(),
            _ => {}
        }
    }

    // Reservations.

    /// Runs a command about reservations, with its promises.
    pub(super) async fn act(&self, volume: u32, lun: u16, act: Act, options: (bool, u8)) {
        let (aptpl, other_port) = options;
        let j = &self.judge;
        // What waits for a login has not begun.
        if self.channel_to(volume, lun).await.is_none() {
            return;
        }
        let (cdb, list) = message(&act, aptpl, other_port);
        let out = (!list.is_empty()).then(|| Slice::copy_of(&list));
        let buf = Slice::heap(512);
        let reads = matches!(act, Act::ReadKeys | Act::ReadReservation);
        let running = j.begin_act(self.number, volume, act.clone());
        // Of whose tasks is known in the end only.
        let fence = match act {
            Act::Preempt { abort: true, .. } => {
                Some(j.fence(volume, Some(BTreeSet::new()), "PREEMPT AND ABORT"))
            }
            _ => None,
        };
        let reply = self
            .command(Command {
                volume,
                lun,
                cdb: cdb.as_bytes(),
                out: out.as_ref(),
                data_in: reads.then_some(&buf),
                write: None,
                aside: false,
            })
            .await;
        j.count("reservation commands");
        if !j.was_shown(self.number, volume, running.began) {
            // Whatever answered was perhaps not this volume.
            return j.lose_act(&running, reply != Reply::Lost);
        }
        let said = match (reply, &act) {
            (Reply::Good, Act::ReadKeys) => build::parse_pr_keys(&buf.to_vec()).ok().map(|k| {
                let mut keys = k.keys;
                keys.sort_unstable();
                Said::Keys(k.generation, keys)
            }),
            (Reply::Good, Act::ReadReservation) => build::parse_pr_reservation(&buf.to_vec())
                .ok()
                .map(|r| Said::Held(r.generation, r.held)),
            (Reply::Good, _) => Some(Said::Good),
            (Reply::Conflict, _) => Some(Said::Conflict),
            (Reply::Sense(5, 0x5504), _) => {
                j.count("reservations refused, not kept");
                return j.refuse_act(&running);
            }
            (Reply::Sense(5, _), _) => Some(Said::Illegal),
            (Reply::Attention, _) => return j.refuse_act(&running),
            (Reply::Hidden, _) => {
                j.refuse_act(&running);
                return;
            }
            (Reply::Aborted | Reply::Sense(..), _) => return j.lose_act(&running, true),
            (Reply::Lost, _) => return j.lose_act(&running, false),
        };
        let Some(said) = said else {
            return j.wrong(format!("an answer to {act:?} that cannot be read"));
        };
        let aborted: BTreeSet<Pair> = j.end_act(&running, &said).into_iter().collect();
        j.count(match (&act, &said) {
            (_, Said::Conflict) => "reservation conflicts",
            (Act::Reserve { .. }, _) => "reserved",
            (Act::Preempt { abort: true, .. }, Said::Good) => "preempted and aborted",
            (Act::Preempt { .. }, Said::Good) => "preempted",
            (Act::Clear { .. }, _) => "cleared",
            (Act::Move { .. }, Said::Good) => "moved",
            (Act::Release { .. }, _) => "released",
            (Act::Reserve6, _) => "reserved by RESERVE(6)",
            _ => "other reservation commands",
        });
        if let Some(f) = fence
            && !aborted.is_empty()
        {
            j.fenced_of(f, aborted);
        }
    }

    /// Runs a task management function.
    pub(super) async fn manage(&self, volume: u32, lun: u16, function: TaskFunction) {
        let j = &self.judge;
        let Some(channel) = self.channel_to(volume, lun).await else { return };
        let me = self.pair();
        let of = (function == TaskFunction::AbortTaskSet).then(|| BTreeSet::from([me]));
        let fence = j.fence(volume, of, "task management");
        let began = j.now();
        let reset = function == TaskFunction::LunReset;
        let act = reset.then(|| j.begin_act(self.number, volume, Act::Reset));
        let code = if reset { RESET } else { 0x2f00 };
        let others: Vec<Pair> = j
            .paths
            .iter()
            .map(|p| p.pair)
            .filter(|p| *p != me && p.1 != super::node::BRP)
            .collect();
        let told = j.raises(volume, code, others);
        // What stops at this may have taken attentions with it.
        let done = channel.manage_any(function, eight(lun), 0).await;
        j.raised(volume, code, &told, reset && done == Some(RspCode::Complete), began);
        if !j.was_shown(self.number, volume, began) {
            if let Some(a) = act {
                j.lose_act(&a, done.is_some());
            }
            return;
        }
        match (done, act) {
            (Some(RspCode::Complete), act) => {
                j.fenced(fence);
                j.count(if reset { "resets" } else { "task sets ended" });
                if let Some(a) = act {
                    j.end_act(&a, &Said::Good);
                }
                if reset {
                    j.with(volume, |b| {
                        // Of a MODE SELECT at the same time nobody knows whether it was before.
                        if b.interlock && b.interlocking == 0 && b.asked < began {
                            b.interlock = false;
                            b.interlocked = j.now();
                        }
                    });
                }
            }
            (Some(_), Some(a)) => j.refuse_act(&a),
            (None, Some(a)) => j.lose_act(&a, false),
            (_, None) => {}
        }
    }

    /// MODE SELECT of the control page: TAS and, if wanted, attentions that stay.
    pub(super) async fn mode_select(&self, volume: u32, lun: u16, interlock: bool, tas: bool) {
        let j = &self.judge;
        let page = [
            0,
            0,
            0,
            0,
            0x0a,
            0x0a,
            0,
            0x10,
            u8::from(interlock) << 5,
            u8::from(tas) << 6,
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        if interlock {
            j.count("units that keep attentions");
            j.with(volume, |b| b.interlocking += 1);
        }
        let began = j.now();
        let me = self.pair();
        let others: Vec<Pair> = j.paths.iter().map(|p| p.pair).filter(|p| *p != me).collect();
        let told = j.raises(volume, MODES, others);
        let cdb = build::mode_select_6(page.len() as u8);
        let list = Slice::copy_of(&page);
        let command = Command {
            volume,
            lun,
            cdb: cdb.as_bytes(),
            out: Some(&list),
            data_in: None,
            write: None,
            aside: false,
        };
        let reply = self.command(command).await;
        j.raised(volume, MODES, &told, false, began);
        if interlock {
            j.with(volume, |b| {
                b.interlocking -= 1;
                b.interlock = true;
                b.asked = j.now();
            });
        }
        if reply == Reply::Good {
            j.count("mode pages changed");
        }
    }
}

/// CDB and parameter list.
fn message(act: &Act, aptpl: bool, other_port: u8) -> (build::Cdb, Vec<u8>) {
    let options = |all| build::PrRegister { aptpl, all_target_ports: all, initiators: &[] };
    let kind = |k: u8| PrType::from_code(k);
    let out = |action, k, list: Vec<u8>| (build::pr_out(action, k, list.len() as u32), list);
    let plain = |key, other| build::pr_out_list(key, other, &options(false));
    match act {
        Act::Register { key, new, ignore, pairs } => {
            let list = build::pr_out_list(*key, *new, &options(pairs.len() > 1));
            let action = if *ignore { PrOut::RegisterAndIgnore } else { PrOut::Register };
            out(action, None, list)
        }
        Act::Reserve { key, kind: k } => out(PrOut::Reserve, kind(*k), plain(*key, 0)),
        Act::Release { key, kind: k } => out(PrOut::Release, kind(*k), plain(*key, 0)),
        Act::Clear { key } => out(PrOut::Clear, None, plain(*key, 0)),
        Act::Preempt { key, victim, kind: k, abort } => {
            let action = if *abort { PrOut::PreemptAndAbort } else { PrOut::Preempt };
            out(action, kind(*k), plain(*key, *victim))
        }
        Act::Move { key, new, to, leave } => {
            let id = TransportId::srp(super::node::initiator_id(to.0));
            let list = build::pr_move_list(*key, *new, *leave, aptpl, u16::from(other_port), &id);
            out(PrOut::RegisterAndMove, None, list)
        }
        Act::ReadKeys => (build::pr_in(PrIn::ReadKeys, 512), Vec::new()),
        Act::ReadReservation => (build::pr_in(PrIn::ReadReservation, 512), Vec::new()),
        Act::Reserve6 => (build::reserve_6(), Vec::new()),
        Act::Release6 | Act::Reset | Act::Lost => (build::release_6(), Vec::new()),
    }
}
