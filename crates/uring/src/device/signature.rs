//! Signatures of file systems, volume managers and the like, by which they are told where libblkid is not installed.

use super::Found;
use std::io;

/// Bytes to look into.
pub(super) trait Bytes {
    /// How many there are.
    fn len(&self) -> u64;

    /// Those from `at`, at most `len`; fewer at the end.
    fn read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>>;
}

/// Where a signature is: so many bytes from the front, or from the end.
#[derive(Clone, Copy)]
enum At {
    Front(u64),
    End(u64),
}
use At::{End, Front};

/// What has the same bytes at the same place always: word, place, bytes.
const TABLE: &[(&str, At, &[u8])] = &[
    ("weir", Front(0), b"WeirPool"),
    ("weir", Front(4096), b"WeirPool"),
    ("weir", End(4096), b"WeirPool"),
    ("weir", End(8192), b"WeirPool"),
    ("weir", End(4096), b"WeirPlan"),
    ("xfs", Front(0), b"XFSB"),
    ("btrfs", Front(0x1_0040), b"_BHRfS_M"),
    ("luks", Front(0), b"LUKS\xba\xbe"),
    ("luks", Front(0x4000), b"SKUL\xba\xbe"),
    ("luks", Front(0x8000), b"SKUL\xba\xbe"),
    ("luks", Front(0x1_0000), b"SKUL\xba\xbe"),
    ("swap", Front(4086), b"SWAPSPACE2"),
    ("swap", Front(4086), b"SWAP-SPACE"),
    ("swap", Front(8182), b"SWAPSPACE2"),
    ("swap", Front(16374), b"SWAPSPACE2"),
    ("swap", Front(65526), b"SWAPSPACE2"),
    ("gpt", Front(512), b"EFI PART"),
    ("gpt", Front(4096), b"EFI PART"),
    ("gpt", End(512), b"EFI PART"),
    ("gpt", End(4096), b"EFI PART"),
    ("fat", Front(54), b"FAT12   "),
    ("fat", Front(54), b"FAT16   "),
    ("fat", Front(82), b"FAT32   "),
    ("exfat", Front(3), b"EXFAT   "),
    ("ntfs", Front(3), b"NTFS    "),
    ("bitlocker", Front(3), b"-FVE-FS-"),
    ("refs", Front(3), b"ReFS\0\0\0\0"),
    ("iso9660", Front(0x8001), b"CD001"),
    ("udf", Front(0x8001), b"BEA01"),
    ("udf", Front(0x8001), b"NSR0"),
    ("f2fs", Front(1024), b"\x10\x20\xf5\xf2"),
    ("erofs", Front(1024), b"\xe2\xe1\xf5\xe0"),
    ("squashfs", Front(0), b"hsqs"),
    ("reiserfs", Front(0x1_0034), b"ReIsEr"),
    ("jfs", Front(0x8000), b"JFS1"),
    ("nilfs2", Front(1030), b"\x34\x34"),
    ("hfsplus", Front(1024), b"H+\0\x04"),
    ("apfs", Front(32), b"NXSB"),
    ("gfs2", Front(0x1_0000), b"\x01\x16\x19\x70"),
    ("ocfs2", Front(0x2000), b"OCFSV2"),
    ("vmfs", Front(0x10_0000), b"\x0d\xd0\x01\xc0"),
    (
        "bcache",
        Front(4096 + 24),
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    (
        "bcachefs",
        Front(4096 + 24),
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    ("bluestore", Front(0), b"bluestore block device"),
    ("drbd", End(4096 - 60), b"\x83\x74\x02\x6b"),
    ("drbd", End(4096 - 60), b"\x83\x74\x02\x6c"),
    ("drbd", End(4096 - 60), b"\x83\x74\x02\x6d"),
    ("stratis", Front(516), b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("vdo", Front(0), b"dmvdo001"),
    ("integrity", Front(0), b"integrt\0"),
    ("verity", Front(0), b"verity\0\0"),
    ("md", Front(0), b"\xfc\x4e\x2b\xa9"),
    ("md", Front(4096), b"\xfc\x4e\x2b\xa9"),
    ("ddf", End(512), b"\xde\x11\xde\x11"),
    ("imsm", End(1024), b"Intel Raid ISM Cfg Sig. "),
    ("asm", Front(32), b"ORCLDISK"),
    ("ldm", Front(3072), b"PRIVHEAD"),
    ("qcow2", Front(0), b"QFI\xfb"),
    ("vmdk", Front(0), b"KDMV"),
    ("vhdx", Front(0), b"vhdxfile"),
];

/// A text in a field that is filled with zeros.
/// The words for all that can be found.
pub(super) fn kinds() -> impl Iterator<Item = &'static str> {
    let tested = ["ext2", "ext3", "ext4", "mbr", "lvm2", "zfs", "md"];
    TABLE.iter().map(|(kind, ..)| *kind).chain(tested)
}

fn text(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    let text = String::from_utf8_lossy(&field[..end]);
    text.trim().chars().filter(|c| !c.is_control()).collect()
}

fn word(b: &[u8], at: usize) -> u32 {
    let at = b.get(at..at + 4).and_then(|w| w.try_into().ok());
    at.map_or(0, u32::from_le_bytes)
}

/// ext2, ext3 and ext4 have one magic number; their features tell which it is.
fn ext(b: &mut dyn Bytes) -> io::Result<Option<Found>> {
    let s = b.read(1024, 1024)?;
    if s.get(56..58) != Some(b"\x53\xef") {
        return Ok(None);
    }
    let (compatible, incompatible) = (word(&s, 92), word(&s, 96));
    // Extents, 64 bits, flexible groups.
    let kind = match (incompatible & 0x2c0 != 0, compatible & 4 != 0) {
        (true, _) => "ext4",
        (false, true) => "ext3",
        (false, false) => "ext2",
    };
    let about = s.get(120..136).map(text).unwrap_or_default();
    Ok(Some(Found { kind: kind.into(), about }))
}

/// A table of partitions as the PC had it, told from the start of a FAT or NTFS, which ends in the same bytes.
fn mbr(b: &mut dyn Bytes) -> io::Result<bool> {
    let s = b.read(0, 512)?;
    if s.get(510..512) != Some(b"\x55\xaa") {
        return Ok(false);
    }
    let entries = s[446..510].as_chunks::<16>().0;
    let valid = entries.iter().all(|e| e[0] & 0x7f == 0);
    let any = entries.iter().any(|e| e[4] != 0 && word(e, 12) > 0);
    Ok(valid && any)
}

/// The label of a physical volume is in one of the first four sectors.
fn lvm(b: &mut dyn Bytes) -> io::Result<bool> {
    let s = b.read(0, 2048)?;
    Ok(s.chunks(512).any(|c| c.starts_with(b"LABELONE") && c.get(24..29) == Some(b"LVM2 ")))
}

/// One uberblock of the 128 of a label; labels are at both ends.
fn zfs(b: &mut dyn Bytes) -> io::Result<bool> {
    const LABEL: u64 = 256 << 10;
    let end = b.len() / LABEL * LABEL;
    for label in [0, LABEL, end.saturating_sub(2 * LABEL), end.saturating_sub(LABEL)] {
        let ring = b.read(label + (128 << 10), 128 << 10)?;
        let magic = |c: &[u8]| {
            matches!(c.get(..8), Some(b"\x0c\xb1\xba\0\0\0\0\0" | b"\0\0\0\0\0\xba\xb1\x0c"))
        };
        if ring.chunks(1024).any(magic) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Superblocks of md at the end: version 0.90 and 1.0.
fn md_at_end(b: &mut dyn Bytes) -> io::Result<bool> {
    let sectors = b.len() / 512;
    let old = (b.len() & !0xffff).checked_sub(0x1_0000);
    let new = sectors.checked_sub(16).map(|s| (s & !7) * 512);
    for at in [old, new].into_iter().flatten() {
        if b.read(at, 4)? == b"\xfc\x4e\x2b\xa9" {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Everything that is recognised, each kind once.
pub(super) fn find(b: &mut dyn Bytes) -> io::Result<Vec<Found>> {
    let mut found: Vec<Found> = ext(b)?.into_iter().collect();
    let mut put = |kind: &str| {
        if found.iter().all(|f| f.kind != kind) {
            found.push(Found { kind: kind.into(), about: String::new() });
        }
    };
    for (kind, at, bytes) in TABLE {
        let at = match *at {
            Front(at) => Some(at),
            // What Weir writes is in whole pages.
            End(at) if *kind == "weir" => (b.len() / 4096 * 4096).checked_sub(at),
            End(at) => b.len().checked_sub(at),
        };
        if let Some(at) = at
            && b.read(at, bytes.len())? == *bytes
        {
            put(kind);
        }
    }
    type Test = fn(&mut dyn Bytes) -> io::Result<bool>;
    let tests: [(&str, Test); 4] = [("mbr", mbr), ("lvm2", lvm), ("zfs", zfs), ("md", md_at_end)];
    for (kind, test) in tests {
        if test(b)? {
            put(kind);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Bytes for Vec<u8> {
        fn len(&self) -> u64 {
            self.as_slice().len() as u64
        }

        fn read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
            let from = self.get(at as usize..).unwrap_or_default();
            Ok(from[..from.len().min(len)].to_vec())
        }
    }

    fn kinds(mut disk: Vec<u8>) -> Vec<String> {
        find(&mut disk).expect("it is read").into_iter().map(|f| f.kind).collect()
    }

    fn put(disk: &mut [u8], at: usize, bytes: &[u8]) {
        disk[at..at + bytes.len()].copy_from_slice(bytes);
    }

    #[test]
    fn every_line_of_the_table_finds_its_own() {
        for len in [2 << 20, (2 << 20) + 4096 + 512] {
            for (kind, at, bytes) in TABLE {
                let mut disk = vec![0; len];
                let at = match *at {
                    Front(at) => at as usize,
                    End(at) if *kind == "weir" => len / 4096 * 4096 - at as usize,
                    End(at) => len - at as usize,
                };
                put(&mut disk, at, bytes);
                assert_eq!(kinds(disk), [*kind], "at {at} of {len}");
            }
        }
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        for len in [0, 1, 511, 512, 4096, 70_000, 2 << 20] {
            assert_eq!(kinds(vec![0; len]), Vec::<String>::new());
        }
    }

    #[test]
    fn those_that_take_a_second_look_are_told_apart() {
        let mut disk = vec![0; 4 << 20];
        put(&mut disk, 1080, b"\x53\xef");
        assert_eq!(kinds(disk.clone()), ["ext2"]);
        put(&mut disk, 1024 + 92, &[4]);
        assert_eq!(kinds(disk.clone()), ["ext3"]);
        put(&mut disk, 1024 + 96, &[0x40]);
        put(&mut disk, 1024 + 120, b"root");
        let found = find(&mut disk).expect("it is read");
        assert_eq!(found[0].to_string(), "ext4 (root)");

        let mut disk = vec![0; 4 << 20];
        put(&mut disk, 510, b"\x55\xaa");
        assert_eq!(kinds(disk.clone()), Vec::<String>::new(), "a boot sector alone");
        put(&mut disk, 446, &[0x80, 1, 1, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0]);
        assert_eq!(kinds(disk), ["mbr"]);

        let mut disk = vec![0; 4 << 20];
        put(&mut disk, 512, b"LABELONE\x01\0\0\0\0\0\0\0\x12\x34\x56\x78\x20\0\0\0LVM2 001");
        assert_eq!(kinds(disk), ["lvm2"]);

        for at in [128 << 10, (384 << 10) + 1024, (4 << 20) - (128 << 10)] {
            let mut disk = vec![0; (4 << 20) + 4096];
            put(&mut disk, at, b"\x0c\xb1\xba\0\0\0\0\0");
            assert_eq!(kinds(disk), ["zfs"], "at {at}");
        }
        for at in [(4 << 20) - (64 << 10), (4 << 20) - 8192] {
            let mut disk = vec![0; 4 << 20];
            put(&mut disk, at, b"\xfc\x4e\x2b\xa9");
            assert_eq!(kinds(disk), ["md"], "at {at}");
        }
    }
}
