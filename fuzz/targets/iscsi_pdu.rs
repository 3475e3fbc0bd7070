//! PDUs of an iSCSI connection, cut in any way, with and without digests.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_iscsi::fuzzing::fuzz_pdu(data);
});
