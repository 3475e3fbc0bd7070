//! SRP information units after the login, in both directions.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_srp::fuzzing::fuzz_iu(data);
});
