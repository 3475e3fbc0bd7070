//! Descriptions of graphs with real layers: good ones, wrong ones, damaged ones.

use crate::common::{MemDisk, World, ram};
use weir_base::Prng;
use weir_block::{GraphErrorKind, GraphSpec, NodeSpec};

fn refused(spec: GraphSpec, kind: GraphErrorKind, words: &str) {
    let world = World::new().disk("d", MemDisk::new(8192, 4096));
    let e = world.build(spec).err().expect(words);
    assert_eq!(e.kind(), kind, "{e}");
    assert!(e.to_string().contains(words), "`{e}` does not say `{words}`");
}

fn over(node: NodeSpec, below: &[NodeSpec]) -> GraphSpec {
    let mut spec = GraphSpec::new("v", &node.id);
    let mut node = node;
    for b in below {
        node = node.over(&b.id);
        spec = spec.with(b.clone());
    }
    spec.with(node)
}

#[test]
fn what_layers_refuse() {
    use GraphErrorKind::{Children, Param};
    let one = |n: NodeSpec| GraphSpec::new("v", &n.id.clone()).with(n);
    refused(one(NodeSpec::new("r", "ram")), Param, "`len` is missing");
    refused(one(ram("r", 4096 + 512).param("block-size", "4096")), Param, "block size 4096");
    refused(one(ram("r", 8192).param("reserve", 4096u64)), Param, "`reserve` is less");
    refused(one(ram("r", 8192).param("block-size", 512u64)), Param, "not one of 512, 4096");
    let null = NodeSpec::new("n", "null").param("len", 4608u64).param("block-size", "4096");
    refused(one(null), Param, "block size 4096");
    let stripe = || NodeSpec::new("s", "stripe");
    refused(one(stripe()), Children, "stands on 1 to 256, not on 0");
    refused(over(stripe().param("unit", 12288u64), &[ram("r", 8192)]), Param, "power of two");
    refused(
        over(stripe(), &[ram("r", 1 << 20), ram("q", 4096)]),
        Children,
        "shorter than one unit",
    );
    let linear = |offset: u64, len: u64| {
        let disk = NodeSpec::new("d", "disk").param("path", "d");
        over(NodeSpec::new("l", "linear").param("offset", offset).param("len", len), &[disk])
    };
    refused(linear(8192, 512), Children, "beyond the 8192 bytes");
    refused(linear(4096, 8192), Children, "8192 bytes at 4096 are more than");
    refused(linear(512, 4096), Children, "multiples of the 4096-byte blocks");
}

#[test]
fn too_much_together_is_an_error() {
    let huge = |id: &str| NodeSpec::new(id, "null").param("len", 1u64 << 62);
    let four: Vec<_> = ["p", "q", "r", "s"].map(huge).into();
    for top in ["concat", "stripe"] {
        let node = NodeSpec::new("top", top);
        refused(over(node, &four), GraphErrorKind::Children, "too long together");
    }
}

/// Damaged descriptions are refused or make sense; nothing panics.
#[test]
fn damaged_descriptions() {
    let spec = GraphSpec::new("v", "top")
        .with(NodeSpec::new("top", "stripe").param("unit", "8KiB").over("a").over("l"))
        .with(NodeSpec::new("l", "linear").param("offset", 4096u64).over("f"))
        .with(
            NodeSpec::new("f", "fault").param("chance", 0.5).param("ops", "read, write").over("b"),
        )
        .with(ram("a", 65536).param("thin", true))
        .with(ram("b", 131_072).param("reserve", "1MiB"));
    let text = spec.to_json();
    let (mut built, mut parsed) = (0, 0);
    for seed in 0..20_000 {
        let mut p = Prng::new(seed);
        let mut bytes = text.clone().into_bytes();
        for _ in 0..p.between(1, 4) {
            let at = p.below(bytes.len() as u64) as usize;
            match p.below(4) {
                0 => bytes[at] = p.next_u64() as u8,
                1 => bytes[at] = b"0123456789abfrlptou\"{}[],.-"[p.below(27) as usize],
                2 => {
                    bytes.remove(at);
                }
                _ => {
                    let from = p.below(bytes.len() as u64) as usize;
                    let n = p.below(12).min((bytes.len() - from) as u64) as usize;
                    let piece = bytes[from..from + n].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
        let Ok(text) = String::from_utf8(bytes) else { continue };
        let Ok(spec) = GraphSpec::from_json(&text) else { continue };
        parsed += 1;
        built += usize::from(World::new().build(spec).is_ok());
    }
    assert!(parsed > 1000 && built > 300, "{parsed} {built}");
}
