//! Bytes from one place to another, several commands at once, with progress.

use super::remote::Remote;
use crate::cli::args::FlowArgs;
use crate::cli::progress::{Progress, Step};
use serde::Serialize;
use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;
use weir_control::{Code, Error, Result};
use weir_mem::Slice;
use weir_reactor::spawn;

/// One end of a flow.
#[derive(Clone)]
pub(crate) enum End {
    /// A logical unit.
    Unit(Remote),
    /// A file or block device.
    File(Rc<File>),
    /// Standard input, or another stream to be read in order.
    Input(Rc<RefCell<Box<dyn Read>>>),
    /// Standard output, or another stream to be written in order.
    Output(Rc<RefCell<Box<dyn Write>>>),
    /// Nothing but zeros.
    Zeros,
}

/// What a flow did; printed by `--json`.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Moved {
    pub(crate) bytes: u64,
    /// Bytes read back from the destination and found right.
    pub(crate) verified_bytes: u64,
    /// Bytes of zeros that were unmapped, or left out of a file, instead of written.
    pub(crate) unmapped_bytes: u64,
    pub(crate) seconds: f64,
}

/// How a flow runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Bytes at most; a stream may end earlier.
    pub(crate) length: u64,
    /// No less either: somebody has said how many.
    pub(crate) exact: bool,
    pub(crate) bs: u64,
    pub(crate) depth: usize,
    pub(crate) verify: bool,
    pub(crate) sparse: bool,
    /// Nobody is told how far it is: a program asked.
    pub(crate) quiet: bool,
}

fn broken(what: &str, e: impl std::fmt::Display) -> Error {
    Error::new(Code::IoError, format!("{what} failed"))
        .because(e)
        .hint("see to what is at that end, and start again")
}

impl End {
    /// Fills `buf` from `at`, or from where a stream stands; gives the bytes that there were.
    async fn read(&self, at: u64, buf: &Slice) -> Result<usize> {
        match self {
            End::Unit(u) => u.read(at, buf.clone()).await.map(|()| buf.len()),
            End::Zeros => {
                buf.fill(0);
                Ok(buf.len())
            }
            End::File(f) => {
                let mut v = vec![0; buf.len()];
                let mut n = 0;
                while n < v.len() {
                    match f
                        .read_at(&mut v[n..], at + n as u64)
                        .map_err(|e| broken("reading the file", e))?
                    {
                        0 => break,
                        k => n += k,
                    }
                }
                buf.write_at(0, &v);
                Ok(n)
            }
            End::Input(r) => {
                let mut v = vec![0; buf.len()];
                let mut n = 0;
                while n < v.len() {
                    match r
                        .borrow_mut()
                        .read(&mut v[n..])
                        .map_err(|e| broken("reading the input", e))?
                    {
                        0 => break,
                        k => n += k,
                    }
                }
                buf.write_at(0, &v);
                Ok(n)
            }
            End::Output(_) => Err(broken("reading", "an output cannot be read")),
        }
    }

    async fn write(&self, at: u64, buf: &Slice) -> Result<()> {
        match self {
            End::Unit(u) => u.write(at, buf.clone()).await,
            End::File(f) => {
                f.write_all_at(&buf.to_vec(), at).map_err(|e| broken("writing the file", e))
            }
            End::Output(w) => {
                w.borrow_mut().write_all(&buf.to_vec()).map_err(|e| broken("writing the output", e))
            }
            End::Input(_) | End::Zeros => Err(broken("writing", "an input cannot be written")),
        }
    }

    async fn flush(&self) -> Result<()> {
        match self {
            End::Unit(u) => u.flush().await,
            End::File(f) => f.sync_all().map_err(|e| broken("flushing the file", e)),
            End::Output(w) => w.borrow_mut().flush().map_err(|e| broken("flushing the output", e)),
            End::Input(_) | End::Zeros => Ok(()),
        }
    }

    /// It has a length that can be changed.
    fn is_regular(&self) -> bool {
        matches!(self, End::File(f) if f.metadata().is_ok_and(|m| m.is_file()))
    }

