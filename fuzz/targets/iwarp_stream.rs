//! An iWARP stream: FPDU framing, DDP segments, RDMAP messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_iwarp::fuzzing::fuzz_stream(data);
});
