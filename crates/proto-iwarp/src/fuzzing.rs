//! Entry points for fuzzers and property tests: any bytes, with the promises asserted.
