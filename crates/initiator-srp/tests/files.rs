//! What a connection held is given up when it ends. A process of its own: it counts the process's open files.

#[path = "it/common.rs"]
#[allow(dead_code)]
mod common;
#[path = "it/target.rs"]
#[allow(dead_code)]
mod target;

use common::{L0, on_reactor, session_config};
use target::{config, medium, serve};
use weir_base::MILLIS;
use weir_initiator_srp::Session;
use weir_reactor::sleep;

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn connections_that_ended_hold_no_files() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let login = async || {
            let s = Session::connect(p.clone(), session_config(&t)).await.unwrap();
            s.queue().test_unit_ready(L0).await.unwrap();
            s.close().await;
        };
        login().await;
        sleep(200 * MILLIS).await;
        let before = open_files();
        for _ in 0..20 {
            login().await;
        }
        // Of both ends: they are in this process.
        for _ in 0..100 {
            if open_files() <= before {
                return;
            }
            sleep(20 * MILLIS).await;
        }
        panic!("{before} files were open before 20 logins and logouts, {} after", open_files());
    });
}
