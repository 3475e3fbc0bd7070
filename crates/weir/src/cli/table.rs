//! Tables for people: aligned by the width that text has on a terminal.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What stands for what was left out of a name.
const GAP: &str = "…";
/// Columns between two cells.
const BETWEEN: usize = 2;

/// Columns that a text takes on a terminal.
pub(crate) fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// The longest beginning of a text that takes no more than so many columns.
fn beginning(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    for (at, c) in text.char_indices() {
        taken += UnicodeWidthChar::width(c).unwrap_or(0);
        if taken > columns {
            return &text[..at];
        }
    }
    text
}

/// A text of at most so many columns; what is left out at its end is marked.
pub(crate) fn clip(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    match columns {
        0 => String::new(),
        n => format!("{}{GAP}", beginning(text, n - 1)),
    }
}

/// So many things, by a word that takes an s when they are several.
pub(crate) fn counted(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// A table with left-aligned columns; columns whose head begins with `>` are right-aligned.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Table {
        let right = head.iter().map(|h| h.starts_with('>')).collect();
        let head = head.iter().map(|h| h.trim_start_matches('>').to_string()).collect();
        Table { rows: vec![head], right }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// All of it, as wide as it is.
    pub(crate) fn text(&self) -> String {
        let widths = self.widths(&self.rows);
        self.rows.iter().map(|r| self.line(r, &widths) + "\n").collect()
    }

    fn widths(&self, rows: &[Vec<String>]) -> Vec<usize> {
        let of = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| width(t)).max();
        (0..self.right.len()).map(|c| of(c).unwrap_or(0)).collect()
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let room = widths.get(c).copied().unwrap_or(0).saturating_sub(width(cell));
            if c > 0 {
                line.push_str(&" ".repeat(BETWEEN));
            }
            match self.right.get(c) {
                Some(true) => line.extend([&" ".repeat(room), cell.as_str()]),
                _ => line.extend([cell.as_str(), &" ".repeat(room)]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Lines of `key: value` with aligned values.
pub(crate) fn fields(pairs: &[(&str, String)]) -> String {
    let wide = pairs.iter().map(|(k, _)| width(k)).max().unwrap_or(0) + 1;
    let line = |(k, v): &(&str, String)| {
        let room = " ".repeat(wide - width(k));
        format!("{k}:{room}{v}\n")
    };
    pairs.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_by_what_is_seen() {
        let mut t = Table::new(&["DEVICE", ">SIZE", "PATH"]);
        t.row(vec!["磁盘".into(), "1 GiB".into(), "/srv/é".into()]);
        t.row(vec!["e\u{301}a".into(), "512 KiB".into(), "/srv/a".into()]);
        let text = t.text();
        assert_eq!(
            text,
            "DEVICE     SIZE  PATH\n磁盘      1 GiB  /srv/é\ne\u{301}a      512 KiB  /srv/a\n"
        );
        let column = |l: &str| width(&l[..l.find("/srv").expect("a path")]);
        assert_eq!(text.lines().skip(1).map(column).collect::<Vec<_>>(), [17, 17]);
        assert_eq!(fields(&[("é", "1".into()), ("long", "2".into())]), "é:    1\nlong: 2\n");
    }

    #[test]
    fn one_is_not_several() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "pool")), ["0 pools", "1 pool", "2 pools"]);
    }
}
