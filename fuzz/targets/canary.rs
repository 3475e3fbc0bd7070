//! A planted bug behind two doors of eight bytes each. Blind luck opens neither: the first needs
//! coverage (each right byte is a new edge), the second the operands of comparisons.
#![no_main]

use std::hint::black_box;

use libfuzzer_sys::fuzz_target;

const DOOR: &[u8; 8] = b"weirgate";
const LOCK: u64 = 0x9d1c_53ab_70e6_42f8;

fuzz_target!(|data: &[u8]| {
    let (Some(door), Some(lock)) =
        (data.first_chunk::<8>(), data[8.min(data.len())..].first_chunk())
    else {
        return;
    };
    for (have, want) in door.iter().zip(DOOR) {
        // Kept apart, or the compiler makes one comparison of the eight.
        if black_box(*have) != *want {
            return;
        }
    }
    assert!(u64::from_be_bytes(*lock) != LOCK, "canary found");
});
