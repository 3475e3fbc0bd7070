//! What a thread of this process waits for, as the kernel tells (proc(5)).

use std::path::Path;

/// System calls that wait for what a descriptor leads to.
const CALLS: [(libc::c_long, &str); 13] = [
    (libc::SYS_read, "read"),
    (libc::SYS_write, "write"),
    (libc::SYS_pread64, "pread"),
    (libc::SYS_pwrite64, "pwrite"),
    (libc::SYS_close, "close"),
    (libc::SYS_fstat, "fstat"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_ftruncate, "ftruncate"),
    (libc::SYS_fallocate, "fallocate"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_lseek, "lseek"),
    (libc::SYS_flock, "flock"),
];

/// The system call that the thread with this directory below `/proc` is in, what it is about, and where the kernel waits in it.
/// None: it is in none, or the system does not tell.
pub fn thread_waits_in(task: &Path) -> Option<String> {
    let text = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
    let (line, wait) = (text("syscall"), text("wchan"));
    let mut words = line.split_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let first = words.next().and_then(|a| u64::from_str_radix(a.trim_start_matches("0x"), 16).ok());
    let mut said = match CALLS.iter().find(|(n, _)| *n == number) {
        Some((_, name)) => {
            let fd = first.unwrap_or_default();
            let of = std::fs::read_link(format!("/proc/self/fd/{fd}"));
            let of = of.map_or_else(|_| format!("descriptor {fd}"), |p| p.display().to_string());
            format!("{name} of {of}")
        }
        None if number == libc::SYS_io_uring_enter => "io_uring_enter".to_owned(),
        None => format!("system call {number}"),
    };
    if !wait.is_empty() && wait.trim() != "0" {
        said.push_str(&format!(" (the kernel is in {})", wait.trim()));
    }
    Some(said)
}
