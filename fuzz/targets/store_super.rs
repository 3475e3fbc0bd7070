//! The store's on-disk structures: labels and superblocks.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_store::fuzzing::fuzz_super(data);
});
