//! The SCSI commands that hosts send, and what their sense data means.

/// READ, in one of its lengths.
pub(super) fn read(lba: u64, blocks: u32, wide: bool) -> Vec<u8> {
    transfer(if wide { 0x88 } else { 0x28 }, 0, lba, blocks)
}

/// WRITE, in one of its lengths.
pub(super) fn write(lba: u64, blocks: u32, fua: bool, wide: bool) -> Vec<u8> {
    transfer(if wide { 0x8a } else { 0x2a }, u8::from(fua) << 3, lba, blocks)
}

/// WRITE SAME(16) of zeros: with a block of data (zeros), or without (NDOB).
pub(super) fn write_zeros(lba: u64, blocks: u32, unmap: bool, without_data: bool) -> Vec<u8> {
    transfer(0x93, u8::from(unmap) << 3 | u8::from(without_data), lba, blocks)
}

/// SYNCHRONIZE CACHE(10) of everything.
pub(super) fn synchronize() -> Vec<u8> {
    transfer(0x35, 0, 0, 0)
}

/// A CDB of 10 or 16 bytes with an address and a length, as the group of its operation code says.
fn transfer(code: u8, flags: u8, lba: u64, blocks: u32) -> Vec<u8> {
    let mut c = vec![code, flags];
    if code >> 5 == 4 {
        c.extend(lba.to_be_bytes());
        c.extend(blocks.to_be_bytes());
        c.extend([0, 0]);
    } else {
        c.extend((lba as u32).to_be_bytes());
        c.push(0);
        c.extend((blocks as u16).to_be_bytes());
        c.push(0);
    }
    c
}

/// Sense key, additional sense code and its qualifier; of either format (SPC-4 4.5).
pub(crate) fn sense(bytes: &[u8]) -> Option<(u8, u8, u8)> {
    match bytes.first()? & 0x7f {
        0x70 | 0x71 => Some((bytes.get(2)? & 0xf, *bytes.get(12)?, *bytes.get(13)?)),
        0x72 | 0x73 => Some((bytes.get(1)? & 0xf, *bytes.get(2)?, *bytes.get(3)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdbs_and_sense() {
        assert_eq!(read(0x0102, 3, false), [0x28, 0, 0, 0, 1, 2, 0, 0, 3, 0]);
        let w = write(5, 6, true, true);
        assert_eq!((w.len(), w[0], w[1], w[9], w[13]), (16, 0x8a, 8, 5, 6));
        assert_eq!(write_zeros(1, 2, true, true)[..2], [0x93, 0x09]);
        assert_eq!(synchronize().len(), 10);
        assert_eq!(sense(&[0x72, 6, 0x29, 1, 0, 0, 0, 0]), Some((6, 0x29, 1)));
        let mut fixed = [0; 18];
        (fixed[0], fixed[2], fixed[12]) = (0x70, 5, 0x20);
        assert_eq!(sense(&fixed), Some((5, 0x20, 0)));
        assert_eq!(sense(&[]), None);
    }
}
