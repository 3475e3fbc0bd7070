//! SRP login requests, responses and rejects.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_srp::fuzzing::fuzz_login(data);
});
