//! Notes that came with answers.

use super::Client;
use hyper::HeaderMap;
use hyper::header::WARNING;
use std::sync::PoisonError;

/// The text of a `Warning` header.
fn text(value: &str) -> Option<String> {
    let quoted = value.splitn(3, ' ').nth(2)?.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::new();
    let mut rest = quoted.chars();
    while let Some(c) = rest.next() {
        text.push(if c == '\\' { rest.next()? } else { c });
    }
    Some(text)
}

impl Client {
    /// What there was to know about answers to this client and its clones that is not in the answers themselves.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn keep_notes(&self, headers: &HeaderMap) {
        let all = headers.get_all(WARNING).iter().filter_map(|v| text(v.to_str().ok()?));
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).extend(all);
    }
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn the_text_of_a_warning_is_what_was_put_into_it() {
        assert_eq!(text(r#"299 weir "a \"b\" \\c d""#).as_deref(), Some(r#"a "b" \c d"#));
        for other in ["", "299", "299 weir", "299 weir text", "299 weir \"text"] {
            assert_eq!(text(other), None, "{other}");
        }
    }
}
