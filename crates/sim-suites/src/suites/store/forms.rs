//! Volumes in a form: what is between a volume's load and what the pool stores of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{Prng, SECONDS};
use weir_block::Volume;
use weir_layers::compress::{self, Algorithm, Compress};
use weir_layers::dedup::{self, Dedup};
use weir_layers::encrypt::{Encrypt, KEY_LEN, MasterKey};
use weir_mem::BufPool;
use weir_reactor::sleep;
use weir_sim::check::blocks::{ALIKE, SQUEEZABLE};
use weir_store::{Pool, StoreError};

/// Twentieths of a second in which a recount ends. What failed in the middle of a change is not counted in this life.
const LOOKS: u32 = 60;

/// Chunks whose records are kept together (docs/dedup.md).
const GROUP: u64 = 256;

/// How a volume is stored. By default as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Form {
    /// In chunks of so many bytes.
    compressed: Option<(Algorithm, u32)>,
    /// In chunks of so many bytes, those of compression if there is that, too.
    deduplicated: Option<u32>,
    encrypted: bool,
}

impl Form {
    /// That of a volume of a new story.
    pub(crate) fn draw(rng: &mut Prng) -> Form {
        let encrypted = rng.chance(1, 8);
        if rng.chance(2, 3) {
            return Form { encrypted, ..Form::default() };
        }
        let algorithm = if rng.chance(1, 2) { Algorithm::Lz4 } else { Algorithm::Zstd(1) };
        let chunk = 8192 << rng.below(3);
        let compressed = Some((algorithm, chunk));
        match rng.below(8) {
            0..=3 => Form { compressed, encrypted, ..Form::default() },
            4..=6 => {
                let deduplicated = Some(4096 << rng.below(3));
                Form { deduplicated, encrypted, ..Form::default() }
            }
            _ => Form { compressed, deduplicated: Some(chunk), encrypted },
        }
    }

    pub(crate) fn is_plain(&self) -> bool {
        *self == Form::default()
    }

    /// What is done about it.
    pub(crate) fn is_compressed(&self) -> bool {
        self.compressed.is_some()
    }

    pub(crate) fn is_deduplicated(&self) -> bool {
        self.deduplicated.is_some()
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// The block of 512 bytes at which the second group of chunks begins, if there are groups.
    pub(crate) fn border(&self) -> Option<u64> {
        self.deduplicated.map(|chunk| GROUP * u64::from(chunk) / 512)
    }

    /// The bits of a volume's number that make blocks of the right kind.
    pub(crate) fn kind(&self) -> u32 {
        let squeezable = if self.is_compressed() { SQUEEZABLE } else { 0 };
        squeezable | if self.is_deduplicated() { ALIKE } else { 0 }
    }

    /// Bytes of what is stored of a volume of `len`.
    pub(crate) fn stored_len(&self, len: u64) -> u64 {
        let len = self.deduplicated.map_or(len, |chunk| dedup::stored_len(len, chunk));
        self.compressed.map_or(len, |(_, chunk)| compress::stored_len(len, chunk))
    }
}

/// A volume in its form.
#[derive(Clone)]
pub(crate) struct Formed {
    pub(crate) volume: Rc<dyn Volume>,
    compressed: Option<Rc<Compress>>,
    deduplicated: Option<Rc<Dedup>>,
}

/// Its layers stand still.
#[expect(dead_code, reason = "they do as long as these live; first that on top is let go")]
pub(crate) struct Still(Option<dedup::Hold>, Option<compress::Hold>);

impl Formed {
    /// Waits until nothing is under way, and keeps everybody out: for changes to what is stored.
    pub(crate) async fn hold(&self) -> Still {
        let upper = match &self.deduplicated {
            Some(d) => Some(d.hold().await),
            None => None,
        };
        let lower = match &self.compressed {
            Some(c) => Some(c.hold().await),
            None => None,
        };
        Still(upper, lower)
    }
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
        let stored: Rc<dyn Volume> = pool.volume(id)?;
        if form.is_plain() {
            return Ok(Formed { volume: stored, compressed: None, deduplicated: None });
        }
        if let Some(f) = self.open.borrow().get(&id) {
            return Ok(f.clone());
        }
        let bad = || StoreError::Request(format!("{form:?} is not possible"));
        let mut f = Formed { volume: stored, compressed: None, deduplicated: None };
        if form.encrypted {
            let bytes: [u8; KEY_LEN] = std::array::from_fn(|i| i as u8);
            let key = MasterKey::new(&bytes).ok_or_else(bad)?;
            f.volume = Rc::new(Encrypt::new(f.volume, &key, self.buffers.clone()));
        }
        // Little memory, so that what is known of chunks is forgotten, too.
        if let Some((algorithm, chunk)) = form.compressed {
            self.stamp.set(self.stamp.get().wrapping_mul(0x5851_f42d_4c95_7f2d) | 1);
            let stamp = self.stamp.get();
            let o = compress::Options { algorithm, chunk, stamp, memory: 64 };
            let c = Compress::new(f.volume, o, self.buffers.clone()).ok_or_else(bad)?;
            f = Formed { volume: c.clone(), compressed: Some(c), deduplicated: None };
        }
        if let Some(chunk) = form.deduplicated {
            let o = dedup::Options { chunk, index: 1 << 20, records: 8192 };
            let d = Dedup::new(f.volume, o, self.buffers.clone()).ok_or_else(bad)?;
            f = Formed { volume: d.clone(), deduplicated: Some(d), ..f };
        }
        self.open.borrow_mut().insert(id, f.clone());
        Ok(f)
    }

    /// Ends all layers in order, when nobody uses them any more: what they do beside I/O is done, and the next ones have
    /// nothing to make good.
    pub(crate) async fn settle(&self) {
        let all: Vec<Formed> = self.open.borrow().values().cloned().collect();
        for d in all.iter().filter_map(|f| f.deduplicated.as_ref()) {
            for _ in 0..LOOKS {
                d.settle().await;
                if d.is_clean() {
                    break;
                }
                // It is counting.
                sleep(SECONDS / 20).await;
            }
        }
        for f in all {
            drop(f.hold().await);
        }
        self.open.borrow_mut().clear();
    }

    /// A volume is about to be deleted: what goes on beside I/O is brought to its end.
    pub(crate) async fn close(&self, id: u32) {
        let open = self.open.borrow_mut().remove(&id);
        if let Some(f) = open {
            drop(f.hold().await);
        }
    }
}
