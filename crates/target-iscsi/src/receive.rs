//! A session's bytes: PDUs in.

use crate::conn::Conn;
use crate::task::Task;
use std::rc::Rc;
use weir_mem::Slice;
use weir_proto_iscsi::bhs::{Request, Response, op};
use weir_proto_iscsi::intake::{Intake, Item};
use weir_reactor::{now, run_async, unless};
use weir_stream::{Room, WouldBlock};

/// Bytes received at most in one go, beside what goes straight to its command.
const STAGING: usize = 64 << 10;
/// Data that are left to come, from which on they are received straight to where they belong.
const DIRECT: usize = 4 << 10;
/// After so many bytes others have their turn.
const TURN: usize = 256 << 10;

/// How the PDUs of a session came to an end.
pub(crate) enum Last {
    /// There is no connection any more, or what came breaks a rule.
    Broken(&'static str),
    /// The initiator has logged out; this is the answer.
    LoggedOut(Response),
    /// The target wants no more.
    Stopped,
}

/// What the data of the present PDU are for.
pub(crate) enum Use {
    /// Nothing: they are passed over.
    None,
    /// A command of its own, with its immediate data.
    Command(Rc<Task>),
    /// A command's Data-Out.
    DataOut(Rc<Task>),
    /// Text, or a ping.
    Bytes(Vec<u8>),
}

/// The PDU that is being received.
pub(crate) struct Present {
    pub(crate) intake: Intake,
    pub(crate) request: Request,
    pub(crate) what: Use,
    /// Where the next of its data belong in the command's DATA-OUT.
    pub(crate) at: u32,
}

impl Present {
    /// Memory for the next data.
    fn room(&self) -> Option<Slice> {
        match &self.what {
            Use::Command(t) => t.room(weir_proto_iscsi::NO_TAG, self.at),
            Use::DataOut(t) => t.room(self.request.word20(), self.at),
            _ => None,
        }
    }

    fn data(&mut self, data: &[u8]) {
        if let Use::Bytes(b) = &mut self.what {
            let room = crate::arrive::KEPT.saturating_sub(b.len());
            b.extend_from_slice(&data[..data.len().min(room)]);
        } else if let Some(room) = self.room() {
            room.write_at(0, &data[..data.len().min(room.len())]);
        }
        self.at = self.at.saturating_add(data.len() as u32);
    }
}

impl Conn {
    /// Takes PDUs until the initiator, or the target, wants no more.
    pub(crate) async fn receive(self: Rc<Self>, rest: Vec<u8>) -> Last {
        let params = self.params.get();
        let mut now = Present {
            intake: Intake::new(params.digests, params.max_recv),
            request: Request([0; 48]),
            what: Use::None,
            at: 0,
        };
        if let Err(last) = self.eat(&mut now, &rest).await {
            return last;
        }
        let (mut staging, mut turn) = (vec![0; STAGING], 0);
        loop {
            // The end may have come while others had their turn.
            if self.ending.get() {
                return Last::Stopped;
            }
            let moved = unless(self.halt.wait(), self.some(&mut now, &mut staging)).await;
            let n = match moved {
                None => return Last::Stopped,
                Some(Ok(None)) => return Last::Broken("the initiator has closed the connection"),
                Some(Ok(Some(n))) => n,
                Some(Err(_)) => return Last::Broken("the connection is lost"),
            };
            self.received.set(self.received.get() + (n.0 + n.1) as u64);
            if let Err(last) = self.eat(&mut now, &staging[..n.1]).await {
                return last;
            }
            turn += n.0 + n.1;
            if turn >= TURN {
                turn = 0;
                run_async().await;
            }
        }
    }

    /// Receives: data of the present PDU straight to where they belong, and what is behind them to `staging`. Gives how many bytes
    /// of each; `None` at the end.
    async fn some(
        &self,
        p: &mut Present,
        staging: &mut [u8],
    ) -> std::io::Result<Option<(usize, usize)>> {
        loop {
            let wanted = p.intake.wanted();
            let direct = if wanted >= DIRECT { p.room() } else { None };
            let direct = direct.map(|s| if s.len() > wanted { s.sub(0, wanted) } else { s });
            let moved = match &direct {
                Some(to) => {
                    let len = to.len();
                    // SAFETY: `direct` keeps the memory for as long as this call takes, and nobody else looks at it: the
                    // command has it for what comes here. `staging` is borrowed by us alone.
                    let rooms = unsafe {
                        [
                            Room::new(to.as_ptr(), len),
                            Room::new(
                                staging.as_mut_ptr(),
                                if len == wanted { staging.len() } else { 0 },
                            ),
                        ]
                    };
                    self.stream.receive(&rooms)?
                }
                None => self.stream.receive_bytes(staging)?,
            };
            match moved {
                Err(WouldBlock) => {
                    // It is not kept from its command while nothing comes.
                    drop(direct);
                    let _ = self.stream.ready(false).await;
                }
                Ok(0) => return Ok(None),
                Ok(n) => {
                    self.heard.set(now());
                    let Some(to) = direct else { return Ok(Some((0, n))) };
                    let straight = n.min(to.len());
                    let came = to.sub(0, straight);
                    // SAFETY: these bytes have just been received, and nothing changes them before the next call.
                    p.intake.passed(unsafe { came.bytes() });
                    p.at = p.at.saturating_add(straight as u32);
                    return Ok(Some((straight, n - straight)));
                }
            }
        }
    }

    /// Takes what was received apart.
    async fn eat(self: &Rc<Self>, p: &mut Present, bytes: &[u8]) -> Result<(), Last> {
        let mut left = bytes;
        loop {
            if self.ending.get() {
                return Err(Last::Stopped);
            }
            let (item, rest) = match p.intake.next(left) {
                Ok(found) => found,
                Err(e) => {
                    tracing::warn!(peer = %self.peer, error = %e, "what it sends cannot be");
                    return Err(Last::Broken("a broken stream"));
                }
            };
            left = rest;
            match item {
                None => return Ok(()),
                Some(Item::Head(r)) => {
                    p.request = r;
                    p.at = 0;
                    p.what = self.head(&r, p.intake.additional())?;
                    if r.op() == op::DATA_OUT {
                        p.at = r.offset();
                    }
                }
                Some(Item::Data(d)) => p.data(d),
                Some(Item::End) => {
                    let what = std::mem::replace(&mut p.what, Use::None);
                    self.whole(&p.request, what).await?;
                }
            }
        }
    }
}
