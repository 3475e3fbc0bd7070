//! Finding out where a chunk's data is, and taking it from there.

use super::codec::{Codec, is_zero};
use super::form::{BLOCK, Header, Unusable, is_newer};
use super::states::{Form, State};
use super::{Inner, RAW};
use weir_base::{IoError, IoResult};
use weir_block::join_parts;
use weir_mem::Slice;

/// Whether memory is all zeros.
pub(super) fn is_zero_slice(s: &Slice) -> bool {
    let mut part = [0; 512];
    (0..s.len()).step_by(part.len()).all(|at| {
        let n = part.len().min(s.len() - at);
        s.read_at(at, &mut part[..n]);
        is_zero(&part[..n])
    })
}

impl Inner {
    /// The state of a chunk that is locked. If it had to be found out and the chunk is compressed, with its form.
    /// `well`: also whether there is nothing at all, where finding that out takes longer.
    pub(super) async fn state_of(
        &self,
        chunk: u64,
        well: bool,
    ) -> Result<(State, Option<Slice>), IoError> {
        if let Some(s) = self.states.get(chunk) {
            return Ok((s, None));
        }
        let (state, held) = self.look_up(chunk, well).await?;
        self.states.set(chunk, Some(state));
        if state.stale && (self.lower.geometry().read_only || !self.give_back_soon(chunk)) {
            self.states.set(chunk, Some(State { stale: false, ..state }));
        }
        Ok((state, held))
    }

    /// The headers in the two areas for forms. They are left in the first two blocks of `buf`.
    pub(super) async fn headers(
        &self,
        chunk: u64,
        buf: &Slice,
    ) -> Result<[Option<Header>; 2], IoError> {
        let place = |a: usize| buf.sub(a * BLOCK, BLOCK);
        join_parts(2, |a| self.lower.read(self.area(chunk, a as u64), place(a))).await?;
        let header = |a| Header::decode(&place(a), chunk, self.shift).map_err(|_| IoError::Medium);
        Ok([header(0)?, header(1)?])
    }

    async fn look_up(&self, chunk: u64, well: bool) -> Result<(State, Option<Slice>), IoError> {
        let buf = self.memory(self.chunk() as usize).await?;
        let found = self.headers(chunk, &buf).await?;
        let b_first = match found {
            [Some(a), Some(b)] => is_newer(b.generation, a.generation),
            [_, b] => b.is_some(),
        };
        let stale = found.iter().all(Option::is_some);
        for area in if b_first { [1, 0] } else { [0, 1] } {
            let Some(h) = found[area] else { continue };
            let form = buf.sub(0, h.blocks() * BLOCK);
            self.lower.read(self.area(chunk, area as u64), form).await?;
            let whole = self.codec.borrow_mut().is_whole(&h, &buf);
            match whole {
                Ok(()) => {
                    let (blocks, generation) = (h.blocks() as u8, h.generation);
                    let form = Form::Packed { area: area as u8, blocks, generation };
                    return Ok((State { form, stale }, Some(buf)));
                }
                // It was never acknowledged.
                Err(Unusable::Torn) => {}
                Err(Unusable::Damaged) => return Err(IoError::Medium),
            }
        }
        let mut empty = false;
        if well {
            let all = buf.sub(0, self.len_of(chunk));
            self.lower.read(self.area(chunk, RAW), all.clone()).await?;
            empty = is_zero_slice(&all);
        }
        let stale = found.iter().any(Option::is_some);
        Ok((State { form: Form::Raw { empty }, stale }, None))
    }

    /// The blocks of a form: as held, or read.
    pub(super) async fn form_of(
        &self,
        chunk: u64,
        area: u8,
        blocks: u8,
        held: Option<Slice>,
    ) -> Result<Slice, IoError> {
        if let Some(form) = held {
            return Ok(form);
        }
        let form = self.memory(usize::from(blocks) * BLOCK).await?;
        self.read_form(chunk, area, &form).await?;
        Ok(form)
    }

    pub(super) async fn read_form(&self, chunk: u64, area: u8, to: &Slice) -> IoResult {
        self.lower.read(self.area(chunk, u64::from(area)), to.clone()).await
    }

    /// The data of a form that is known to be whole.
    pub(super) fn unpack<'a>(
        &self,
        codec: &'a mut Codec,
        chunk: u64,
        form: &Slice,
    ) -> Result<&'a mut [u8], IoError> {
        let len = self.chunk() as usize;
        let header = Header::decode(form, chunk, self.shift);
        let h = header.ok().flatten().ok_or(IoError::Medium)?;
        codec.unpack(&h, form, len).map_err(|_| IoError::Medium)?;
        Ok(codec.data(len))
    }
}
