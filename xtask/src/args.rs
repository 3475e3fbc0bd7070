//! Options of the commands: `--name VALUE` or `--name=VALUE`, flags, and the rest in order.

use std::str::FromStr;

use anyhow::{Context, Result, bail};

/// The arguments of one command, from which options are taken out one by one.
pub(crate) struct Args(Vec<String>);

impl Args {
    pub(crate) fn new(args: &[String]) -> Args {
        Args(args.to_vec())
    }

    /// Takes out `--name` and tells whether it was there.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|arg| arg != name);
        self.0.len() < before
    }

    /// Takes out `--name VALUE` or `--name=VALUE`.
    pub(crate) fn option<T>(&mut self, name: &str) -> Result<Option<T>>
    where
        T: FromStr,
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let with_value = format!("{name}=");
        let Some(at) = self.0.iter().position(|arg| arg == name || arg.starts_with(&with_value))
        else {
            return Ok(None);
        };
        let arg = self.0.remove(at);
        let value = match arg.strip_prefix(&with_value) {
            Some(value) => value.to_string(),
            None if at < self.0.len() => self.0.remove(at),
            None => bail!("{name} needs a value"),
        };
        let parsed = value.parse().with_context(|| format!("{name} {value}: not a valid value"))?;
        if self.0.iter().any(|arg| arg == name || arg.starts_with(&with_value)) {
            bail!("{name} is given twice");
        }
        Ok(Some(parsed))
    }

    /// Takes out the first argument if it is not an option.
    pub(crate) fn positional(&mut self) -> Option<String> {
        match self.0.first() {
            Some(first) if !first.starts_with('-') => Some(self.0.remove(0)),
            _ => None,
        }
    }

    /// What was not taken.
    pub(crate) fn rest(self) -> Vec<String> {
        self.0
    }

    /// Fails when something was not taken.
    pub(crate) fn end(self) -> Result<()> {
        match self.0.first() {
            Some(arg) => bail!("unknown argument `{arg}`"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Args;

    fn args(text: &str) -> Args {
        Args::new(&text.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn takes_options_out_and_keeps_the_rest() {
        let mut a = args("suite --seeds 7 --list --start=3 --other x");
        assert!(a.flag("--list"));
        assert!(!a.flag("--list"));
        assert_eq!(a.option::<u64>("--seeds").unwrap(), Some(7));
        assert_eq!(a.option::<u64>("--start").unwrap(), Some(3));
        assert_eq!(a.option::<u64>("--jobs").unwrap(), None);
        assert_eq!(a.positional().as_deref(), Some("suite"));
        assert_eq!(a.positional(), None);
        assert_eq!(a.rest(), ["--other", "x"]);
    }

    #[test]
    fn refuses_what_it_cannot_read() {
        assert!(args("--seeds").option::<u64>("--seeds").is_err());
        assert!(args("--seeds many").option::<u64>("--seeds").is_err());
        assert!(args("--seeds 1 --seeds 2").option::<u64>("--seeds").is_err());
        assert!(args("left").end().is_err());
        assert!(args("").end().is_ok());
    }
}
