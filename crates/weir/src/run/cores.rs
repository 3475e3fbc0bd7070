//! Processor cores that somebody names.

use weir_control::{Code, Error, Result};

/// Refuses cores that this process may not use, with the code of where they are named.
pub(crate) fn check(cores: &[u16], code: Code) -> Result<()> {
    check_of(cores, &weir_uring::cores(), code)
}

fn check_of(cores: &[u16], there: &[u16], code: Code) -> Result<()> {
    let Some(core) = cores.iter().find(|c| !there.contains(c)) else { return Ok(()) };
    // Where it cannot be known the first thread tells.
    if there.is_empty() {
        return Ok(());
    }
    Err(Error::new(code, format!("there is no core {core} for this process"))
        .because(format!("it may use {}", ranges(there)))
        .hint("name some of these in `cores` or with --cores, or leave that out"))
}

/// Numbers in rising order as people write them: `0-3,6`.
fn ranges(cores: &[u16]) -> String {
    let mut all: Vec<(u16, u16)> = Vec::new();
    for c in cores {
        match all.last_mut() {
            Some((_, last)) if c.checked_sub(1) == Some(*last) => *last = *c,
            _ => all.push((*c, *c)),
        }
    }
    let text = |(a, b): &(u16, u16)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    all.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_there_are_not_are_named_with_those_that_there_are() {
        let check = |cores: &[u16]| check_of(cores, &[0, 1, 2, 5], Code::InvalidConfig);
        assert!(check(&[]).is_ok() && check(&[2, 5]).is_ok());
        let e = check(&[1, 3]).expect_err("refused");
        assert_eq!((e.code, e.kind().exit_code()), (Code::InvalidConfig, 2));
        assert!(e.message.contains("core 3") && e.reason.contains("0-2,5"), "{e:?}");
    }
}
