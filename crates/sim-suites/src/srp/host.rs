//! A host: several channels to one target port, logins and their ladder, and verified I/O over them.

use super::channel::{Channel, Ended, Fault, Login, Style};
use super::channels;
use super::commands;
use super::resets::Resets;
use super::volume::BLOCK;
use crate::load::{Io, Load};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, Nanos, Prng};
use weir_fabric::Provider;
use weir_mem::{BufPool, Slice};
use weir_proto_srp::login::MultiChannelAction;
use weir_proto_srp::residual::Residual;
use weir_proto_srp::{Form, PortId, TaskFunction};
use weir_reactor::{LocalFuture, WaitChannel, sleep};

/// UNIT ATTENTION.
const UNIT_ATTENTION: u8 = 6;

/// Settings of a host.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Its port.
    pub initiator: PortId,
    /// The target's port.
    pub target: PortId,
    /// Where the target listens.
    pub addr: String,
    /// Channels wanted; it makes do with less if only the first can be had.
    pub channels: usize,
    /// Longest immediate data in bytes; 0 for none.
    pub immediate: u32,
    /// Most descriptors of one table.
    pub descriptors: usize,
    /// How long a command may take before it is aborted.
    pub timeout: Nanos,
    /// How often a command is aborted for no reason, soon after it was sent.
    pub impatient: weir_sim::Odds,
    /// Logins in the form of the IB connection manager.
    pub native_cm: bool,
    /// Logins that may fail before the host gives up.
    pub tries: u32,
    /// Where resets are recorded and commands checked against them.
    pub resets: Resets,
}

/// What a host did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    /// Commands that ended with a response.
    pub answered: u64,
    /// Commands ended by task management.
    pub aborted: u64,
    /// Commands whose channel was lost.
    pub lost: u64,
    /// Unit attentions seen.
    pub attentions: u64,
    /// Logins that worked.
    pub logins: u64,
    /// Task management functions completed.
    pub functions: u64,
}

/// A host on one reactor.
pub struct Host {
    provider: Rc<dyn Provider>,
    pool: BufPool,
    config: HostConfig,
    fault: Fault,
    rng: RefCell<Prng>,
    channels: RefCell<Vec<Rc<Channel>>>,
    /// A mutex: one login of all channels at a time.
    logging_in: WaitChannel,
    /// Loads that hear of what cannot happen any more.
    loads: Vec<Rc<Load>>,
    time: weir_sim::Time,
    figures: Cell<Figures>,
    closing: Cell<bool>,
    /// Why logins failed.
    refusals: RefCell<Vec<String>>,
}

impl Host {
    /// A host without channels; they are made when they are needed. `loads` are told when a login or a
    /// reset has ended whatever failed before.
    pub fn new(
        provider: Rc<dyn Provider>,
        pool: BufPool,
        config: HostConfig,
        fault: Fault,
        loads: Vec<Rc<Load>>,
        time: weir_sim::Time,
        rng: Prng,
    ) -> Rc<Host> {
        Rc::new(Host {
            provider,
            pool,
            config,
            fault,
            rng: RefCell::new(rng),
            channels: RefCell::default(),
            logging_in: WaitChannel::new(1),
            loads,
            time,
            figures: Cell::default(),
            closing: Cell::new(false),
            refusals: RefCell::default(),
        })
    }

    /// What it did.
    pub fn figures(&self) -> Figures {
        self.figures.get()
    }

    /// Why logins failed so far.
    pub fn refusals(&self) -> Vec<String> {
        self.refusals.borrow().clone()
    }

    fn count(&self, f: impl FnOnce(&mut Figures)) {
        let mut x = self.figures.get();
        f(&mut x);
        self.figures.set(x);
    }

    fn draw<R>(&self, f: impl FnOnce(&mut Prng) -> R) -> R {
        f(&mut self.rng.borrow_mut())
    }

