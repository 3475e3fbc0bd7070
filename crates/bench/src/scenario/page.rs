//! Pages about scenarios: Markdown, SVG and JSON next to each other.

use super::reference::Frame;
use super::runner::Runner;
use super::{Scenario, ScenarioError, Setup};
use crate::plot::{Bars, Chart, bars, svg};
use crate::units;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Part of a page.
pub(super) enum Section {
    Text(String),
    Table(Table),
    /// A drawing: what distinguishes its file name, a caption, and what it shows.
    Figure(String, String, Vec<Chart>),
    /// The same with bars.
    Bars(String, String, Vec<Bars>),
}

/// A table; all columns but the first are right-aligned.
pub(super) struct Table {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut t = line(&self.head);
        let rule: Vec<String> = (0..self.head.len())
            .map(|i| if i == 0 { "---".into() } else { "---:".into() })
            .collect();
        t += &line(&rule);
        self.rows.iter().for_each(|r| t += &line(r));
        t
    }

    fn text(&self) -> String {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let width = |i: usize| all().filter_map(|r| r.get(i)).map(|c| c.chars().count()).max();
        let widths: Vec<usize> = (0..self.head.len()).map(|i| width(i).unwrap_or(0)).collect();
        let mut t = String::new();
        for row in all() {
            for (i, (cell, w)) in row.iter().zip(&widths).enumerate() {
                let _ = if i == 0 { write!(t, "{cell:<w$}") } else { write!(t, "  {cell:>w$}") };
            }
            t = t.trim_end().to_owned() + "\n";
        }
        t
    }
}

/// What a scenario found.
pub(super) struct Page {
    /// What the figure shows and what it is compared with.
    pub(super) intro: String,
    /// How it was measured.
    pub(super) method: String,
    pub(super) sections: Vec<Section>,
    pub(super) data: Value,
    /// What the machine could do before and after.
    pub(super) frame: Option<Frame>,
    pub(super) passed: u64,
    pub(super) failed: u64,
}

/// What is left to tell when a page is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The figures as text, and where the page is.
    pub text: String,
    /// Points that were measured, or goals that were met.
    pub passed: u64,
    /// Goals that were missed.
    pub failed: u64,
    /// The page.
    pub page: PathBuf,
}

fn put(path: &Path, text: &str) -> Result<(), ScenarioError> {
    std::fs::write(path, text).map_err(|e| ScenarioError::System(path.display().to_string(), e))
}

/// Writes a drawing next to the page and gives its name.
fn figure(
    scenario: &Scenario,
    out: &Path,
    suffix: &str,
    svg: &str,
) -> Result<String, ScenarioError> {
    let dash = if suffix.is_empty() { "" } else { "-" };
    let name = format!("{}{dash}{suffix}.svg", scenario.name);
    put(&out.join(&name), svg)?;
    Ok(name)
}

impl Page {
    /// Writes page, drawings and data to the directory of the set-up.
    pub(super) fn write(
        &self,
        scenario: &Scenario,
        setup: &Setup,
        runner: &Runner<'_>,
    ) -> Result<Outcome, ScenarioError> {
        let out = &setup.out;
        std::fs::create_dir_all(out)
            .map_err(|e| ScenarioError::System(out.display().to_string(), e))?;
        let mut md = format!("# {}\n\n{}\n\n", scenario.title, self.intro);
        let mut text = format!("{}\n\n", scenario.title);
        let mut figures = Vec::new();
        for s in &self.sections {
            match s {
                Section::Text(t) => {
                    let _ = write!(md, "{t}\n\n");
                    let _ = write!(text, "{t}\n\n");
                }
                Section::Table(t) => {
                    let _ = writeln!(md, "{}", t.markdown());
                    let _ = writeln!(text, "{}", t.text());
                }
                Section::Figure(suffix, caption, charts) => {
                    figures.push(figure(scenario, out, suffix, &svg(charts)?)?);
                    let _ = write!(md, "![{caption}]({})\n\n", figures[figures.len() - 1]);
                }
                Section::Bars(suffix, caption, all) => {
                    figures.push(figure(scenario, out, suffix, &bars(all)?)?);
                    let _ = write!(md, "![{caption}]({})\n\n", figures[figures.len() - 1]);
                }
            }
        }
        let _ = write!(
            md,
            "## How it was measured\n\n{}\n\n{}\
             Weir {}, {}, on {}. Each point is the median of {} runs of {}.\n\n\
             ```sh\n{}\n```\n\n\
             The numbers: [{name}.json]({name}.json).\n",
            self.method,
            self.frame.map_or_else(String::new, |f| f.text() + "\n\n"),
            setup.version,
            units::date(setup.unix_time),
            runner.machine.line(),
            setup.repeat,
            units::nanos(setup.runtime as f64),
            setup.command,
            name = scenario.name,
        );
        let data = json!({
            "scenario": scenario.name,
            "title": scenario.title,
            "time": units::date(setup.unix_time),
            "timestamp": setup.unix_time,
            "weir version": setup.version,
            "command": setup.command,
            "machine": runner.machine.json(),
            "bare": self.frame.map(|f| f.json()),
            "runtime_s": setup.runtime as f64 / 1e9,
            "repeat": setup.repeat,
            "passed": self.passed,
            "failed": self.failed,
            "data": self.data,
        });
        // A value that is plain data can always be written.
        let pretty = serde_json::to_string_pretty(&data).unwrap_or_else(|_| data.to_string());
        put(&out.join(format!("{}.json", scenario.name)), &(pretty + "\n"))?;
        let page = out.join(format!("{}.md", scenario.name));
        put(&page, &md)?;
        let _ = writeln!(text, "written: {}, {}", page.display(), figures.join(", "));
        Ok(Outcome { text, passed: self.passed, failed: self.failed, page })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let mut t = Table::new(&["size", "read"]);
        t.row(vec!["4k".into(), "12".into()]);
        assert_eq!(t.markdown(), "| size | read |\n| --- | ---: |\n| 4k | 12 |\n");
        assert_eq!(t.text(), "size  read\n4k      12\n");
    }
}