    /// Gives a file this length.
    fn cut(&self, len: u64) -> Result<()> {
        match self {
            End::File(f) => f.set_len(len).map_err(|e| broken("cutting the file", e)),
            _ => Ok(()),
        }
    }

    fn is_stream(&self) -> bool {
        matches!(self, End::Input(_) | End::Output(_))
    }
}

impl Plan {
    /// A plan for `length` bytes, checked against the block size of the unit at one end.
    pub(crate) fn new(flow: &FlowArgs, unit: &Remote, length: u64) -> Result<Plan> {
        let block = u64::from(unit.block_size);
        if flow.bs == 0 || !flow.bs.is_multiple_of(block) || flow.bs > 16 << 20 {
            return Err(Error::new(Code::InvalidRequest, "--bs does not fit the unit")
                .because(format!("its blocks have {block} bytes"))
                .hint("use a multiple of that, up to 16M"));
        }
        Ok(Plan {
            from: 0,
            to: 0,
            length,
            exact: false,
            bs: flow.bs,
            depth: flow.iodepth as usize,
            verify: false,
            sparse: false,
            quiet: true,
        })
    }
}

/// Checks a range of a unit.
pub(crate) fn check_range(unit: &Remote, offset: u64, length: u64) -> Result<()> {
    let block = u64::from(unit.block_size);
    if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
        return Err(Error::new(Code::InvalidRequest, "the range is not in whole blocks")
            .because(format!("blocks have {block} bytes"))
            .hint("use multiples of that"));
    }
    if offset.checked_add(length).is_none_or(|end| end > unit.len()) {
        return Err(Error::new(Code::InvalidRequest, "the range is beyond the end of the unit")
            .because(format!("it has {} bytes", unit.len()))
            .hint("use a smaller --offset or --length"));
    }
    Ok(())
}

/// Moves bytes. Blocks of a unit are filled up with zeros where a stream ends inside one.
pub(crate) async fn run(from: End, to: End, plan: Plan) -> Result<Moved> {
    let begun = Instant::now();
    let mut moved = Moved::default();
    let mut progress = Progress::new("so far", plan.quiet);
    let total = (plan.length != u64::MAX).then_some(plan.length);
    let buffers: Vec<Slice> = (0..plan.depth).map(|_| Slice::heap(plan.bs as usize)).collect();
    let check: Vec<Slice> = if plan.verify {
        (0..plan.depth).map(|_| Slice::heap(plan.bs as usize)).collect()
    } else {
        Vec::new()
    };
    let mut ended = false;
    // A file that is written from its beginning has nothing of what was there before, at its end neither.
    let anew = plan.to == 0 && to.is_regular();
    let mut cut = false;
    while moved.bytes < plan.length && !ended {
        // A round: as many pieces as go at once, first read, then written.
        let mut round = Vec::new();
        let mut at = moved.bytes;
        for b in &buffers {
            let n = plan.bs.min(plan.length - at);
            if n == 0 {
                break;
            }
            round.push((at, b.sub(0, n as usize)));
            at += n;
        }
        let mut got = Vec::new();
        if from.is_stream() {
            for (at, b) in &round {
                let n = from.read(plan.from + at, b).await?;
                got.push(n);
                if n < b.len() {
                    break;
                }
            }
        } else {
            let jobs: Vec<_> = round
                .iter()
                .map(|(at, b)| {
                    let (from, at, b) = (from.clone(), plan.from + at, b.clone());
                    spawn(async move { from.read(at, &b).await })
                })
                .collect();
            for j in jobs {
                got.push(j.await.unwrap_or(Ok(0))?);
            }
        }
        let mut writes = Vec::new();
        for (((at, b), n), full) in round.iter().zip(got).zip(&buffers) {
            if n == 0 {
                ended = true;
                break;
            }
            ended = n < b.len();
            let whole = match &to {
                End::Unit(u) => u.round_up(n as u64) as usize,
                _ => n,
            };
            full.sub(n, whole - n).fill(0);
            moved.bytes += n as u64;
            writes.push((plan.to + at, full.sub(0, whole)));
            if ended {
                break;
            }
        }
        if anew && !cut {
            // Not before there is something to take its place.
            to.cut(0)?;
            cut = true;
        }
        write_round(&to, &writes, &plan, anew, &mut moved).await?;
        if plan.verify {
            for ((at, b), c) in writes.iter().zip(&check) {
                let c = c.sub(0, b.len());
                to.read(*at, &c).await?;
                let differs = b.to_vec().iter().zip(&c.to_vec()).position(|(x, y)| x != y);
                if let Some(i) = differs {
                    return Err(Error::new(
                        Code::DataMismatch,
                        format!(
                            "byte {} of the destination is not what was written",
                            at + i as u64
                        ),
                    ));
                }
                moved.verified_bytes += b.len() as u64;
            }
        }
        let doing = if plan.verify { "copied and compared" } else { "copied" };
        progress.show(Step { doing: doing.into(), done: moved.bytes, total, ..Step::default() });
    }
    if plan.exact && moved.bytes < plan.length {
        return Err(Error::new(Code::IoError, "the input has ended early")
            .because(format!("{} bytes came, of {}", moved.bytes, plan.length))
            .hint("what came was written; see whether the input is whole"));
    }
    if anew {
        // Zeros at the end may have been left out.
        to.cut(moved.bytes)?;
    }
    to.flush().await?;
    drop(progress);
    moved.seconds = begun.elapsed().as_secs_f64();
    Ok(moved)
}

