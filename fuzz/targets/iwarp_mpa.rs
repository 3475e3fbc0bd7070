//! MPA request and reply frames, and Terminate messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_iwarp::fuzzing::fuzz_mpa(data);
});
