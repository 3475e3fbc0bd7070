//! What a deduplicated volume keeps of itself: records of slots, the summary, blocks of the index.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_layers::dedup::fuzz_meta(data);
});
