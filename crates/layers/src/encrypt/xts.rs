//! XTS-AES-256 (IEEE Std 1619-2018, NIST SP 800-38E) over sectors of 512 bytes.
//!
//! Written over the cipher's many-blocks-at-a-time interface: blocks of a sector do not depend on each other, so the
//! processor has several under way. A sector is a whole number of blocks, so there is no stealing of ciphertext.

use aes::Aes256;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit, consts::U16};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Bytes of a data unit: it is encrypted as a whole, under its number.
pub const SECTOR: usize = 512;
/// Bytes of a master key: one key for data, one for the numbers of sectors.
pub const KEY_LEN: usize = 64;
/// Blocks of the cipher in a sector.
const BLOCKS: usize = SECTOR / 16;
/// Sectors whose numbers are encrypted together.
const TOGETHER: usize = 8;

type Block = Array<u8, U16>;

/// The key of a volume's data. It is wiped when it goes, and never shown.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct MasterKey([u8; KEY_LEN]);

impl MasterKey {
    /// Of these bytes, which should be random. `None`: both halves are the same, which takes away what the mode
    /// promises (IEEE 1619-2018, 5.1) and does not happen by chance.
    pub fn new(bytes: &[u8; KEY_LEN]) -> Option<MasterKey> {
        let (data, numbers) = bytes.split_at(KEY_LEN / 2);
        (data != numbers).then(|| MasterKey(*bytes))
    }

    /// The bytes, to be wrapped.
    pub fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

/// The cipher with its key schedules, which are wiped when it goes.
pub(super) struct Xts {
    data: Aes256,
    numbers: Aes256,
}

/// Multiplies by the primitive element (IEEE 1619-2018, 5.2).
#[inline]
fn double(t: u128) -> u128 {
    (t << 1) ^ (0x87 & 0u128.wrapping_sub(t >> 127))
}

#[inline]
fn xor(block: &mut Block, t: u128) {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(block);
    block.copy_from_slice(&(u128::from_le_bytes(bytes) ^ t).to_le_bytes());
}

impl Xts {
    pub(super) fn new(key: &MasterKey) -> Xts {
        let half = |at: usize| {
            let mut k = Zeroizing::new([0; KEY_LEN / 2]);
            k.copy_from_slice(&key.0[at..at + KEY_LEN / 2]);
            Aes256::new((&*k).into())
        };
        Xts { data: half(0), numbers: half(KEY_LEN / 2) }
    }

    /// The first tweaks of up to [`TOGETHER`] sectors from number `first` on.
    pub(super) fn tweaks(&self, first: u64) -> [u128; TOGETHER] {
        let mut blocks: [Block; TOGETHER] =
            std::array::from_fn(|i| Array(u128::from(first.wrapping_add(i as u64)).to_le_bytes()));
        self.numbers.encrypt_blocks(&mut blocks);
        std::array::from_fn(|i| u128::from_le_bytes(blocks[i].0))
    }

    /// Turns a sector over, with the tweak of its first block.
    #[inline]
    fn sector(
        &self,
        bytes: &mut [u8; SECTOR],
        mut tweak: u128,
        turn: impl Fn(&Aes256, &mut [Block]),
    ) {
        let (blocks, _) = Array::slice_as_chunks_mut(bytes);
        let mut tweaks = [0; BLOCKS];
        for (block, t) in blocks.iter_mut().zip(&mut tweaks) {
            *t = tweak;
            xor(block, tweak);
            tweak = double(tweak);
        }
        turn(&self.data, blocks);
        for (block, t) in blocks.iter_mut().zip(tweaks) {
            xor(block, t);
        }
    }

    pub(super) fn encrypt(&self, bytes: &mut [u8; SECTOR], tweak: u128) {
        self.sector(bytes, tweak, |aes, blocks| aes.encrypt_blocks(blocks));
    }

    pub(super) fn decrypt(&self, bytes: &mut [u8; SECTOR], tweak: u128) {
        self.sector(bytes, tweak, |aes, blocks| aes.decrypt_blocks(blocks));
    }
}

/// Calls `f(sector's place in bytes, its tweak)` for each sector of `len` bytes from `at` on, both multiples of a sector.
#[inline]
pub(super) fn each_sector(xts: &Xts, at: u64, len: usize, mut f: impl FnMut(usize, u128)) {
    let first = at / SECTOR as u64;
    for group in (0..len).step_by(TOGETHER * SECTOR) {
        let tweaks = xts.tweaks(first + (group / SECTOR) as u64);
        let end = len.min(group + TOGETHER * SECTOR);
        for (place, tweak) in (group..end).step_by(SECTOR).zip(tweaks) {
            f(place, tweak);
        }
    }
}
