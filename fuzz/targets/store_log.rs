//! The store's on-disk structures: log pages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_store::fuzzing::fuzz_log(data);
});
