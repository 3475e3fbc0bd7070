//! The weir program: daemon, command line and tools in one.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod cli;
mod machine;
mod plane;
mod run;
mod seed;

fn main() -> std::process::ExitCode {
    weir_reactor::contain_panics(cli::log::panicked, || {
        cli::log::settle();
        std::process::abort()
    });
    let code = cli::main();
    cli::log::settle();
    code
}
