use super::*;
use crate::junction::tests::run;
use crate::{Filter, Geometry, IoFuture, Op, Volume, Watch};
use std::cell::RefCell;
use std::rc::Rc;
use weir_base::{IoResult, SECONDS};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{sleep, spawn};

/// A leaf of a given length that fills reads with its `tag` and takes a microsecond.
struct Tag {
    len: u64,
    tag: u8,
}

impl Tag {
    fn io(&self) -> IoFuture<'_> {
        IoFuture::new(async {
            sleep(1000).await;
            Ok(())
        })
    }
}

impl Volume for Tag {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: self.len,
            block_size: 512,
            granularity: 4096,
            thin: false,
            volatile_cache: false,
            read_only: false,
        }
    }
    fn read(&self, _at: u64, buf: Slice) -> IoFuture<'_> {
        buf.fill(self.tag);
        self.io()
    }
    fn write(&self, _at: u64, _buf: Slice, _fua: bool) -> IoFuture<'_> {
        self.io()
    }
    fn flush(&self) -> IoFuture<'_> {
        self.io()
    }
    fn lost(&self) -> u64 {
        0
    }
    fn discard(&self, _at: u64, _len: u64) -> IoFuture<'_> {
        self.io()
    }
    fn write_zeroes(&self, _at: u64, _len: u64, _unmap: bool) -> IoFuture<'_> {
        self.io()
    }
}

thread_local! {
    /// Which nodes were built, in order.
    static BUILT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn built() -> Vec<String> {
    BUILT.take()
}

struct LeafKind;

impl LayerKind for LeafKind {
    fn name(&self) -> &'static str {
        "leaf"
    }
    fn about(&self) -> &'static str {
        "a leaf for tests"
    }
    fn params(&self) -> &'static [Param] {
        const P: &[Param] = &[
            Param::required(
                "len",
                ParamKind::Size { min: 512, max: 1 << 30, multiple: 512 },
                "size",
            ),
            Param::default("tag", ParamKind::Count { min: 0, max: 255 }, "7", "what reads give"),
            Param::optional("broken", ParamKind::Flag, "cannot be built"),
            Param::optional("pick", ParamKind::Choice(&["a", "b"]), "a word"),
            Param::optional("picks", ParamKind::Choices(&["a", "b"]), "words"),
            Param::optional("time", ParamKind::Duration, "a time"),
            Param::optional("chance", ParamKind::Chance, "a probability"),
        ];
        P
    }
    fn children(&self) -> Arity {
        0..=0
    }
    fn build(
        &self,
        _ctx: &BuildContext<'_>,
        node: &Node<'_>,
        _children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        BUILT.with_borrow_mut(|b| b.push(node.id().to_owned()));
        if node.flag("broken").unwrap_or(false) {
            return Err(GraphError::new(GraphErrorKind::Resource, "it is broken"));
        }
        Ok(Rc::new(Tag { len: node.size("len")?, tag: node.count("tag")? as u8 }))
    }
}

struct Pass(Rc<dyn Volume>);

impl Filter for Pass {
    fn lower(&self) -> &dyn Volume {
        &*self.0
    }
}

struct PassKind;

impl LayerKind for PassKind {
    fn name(&self) -> &'static str {
        "pass"
    }
    fn about(&self) -> &'static str {
        "uses the first of what is below"
    }
    fn children(&self) -> Arity {
        1..=3
    }
    fn build(
        &self,
        _ctx: &BuildContext<'_>,
        node: &Node<'_>,
        mut children: Vec<Rc<dyn Volume>>,
    ) -> Result<Rc<dyn Volume>, GraphError> {
        BUILT.with_borrow_mut(|b| b.push(node.id().to_owned()));
        Ok(Rc::new(Pass(children.swap_remove(0))))
    }
}