    /// This host among those that use a load, through all its lives.
    fn owner(&self) -> u32 {
        self.config.initiator.extension() as u32
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
    pub async fn channel(&self) -> Option<Rc<Channel>> {
        for _ in 0..self.config.tries {
            if let Some(c) = self.all_up() {
                return Some(c);
            }
            if self.closing.get() {
                return None;
            }
            let _mutex = self.logging_in.acquire(1).await;
            if self.all_up().is_none() && !self.login().await {
                sleep(self.draw(|r| r.below(300 * MILLIS))).await;
            }
        }
        self.all_up()
    }

    /// Ends what there is and logs in with all channels, the first of which ends others of its nexus.
    async fn login(&self) -> bool {
        channels::end(self.channels.take()).await;
        for i in 0..self.config.channels {
            let action = match i {
                0 => MultiChannelAction::Terminate,
                _ => MultiChannelAction::Independent,
            };
            match self.one(action).await {
                Some(c) => {
                    if i == 0 {
                        // The nexus begins anew: nothing of what was lost before can happen any more.
                        self.loads.iter().for_each(|l| l.settle_owner(self.owner()));
                    }
                    self.channels.borrow_mut().push(c);
                }
                // The target may have no room for more than one.
                None => return i > 0,
            }
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
            style: Style {
                immediate: c.immediate,
                descriptors: c.descriptors,
                timeout: c.timeout,
                impatient: c.impatient,
                reads: (1, 8),
            },
            form: if c.native_cm { Form::IbCm } else { Form::RdmaCm },
            fault: self.fault.clone(),
        };
        let rng = self.draw(|r| r.fork());
        match channels::login(login, rng).await {
            Ok(c) => {
                self.count(|f| f.logins += 1);
                Some(c)
            }
            Err(refused) => {
                self.refusals.borrow_mut().extend(refused);
                None
            }
        }
    }

    /// Ends all channels and waits until they are gone.
    pub async fn close(&self) {
        self.closing.set(true);
        let _mutex = self.logging_in.acquire(1).await;
        channels::end(self.channels.take()).await;
    }

    /// Ends one channel, as a cable that is pulled.
    pub fn drop_one(&self) {
        let all = self.channels.borrow();
        if !all.is_empty() {
            let k = self.draw(|r| r.below(all.len() as u64)) as usize;
            all[k].end();
        }
    }

    /// Runs a task management function on a unit. After a reset whatever of this host had failed before it
    /// was sent can not happen any more; what others sent may still be on its way.
    pub async fn manage(&self, function: TaskFunction, lun: u64) {
        let Some(c) = self.channel().await else { return };
        let before = self.time.now();
        if c.manage(function, lun, 0).await {
            self.count(|f| f.functions += 1);
            if matches!(function, TaskFunction::LunReset | TaskFunction::ClearTaskSet) {
                self.loads[lun_index(lun)].settle_failed(self.owner(), before);
                self.config.resets.completed(lun, before, self.time.now());
            }
        }
    }

    /// Runs a command until it has a meaningful answer.
    async fn run(
        &self,
        lun: u64,
        cdb: &[u8],
        data_out: Option<&Slice>,
        data_in: Option<&Slice>,
        check: impl Fn(Residual, Residual) -> bool,
    ) -> IoResult {
        loop {
            let Some(channel) = self.channel().await else { return Err(IoError::Offline) };
            let ended = channel.command(lun, cdb, data_out, data_in).await;
            let answer = match ended {
                Ended::Answered(a) => a,
                Ended::Aborted => {
                    self.count(|f| f.aborted += 1);
                    return Err(IoError::Aborted);
                }
                Ended::Lost => {
                    self.count(|f| f.lost += 1);
                    return Err(IoError::Offline);
                }
            };
            self.count(|f| f.answered += 1);
            if let Some(code) = answer.code {
                self.fault.set(format!("command {cdb:02x?} was answered with code {code:?}"));
                return Err(IoError::Internal);
            }
            match (answer.status, commands::sense(&answer.sense)) {
                (0, _) => {
                    let ended = self.time.now();
                    let sent = ended - answer.took;
                    if let Some(why) = self.config.resets.survived(lun, sent, ended) {
                        self.fault.set(format!("command {cdb:02x?} {why}"));
                    }
                    if !check(answer.out_residual, answer.in_residual) {
                        self.fault.set(format!("command {cdb:02x?}: residuals of {answer:?}"));
                    }
                    return Ok(());
                }
                // The command was not executed.
                (2, Some((UNIT_ATTENTION, ..))) => self.count(|f| f.attentions += 1),
                (0x08 | 0x28, _) => sleep(MILLIS).await,
                // TASK ABORTED: by another nexus.
                (0x40, _) => {
                    self.count(|f| f.aborted += 1);
                    return Err(IoError::Aborted);
                }
                (2, Some((3 | 4 | 0xb, ..))) => return Err(IoError::Medium),
                _ => {
                    self.fault.set(format!("command {cdb:02x?}: unexpected {answer:?}"));
                    return Err(IoError::Internal);
                }
            }
        }
    }
}

/// The eight-byte LUN of a logical unit.
pub(crate) fn lun(index: usize) -> u64 {
    (index as u64) << 48
}

fn lun_index(lun: u64) -> usize {
    (lun >> 48) as usize
}

/// A logical unit as a host's path to it.
pub struct HostIo {
    /// The host.
    pub host: Rc<Host>,
    /// Number of the logical unit.
    pub lun: usize,
}

fn exact(out: Residual, data_in: Residual) -> bool {
    out == Residual::None && data_in == Residual::None
}

impl Io for HostIo {
    fn owner(&self) -> u32 {
        self.host.owner()
    }

