//! The label of a plain pool's device (docs/format.md, "Plain pools").

use weir_control::model::{Device, PoolId};
use weir_uring::device::PAGE;

const MAGIC: &[u8; 8] = b"WeirPlan";
const VERSION: u32 = 1;
/// Where the checksum is.
const SUM: usize = PAGE as usize - 8;

/// What a device of a plain pool says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label {
    /// Its pool.
    pub(super) pool: PoolId,
    /// Its number in the pool.
    pub(super) device: u32,
    /// Bytes before the label that are for volumes.
    pub(super) size: u64,
}

impl Label {
    /// Where the label of a device with so many bytes for volumes is.
    pub(super) fn place(size: u64) -> u64 {
        size.next_multiple_of(PAGE)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; PAGE as usize];
        b[..8].copy_from_slice(MAGIC);
        b[8..12].copy_from_slice(&VERSION.to_le_bytes());
        b[12..16].copy_from_slice(&self.device.to_le_bytes());
        b[16..32].copy_from_slice(&self.pool.0.to_le_bytes());
        b[32..40].copy_from_slice(&self.size.to_le_bytes());
        let sum = weir_codec::crc64(&b[..SUM]);
        b[SUM..].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// The label in a page; none where there is none that is whole. A newer version is an error in words.
    pub(super) fn decode(b: &[u8]) -> Result<Option<Label>, String> {
        fn part<const N: usize>(b: &[u8], at: usize) -> Option<[u8; N]> {
            b.get(at..at + N)?.try_into().ok()
        }
        let parts = || {
            let magic = part::<8>(b, 0)? == *MAGIC;
            let sum = u64::from_le_bytes(part(b, SUM)?);
            let whole = magic && weir_codec::crc64(b.get(..SUM)?) == sum;
            let version = u32::from_le_bytes(part(b, 8)?);
            let label = Label {
                device: u32::from_le_bytes(part(b, 12)?),
                pool: PoolId(u128::from_le_bytes(part(b, 16)?)),
                size: u64::from_le_bytes(part(b, 32)?),
            };
            whole.then_some((version, label))
        };
        match parts() {
            None => Ok(None),
            Some((VERSION, label)) => Ok(Some(label)),
            Some((v, _)) => Err(format!("its label has version {v}, of a newer program")),
        }
    }
}

/// Most bytes of a file with so many for volumes.
pub(super) fn most(size: u64) -> u64 {
    Label::place(size).saturating_add(PAGE)
}

/// All bytes of a file that is a device of a plain pool, its label with them.
pub(crate) fn whole(d: &Device) -> u64 {
    match d.labelled {
        true => Label::place(d.size) + PAGE,
        false => d.size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_back_and_nothing_else_is_one() {
        let l = Label { pool: PoolId(0x1234 << 64 | 5), device: 3, size: 100 << 20 };
        let b = l.encode();
        assert_eq!(Label::decode(&b), Ok(Some(l)));
        for at in [0, 8, 12, 16, 32, 40, 4000, 4095] {
            let mut wrong = b.clone();
            wrong[at] ^= 1;
            assert_eq!(Label::decode(&wrong), Ok(None), "at {at}");
        }
        assert_eq!(Label::decode(&[]), Ok(None));
        assert_eq!(Label::decode(&b[..4095]), Ok(None));
        let mut newer = b;
        newer[8] = 2;
        let sum = weir_codec::crc64(&newer[..SUM]);
        newer[SUM..].copy_from_slice(&sum.to_le_bytes());
        assert!(Label::decode(&newer).is_err_and(|e| e.contains("newer")));
        assert_eq!([0, 1, 4096, 4097].map(Label::place), [0, 4096, 4096, 8192]);
    }
}
