//! Clients that read and change registers beside each other, and write down what they see.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant, SystemTime};
use weir_base::Prng;
use weir_cluster::registers::history::{Op, What};
use weir_cluster::registers::{Changed, Pool, Refused, Register, Standing, Version, text};
use weir_proto_cluster::{Epoch, Life, Node, Writer};

/// Longer than a voter tries.
const LIMIT: Duration = Duration::from_secs(5);

/// A number that was not given before, here or in another run.
pub(crate) fn chance() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Prng::new(nanos ^ (u64::from(std::process::id()) << 32)).next_u64().wrapping_add(count)
}

/// A connection to a voter's socket.
pub(crate) struct Line(BufReader<UnixStream>);

impl Line {
    pub(crate) fn to(socket: &Path) -> io::Result<Line> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Line(BufReader::new(stream)))
    }

    pub(crate) fn ask(&mut self, what: &str) -> io::Result<String> {
        self.0.get_mut().write_all(format!("{what}\n").as_bytes())?;
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_string())
    }
}

/// What an answer to a change says. What is none is a doubt.
fn changed(answer: io::Result<String>) -> Changed {
    let Ok(answer) = answer else { return Changed::InDoubt };
    match answer.split_once(' ').unwrap_or((&answer, "")) {
        ("done", version) => Changed::Done(Version(version.parse().expect("a version"))),
        ("other", register) => Changed::Other(Some(standing(register))),
        ("none", _) => Changed::Other(None),
        ("refused", _) => Changed::Refused(Refused::Version),
        ("doubt", _) => Changed::InDoubt,
        (other, why) => panic!("an answer to a change: {other} {why}"),
    }
}

fn standing(digits: &str) -> Standing {
    let register = text::read(digits).expect("a register");
    (register.version, register)
}

/// Clients under way.
pub(crate) struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Op>>>,
}

impl Clients {
    /// Starts `many` of them on these pools.
    pub(crate) fn start(
        many: u32,
        sockets: &[PathBuf],
        pools: &[Pool],
        zero: Instant,
        seed: u64,
    ) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..many).map(|n| {
            let mut client = Client {
                n,
                sockets: sockets.to_vec(),
                at: n as usize,
                line: None,
                pools: pools.iter().map(|p| (*p, None, None)).collect(),
                chance: Prng::new(seed ^ (u64::from(n) << 40)),
                life: Life(chance()),
                made: 0,
                zero,
                ops: Vec::new(),
            };
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    client.step();
                }
                client.ops
            })
        });
        Clients { stop: stop.clone(), threads: threads.collect() }
    }

    /// Ends them. What they saw.
    pub(crate) fn end(self) -> Vec<Op> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|t| t.join().expect("a client ends well")).collect()
    }
}

/// What a change expected and asked for.
type Asked = (Option<Version>, Register);

struct Client {
    n: u32,
    sockets: Vec<PathBuf>,
    /// The node it speaks with.
    at: usize,
    line: Option<Line>,
    /// With what it knows of each, and a change of its own that is in doubt.
    pools: Vec<(Pool, Option<Standing>, Option<Asked>)>,
    chance: Prng,
    life: Life,
    made: u32,
    zero: Instant,
    ops: Vec<Op>,
}

impl Client {
    fn step(&mut self) {
        if self.line.is_none() || self.chance.chance(1, 50) {
            self.at += 1;
            self.line = Line::to(&self.sockets[self.at % self.sockets.len()]).ok();
        }
        if self.line.is_none() {
            sleep(Duration::from_millis(5));
            return;
        }
        let which = self.chance.below(self.pools.len() as u64) as usize;
        match self.chance.below(8) {
            0 => self.newer(which),
            1..4 => self.read(which),
            _ => self.change(which),
        }
        sleep(Duration::from_micros(self.chance.below(8000)));
    }

    fn now(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }

    fn ask(&mut self, what: &str) -> io::Result<String> {
        let Some(line) = &mut self.line else { return Err(io::ErrorKind::NotConnected.into()) };
        let answer = line.ask(what);
        if answer.is_err() {
            self.line = None;
        }
        answer
    }

    fn saw(&mut self, which: usize, standing: Option<Standing>) {
        let known = &mut self.pools[which].1;
        if standing.map(|s| s.0) >= known.map(|s| s.0) {
            *known = standing;
        }
    }

    fn read(&mut self, which: usize) {
        let pool = self.pools[which].0;
        let begin = self.now();
        let answer = self.ask(&format!("read {pool:x}"));
        let end = self.now();
        let Ok(answer) = answer else { return };
        let found = match answer.split_once(' ') {
            Some(("register", digits)) => Some(standing(digits)),
            _ if answer == "none" => None,
            // It says nothing.
            _ => return,
        };
        self.saw(which, found);
        self.ops.push(Op { client: self.n, pool, begin, end, what: What::Read(found) });
    }

    /// Asks what the node knows by itself.
    fn newer(&mut self, which: usize) {
        let pool = self.pools[which].0;
        let begin = self.now();
        let answer = self.ask(&format!("newer {pool:x} -"));
        let end = self.now();
        let Ok(answer) = answer else { return };
        let Some(("register", digits)) = answer.split_once(' ') else { return };
        let told = standing(digits);
        self.saw(which, Some(told));
        self.ops.push(Op { client: self.n, pool, begin, end, what: What::Newer(told) });
    }

    fn change(&mut self, which: usize) {
        let (pool, known, doubt) = self.pools[which];
        // What is in doubt is asked for again, or left as it is.
        let again = doubt.filter(|_| self.chance.chance(1, 2));
        let (expected, value) = again.unwrap_or_else(|| self.new_value(pool, known));
        let old = expected.map_or("-".into(), |v| v.0.to_string());
        let begin = self.now();
        let answer = self.ask(&format!("change {old} {}", text::of(&value)));
        let end = self.now();
        let changed = changed(answer);
        match changed {
            Changed::Done(version) => self.saw(which, Some((version, value))),
            Changed::Other(standing) => self.saw(which, standing),
            _ => {}
        }
        self.pools[which].2 = (changed == Changed::InDoubt).then_some((expected, value));
        let what = What::Change(expected, value, changed);
        self.ops.push(Op { client: self.n, pool, begin, end, what });
    }

    /// A change of what is known, or now and then of what is not there.
    fn new_value(&mut self, pool: Pool, known: Option<Standing>) -> Asked {
        let [a, b] = [1, 2].map(|n| Node::new(n).expect("a node"));
        self.made += 1;
        let writer = Writer { node: a, life: self.life, n: self.made };
        let mut expected = known.map(|(version, _)| version);
        if self.chance.chance(1, 20) {
            let near = expected.map_or(0, |v| v.0) + self.chance.below(3);
            expected = near.checked_sub(1).filter(|v| *v > 0).map(Version);
        }
        let mut value = Register::made(pool, [a, b], writer);
        value.version = Version(expected.map_or(0, |v| v.0) + 1);
        value.epoch = Epoch(value.version.0 as u32);
        value.owner = if self.chance.chance(1, 2) { a } else { b };
        (expected, value)
    }
}
