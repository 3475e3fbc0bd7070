//! The pool store: redirect-on-write volumes over mirrored and striped devices.
//!
//! * [`format`] — what is on the devices, sans-IO;

pub mod format;
pub mod fuzzing;
