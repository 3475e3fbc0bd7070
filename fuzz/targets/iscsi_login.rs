//! What an iSCSI initiator says in its login.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_iscsi::fuzzing::fuzz_login(data);
});