    fn read(&self, at: u64, buf: Slice) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            let blocks = buf.len() as u32 / BLOCK;
            let cdb =
                commands::read(at / u64::from(BLOCK), blocks, self.host.draw(|r| r.chance(1, 2)));
            if self.host.draw(|r| r.chance(9, 10)) {
                return self.host.run(lun(self.lun), &cdb, None, Some(&buf), exact).await;
            }
            // A buffer longer than the data: the rest stays as it is, and the residual tells.
            let more = self.host.draw(|r| r.between(1, 600)) as usize;
            let whole = self.host.pool.alloc(buf.len() + more).await;
            whole.fill(0xc3);
            let check = |_, i| i == Residual::Under(more as u32);
            self.host.run(lun(self.lun), &cdb, None, Some(&whole), check).await?;
            buf.copy_from(0, &whole, 0, buf.len());
            if whole.sub(buf.len(), more).to_vec().iter().any(|b| *b != 0xc3) {
                self.host.fault.set(format!("a READ of {blocks} blocks wrote more"));
            }
            Ok(())
        })
    }

    fn write(&self, at: u64, buf: Slice, fua: bool) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            let blocks = buf.len() as u32 / BLOCK;
            let wide = self.host.draw(|r| r.chance(1, 2));
            let cdb = commands::write(at / u64::from(BLOCK), blocks, fua, wide);
            self.host.run(lun(self.lun), &cdb, Some(&buf), None, exact).await
        })
    }

    fn flush(&self) -> LocalFuture<'_, IoResult> {
        let cdb = commands::synchronize();
        Box::pin(async move { self.host.run(lun(self.lun), &cdb, None, None, exact).await })
    }

    fn zero(&self, at: u64, len: u64) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            let (lba, blocks) = (at / u64::from(BLOCK), (len / u64::from(BLOCK)) as u32);
            let (unmap, without) = self.host.draw(|r| (r.chance(1, 2), r.chance(1, 2)));
            let cdb = commands::write_zeros(lba, blocks, unmap, without);
            if without {
                return self.host.run(lun(self.lun), &cdb, None, None, exact).await;
            }
            let zeros = self.host.pool.alloc(BLOCK as usize).await;
            zeros.fill(0);
            self.host.run(lun(self.lun), &cdb, Some(&zeros), None, exact).await
        })
    }
}
