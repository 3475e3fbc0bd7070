//! What may be destroyed on a device that is taken.

use serde::{Deserialize, Serialize, de};
use utoipa::ToSchema;

/// Kinds of content, in the words that a refusal uses for them (`ext4`, `weir`, `data` …), that may be lost when a device is
/// taken. Empty: the device must be blank. In configuration files also a single word; `true` stands for `weir`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Overwrite(pub Vec<String>);

impl Overwrite {
    /// True when nothing may be lost.
    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    /// The same, but for labels of pools.
    pub fn without_pools(&self) -> Overwrite {
        let others = self.0.iter().filter(|o| !o.eq_ignore_ascii_case("weir"));
        Overwrite(others.cloned().collect())
    }

    /// True when all of `kinds` are named.
    pub fn covers(&self, kinds: &[String]) -> bool {
        kinds.iter().all(|k| self.0.iter().any(|o| o.eq_ignore_ascii_case(k)))
    }
}

impl<'de> Deserialize<'de> for Overwrite {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            /// As it was before there were words.
            Flag(bool),
            One(String),
            Many(Vec<String>),
        }
        let words = match Written::deserialize(d)? {
            Written::Flag(false) => Vec::new(),
            Written::Flag(true) => vec!["weir".into()],
            Written::One(word) => vec![word],
            Written::Many(words) => words,
        };
        let fits = |w: &String| (1..=32).contains(&w.len());
        match words.len() <= 64 && words.iter().all(fits) {
            true => Ok(Overwrite(words)),
            false => {
                Err(de::Error::custom("`overwrite` has up to 64 words of up to 32 characters"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_may_go() {
        let read = |json: &str| serde_json::from_str::<Overwrite>(json).expect("it is read");
        let kinds = |w: &[&str]| w.iter().map(|w| w.to_string()).collect::<Vec<_>>();
        assert!(read("false").is_nothing() && read("[]").is_nothing());
        assert_eq!(read("true"), read("\"weir\""));
        assert_eq!(read("[\"ext4\", \"Weir\"]").without_pools(), read("\"ext4\""));
        let o = read("[\"ext4\", \"gpt\"]");
        assert!(o.covers(&[]) && o.covers(&kinds(&["EXT4"])) && o.covers(&kinds(&["gpt", "ext4"])));
        assert!(
            !o.covers(&kinds(&["ext4", "lvm2"])) && !Overwrite::default().covers(&kinds(&["data"]))
        );
        assert!(serde_json::from_str::<Overwrite>("[\"\"]").is_err());
    }
}
