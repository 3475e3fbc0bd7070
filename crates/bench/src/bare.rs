//! bare
