//! What an iSCSI initiator does besides reading and writing: it gives commands up, resets units, sends numbers out of their order, and logs out.

use super::iscsi::{Iscsi, seal};
use super::link::Waiter;
use super::medium::Counts;
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, SECONDS};
use weir_proto_iscsi::NO_TAG;
use weir_proto_iscsi::bhs::{LEN, op, put, task, task_response};
use weir_reactor::{sleep, timeout};

/// How long the target has for what it must do.
const PATIENCE: u64 = 60 * SECONDS;

impl Iscsi {
    /// True once in so many times; never if that is 0.
    pub(super) fn chance(&self, one_in: u64) -> bool {
        one_in > 0 && self.rng.borrow_mut().chance(1, one_in)
    }

    /// Gives a PDU the next number.
    pub(super) fn number(&self, bhs: &mut [u8; LEN], data: &[u8]) -> Vec<u8> {
        let sn = self.cmd_sn.replace(self.cmd_sn.get().wrapping_add(1));
        self.with_number(bhs, data, sn)
    }

    fn with_number(&self, bhs: &mut [u8; LEN], data: &[u8], sn: u32) -> Vec<u8> {
        put(bhs, 24, &sn.to_be_bytes());
        put(bhs, 28, &self.stat_sn.get().to_be_bytes());
        seal(*bhs, data, self.digests)
    }

    /// Sends a command before a ping whose number is before its own: it must wait for that. No initiator should do so, and this
    /// shows the order that targets promise.
    pub(super) async fn send_early(&self, w: &Waiter, bhs: &mut [u8; LEN], data: &[u8]) {
        let _mine = self.link.my_turn().await;
        Counts::one_more(&self.counts.early);
        let (ping, _) = self.link.begin(None, None);
        w.behind.set(Some(ping));
        let first = self.cmd_sn.replace(self.cmd_sn.get().wrapping_add(2));
        w.is_sent.set(true);
        let command = self.with_number(bhs, data, first.wrapping_add(1));
        self.link.send_now(&command).await;
        let longest = [2, 50][self.rng.borrow_mut().below(2) as usize] * MILLIS;
        let pause = self.rng.borrow_mut().below(longest);
        sleep(pause).await;
        let mut bhs = [0; LEN];
        bhs[0] = op::NOP_OUT;
        bhs[1] = 0x80;
        put(&mut bhs, 16, &(ping as u32).to_be_bytes());
        put(&mut bhs, 20, &NO_TAG.to_be_bytes());
        let ping = self.with_number(&mut bhs, &[], first);
        self.link.send_now(&ping).await;
    }

    /// What has `tag` may have been begun.
    pub(super) fn in_turn(&self, tag: u64) -> Result<(), String> {
        let behind = self.link.find(tag).and_then(|w| w.behind.get());
        match behind.filter(|b| self.link.find(*b).is_some()) {
            Some(_) => Err(format!("{tag} was begun before what has the number before it")),
            None => Ok(()),
        }
    }

    /// Asks for a task management function, which ends those of `which` that wait. Gives what the answer says; `None`: the connection
    /// is over.
    async fn manage(&self, function: u8, of: u32, which: impl Fn() -> Vec<u64>) -> Option<u8> {
        let (tag, w) = self.link.begin(None, None);
        let mut bhs = [0; LEN];
        let immediate = self.chance(2);
        bhs[0] = op::TASK | if immediate { 0x40 } else { 0 };
        bhs[1] = 0x80 | function;
        put(&mut bhs, 16, &(tag as u32).to_be_bytes());
        put(&mut bhs, 20, &of.to_be_bytes());
        self.link
            .send_in_turn(|| {
                *w.ends.borrow_mut() = which();
                // It refers to what has come.
                put(&mut bhs, 32, &self.cmd_sn.get().wrapping_sub(1).to_be_bytes());
                match immediate {
                    true => self.with_number(&mut bhs, &[], self.cmd_sn.get()),
                    false => self.number(&mut bhs, &[]),
                }
            })
            .await;
        match timeout(PATIENCE, self.link.wait(&w)).await {
            Ok(done) => done.ok().map(|()| w.code.get()),
            Err(_) => {
                self.fault.set(format!("nobody answers task management function {function}"));
                self.link.die();
                None
            }
        }
    }

    /// The answer to a function: what it was for is over.
    pub(super) fn managed(&self, tag: u64, code: u8) -> Result<(), String> {
        let Some(w) = self.link.find(tag) else {
            return Err(format!("an answer to function {tag}, which nobody asked for"));
        };
        match code {
            task_response::COMPLETE | task_response::NO_TASK => {
                for t in w.ends.take() {
                    self.link.answer(t, Err(IoError::Aborted));
                }
            }
            task_response::NO_LUN => {}
            c => return Err(format!("task management is answered by {c}")),
        }
        w.code.set(code);
        self.link.answer(tag, Ok(()));
        Ok(())
    }

    /// Gives a command up. When that is answered, nothing of it happens any more.
    pub(super) async fn give_up(&self, tag: u64, w: &Rc<Waiter>) -> IoResult {
        let mine = move || vec![tag];
        if self.manage(task::ABORT_TASK, tag as u32, mine).await == Some(task_response::COMPLETE) {
            Counts::one_more(&self.counts.aborts);
        }
        self.link.wait(w).await
    }

    /// Resets the unit: all that was sent to it is over.
    pub(super) async fn reset(&self) {
        let all = || self.link.waiting().into_iter().filter(|t| self.is_sent(*t)).collect();
        if self.manage(task::LUN_RESET, NO_TAG, all).await == Some(task_response::COMPLETE) {
            Counts::one_more(&self.counts.resets);
        }
    }

    fn is_sent(&self, tag: u64) -> bool {
        self.link.find(tag).is_some_and(|w| w.is_sent.get())
    }

    /// Logs out. True: the target has answered, so nothing of the session happens any more.
    pub(super) async fn log_out(&self) -> bool {
        let mut bhs = [0; LEN];
        bhs[0] = op::LOGOUT;
        bhs[1] = 0x80;
        put(&mut bhs, 16, &0x7fff_0000u32.to_be_bytes());
        self.link.send_last(|| self.number(&mut bhs, &[])).await;
        self.link.ended().await;
        self.out.get()
    }
}
