//! What cluster software does by a path: reservations, task management, mode pages.

use super::{Command, Path, Reply, eight};
use crate::suites::doors::node::{BRP, initiator_id};
use crate::suites::doors::spc::{Act, MODES, Pair, RESET, Said};
use std::collections::BTreeSet;
use weir_mem::Slice;
use weir_proto_scsi::cdb::{PrIn, PrOut};
use weir_proto_scsi::initiator as build;
use weir_proto_scsi::pr::PrType;
use weir_proto_scsi::transport_id::TransportId;
use weir_proto_srp::{RspCode, TaskFunction};

impl Path {
    /// Runs a command about reservations, with its promises.
    pub(in crate::suites::doors) async fn act(
        &self,
        volume: u32,
        lun: u16,
        act: Act,
        options: (bool, u8),
    ) {
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
    pub(in crate::suites::doors) async fn manage(
        &self,
        volume: u32,
        lun: u16,
        function: TaskFunction,
    ) {
        let j = &self.judge;
        let Some(channel) = self.channel_to(volume, lun).await else { return };
        let me = self.pair();
        let of = (function == TaskFunction::AbortTaskSet).then(|| BTreeSet::from([me]));
        let fence = j.fence(volume, of, "task management");
        let began = j.now();
        let reset = function == TaskFunction::LunReset;
        let act = reset.then(|| j.begin_act(self.number, volume, Act::Reset));
        let code = if reset { RESET } else { 0x2f00 };
        let others: Vec<Pair> =
            j.paths.iter().map(|p| p.pair).filter(|p| *p != me && p.1 != BRP).collect();
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
    pub(in crate::suites::doors) async fn mode_select(
        &self,
        volume: u32,
        lun: u16,
        interlock: bool,
        tas: bool,
    ) {
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
            let id = TransportId::srp(initiator_id(to.0));
            let list = build::pr_move_list(*key, *new, *leave, aptpl, u16::from(other_port), &id);
            out(PrOut::RegisterAndMove, None, list)
        }
        Act::ReadKeys => (build::pr_in(PrIn::ReadKeys, 512), Vec::new()),
        Act::ReadReservation => (build::pr_in(PrIn::ReadReservation, 512), Vec::new()),
        Act::Reserve6 => (build::reserve_6(), Vec::new()),
        Act::Release6 | Act::Reset | Act::Lost => (build::release_6(), Vec::new()),
    }
}
