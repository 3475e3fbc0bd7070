//! The exit codes, from the one table of the control plane.

use weir_control::error::{CODES, KINDS};

/// The table as text.
pub(crate) fn table() -> String {
    let mut text = String::from("Exit codes:\n  0  done\n");
    for (kind, title, http, exit) in KINDS {
        let codes: Vec<&str> = CODES.iter().filter(|c| c.2 == *kind).map(|c| c.1).collect();
        text.push_str(&format!("  {exit}  {title} (HTTP {http})\n"));
        let mut line = String::new();
        for code in codes {
            if line.len() + code.len() > 88 {
                text.push_str(&format!("     {}\n", line.trim_end()));
                line.clear();
            }
            line.push_str(code);
            line.push(' ');
        }
        text.push_str(&format!("     {}\n", line.trim_end()));
    }
    text
}

/// The table as JSON.
pub(crate) fn json() -> serde_json::Value {
    let kinds = KINDS.iter().map(|(kind, title, http, exit)| {
        let codes: Vec<&str> = CODES.iter().filter(|c| c.2 == *kind).map(|c| c.1).collect();
        serde_json::json!({ "exit_code": exit, "title": title, "http_status": http, "codes": codes })
    });
    serde_json::Value::Array(kinds.collect())
}
