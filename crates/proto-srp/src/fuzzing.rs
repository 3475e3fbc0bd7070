//! Entry points for fuzzers and random tests: any bytes in, invariants asserted.