fn with_context<R>(metering: Metering, f: impl FnOnce(&BuildContext<'_>) -> R) -> R {
    let registry = Registry::new().with(&LeafKind).with(&PassKind);
    let shared = Shared::new();
    let pool = BufPool::new(&PoolConfig { classes: vec![(4096, 4)] }).unwrap();
    f(&BuildContext {
        registry: &registry,
        shared: &shared,
        open_disk: &|_| Err(std::io::ErrorKind::NotFound.into()),
        pool: &pool,
        metering,
    })
}

fn leaf(id: &str, tag: u64) -> NodeSpec {
    NodeSpec::new(id, "leaf").param("len", "1MiB").param("tag", tag)
}

fn pass(id: &str, over: &str) -> NodeSpec {
    NodeSpec::new(id, "pass").over(over)
}

fn spec() -> GraphSpec {
    GraphSpec::new("vol", "p").with(pass("p", "d")).with(leaf("d", 1))
}

#[test]
fn json_there_and_back_and_what_is_refused() {
    let s = spec().with(
        NodeSpec::new("x", "pass").param("a", true).param("b", 0.5).param("c", 7u64).over("d"),
    );
    let text = s.to_json();
    assert_eq!(GraphSpec::from_json(&text).unwrap(), s);
    let kind = |text: &str| GraphSpec::from_json(text).unwrap_err().kind();
    assert_eq!(kind("{"), GraphErrorKind::Syntax);
    assert_eq!(kind("{}"), GraphErrorKind::Syntax);
    assert_eq!(kind(&text.replace("\"version\": 1", "\"version\": 2")), GraphErrorKind::Version);
    assert_eq!(kind(&text.replace("\"top\"", "\"tip\"")), GraphErrorKind::Syntax);
    // A newer version may have other fields: the version is looked at first.
    assert_eq!(kind(r#"{"version": 3, "volumes": []}"#), GraphErrorKind::Version);
}

/// Every error names the node and says what would be right.
#[test]
fn validation_says_what_is_wrong() {
    let bad = |s: GraphSpec, kind: GraphErrorKind, node: Option<&str>, words: &str| {
        with_context(Metering::Off, |ctx| {
            let e = ctx.registry.validate(&s).expect_err(words);
            assert_eq!((e.kind(), e.node()), (kind, node), "{e}");
            assert!(e.to_string().contains(words), "`{e}` does not say `{words}`");
            assert!(Graph::build(s, ctx).is_err());
        });
        assert!(built().is_empty(), "nothing is built of a wrong graph");
    };
    use GraphErrorKind::*;
    let param = |n: &str, v: Value| spec().with_param("d", n, v);
    bad(GraphSpec { version: 9, ..spec() }, Version, None, "version 9");
    bad(GraphSpec { name: "a/b".into(), ..spec() }, Structure, None, "no name for a graph");
    bad(GraphSpec { top: "q".into(), ..spec() }, Structure, None, "the top `q` is no node");
    bad(spec().with(leaf("d", 2)), Structure, None, "two nodes are called `d`");
    bad(spec().with(leaf("e", 2)), Structure, Some("e"), "not below the top `p`");
    bad(spec().with(leaf("", 2)), Structure, None, "no name for a node");
    let dangling = GraphSpec::new("vol", "p").with(pass("p", "nowhere"));
    bad(dangling, Structure, Some("p"), "there is no node `nowhere`");
    let cycle =
        GraphSpec::new("vol", "a").with(pass("a", "b")).with(pass("b", "c")).with(pass("c", "b"));
    bad(cycle, Structure, None, "b over c over b");
    let own = GraphSpec::new("vol", "a").with(pass("a", "a"));
    bad(own, Structure, None, "a over a");
    let mut deep = GraphSpec::new("vol", "n0");
    for i in 0..MAX_DEPTH {
        deep = deep.with(pass(&format!("n{i}"), &format!("n{}", i + 1)));
    }
    let deep = deep.with(leaf(&format!("n{MAX_DEPTH}"), 1));
    bad(deep, Structure, None, "more than 64 layers");
    let unknown = GraphSpec::new("vol", "a").with(NodeSpec::new("a", "raid7"));
    bad(unknown, UnknownKind, Some("a"), "no layer `raid7`; there are junction, leaf, pass");
    let childless = GraphSpec::new("vol", "a").with(NodeSpec::new("a", "pass"));
    bad(childless, Children, Some("a"), "`pass` stands on 1 to 3, not on 0");
    let mut on_leaf = spec();
    on_leaf.node_mut("d").unwrap().children.push("e".into());
    bad(on_leaf.with(leaf("e", 1)), Children, Some("d"), "`leaf` is a leaf");
    bad(param("size", 1u64.into()), Param, Some("d"), "no parameter `size`; it has len, tag");
    let missing = GraphSpec::new("vol", "d").with(NodeSpec::new("d", "leaf"));
    bad(missing, Param, Some("d"), "parameter `len` is missing: size");
    bad(param("len", "many".into()), Param, Some("d"), "`many` is not a size");
    bad(param("len", "1GiB1".into()), Param, Some("d"), "not a size");
    bad(param("len", 100u64.into()), Param, Some("d"), "outside 512 to");
    bad(param("len", 513u64.into()), Param, Some("d"), "multiple of 512");
    bad(param("tag", 256u64.into()), Param, Some("d"), "whole number from 0 to 255");
    bad(param("tag", true.into()), Param, Some("d"), "whole number");
    bad(param("broken", "yes".into()), Param, Some("d"), "true or false");
    bad(param("pick", "c".into()), Param, Some("d"), "one of a, b");
    bad(param("picks", "a, c".into()), Param, Some("d"), "list of a, b");
    bad(param("time", "2h".into()), Param, Some("d"), "such as \"250us\"");
    bad(param("time", "7200s".into()), Param, Some("d"), "longer than an hour");
    bad(param("chance", 1.5.into()), Param, Some("d"), "from 0 to 1");
}

impl GraphSpec {
    fn with_param(mut self, id: &str, name: &str, value: Value) -> GraphSpec {
        self.node_mut(id).unwrap().params.insert(name.to_owned(), value);
        self
    }
}

#[test]
fn a_shared_child_is_built_once_and_children_come_first() {
    with_context(Metering::Off, |ctx| {
        let s = GraphSpec::new("vol", "t")
            .with(NodeSpec::new("t", "pass").over("a").over("b"))
            .with(pass("a", "d"))
            .with(pass("b", "d"))
            .with(leaf("d", 1));
        let g = Graph::build(s, ctx).unwrap();
        assert_eq!(built(), ["d", "a", "b", "t"]);
        assert_eq!(g.top().geometry().len, 1 << 20);
        let text = g.render(&Default::default());
        assert_eq!(text.matches("d [leaf]").count(), 1, "{text}");
        assert!(text.contains("(see above)"), "{text}");
    });
}

#[test]
fn a_layer_that_cannot_be_built_is_named() {
    with_context(Metering::Off, |ctx| {
        let s = spec().with_param("d", "broken", true.into());
        let e = Graph::build(s, ctx).err().unwrap();
        assert_eq!(e.to_string(), "node `d`: it is broken");
    });
    built();
}

async fn tag_of(v: &Rc<dyn Volume>) -> u8 {
    let buf = Slice::heap(512);
    v.read(0, buf.clone()).await.unwrap();
    buf.to_vec()[0]
}

const SECOND: u64 = SECONDS;

fn edit_test(metering: Metering, f: impl AsyncFnOnce(&BuildContext<'_>, Graph) + 'static) {
    run(async move {
        let registry = Registry::new().with(&LeafKind).with(&PassKind);
        let shared = Shared::new();
        let pool = BufPool::new(&PoolConfig { classes: vec![(4096, 4)] }).unwrap();
        let ctx = BuildContext {
            registry: &registry,
            shared: &shared,
            open_disk: &|_| Err(std::io::ErrorKind::NotFound.into()),
            pool: &pool,
            metering,
        };
        let g = Graph::build(spec(), &ctx).unwrap();
        built();
        f(&ctx, g).await;
    });
}

#[test]
fn insert_swap_and_remove_build_only_what_changes() {
    edit_test(Metering::Off, async |ctx, mut g| {
        let top = g.top();
        let mut s = g.spec().clone();
        s.insert(pass_node("mid"), Some("p"), "d").unwrap();
        g.apply(s.clone(), ctx, SECOND).await.unwrap();
        assert_eq!(built(), ["mid", "p"], "the leaf is used again");
        assert_eq!(tag_of(&top).await, 1);
        s.insert(pass_node("head"), None, "p").unwrap();
        g.apply(s.clone(), ctx, SECOND).await.unwrap();
        assert_eq!((built(), s.top.as_str()), (vec!["head".to_owned()], "head"));
        s.node_mut("d").unwrap().params.insert("tag".into(), 2u64.into());
        g.apply(s.clone(), ctx, SECOND).await.unwrap();
        assert_eq!(tag_of(&top).await, 2);
        assert_eq!(built(), ["d", "mid", "p", "head"]);
        s.remove("mid").unwrap();
        s.remove("head").unwrap();
        g.apply(s.clone(), ctx, SECOND).await.unwrap();
        assert_eq!(built(), ["p"]);
        assert_eq!((g.spec(), tag_of(&top).await), (&s, 2));
        // The same again: nothing to do, nothing held.
        let edit = g.prepare(s.clone(), ctx).unwrap();
        assert_eq!(edit.touches().count(), 0);
        assert!(s.remove("d").unwrap_err().to_string().contains("has 0 children"));
        assert!(s.insert(pass_node("y"), Some("d"), "p").is_err());
        assert!(s.insert(pass_node("y"), None, "d").is_err());
    });
}

fn pass_node(id: &str) -> NodeSpec {
    NodeSpec::new(id, "pass")
}

#[test]
fn below_a_junction_only_what_is_below_changes() {
    edit_test(Metering::Off, async |ctx, mut g| {
        let s = GraphSpec::new("vol", "p")
            .with(pass("p", "j"))
            .with(NodeSpec::new("j", JUNCTION).over("q"))
            .with(pass("q", "j2"))
            .with(NodeSpec::new("j2", JUNCTION).over("d"))
            .with(leaf("d", 1));
        g.apply(s.clone(), ctx, SECOND).await.unwrap();
        built();
        let top = g.top();
        let new = s.clone().with_param("d", "tag", 9u64.into());
        let edit = g.prepare(new.clone(), ctx).unwrap();
        assert_eq!(edit.touches().collect::<Vec<_>>(), ["j2"]);
        drop(edit);
        assert_eq!(tag_of(&top).await, 1);
        built();
        g.apply(new.clone(), ctx, SECOND).await.unwrap();
        assert_eq!((built(), tag_of(&top).await), (vec!["d".to_owned()], 9));
        // Two junctions above each other change together; the upper one is quiesced first.
        let mut both = new.with_param("d", "tag", 11u64.into());
        both.insert(pass_node("r"), Some("j"), "q").unwrap();
        let edit = g.prepare(both.clone(), ctx).unwrap();
        assert_eq!(edit.touches().collect::<Vec<_>>(), ["j", "j2"]);
        drop(edit);
        let load = load(&top, 50);
        g.apply(both, ctx, SECOND).await.unwrap();
        assert_eq!(tag_of(&top).await, 11);
        for l in load {
            assert_eq!(l.await, Some(Ok(())));
        }
    });
    built();
}

#[test]
fn a_junction_that_moves_is_another_one() {
    edit_test(Metering::Off, async |ctx, mut g| {
        let s = |left: &str, right: &str, under: &str| {
            GraphSpec::new("vol", "t")
                .with(NodeSpec::new("t", "pass").over(left).over(right))
                .with(NodeSpec::new("j", JUNCTION).over(under))
                .with(leaf("a", 1))
                .with(leaf("b", 2))
        };
        g.apply(s("j", "b", "a"), ctx, SECOND).await.unwrap();
        built();
        let old = g.node("j").unwrap();
        let edit = g.prepare(s("a", "j", "b"), ctx).unwrap();
        assert_eq!(edit.touches().collect::<Vec<_>>(), ["vol"], "not swapped, but made anew");
        drop(edit);
        g.apply(s("a", "j", "b"), ctx, SECOND).await.unwrap();
        assert_eq!((tag_of(&old).await, tag_of(&g.node("j").unwrap()).await), (1, 2));
    });
    built();
}

/// Tasks that do I/O on `v` for a while.
fn load(v: &Rc<dyn Volume>, n: usize) -> Vec<weir_reactor::JoinHandle<IoResult>> {
    (0..4)
        .map(|_| {
            let v = v.clone();
            spawn(async move {
                for _ in 0..n {
                    v.read(0, Slice::heap(512)).await?;
                }
                Ok(())
            })
        })
        .collect()
}

#[test]
fn what_does_not_fit_or_cannot_be_built_leaves_the_old_graph() {
    edit_test(Metering::Off, async |ctx, mut g| {
        let top = g.top();
        let load = load(&top, 500);
        let mut refuse = async |s: GraphSpec, words: &str| {
            let e = g.apply(s, ctx, SECOND).await.unwrap_err();
            assert!(e.to_string().contains(words), "{e}");
            assert_eq!(*g.spec(), spec());
        };
        refuse(spec().with_param("d", "len", "512KiB".into()), "would shrink").await;
        refuse(spec().with_param("d", "broken", true.into()), "node `d`: it is broken").await;
        refuse(GraphSpec { name: "other".into(), ..spec() }, "cannot become").await;
        refuse(spec().with(leaf("e", 1)), "not below the top").await;
        let edit = g.prepare(spec().with_param("d", "tag", 3u64.into()), ctx).unwrap();
        let e = g.commit(edit).unwrap_err();
        assert!(e.to_string().contains("not quiesced"), "{e}");
        assert_eq!(tag_of(&top).await, 1);
        // An I/O of a microsecond does not end in 10 ns.
        let e = g.apply(spec().with_param("d", "tag", 3u64.into()), ctx, 10).await.unwrap_err();
        assert_eq!(e.kind(), GraphErrorKind::Timeout);
        assert_eq!(tag_of(&top).await, 1);
        for l in load {
            assert_eq!(l.await, Some(Ok(())));
        }
    });
    built();
}

#[test]
fn every_layer_is_counted_and_shown_with_its_rates() {
    edit_test(Metering::All, async |ctx, mut g| {
        let mut watch = Watch::new();
        watch.sample(ctx.shared.meters(), weir_reactor::now());
        let top = g.top();
        for _ in 0..100 {
            tag_of(&top).await;
        }
        // Counters survive a change of the graph.
        let mut s = g.spec().clone();
        s.insert(pass_node("mid"), Some("p"), "d").unwrap();
        g.apply(s, ctx, SECOND).await.unwrap();
        for _ in 0..100 {
            tag_of(&top).await;
        }
        sleep(SECOND).await;
        let rates = watch.sample(ctx.shared.meters(), weir_reactor::now());
        let iops = |n: &str| (rates[n].of(Op::Read).iops * 1.0002).round();
        assert_eq!((iops("vol/p"), iops("vol/d"), iops("vol/mid")), (200.0, 200.0, 100.0));
        let text = g.render(&rates);
        let line = text.lines().find(|l| l.contains("d [leaf]")).unwrap();
        assert!(line.contains("len=1MiB tag=1  1 MiB in 512-byte blocks  read 200/s"), "{line}");
        assert!(line.contains("mean 1.0 µs p99 1.0 µs"), "{line}");
        assert!(line.contains("flush 1/s"), "the change flushed: {line}");
        let lines: Vec<_> =
            text.lines().map(|l| l.split(' ').take(3).collect::<Vec<_>>()).collect();
        assert_eq!(lines[0][..2], ["p", "[pass]"]);
        assert_eq!(lines[1], ["└─", "mid", "[pass]"]);
        assert_eq!(g.spec().render(&rates).lines().count(), 3);
        ctx.shared.forget("vol");
        assert!(ctx.shared.meters().snapshot().is_empty());
    });
    built();
}

#[test]
fn shared_state_is_one_per_key_until_forgotten() {
    let s = Shared::new();
    let a = s.get_or("vol/d/ram", || 1u32);
    let b = s.clone().get_or("vol/d/ram", || 2u32);
    assert!(std::sync::Arc::ptr_eq(&a, &b));
    assert_eq!(*s.get_or("volume/d/ram", || 3u32), 3);
    let failed: Result<std::sync::Arc<u32>, &str> = s.get_or_try("vol/e/ram", || Err("no"));
    assert_eq!(failed.unwrap_err(), "no");
    s.forget("vol");
    assert!(s.get::<u32>("vol/d/ram").is_none());
    assert!(s.get::<u64>("volume/d/ram").is_none(), "another type");
    assert_eq!(s.get::<u32>("volume/d/ram").as_deref(), Some(&3));
}
