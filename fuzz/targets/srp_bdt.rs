//! Buffer descriptor tables against local segments.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_srp::fuzzing::fuzz_bdt(data);
});
