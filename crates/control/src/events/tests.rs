use super::*;

#[test]
fn pages_follow_on_and_count_what_was_lost() {
    let log = EventLog::default();
    assert_eq!(log.after(0, 10), EventPage::default());
    for i in 0..5 {
        log.publish("test", "object", &i.to_string());
    }
    let page = log.after(0, 3);
    assert_eq!((page.events.len(), page.next, page.lost), (3, 3, 0));
    let page = log.after(page.next, 3);
    assert_eq!((page.events.len(), page.next, page.lost), (2, 5, 0));
    assert!(log.after(5, 3).events.is_empty());
    assert_eq!(log.after(5, 3).next, 5);
    // A reader that knows a number from a former run begins again.
    assert_eq!(log.after(1000, 10).events.len(), 5);
    for _ in 0..KEPT {
        log.publish("test", "object", "more");
    }
    let page = log.after(2, 1);
    assert_eq!((page.lost, page.events[0].seq), (3, 6));
}

#[tokio::test]
async fn a_waiter_is_woken_by_the_next_event() {
    let log = EventLog::default();
    let waiter = tokio::spawn({
        let log = log.clone();
        async move { log.wait_after(0, 10, Duration::from_secs(60)).await }
    });
    tokio::task::yield_now().await;
    log.progress("volume/a", "copying", 1, 2, "bytes");
    let page = waiter.await.unwrap();
    assert_eq!(page.events[0].progress.as_ref().map(|p| p.total), Some(2));
    assert!(log.wait_after(1, 10, Duration::from_millis(1)).await.events.is_empty());
}

