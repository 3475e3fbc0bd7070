//! Volumes in a form: what is between a volume's load and what the pool stores of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::Prng;
use weir_block::Volume;
use weir_layers::compress::{Algorithm, Compress, Options, stored_len};
use weir_mem::BufPool;
use weir_sim::check::blocks::SQUEEZABLE;
use weir_store::{Pool, StoreError};

/// How a volume is stored. By default as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Form {
    /// In chunks of so many bytes.
    compressed: Option<(Algorithm, u32)>,
}

impl Form {
    /// That of a volume of a new story.
    pub(crate) fn draw(rng: &mut Prng) -> Form {
        if rng.chance(2, 3) {
            return Form::default();
        }
        let algorithm = if rng.chance(1, 2) { Algorithm::Lz4 } else { Algorithm::Zstd(1) };
        Form { compressed: Some((algorithm, 8192 << rng.below(3))) }
    }

    pub(crate) fn is_plain(&self) -> bool {
        *self == Form::default()
    }

    /// The bits of a volume's number that make blocks of the right kind.
    pub(crate) fn kind(&self) -> u32 {
        if self.compressed.is_some() { SQUEEZABLE } else { 0 }
    }

    /// Bytes of what is stored of a volume of `len`.
    pub(crate) fn stored_len(&self, len: u64) -> u64 {
        self.compressed.map_or(len, |(_, chunk)| stored_len(len, chunk))
    }
}

/// A volume in its form.
#[derive(Clone)]
pub(crate) struct Formed {
    pub(crate) volume: Rc<dyn Volume>,
    pub(crate) compressed: Option<Rc<Compress>>,
}

/// The volumes in a form that are open, of one pool in one life: one layer for each.
pub(crate) struct Forms {
    buffers: BufPool,
    stamp: Cell<u64>,
    /// By the number of the volume.
    open: RefCell<BTreeMap<u32, Formed>>,
}

impl Forms {
    /// Stamps begin at `stamp`.
    pub(crate) fn new(buffers: BufPool, stamp: u64) -> Rc<Forms> {
        Rc::new(Forms { buffers, stamp: Cell::new(stamp), open: RefCell::default() })
    }

    /// A volume of the pool in its form; on its node.
    pub(crate) fn open(&self, pool: &Pool, id: u32, form: Form) -> Result<Formed, StoreError> {
        let stored = pool.volume(id)?;
        let Some((algorithm, chunk)) = form.compressed else {
            return Ok(Formed { volume: stored, compressed: None });
        };
        if let Some(f) = self.open.borrow().get(&id) {
            return Ok(f.clone());
        }
        self.stamp.set(self.stamp.get().wrapping_mul(0x5851_f42d_4c95_7f2d) | 1);
        // Little memory, so that what is known of chunks is forgotten, too.
        let options = Options { algorithm, chunk, stamp: self.stamp.get(), memory: 64 };
        let layer = Compress::new(stored, options, self.buffers.clone())
            .ok_or_else(|| StoreError::Request(format!("{form:?} is not possible")))?;
        let f = Formed { volume: layer.clone(), compressed: Some(layer) };
        self.open.borrow_mut().insert(id, f.clone());
        Ok(f)
    }

    /// A volume is about to be deleted: what goes on beside I/O is brought to its end.
    pub(crate) async fn close(&self, id: u32) {
        let open = self.open.borrow_mut().remove(&id);
        if let Some(c) = open.and_then(|f| f.compressed) {
            drop(c.hold().await);
        }
    }
}
