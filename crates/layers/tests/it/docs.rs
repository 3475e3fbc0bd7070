//! docs/layers.md says what is so.

use std::path::Path;

fn text(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn the_table_of_layers_is_the_registry_s() {
    let doc = text("docs/layers.md");
    let (_, rest) = doc.split_once("<!-- layers: begin -->\n").expect("a mark before the table");
    let (table, _) = rest.split_once("<!-- layers: end -->").expect("a mark after the table");
    let is = weir_layers::registry().reference();
    assert!(table == is, "the table in docs/layers.md should be:\n{is}");
}

/// Every block of code that names a file consists of lines of that file, in their order.
#[test]
fn the_example_is_in_the_tree() {
    let doc = text("docs/layers.md");
    let mut seen = 0;
    for block in doc.split("```rust\n").skip(1) {
        let code = block.split("```").next().unwrap_or_default();
        let Some(path) = code.lines().next().and_then(|l| l.strip_prefix("// crates/")) else {
            continue;
        };
        let source = text(&format!("crates/{path}"));
        let mut lines = source.lines();
        for line in code.lines().skip(1).filter(|l| !l.trim().is_empty() && l.trim() != "// ...") {
            assert!(lines.any(|l| l == line), "crates/{path} has no such line (here):\n{line}");
            seen += 1;
        }
    }
    assert!(seen > 80, "the example is complete: {seen} lines");
}
