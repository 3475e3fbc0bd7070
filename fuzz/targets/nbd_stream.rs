//! NBD requests and their data, cut in any way.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_nbd::fuzzing::fuzz_stream(data);
});
