//! BRP messages of both directions.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_brp::fuzzing::fuzz_message(data);
});
