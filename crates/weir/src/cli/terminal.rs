//! The terminal that a person sits at.

use rustix::termios;
use std::io;

/// Columns where the terminal does not tell.
const USUAL: usize = 80;

/// Columns of the terminal of standard error.
pub(crate) fn columns_of_errors() -> usize {
    match termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => USUAL,
    }
}
