//! The weir program.
fn main() {
    eprintln!("weir: this build has no command yet");
    std::process::exit(2);
}
