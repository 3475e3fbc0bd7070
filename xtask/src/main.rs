//! The project's own tool.
fn main() {
    eprintln!("xtask: this build has no command yet");
    std::process::exit(2);
}
