//! The binary interface as declared here against rdma-core's own headers.

use std::process::Command;

/// Prints every expression's value as this machine's compiler and headers have it.
fn program(expressions: &[(&str, usize)]) -> String {
    let mut c = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\
         #include <rdma/rdma_cma.h>\nint main(void) {\n",
    );
    for (e, _) in expressions {
        c.push_str(&format!("  printf(\"%zu\\n\", (size_t)({e}));\n"));
    }
    c.push_str("  return 0;\n}\n");
    c
}

#[test]
fn structures_and_numbers_are_those_of_the_headers() {
    let present = |p: &str| std::path::Path::new(p).exists();
    if !present("/usr/include/infiniband/verbs.h") || !present("/usr/include/rdma/rdma_cma.h") {
        println!("skipped: needs the Debian packages libibverbs-dev, librdmacm-dev and gcc");
        return;
    }
    let all: Vec<_> = weir_fabric_verbs::interface().collect();
    assert!(all.len() > 100);
    let dir = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (dir.join("abi.c"), dir.join("abi"));
    std::fs::write(&source, program(&all)).unwrap();
    let cc = Command::new("cc").arg("-o").arg(&binary).arg(&source).output().unwrap();
    assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
    let out = Command::new(&binary).output().unwrap();
    assert!(out.status.success());
    let values = String::from_utf8(out.stdout).unwrap();
    let values: Vec<usize> = values.lines().map(|l| l.parse().unwrap()).collect();
    assert_eq!(values.len(), all.len());
    let wrong: Vec<_> = all
        .iter()
        .zip(&values)
        .filter(|((_, ours), theirs)| ours != *theirs)
        .map(|((e, ours), theirs)| format!("{e}: here {ours}, in the headers {theirs}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
