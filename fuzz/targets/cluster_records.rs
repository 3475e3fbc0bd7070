//! Registers of pools, beats and grants.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_cluster::fuzzing::fuzz_records(data);
});
