//! Commands to drivers that take an entry of 128 bytes, outside any reactor.

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Gives the driver behind `fd` a command and waits for its end, for as long as that takes: not on a reactor. Gives what the
/// driver says.
///
/// # Errors
/// The kernel has no `io_uring` with such entries (before 5.19), or what the driver said.
///
/// # Safety
/// Memory that the command names must be valid for what the driver does with it.
pub unsafe fn control(fd: BorrowedFd<'_>, op: u32, command: [u8; 80]) -> io::Result<i32> {
    let mut ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(2)?;
    let e = opcode::UringCmd80::new(types::Fd(fd.as_raw_fd()), op).cmd(command).build();
    // SAFETY: memory is the caller's promise; the descriptor is open until the command has ended.
    unsafe { ring.submission().push(&e) }.map_err(io::Error::other)?;
    loop {
        match ring.submit_and_wait(1) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(e) => return Err(e),
            Ok(_) => {}
        }
        if let Some(done) = ring.completion().next() {
            let r = done.result();
            return if r < 0 { Err(io::Error::from_raw_os_error(-r)) } else { Ok(r) };
        }
    }
}
