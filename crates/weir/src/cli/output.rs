//! What commands print: JSON, or tables for people.

pub(crate) use super::table::{Table, fields};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use weir_control::{Code, Error};

/// Prints text and a line end if it has none.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.is_empty() && !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// Prints a value as indented JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    text(&serde_json::to_string_pretty(value)?)
}

/// Prints a value as one line of JSON.
pub(crate) fn json_line<T: Serialize>(value: &T) -> anyhow::Result<()> {
    text(&serde_json::to_string(value)?)
}

/// JSON if it is wanted, else what `f` makes of it.
pub(crate) fn show<T: Serialize>(
    as_json: bool,
    value: &T,
    f: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    if as_json { json(value) } else { text(&f(value)) }
}

/// Says what there is to know besides, where errors are said.
pub(crate) fn note(as_json: bool, text: &str) {
    super::say(&match as_json {
        true => format!("{}\n", serde_json::json!({ "note": text })),
        false => format!("note: {text}\n"),
    });
}

/// Whether the error is that nobody reads our output any more.
pub(crate) fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether there is a person to ask.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks the person that there is. Anything but `y` is no.
pub(crate) fn ask(question: &str) -> anyhow::Result<bool> {
    super::say(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Asks before something that cannot be undone. Where nobody can be asked, only `yes` is consent.
pub(crate) fn confirm(yes: bool, question: &str) -> anyhow::Result<()> {
    let (why, hint) = match yes {
        true => return Ok(()),
        false if !can_ask() => {
            (format!("it was to be asked: {question} There is no terminal for that"), "give --yes")
        }
        false if ask(question)? => return Ok(()),
        false => ("it was not confirmed".to_string(), "answer `y`, or give --yes"),
    };
    Err(Error::new(Code::InvalidRequest, "nothing was done").because(why).hint(hint).into())
}
