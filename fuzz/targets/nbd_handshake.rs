//! What an NBD client says in the handshake, cut in any way.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_nbd::fuzzing::fuzz_handshake(data);
});
