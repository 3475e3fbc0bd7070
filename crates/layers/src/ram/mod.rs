//! `ram`: a volume in the memory of the process.
//!
//! All cores' handles share one [`Region`]. A read is one copy, and [`Volume::direct`] saves even that. Checksums that come
//! with data are kept and go back with it.
//! It is as durable as the process.

mod region;
mod sums;

pub use region::Region;

use region::{Config, GRANULE};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{IoError, IoResult};
use weir_block::{
    Allocation, Arity, BuildContext, Geometry, GraphError, GraphErrorKind, IoFuture, LayerKind,
    Node, Param, ParamKind, SUMMED, Volume, check_len, check_range,
};
use weir_mem::{Backing, Slice};
use weir_reactor::run_async;

/// Largest volume: half of the address space that Linux gives a process.
const MAX_LEN: u64 = 1 << 46;
/// Bytes that are zeroed before other tasks have their turn.
const ZERO_STEP: u64 = 64 << 20;

/// The kind.
pub(crate) struct Kind;

const PARAMS: &[Param] = &[
    Param::required(
        "len",
        ParamKind::Size { min: 4096, max: MAX_LEN, multiple: 512 },
        "capacity; memory is taken when it is written",
    ),
    Param::optional(
        "reserve",
        ParamKind::Size { min: 4096, max: MAX_LEN, multiple: 512 },
        "capacity that it can be resized to; costs address space only; four times `len` if not given",
    ),
    Param::default("block-size", ParamKind::Choice(&["512", "4096"]), "512", "logical block"),
    Param::default(
        "thin",
        ParamKind::Flag,
        "true",
        "track what is in use, and give space back on discard",
    ),
    Param::default("huge", ParamKind::Flag, "true", "ask for transparent huge pages"),
    Param::default("prefault", ParamKind::Flag, "false", "take all memory at start"),
    Param::default(
        "release",
        ParamKind::Flag,
        "true",
        "give memory back when a large range is zeroed; false for memory registered with a device",
    ),
];

impl LayerKind for Kind {
    fn name(&self) -> &'static str {
        "ram"
    }
    fn about(&self) -> &'static str {
        "memory of the process; lost when it ends"
    }
    fn params(&self) -> &'static [Param] {
        PARAMS
    }
    fn children(&self) -> Arity {
        0..=0
    }
    fn check(&self, node: &Node<'_>) -> Result<(), GraphError> {
        let config = config(node)?;
        let block = block_size(node)?;
        if config.len % u64::from(block) != 0 {
            return Err(node.error(
                GraphErrorKind::Param,
                format!("`len` {} is not a multiple of the block size {block}", config.len),
            ));
        }
        if config.reserve < config.len {
            return Err(node.error(GraphErrorKind::Param, "`reserve` is less than `len`"));
        }
        Ok(())
    }
    fn build(
        &self,
        ctx: &BuildContext<'_>,
        node: &Node<'_>,
        _children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        let config = config(node)?;
        let region = ctx.shared.get_or_try(&node.key(), || {
            Region::new(config).map_err(|e| {
                node.error(
                    GraphErrorKind::Resource,
                    format!("no address space for {} bytes: {e}", config.reserve),
                )
            })
        })?;
        if region.len() < config.len {
            // The description was changed since the memory was made.
            region.resize(config.len).map_err(|e| {
                node.error(
                    GraphErrorKind::Resource,
                    format!("cannot grow from {} to {} bytes: {e}", region.len(), config.len),
                )
            })?;
        }
        Ok(Rc::new(Ram::new(region, block_size(node)?, node.flag("thin")?)))
    }
}

fn block_size(node: &Node<'_>) -> Result<u32, GraphError> {
    Ok(if node.text("block-size")? == "512" { 512 } else { 4096 })
}

fn config(node: &Node<'_>) -> Result<Config, GraphError> {
    let len = node.size("len")?;
    Ok(Config {
        len,
        reserve: match node.size_if_given("reserve")? {
            Some(r) => r,
            None => len.saturating_mul(4).min(MAX_LEN),
        },
        huge: node.flag("huge")?,
        prefault: node.flag("prefault")?,
        release: node.flag("release")?,
        thin: node.flag("thin")?,
    })
}

