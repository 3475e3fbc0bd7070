//! The line that attaches a Linux host: what is written to `add_target` of its SRP initiator.
