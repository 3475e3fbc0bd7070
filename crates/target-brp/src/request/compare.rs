//! COMPARE AND WRITE.

use super::{Ended, Running, Stop, Task, io};
use weir_mem::Slice;
use weir_proto_brp::Status;
use weir_proto_brp::command::flag;

/// Most bytes of each half.
const COMPARE_MAX: u32 = 64 << 10;

impl Running<'_> {
    pub(super) async fn compare_and_write(&self, t: &mut Task) -> Result<Ended, Stop> {
        let c = &self.c;
        let len = c.len as usize;
        if c.len > COMPARE_MAX || c.len == 0 || 2 * len > self.port.pool.max_len() {
            return Err(Status::Invalid.into());
        }
        let (a, durable) = self.channel.admit(c, true)?;
        let (both, _held) = self.fetch(t, 2 * len, false).await?;
        let (expected, data) = (both.sub(0, len), both.sub(len, len));
        let (first, second) = t.parts.sums.split_at(t.parts.sums.len() / 2);
        self.check(&expected, first, 0)?;
        self.check(&data, second, first.len())?;
        // The second half lies where direct I/O may not like it.
        let aligned = Slice::heap(len);
        aligned.copy_from(0, &data, 0, len);
        let alone = self.unless_halted(a.begin_compare(c.offset, u64::from(c.len))).await??;
        {
            let _reading = a.enter()?;
            io(a.compare(&alone, c.offset, &expected).await)?;
        }
        let _writing = a.enter_to_write()?;
        self.act()?;
        let fua = durable || c.has(flag::FUA);
        io(a.unit().volume().write(c.offset, aligned, fua).await)?;
        Ok(Status::Ok.into())
    }
}
