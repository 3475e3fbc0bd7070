//! One request against its volume.

use crate::conn::Conn;
use crate::planted::{Bug, has};
use crate::status::extents;
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, Nanos, SECONDS};
use weir_mem::Slice;
use weir_proto_nbd::{Op, Request};
use weir_reactor::{now, spawn_task};
use weir_target_core::{Attached, End, Pass, Refusal};

/// Bytes of a request, at most: what clients send that were not told of a limit (NBD protocol, "Block size constraints").
pub(crate) const LONGEST: u32 = 32 << 20;

/// How long a request is tried that may work later.
const PATIENCE: Nanos = 30 * SECONDS;
/// How long it waits in between.
const PAUSE: Nanos = 20 * MILLIS;

/// Error numbers of the protocol ("Error values").
pub(crate) mod error {
    pub(crate) const EPERM: u32 = 1;
    pub(crate) const EIO: u32 = 5;
    pub(crate) const EINVAL: u32 = 22;
    pub(crate) const ENOSPC: u32 = 28;
    pub(crate) const EOVERFLOW: u32 = 75;
    pub(crate) const ENOTSUP: u32 = 95;
    pub(crate) const ESHUTDOWN: u32 = 108;
}
use error::*;

/// Why a request goes no further.
enum Stop {
    /// It asks for admission anew.
    Again,
    /// It may work in a while: clients have no word for that.
    Later(u32),
    /// It has failed.
    Failed(u32),
}

impl From<End> for Stop {
    fn from(e: End) -> Stop {
        match e {
            End::Gone => Stop::Failed(ESHUTDOWN),
            // Clients have no word for a command that another host's task management ends.
            End::Again | End::Aborted(_) => Stop::Again,
        }
    }
}

fn refusal(r: Refusal) -> Stop {
    Stop::Failed(match r {
        // Another host has reserved it, or nobody may write.
        Refusal::Reserved | Refusal::ReadOnly => EPERM,
        Refusal::Gone => ESHUTDOWN,
        Refusal::NotReady => return Stop::Later(EIO),
        _ => EIO,
    })
}

fn io(done: IoResult) -> Result<(), Stop> {
    done.map_err(|e| {
        Stop::Failed(match e {
            IoError::NoSpace => ENOSPC,
            IoError::ReadOnly => EPERM,
            IoError::OutOfRange => EINVAL,
            IoError::Unsupported => ENOTSUP,
            IoError::Busy | IoError::Path | IoError::Aborted => return Stop::Later(EIO),
            _ => EIO,
        })
    })
}

impl Conn {
    /// Runs a request to its end. Gives how many bytes its reply has, or an error of the protocol. `data`: memory for these, and what a
    /// write brings.
    pub(crate) async fn execute(&self, r: &Request, data: &Slice) -> Result<usize, u32> {
        let began = now();
        loop {
            self.certain().await;
            if self.is_over() {
                // Nobody hears of it.
                return Err(ESHUTDOWN);
            }
            self.look();
            let done = match self.export() {
                Some(a) => self.act(&a, r, data).await,
                None if self.is_absent() => Err(Stop::Later(ESHUTDOWN)),
                None => Err(Stop::Failed(ESHUTDOWN)),
            };
            match done {
                Ok(n) => return Ok(n),
                Err(Stop::Failed(e)) => return Err(e),
                Err(Stop::Again) => {}
                Err(Stop::Later(e)) if now() - began >= PATIENCE => return Err(e),
                Err(Stop::Later(_)) => {
                    self.pause(PAUSE).await;
                    if !self.has_said_goodbye() {
                        self.part_if_gone();
                    }
                }
            }
        }
    }

