//! SCSI command descriptor blocks with their parameter data.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weir_proto_scsi::fuzzing::fuzz_cdb(data);
});