async fn write_round(
    to: &End,
    writes: &[(u64, Slice)],
    plan: &Plan,
    anew: bool,
    moved: &mut Moved,
) -> Result<()> {
    if to.is_stream() {
        for (at, b) in writes {
            to.write(*at, b).await?;
        }
        return Ok(());
    }
    let mut jobs = Vec::new();
    for (at, b) in writes {
        let (to, at, b) = (to.clone(), *at, b.clone());
        // What is not written to a new file reads as zeros.
        let leaves_out = match &to {
            End::Unit(_) => true,
            End::File(_) => anew,
            _ => false,
        };
        let zeros = plan.sparse && leaves_out && b.to_vec().iter().all(|x| *x == 0);
        if zeros {
            moved.unmapped_bytes += b.len() as u64;
        }
        jobs.push(spawn(async move {
            match &to {
                End::Unit(u) if zeros => u.unmap(at, b.len() as u64).await,
                End::File(_) if zeros => Ok(()),
                _ => to.write(at, &b).await,
            }
        }));
    }
    for j in jobs {
        j.await.unwrap_or(Ok(()))?;
    }
    Ok(())
}

/// It is a pipe, or a device such as `/dev/null` or a terminal: it has no places, and is read and written in order.
fn is_in_order(meta: &Metadata) -> bool {
    let kind = meta.file_type();
    kind.is_fifo() || kind.is_char_device()
}

/// Opens a file to read, `-` being standard input.
pub(crate) fn input(path: &Path) -> Result<End> {
    if path == Path::new("-") {
        return Ok(End::Input(Rc::new(RefCell::new(Box::new(std::io::stdin())))));
    }
    let opened = File::open(path).and_then(|f| {
        let meta = f.metadata()?;
        Ok(match is_in_order(&meta) {
            true => End::Input(Rc::new(RefCell::new(Box::new(f)))),
            false => End::File(Rc::new(f)),
        })
    });
    opened.map_err(|e| {
        Error::new(Code::IoError, format!("{} cannot be read", path.display()))
            .because(e)
            .hint("check the path")
    })
}

