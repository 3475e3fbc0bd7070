//! Tables for people: aligned by the width that text has on a terminal, and fitted to one.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What stands for what was left out of a name.
const GAP: &str = "…";
/// Columns between two cells.
const BETWEEN: usize = 2;
/// A first column is not made narrower than this to save another one.
const LEAST: usize = 12;

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

/// The longest end of a text that takes no more than so many columns.
fn ending(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    for (at, c) in text.char_indices().rev() {
        taken += UnicodeWidthChar::width(c).unwrap_or(0);
        if taken > columns {
            return &text[at + c.len_utf8()..];
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

/// A name of at most so many columns. Its middle is left out: names mostly differ at the end.
fn clip_name(name: &str, columns: usize) -> String {
    if width(name) <= columns {
        return name.to_owned();
    }
    let keep = columns.saturating_sub(1);
    let tail = keep / 2;
    format!("{}{GAP}{}", beginning(name, keep - tail), ending(name, tail))
}

/// Names in at most so many columns, or in as many more as it takes that no two of them look the same.
pub(crate) fn clip_names(names: &[&str], columns: usize) -> Vec<String> {
    let most = names.iter().map(|n| width(n)).max().unwrap_or(0);
    for columns in columns..most {
        let clipped: Vec<String> = names.iter().map(|n| clip_name(n, columns)).collect();
        let mut known = std::collections::HashMap::new();
        let alone = names.iter().zip(&clipped).all(|(n, c)| *known.entry(c).or_insert(n) == n);
        if alone {
            return clipped;
        }
    }
    names.iter().map(|n| (*n).to_owned()).collect()
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

    /// Its lines, the head first, in at most so many columns. Names in the first column become shorter, but stay different
    /// from each other; then columns are left out from the right: half a number would be another number.
    pub(crate) fn fitted(&self, columns: usize) -> Vec<String> {
        let natural = self.widths(&self.rows);
        let all: usize = natural.iter().sum::<usize>() + BETWEEN * natural.len().saturating_sub(1);
        let mut rows = self.rows.clone();
        if all > columns && !natural.is_empty() {
            let wanted = natural[0].saturating_sub(all - columns).max(LEAST.min(natural[0]));
            let names: Vec<&str> =
                self.rows.iter().map(|r| r.first().map_or("", String::as_str)).collect();
            for (row, name) in rows.iter_mut().zip(clip_names(&names, wanted)) {
                if let Some(cell) = row.first_mut() {
                    *cell = name;
                }
            }
        }
        let mut widths = self.widths(&rows);
        let taken = |w: &[usize]| w.iter().sum::<usize>() + BETWEEN * w.len().saturating_sub(1);
        while widths.len() > 1 && taken(&widths) > columns {
            widths.pop();
        }
        let cut =
            |r: &Vec<String>| clip(&self.line(&r[..widths.len().min(r.len())], &widths), columns);
        rows.iter().map(cut).collect()
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

    #[test]
    fn names_are_cut_in_the_middle_and_stay_different() {
        assert_eq!(clip_name("database-production-0017", 12), "databa…-0017");
        assert_eq!(clip("database", 5), "data…");
        assert_eq!((clip("磁盘磁", 4), clip("x", 0)), ("磁…".into(), String::new()));
        let of = |names: &[&str], n| clip_names(names, n);
        // What makes the difference is in the middle.
        let names = ["volume-a-of-the-night", "volume-b-of-the-night", "short"];
        let clipped = of(&names, 9);
        assert!(clipped[0] != clipped[1] && clipped[0].contains("-a"), "{clipped:?}");
        assert_eq!(clipped[2], "short");
        // One name twice is one name.
        assert_eq!(of(&["a-long-name", "a-long-name"], 5), ["a-…me", "a-…me"]);
        // A name that looks like what was clipped.
        let clipped = of(&["abcdefgh", "abc…gh"], 6);
        assert_ne!(clipped[0], clipped[1]);
    }

    #[test]
    fn a_table_never_is_wider_than_it_may_be_nor_shows_half_a_number() {
        let mut t = Table::new(&["VOLUME", ">IOPS", ">LATENCY", ">ERRORS"]);
        for i in 0..20 {
            t.row(vec![
                format!("a-rather-long-volume-{i:04}"),
                "123456".into(),
                "9.99ms".into(),
                "0".into(),
            ]);
        }
        for columns in 0..90 {
            let lines = t.fitted(columns);
            assert_eq!(lines.len(), 21);
            assert!(lines.iter().all(|l| width(l) <= columns), "{columns}: {lines:?}");
            let has = |i: usize, word: &str| lines[i].contains(word);
            assert_eq!(has(0, "IOPS"), has(1, "123456"), "{columns}");
            assert_eq!(has(0, "LATENCY"), has(1, "9.99ms"), "{columns}");
            if columns >= 12 {
                let different: std::collections::BTreeSet<_> = lines[1..].iter().collect();
                assert_eq!(different.len(), 20, "{columns}: {lines:?}");
            }
        }
        assert!(t.fitted(50)[0].contains("ERRORS"), "{:?}", t.fitted(50));
        assert!(!t.fitted(30)[0].contains("ERRORS"));
    }
}