    async fn act(&self, a: &Rc<Attached>, r: &Request, data: &Slice) -> Result<usize, Stop> {
        let writes = matches!(r.op, Op::Write { .. } | Op::Trim { .. } | Op::WriteZeroes { .. });
        let durable = a.admit_block(self.nexus(), writes).map_err(refusal)?;
        let (at, len) = (r.at, u64::from(r.len));
        let end = at.checked_add(len).filter(|end| *end <= a.len(self.nexus()));
        let volume = a.unit().volume();
        let block = u64::from(volume.geometry().block_size);
        let asks = matches!(r.op, Op::BlockStatus { .. });
        let ranged = writes || asks || matches!(r.op, Op::Read | Op::Cache);
        if ranged && end.is_none() {
            return Err(Stop::Failed(if writes { ENOSPC } else { EINVAL }));
        }
        // What may be given back is what whole blocks are within.
        let exact = ranged && !matches!(r.op, Op::Trim { .. });
        if exact && !(at | len).is_multiple_of(block) {
            return Err(Stop::Failed(EINVAL));
        }
        // A volume that has grown since memory was taken.
        let has_data = matches!(r.op, Op::Read | Op::Write { .. });
        if has_data && data.len() as u64 != len {
            return Err(Stop::Failed(EINVAL));
        }
        let pass = a.pass();
        match r.op {
            Op::Read if len > 0 => {
                let _inside = pass.enter()?;
                if has(Bug::ReadNotAwaited) {
                    let (v, data) = (volume.clone(), data.clone());
                    begin(async move { v.read(at, data).await })?;
                    return Ok(len as usize);
                }
                io(volume.read(at, data.clone()).await)?;
                return Ok(data.len());
            }
            Op::BlockStatus { one } if self.agreed.allocation && len > 0 => {
                let _inside = pass.enter()?;
                let over = || self.is_over() || pass.end().is_some();
                return Ok(extents(&**volume, (at, len), one, data, over).await);
            }
            Op::BlockStatus { .. } => return Err(Stop::Failed(EINVAL)),
            Op::Write { fua } if len > 0 && has(Bug::WritesUnseen) => {
                drop(pass);
                io(volume.write(at, data.clone(), fua).await)
            }
            Op::Write { fua } if len > 0 => {
                let _writing = pass.begin_write(at, len).await?;
                if has(Bug::WriteNotAwaited) {
                    let (v, data) = (volume.clone(), data.clone());
                    begin(async move { v.write(at, data, fua || durable).await })?;
                    return Ok(0);
                }
                let fua = fua && !has(Bug::FuaIgnored);
                io(volume.write(at, data.clone(), fua || durable).await)
            }
            Op::Flush if has(Bug::FlushIgnored) => Ok(()),
            Op::Flush => {
                let _inside = pass.begin_flush().await?;
                flush(&pass).await
            }
            Op::Trim { fua } => {
                let (first, last) = (at.next_multiple_of(block), (at + len) / block * block);
                if first >= last {
                    return Ok(0);
                }
                let _writing = pass.begin_write(first, last - first).await?;
                io(volume.discard(first, last - first).await)?;
                if fua || durable { flush(&pass).await } else { Ok(()) }
            }
            Op::WriteZeroes { fua, unmap } if len > 0 => {
                let _writing = pass.begin_write(at, len).await?;
                io(volume.write_zeroes(at, len, unmap).await)?;
                if fua || durable { flush(&pass).await } else { Ok(()) }
            }
            Op::Unknown(_) => Err(Stop::Failed(EINVAL)),
            _ => Ok(()),
        }?;
        Ok(0)
    }
}

/// Begins what a planted bug does not wait for.
fn begin(what: impl Future<Output = IoResult> + 'static) -> Result<(), Stop> {
    spawn_task(async move {
        let _ = what.await;
    });
    Ok(())
}

async fn flush(pass: &Pass) -> Result<(), Stop> {
    let done = pass.flush().await;
    pass.told();
    // Never tried again: a device that has lost what it had taken says so once.
    io(done).map_err(|e| match e {
        Stop::Later(e) => Stop::Failed(e),
        other => other,
    })
}
