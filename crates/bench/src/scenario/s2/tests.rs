use super::scene::Kind;
use super::*;
use crate::scenario::pooled::Folder;
use std::rc::Rc;
use weir_base::MILLIS;
use weir_reactor::{PollMode, Reactor};
use weir_uring::Ring;

#[test]
fn sizes_have_the_shares_that_iometer_gives_them() {
    for (sizes, small, most) in [(load::FILE_SERVER, 4096, 60), (load::WEB_SERVER, 512, 22)] {
        assert_eq!(sizes.iter().map(|s| s.1).sum::<u32>(), 100);
        let found = load::shares(&Stream::at_random(50, sizes, 1), 100_000);
        assert_eq!(found.len(), sizes.len());
        assert!(found[&small].abs_diff(most * 1000) < 1000, "{found:?}");
    }
}

#[test]
fn costs_are_medians_over_points() {
    let f = |rate: f64| vec![Figures { reads: rate, writes: 0.0, bytes: rate * 1e6 }];
    let point = |a, b, c| Point::new(1, [vec![f(a)], vec![f(b)], vec![f(c)]]);
    let points = [point(100.0, 90.0, 81.0), point(100.0, 50.0, 50.0), point(100.0, 95.0, 95.0)];
    for unit in [Unit::Rate, Unit::Megabytes] {
        let (sums, versions) = costs(&points, unit);
        assert!((sums - 10.0).abs() < 1e-9 && versions.abs() < 1e-9, "{sums} {versions}");
    }
    let m = medians(&[f(1.0), f(5.0), f(3.0)]);
    assert_eq!(m, f(3.0));
}

#[test]
fn every_stream_runs_on_every_kind_of_pool() {
    let folder = Folder::new(&std::env::temp_dir(), "s2-test").unwrap();
    let dir = folder.0.clone();
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring.clone()));
    reactor.block_on(PollMode::default(), async move {
        for kind in KINDS {
            let s = Scene::new(&ring, &dir, kind).await.unwrap();
            let load = Load {
                streams: vec![
                    Stream::at_random(50, load::FILE_SERVER, 4),
                    Stream::in_a_row(0, 4096, 1).of_log(),
                ],
            };
            let found = s.measure(&load, 300 * MILLIS).await.unwrap();
            assert!(found[0].reads > 0.0 && found[0].writes > 0.0 && found[0].bytes > 0.0);
            assert!(found[1].reads == 0.0 && found[1].writes > 0.0);
            assert_eq!(s.versions() > 0, kind == Kind::Versions);
            s.close().await.unwrap();
        }
    });
    reactor.shutdown();
}
