//! The terminal that a person sits at: its size, its colours, its keys.

use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Read};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Columns and lines where the terminal does not tell.
const USUAL: (usize, usize) = (80, 24);

/// Columns and lines of the terminal of standard output.
pub(crate) fn size() -> (usize, usize) {
    sized(termios::tcgetwinsize(io::stdout()).ok().map(|s| (s.ws_col, s.ws_row)))
}

/// Columns of the terminal of standard error.
pub(crate) fn columns_of_errors() -> usize {
    sized(termios::tcgetwinsize(io::stderr()).ok().map(|s| (s.ws_col, s.ws_row))).0
}

fn sized(told: Option<(u16, u16)>) -> (usize, usize) {
    match told {
        Some((columns, lines)) if columns > 0 && lines > 0 => (columns.into(), lines.into()),
        _ => USUAL,
    }
}

/// Whether text on standard output may have colours.
pub(crate) fn has_colour() -> bool {
    let var = |name: &str| std::env::var_os(name);
    may_colour(io::stdout().is_terminal(), var("NO_COLOR").as_deref(), var("TERM").as_deref())
}

/// <https://no-color.org>: whatever `NO_COLOR` is, unless empty.
fn may_colour(terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|t| t != "dumb")
}

/// Keys that do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// The keys in what a terminal sends. What is not known is left out.
pub(crate) fn keys(mut bytes: &[u8]) -> Vec<Key> {
    const SEQUENCES: [(&[u8], Key); 10] = [
        (b"\x1b[A", Key::Up),
        (b"\x1bOA", Key::Up),
        (b"\x1b[B", Key::Down),
        (b"\x1bOB", Key::Down),
        (b"\x1b[5~", Key::PageUp),
        (b"\x1b[6~", Key::PageDown),
        (b"\x1b[H", Key::Home),
        (b"\x1b[1~", Key::Home),
        (b"\x1b[F", Key::End),
        (b"\x1b[4~", Key::End),
    ];
    let mut found = Vec::new();
    while let Some(&first) = bytes.first() {
        if let Some((s, key)) = SEQUENCES.iter().find(|(s, _)| bytes.starts_with(s)) {
            found.push(*key);
            bytes = &bytes[s.len()..];
        } else if first == 0x1b {
            // Another sequence: up to the letter that ends it.
            let begin = usize::from(bytes.get(1).is_some_and(|b| b"[O".contains(b))) + 1;
            let end = bytes.iter().skip(begin).position(|b| (0x40..0x7f).contains(b));
            bytes = match end {
                Some(n) if begin > 1 => &bytes[begin + n + 1..],
                _ => &bytes[begin.min(bytes.len())..],
            };
        } else {
            if first.is_ascii_graphic() || first == b' ' {
                found.push(Key::Char(first.into()));
            }
            bytes = &bytes[1..];
        }
    }
    found
}

/// A terminal whose keys are read as they are pressed, and not shown. Ctrl-C and the like go on being signals.
pub(crate) struct Keyboard {
    before: Option<Termios>,
    pressed: UnboundedReceiver<Key>,
}

impl Keyboard {
    /// That of standard input. Where that is no terminal there are no keys.
    pub(crate) fn open() -> Keyboard {
        let (tell, pressed) = unbounded_channel();
        let input = io::stdin();
        let before = input.is_terminal().then(|| termios::tcgetattr(&input).ok()).flatten();
        if let Some(before) = &before {
            let mut now = before.clone();
            now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = termios::tcsetattr(&input, OptionalActions::Now, &now);
            // It ends with the process.
            let read = move || {
                let mut bytes = [0; 64];
                while let Ok(n) = io::stdin().lock().read(&mut bytes) {
                    if n == 0 || keys(&bytes[..n]).into_iter().any(|k| tell.send(k).is_err()) {
                        return;
                    }
                }
            };
            drop(std::thread::Builder::new().name("weir-keys".into()).spawn(read));
        }
        Keyboard { before, pressed }
    }

    /// The next key that is pressed; never, where there are none.
    pub(crate) async fn next(&mut self) -> Key {
        match self.pressed.recv().await {
            Some(key) => key,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let may = |terminal, no: Option<&str>, term: Option<&str>| {
            may_colour(terminal, no.map(OsStr::new), term.map(OsStr::new))
        };
        assert!(may(true, None, Some("xterm")) && may(true, Some(""), None));
        assert!(!may(false, None, Some("xterm")), "a file");
        assert!(!may(true, Some("1"), Some("xterm")) && !may(true, Some("0"), None));
        assert!(!may(true, None, Some("dumb")));
    }

    #[test]
    fn a_terminal_that_tells_no_size_has_the_usual_one() {
        assert_eq!(
            (sized(Some((132, 50))), sized(Some((0, 0))), sized(None)),
            ((132, 50), USUAL, USUAL)
        );
    }

    #[test]
    fn keys_are_told_from_sequences() {
        use Key::{Char, Down, End, Home, PageDown, PageUp, Up};
        assert_eq!(keys(b"q\x1b[A\x1bOBs"), [Char('q'), Up, Down, Char('s')]);
        assert_eq!(keys(b"\x1b[5~\x1b[6~\x1b[H\x1b[4~"), [PageUp, PageDown, Home, End]);
        // Not known, cut off, or nothing at all.
        assert_eq!(keys(b"\x1b[1;5Cx\x1b[24~y"), [Char('x'), Char('y')]);
        assert_eq!(keys(b"\x1b"), []);
        assert_eq!(keys(b"\x1b["), []);
        assert_eq!(keys(b"\xff\x00\t z"), [Char(' '), Char('z')]);
    }
}
