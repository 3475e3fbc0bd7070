//! The stored form of a compressed chunk: headers, stamps and both decoders.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_layers::compress::fuzz_form(data);
});
