//! A BRP command slot through losses of its channel: no effect twice.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_brp::fuzzing::fuzz_slot(data);
});
