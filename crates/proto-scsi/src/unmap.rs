//! The UNMAP parameter list (SBC-3 5.28).

use crate::geometry::Geometry;
use crate::sense::Sense;

/// Bytes before the first descriptor.
const HEADER: usize = 8;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;

/// The extents of a valid UNMAP parameter list, in order; empty ones are left out.
#[derive(Debug, Clone)]
pub struct Extents<'a> {
    descriptors: core::slice::ChunksExact<'a, u8>,
}

impl Iterator for Extents<'_> {
    /// First block and number of blocks.
    type Item = (u64, u32);

    fn next(&mut self) -> Option<(u64, u32)> {
        self.descriptors.by_ref().map(extent).find(|(_, blocks)| *blocks != 0)
    }
}

fn extent(d: &[u8]) -> (u64, u32) {
    let mut lba = [0; 8];
    let mut blocks = [0; 4];
    lba.copy_from_slice(&d[..8]);
    blocks.copy_from_slice(&d[8..12]);
    (u64::from_be_bytes(lba), u32::from_be_bytes(blocks))
}

/// Checks a whole parameter list before any block is unmapped: lengths (5/1A/00), number of
/// descriptors and blocks (5/26/00), ranges (5/21/00). An empty list is valid. A partial
/// descriptor at the end is ignored, as SBC-3 says.
pub fn parse<'a>(list: &'a [u8], geometry: &Geometry) -> Result<Extents<'a>, Sense> {
    if list.is_empty() {
        return Ok(Extents { descriptors: [].chunks_exact(DESCRIPTOR) });
    }
    let Some((header, rest)) = list.split_first_chunk::<HEADER>() else {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    };
    let data_len = usize::from(u16::from_be_bytes([header[0], header[1]]));
    let descriptor_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if data_len + 2 > list.len() || descriptor_len > rest.len() {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
    if descriptor_len + 6 > data_len {
        // The descriptors would lie outside the UNMAP DATA LENGTH that the list declares.
        return Err(Sense::list_byte(2));
    }
    let descriptors = rest[..descriptor_len].chunks_exact(DESCRIPTOR);
    if descriptors.len() > geometry.limits.max_unmap_descriptors as usize {
        return Err(Sense::list_byte(2));
    }
    let mut total = 0u64;
    for (i, d) in descriptors.clone().enumerate() {
        let (lba, blocks) = extent(d);
        match lba.checked_add(blocks.into()) {
            Some(end) if end <= geometry.blocks => {}
            _ => return Err(Sense::LBA_OUT_OF_RANGE),
        }
        total += u64::from(blocks);
        if total > geometry.limits.max_unmap_blocks.into() {
            return Err(Sense::list_byte((HEADER + i * DESCRIPTOR + 8).min(0xffff) as u16));
        }
    }
    Ok(Extents { descriptors })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::initiator::unmap_list;
    use proptest::prelude::*;

    fn geometry() -> Geometry {
        let mut g = Geometry::new(512, 1000);
        g.limits.max_unmap_descriptors = 3;
        g.limits.max_unmap_blocks = 500;
        g
    }

    fn run(extents: &[(u64, u32)]) -> Result<Vec<(u64, u32)>, Sense> {
        parse(&unmap_list(extents), &geometry()).map(Iterator::collect)
    }

    #[test]
    fn golden_list() {
        let list = [
            0, 22, 0, 16, 0, 0, 0, 0, // header
            0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 4, 0, 0, 0, 0,
        ];
        assert_eq!(parse(&list, &geometry()).unwrap().collect::<Vec<_>>(), [(9, 4)]);
        assert_eq!(unmap_list(&[(9, 4)]), list);
    }

    #[test]
    fn limits_and_ranges() {
        assert_eq!(run(&[]), Ok(vec![]));
        assert_eq!(run(&[(0, 0), (1000, 0), (5, 5)]), Ok(vec![(5, 5)]));
        assert_eq!(run(&[(999, 2)]), Err(Sense::LBA_OUT_OF_RANGE));
        assert_eq!(run(&[(u64::MAX, 2)]), Err(Sense::LBA_OUT_OF_RANGE));
        assert_eq!(run(&[(0, 1); 4]), Err(Sense::list_byte(2)));
        assert_eq!(run(&[(0, 400), (500, 101)]), Err(Sense::list_byte(32)));
        assert!(run(&[(0, 400), (500, 100)]).is_ok());
    }

    #[test]
    fn lengths() {
        let e = |b: &[u8]| parse(b, &geometry()).map(Iterator::count);
        assert_eq!(e(&[]), Ok(0));
        assert_eq!(e(&[0; 7]), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
        assert_eq!(e(&[0, 6, 0, 0, 0, 0, 0, 0]), Ok(0));
        assert_eq!(e(&[0, 22, 0, 16, 0, 0, 0, 0]), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
        let mut list = unmap_list(&[(1, 1)]);
        list[1] += 1; // the whole list is said to be longer than it is
        assert_eq!(e(&list), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
        let mut list = unmap_list(&[(1, 1), (2, 1)]);
        list[3] = 31; // one descriptor and a partial one
        assert_eq!(e(&list), Ok(1));
        list[1] = 6;
        assert_eq!(e(&list), Err(Sense::list_byte(2)));
    }

    proptest! {
        #[test]
        fn total_and_in_range(list in proptest::collection::vec(any::<u8>(), 0..80)) {
            let g = geometry();
            if let Ok(extents) = parse(&list, &g) {
                for (lba, blocks) in extents {
                    prop_assert!(blocks > 0 && lba + u64::from(blocks) <= g.blocks);
                }
            }
        }

        #[test]
        fn round_trip(extents in proptest::collection::vec((0u64..900, 1u32..100), 0..3)) {
            prop_assert_eq!(run(&extents), Ok(extents));
        }
    }
}
