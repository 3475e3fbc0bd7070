//! The store's on-disk structures: map nodes, dead lists, slabs and records of tables.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_store::fuzzing::fuzz_pages(data);
});