/// Opens a file to write, `-` being standard output.
pub(crate) fn output(path: &Path) -> Result<End> {
    if path == Path::new("-") {
        return Ok(End::Output(Rc::new(RefCell::new(Box::new(std::io::stdout())))));
    }
    let in_order = std::fs::metadata(path).is_ok_and(|m| is_in_order(&m));
    let mut options = File::options();
    // Who also reads a pipe would never hear that nobody else does.
    options.read(!in_order).write(true).create(!in_order).truncate(false);
    let opened = options.open(path).map(|f| match in_order {
        true => End::Output(Rc::new(RefCell::new(Box::new(f)))),
        false => End::File(Rc::new(f)),
    });
    opened.map_err(|e| {
        Error::new(Code::IoError, format!("{} cannot be written", path.display()))
            .because(e)
            .hint("check the path and its permissions")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_reactor::{PollMode, Reactor};
    use weir_uring::Ring;

    fn plan(length: u64) -> Plan {
        Plan {
            from: 0,
            to: 0,
            length,
            exact: true,
            bs: 4096,
            depth: 2,
            verify: true,
            sparse: false,
            quiet: true,
        }
    }

    fn flow(from: End, to: &Path, plan: Plan) -> Result<Moved> {
        let ring = Ring::new().expect("a ring");
        let reactor = Reactor::new(Rc::new(ring));
        let to = output(to).expect("opened");
        let moved = reactor.block_on(PollMode::Sleep, async move { run(from, to, plan).await });
        reactor.shutdown();
        moved
    }

    fn bytes(b: Vec<u8>) -> End {
        End::Input(Rc::new(RefCell::new(Box::new(std::io::Cursor::new(b)))))
    }

    #[test]
    fn a_file_holds_what_was_written_and_nothing_of_before() {
        use std::os::unix::fs::MetadataExt;
        let path = std::env::temp_dir().join(format!("weir-flow-{}", std::process::id()));
        std::fs::write(&path, vec![0x55; 1 << 20]).expect("written");
        let data: Vec<u8> = (0..10_000u32).map(|i| i as u8 | 1).collect();
        let moved = flow(bytes(data.clone()), &path, plan(10_000)).expect("written");
        assert_eq!((moved.bytes, std::fs::read(&path).expect("read") == data), (10_000, true));
        // From some place on the rest stays.
        let later = Plan { to: 4096, ..plan(4096) };
        flow(bytes(vec![7; 4096]), &path, later).expect("written");
        let found = std::fs::read(&path).expect("read");
        assert!(found.len() == 10_000 && found[..4096] == data[..4096] && found[4096] == 7);
        // Zeros are left out of a file, and are zeros, whatever was there.
        std::fs::write(&path, vec![0x55; 1 << 20]).expect("written");
        let zeros = Plan { sparse: true, ..plan(1 << 19) };
        let moved = flow(End::Zeros, &path, zeros).expect("written");
        assert_eq!(
            (moved.unmapped_bytes, std::fs::metadata(&path).expect("it").blocks()),
            (1 << 19, 0)
        );
        assert!(std::fs::read(&path).expect("read") == vec![0; 1 << 19]);
        drop(std::fs::remove_file(&path));
    }

    /// An input that breaks at once.
    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }

    #[test]
    fn a_file_is_what_it_was_when_nothing_could_be_read() {
        let path = std::env::temp_dir().join(format!("weir-broken-{}", std::process::id()));
        std::fs::write(&path, vec![0x55; 1000]).expect("written");
        let broken = End::Input(Rc::new(RefCell::new(Box::new(Broken))));
        assert!(flow(broken, &path, plan(4096)).is_err());
        assert!(std::fs::read(&path).expect("read") == vec![0x55; 1000]);
        // Nothing at all is something, too.
        let any = Plan { exact: false, ..plan(u64::MAX) };
        assert_eq!(flow(bytes(Vec::new()), &path, any).expect("to its end").bytes, 0);
        assert_eq!(std::fs::metadata(&path).expect("it").len(), 0);
        drop(std::fs::remove_file(&path));
    }

    #[test]
    fn an_input_that_is_shorter_than_was_said_is_an_error() {
        let path = std::env::temp_dir().join(format!("weir-short-{}", std::process::id()));
        let e = flow(bytes(vec![1; 1000]), &path, plan(4096)).expect_err("short");
        assert!(e.to_string().contains("ended early"), "{e}");
        let any = Plan { exact: false, ..plan(u64::MAX) };
        assert_eq!(flow(bytes(vec![1; 1000]), &path, any).expect("to its end").bytes, 1000);
        drop(std::fs::remove_file(&path));
    }
}
