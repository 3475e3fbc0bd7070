//! The weir program: daemon, command line and tools in one.

mod cli;
mod plane;
mod run;
mod seed;

fn main() -> std::process::ExitCode {
    weir_reactor::contain_panics(std::process::abort);
    cli::main()
}