/// One core's handle.
struct Ram {
    region: Arc<Region>,
    /// The same, as slices keep it. Its count tells whether there are any.
    backing: Backing,
    block_mask: u64,
    thin: bool,
}

impl Ram {
    fn new(region: Arc<Region>, block_size: u32, thin: bool) -> Ram {
        let backing: Backing = Rc::new(region.clone());
        Ram { region, backing, block_mask: u64::from(block_size) - 1, thin }
    }

    #[inline]
    fn aligned(&self, at: u64, len: u64) -> bool {
        (at | len) & self.block_mask == 0
    }

    /// Zeros a checked range, in steps when it is long.
    fn zero(&self, at: u64, len: u64) -> IoFuture<'_> {
        if len <= ZERO_STEP {
            self.region.zero(at, len);
            return IoFuture::ready(Ok(()));
        }
        IoFuture::new(async move {
            let mut done = 0;
            while done < len {
                let n = ZERO_STEP.min(len - done);
                // It may have been cut off meanwhile; beyond its end nothing is to be done.
                check_range(&self.geometry(), at + done, n)?;
                self.region.zero(at + done, n);
                done += n;
                run_async().await;
            }
            Ok(())
        })
    }
}

impl Volume for Ram {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: self.region.len(),
            block_size: self.block_mask as u32 + 1,
            granularity: GRANULE as u32,
            thin: self.thin,
            volatile_cache: false,
            read_only: false,
        }
    }

    #[inline]
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        if !self.aligned(at, buf.len() as u64) {
            return IoFuture::ready(Err(IoError::OutOfRange));
        }
        IoFuture::ready(self.region.read(at, &buf))
    }

    #[inline]
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        let len = buf.len() as u64;
        if !self.aligned(at, len) {
            return IoFuture::ready(Err(IoError::OutOfRange));
        }
        let r = self.region.write(at, &buf);
        if r.is_ok() {
            self.region.mark_used(at, len);
        }
        IoFuture::ready(r)
    }

    fn keeps_sums(&self) -> bool {
        true
    }

    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        if !(at | buf.len() as u64).is_multiple_of(SUMMED as u64) {
            return IoFuture::ready(Err(IoError::OutOfRange));
        }
        IoFuture::ready(self.region.read_summed(at, &buf, &sums))
    }

    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, _fua: bool) -> IoFuture<'_> {
        let len = buf.len() as u64;
        if !(at | len).is_multiple_of(SUMMED as u64) {
            return IoFuture::ready(Err(IoError::OutOfRange));
        }
        let r = self.region.write_summed(at, &buf, &sums);
        if r.is_ok() {
            self.region.mark_used(at, len);
        }
        IoFuture::ready(r)
    }

    fn flush(&self) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }

    fn lost(&self) -> u64 {
        0
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.write_zeroes(at, len, true)
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        if let Err(e) = check_range(&self.geometry(), at, len) {
            return IoFuture::ready(Err(e));
        }
        if unmap {
            self.region.mark_unused(at, len);
        } else {
            self.region.mark_used(at, len);
        }
        self.zero(at, len)
    }

    #[inline]
    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        if !self.aligned(at, len as u64) {
            return None;
        }
        self.region.slice(at, len, &self.backing)
    }

    #[inline]
    fn kept_sums(&self, at: u64, len: usize, f: &mut dyn FnMut(u32)) -> bool {
        self.region.kept_sums(at, len, f)
    }

    #[inline]
    fn write_now(&self, at: u64, data: &[u8], sums: &[[u8; 4]]) -> bool {
        let len = data.len() as u64;
        let done = self.aligned(at, len) && self.region.write_now(at, data, sums).is_ok();
        if done {
            self.region.mark_used(at, len);
        }
        done
    }

    fn direct_in_use(&self) -> Option<bool> {
        Some(Rc::strong_count(&self.backing) > 1)
    }

    fn allocation(&self, at: u64, len: u64) -> Allocation {
        let (mapped, len) = self.region.state(at, len);
        Allocation { mapped, len }
    }

    fn allocated(&self) -> Option<u64> {
        Some(self.region.used())
    }

    fn resize(&self, len: u64) -> IoResult {
        check_len(&self.geometry(), len)?;
        self.region.resize(len)
    }
}

#[cfg(test)]
mod tests;
