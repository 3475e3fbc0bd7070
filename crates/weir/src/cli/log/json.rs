//! Log lines as JSON, for programs that collect them.

use serde_json::{Map, Value};
use std::fmt::Debug;
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::Event;
use tracing::field::{Field, Visit};
use weir_base::date::Date;

/// What a line says, by name; its sentence is `text`.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        let name = if field.name() == "message" { "text" } else { field.name() };
        self.0.insert(name.to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

fn time() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (d, micros) = (Date::of(now.as_secs()), now.subsec_micros());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{micros:06}Z",
        d.year, d.month, d.day, d.hour, d.minute, d.second
    )
}

fn text(level: &str, mut all: Map<String, Value>) -> String {
    all.insert("time".into(), time().into());
    all.insert("level".into(), level.into());
    format!("{}\n", Value::Object(all))
}

/// The line of an event. `left_out` lines like it came before and are in no log.
pub(super) fn line(event: &Event<'_>, left_out: u64) -> String {
    let mut all = Fields::default();
    event.record(&mut all);
    let mut all = all.0;
    if left_out > 0 {
        all.insert("left_out".into(), left_out.into());
    }
    text(&event.metadata().level().as_str().to_lowercase(), all)
}

/// The line of what is no event.
pub(super) fn said(level: &str, what: &str) -> String {
    text(level, Map::from_iter([("text".to_owned(), what.trim_end().into())]))
}
