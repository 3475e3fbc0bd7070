//! A picture of `weir top` as lines: all of it for files, and one that fits a terminal.

use super::super::progress;
use super::super::table::{Table, clip, counted};
use super::super::terminal::Key;
use super::rows::{self, Row, Rows, Sort, Style, View};
use super::{Round, rate};
use weir_control::live::IoStats;

/// Faults that are told; of more only the number.
const FAULTS: usize = 3;
/// What the keys do.
const KEYS: &str = "v p j h r b view  s sort  S reverse  arrows scroll  space hold  q quit";

/// A line of a picture.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) style: Style,
}

impl Line {
    fn new(text: String, style: Style) -> Line {
        Line { text, style }
    }
}

/// How a person wants to see it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wish {
    pub(super) view: View,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    /// The first row that is shown.
    pub(super) from: usize,
    /// The picture stands still.
    pub(super) held: bool,
}

impl Wish {
    pub(super) fn new(view: View, sort: Sort) -> Wish {
        Wish { view, sort, reversed: false, from: 0, held: false }
    }

    /// What a key does; false: it is over. `page`: rows that are seen at once.
    pub(super) fn key(&mut self, key: Key, page: usize) -> bool {
        match key {
            Key::Char('q' | 'Q') => return false,
            Key::Char('s') => (self.sort, self.from) = (self.sort.next(), 0),
            Key::Char('S') => self.reversed = !self.reversed,
            Key::Char(' ') => self.held = !self.held,
            Key::Char(c) => {
                let found = View::ALL.iter().find(|v| v.name().starts_with(c));
                if let Some(view) = found {
                    (self.view, self.from) = (*view, 0);
                }
            }
            Key::Up => self.from = self.from.saturating_sub(1),
            Key::Down => self.from += 1,
            Key::PageUp => self.from = self.from.saturating_sub(page),
            Key::PageDown => self.from += page,
            Key::Home => self.from = 0,
            Key::End => self.from = usize::MAX,
        }
        true
    }
}

/// The line above all.
fn summary(r: &Round) -> String {
    let live = &r.status.live;
    let sum = |f: fn(&IoStats) -> f64| -> f64 {
        live.volumes.iter().map(|v| f(&v.read) + f(&v.write)).sum()
    };
    let hosts: usize = live.ports.iter().map(|p| p.nexuses.len()).sum();
    let channels: u64 = live.ports.iter().map(|p| p.channels).sum();
    format!(
        "weir {}  {} IOPS  {}  {}, {}  {}  {}",
        r.status.version,
        rate(sum(|s| s.iops)),
        progress::rate(sum(|s| s.bytes_per_second) as u64),
        counted(hosts, "host"),
        counted(channels as usize, "channel"),
        counted(r.jobs.len(), "job"),
        counted(r.status.faults.len(), "fault")
    )
}

fn table(rows: &Rows, part: &[Row]) -> Table {
    let mut t = Table::new(rows.head);
    part.iter().for_each(|r| t.row(r.cells.clone()));
    t
}

/// All of it, or all of one view, for whoever reads it later.
pub(super) fn listing(r: &Round, view: Option<View>, sort: Sort) -> String {
    let mut text = format!("{}\n", summary(r));
    for f in &r.status.faults {
        text.push_str(&format!("FAULT {}: {}\n", f.object, f.text));
    }
    let all = view.map_or(View::ALL.to_vec(), |v| vec![v]);
    for view in all {
        let rows = rows::of(view, r, sort, false);
        text.push_str(&format!("\n{}", table(&rows, &rows.rows).text()));
    }
    text
}

/// What fits a terminal of so many columns and lines. Brings `wish.from` to what there is, and gives the rows of a page.
pub(super) fn screen(
    r: &Round,
    wish: &mut Wish,
    (columns, lines): (usize, usize),
) -> (Vec<Line>, usize) {
    let mut out = vec![Line::new(clip(&summary(r), columns), Style::Head)];
    let faults = &r.status.faults;
    for f in faults.iter().take(FAULTS) {
        let text = clip(&format!("FAULT {}: {}", f.object, f.text), columns);
        out.push(Line::new(text, Style::Bad));
    }
    if faults.len() > FAULTS {
        let text = format!("{} more; `weir status` shows them", faults.len() - FAULTS);
        out.push(Line::new(clip(&text, columns), Style::Bad));
    }
    out.push(Line::new(String::new(), Style::Plain));
    let rows = rows::of(wish.view, r, wish.sort, wish.reversed);
    // The head of the table and the last line have their places.
    let page = lines.saturating_sub(out.len() + 2);
    wish.from = wish.from.min(rows.rows.len().saturating_sub(page));
    let end = rows.rows.len().min(wish.from.saturating_add(page));
    let part = &rows.rows[wish.from..end];
    let styles = std::iter::once(Style::Head).chain(part.iter().map(|r| r.style));
    let fitted = table(&rows, part).fitted(columns);
    out.extend(fitted.into_iter().zip(styles).map(|(t, s)| Line::new(t, s)));
    out.truncate(lines.saturating_sub(1));
    let order = if wish.reversed { "reversed" } else { "first" };
    let held = if wish.held { "  HELD" } else { "" };
    let shown = match part.is_empty() {
        true => "none".into(),
        false => format!("{}-{end} of {}", wish.from + 1, rows.rows.len()),
    };
    let (view, sort) = (wish.view.name(), wish.sort.name());
    let foot = format!("{view} {shown}, {sort} {order}{held}  |  {KEYS}");
    out.resize(lines.saturating_sub(1), Line::new(String::new(), Style::Plain));
    if lines > 0 {
        out.push(Line::new(clip(&foot, columns), Style::Head));
    }
    (out, page)
}

/// A picture for a terminal that shows another one of the same size. The last line has no end: that would scroll.
pub(super) fn drawn(lines: &[Line], colour: bool) -> String {
    const HOME: &str = "\x1b[H";
    const CLEAR: &str = "\x1b[K";
    let line = |l: &Line| {
        let on = match l.style {
            _ if !colour => "",
            Style::Plain => "",
            Style::Head => "\x1b[1m",
            Style::Busy => "\x1b[33m",
            Style::Bad => "\x1b[31m",
        };
        let off = if on.is_empty() { "" } else { "\x1b[0m" };
        format!("{on}{}{off}{CLEAR}", l.text)
    };
    let all: Vec<String> = lines.iter().map(line).collect();
    format!("{HOME}{}", all.join("\n"))
}

#[cfg(test)]
mod tests;