/// A directory that is removed at the end.
struct Dir(std::path::PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("weir-events-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.join(FILE)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

const LONG: Duration = Duration::from_secs(120);

fn texts(log: &EventLog) -> Vec<(u64, String)> {
    log.after(0, KEPT).events.into_iter().map(|e| (e.seq, e.text)).collect()
}

#[tokio::test]
async fn what_is_on_disk_is_there_after_a_restart() {
    let dir = Dir::new("restart");
    let log = EventLog::open(&dir.0);
    log.publish("a.made", "a", "one");
    log.publish("a.made", "a", "two");
    assert!(log.written(LONG).await);
    let before = texts(&log);
    drop(log);
    // It was killed: the last line broke off, and one in between makes no sense.
    let text = std::fs::read_to_string(dir.file()).unwrap();
    std::fs::write(dir.file(), text.replacen('\n', "\nnonsense\n", 1) + "{\"seq\":3,\"ti").unwrap();
    let log = EventLog::open(&dir.0);
    assert_eq!(texts(&log), before);
    log.publish("a.made", "a", "three");
    let (seq, text) = texts(&log)[2].clone();
    assert!(seq > 3 && text == "three", "{seq} {text}");
    assert!(log.written(LONG).await);
    let text = std::fs::read_to_string(dir.file()).unwrap();
    assert_eq!((text.lines().count(), text.contains("nonsense")), (3, false));
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(dir.file()).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

/// The number of the last event that a reader was given before a kill, and of the first one after it.
async fn numbers_around_a_kill() -> (u64, u64) {
    let dir = Dir::new(&format!("kill-{:?}", std::thread::current().id()));
    let (mut writer, mut is_first) = (journal::Writer::default(), true);
    let log = EventLog::open_with(&dir.0, LONG, move |inner, to| {
        if !std::mem::take(&mut is_first) {
            return Err(std::io::Error::other("the disk is gone"));
        }
        writer.write(inner, to)
    });
    log.publish("a.made", "a", "on disk");
    assert!(log.written(LONG).await);
    log.publish("a.made", "a", "in memory");
    let given = log.after(0, 10).next;
    drop(log);
    let log = EventLog::open(&dir.0);
    log.publish("a.made", "a", "after that");
    (given, log.after(0, 10).next)
}

#[tokio::test]
async fn what_was_given_a_number_shares_it_with_nothing_after_a_kill() {
    let (given, next) = numbers_around_a_kill().await;
    assert!(given < next, "{given}, {next}");
}

#[tokio::test]
async fn numbers_of_a_run_without_a_disk_are_given_to_nothing_else() {
    let dir = Dir::new("stopped");
    let log = EventLog::open(&dir.0);
    log.publish(STOPPED, "node", "stopped");
    assert!(log.written(LONG).await);
    drop(log);
    let full = |_: &Inner, _: &Journal| Err(std::io::ErrorKind::StorageFull.into());
    let log = EventLog::open_with(&dir.0, journal::PATIENCE, full);
    for _ in 0..5 {
        log.publish("a.made", "a", "in memory");
    }
    let given = log.after(0, 10).next;
    drop(log);
    // No end and start are as short as five events.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let log = EventLog::open(&dir.0);
    log.publish("node.started", "node", "started");
    let next = log.after(0, 10).next;
    assert!(given < next, "{given}, {next}");
}

#[tokio::test]
async fn a_file_of_garbage_keeps_nothing_from_starting() {
    let dir = Dir::new("garbage");
    let line = |seq: u64| {
        format!("{{\"seq\":{seq},\"time_ms\":1,\"kind\":\"k\",\"object\":\"o\",\"text\":\"t\"}}\n")
    };
    // No number is left after that one.
    let mut bytes = line(u64::MAX).into_bytes();
    bytes.extend((0..1 << 16).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 13) as u8));
    bytes.extend(format!("\n{{}}\n[]\n{}{}", line(7), line(5)).into_bytes());
    // As long as no file of ours is; the newest are at its end.
    let mut all = vec![0; 65 << 20];
    all.push(b'\n');
    all.extend(bytes);
    std::fs::write(dir.file(), all).unwrap();
    let log = EventLog::open(&dir.0);
    assert_eq!(texts(&log), [(7, "t".to_string())]);
    log.publish("a.made", "a", "more");
    assert!(log.written(LONG).await);
    assert!(std::fs::metadata(dir.file()).unwrap().len() < 1 << 10);
}

#[tokio::test]
async fn the_file_is_bounded() {
    let dir = Dir::new("bounded");
    let log = EventLog::open(&dir.0);
    // Cut between two characters.
    let text = "€".repeat(10 * LONGEST);
    for _ in 0..8 {
        for _ in 0..1000 {
            log.publish("a.made", "a", &text);
        }
        assert!(log.written(LONG).await);
    }
    let most = 3 * KEPT * (LONGEST + 256);
    assert!(std::fs::metadata(dir.file()).unwrap().len() < most as u64);
    drop(log);
    let log = EventLog::open(&dir.0);
    assert_eq!((texts(&log).len(), texts(&log).last().unwrap().0), (KEPT, 8000));
    assert!(texts(&log).iter().all(|(_, t)| *t == "€".repeat(LONGEST / 3)));
}

#[tokio::test]
async fn what_cannot_be_written_is_told_until_it_can() {
    let dir = Dir::new("full");
    let new = dir.file().with_extension("log.new");
    // No file can be made there.
    std::fs::create_dir(&new).unwrap();
    let log = EventLog::open(&dir.0);
    log.publish("a.made", "a", "one");
    let begun = std::time::Instant::now();
    while log.trouble().is_none() {
        assert!(begun.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    std::fs::remove_dir(&new).unwrap();
    log.publish("a.made", "a", "two");
    assert!(log.written(LONG).await);
    while log.trouble().is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(log);
    assert_eq!(texts(&EventLog::open(&dir.0)).len(), 2);
}

#[tokio::test]
async fn nobody_waits_for_a_disk_that_hangs() {
    let dir = Dir::new("hung");
    let (go_on, held) = std::sync::mpsc::channel::<()>();
    let mut writer = journal::Writer::default();
    let log = EventLog::open_with(&dir.0, Duration::from_millis(10), move |inner, to| {
        // Until the other end is gone.
        let _ = held.recv();
        writer.write(inner, to)
    });
    for i in 0..3 * KEPT {
        log.publish("a.made", "a", &i.to_string());
    }
    let begun = std::time::Instant::now();
    while log.trouble().is_none() {
        assert!(begun.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!log.written(Duration::ZERO).await);
    drop(go_on);
    assert!(log.written(LONG).await);
    drop(log);
    assert_eq!(texts(&EventLog::open(&dir.0)).len(), KEPT);
}

#[tokio::test]
async fn what_is_there_and_no_file_of_events_is_kept() {
    let dir = Dir::new("other");
    std::fs::create_dir(dir.file()).unwrap();
    let log = EventLog::open(&dir.0);
    let told = &texts(&log)[0].1;
    assert!(told.contains("events.log.unread"), "{told}");
    assert!(log.written(LONG).await && dir.file().with_extension("log.unread").is_dir());
}

fn crowd() -> EventLog {
    let log = EventLog::default();
    log.publish("volume.created", "volume/a", "made");
    for _ in 0..2 * KEPT {
        log.happened("login", "host/h", "here again");
    }
    log
}

#[test]
fn a_crowd_of_logins_pushes_nothing_else_out() {
    let log = crowd();
    let page = log.after(0, KEPT);
    assert_eq!((page.events[0].seq, page.events.len(), page.lost), (1, KEPT, 0));
    for _ in 0..KEPT - LOGINS - 1 {
        log.publish("volume.created", "volume/a", "made");
    }
    assert_eq!(log.after(0, 1).events[0].seq, 1, "logins go first");
    let logins = log.after(0, KEPT).events.iter().filter(|e| is_login(e)).count();
    assert_eq!(logins, LOGINS, "some are kept");
    // Whoever goes on from one that is gone gets what came after it.
    assert_eq!(log.after(5, 1).events[0], log.after(0, 2).events[1]);
}

async fn who() -> Vec<String> {
    let log = EventLog::default();
    log.publish("a.made", "a", "text");
    let (asked, found) = (log.clone(), log.clone());
    on_behalf_of("uid:7".into(), async move {
        spawn(async move { asked.publish("a.made", "a", "text") }).await.unwrap();
        found.happened("login", "a", "text");
    })
    .await;
    log.after(0, 10).events.into_iter().map(|e| e.by).collect()
}

#[tokio::test]
async fn who_asked_for_it_is_told() {
    assert_eq!(who().await, [ITSELF, "uid:7", ITSELF]);
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use crate::planted::plant;

    #[test]
    fn what_is_pushed_out_is_seen() {
        plant(Some(Bug::LoginsPushOut));
        assert!(crowd().after(0, 1).events[0].seq > 1);
        plant(None);
    }

    #[tokio::test]
    async fn numbers_that_are_given_again_are_seen() {
        plant(Some(Bug::NumbersAgain));
        let (given, next) = numbers_around_a_kill().await;
        plant(None);
        assert!(given >= next, "{given}, {next}");
    }

    #[tokio::test]
    async fn who_is_forgotten_is_seen() {
        plant(Some(Bug::NobodyAsked));
        assert_eq!(who().await[1], ITSELF);
        plant(None);
    }
}
