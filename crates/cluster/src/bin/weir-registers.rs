//! One voter of the registers as a program, for the proof of the engine (`cargo xtask registers`). No daemon runs it.
//!
//! `weir-registers --file FILE --listen IP:PORT --socket PATH --secret FILE` makes FILE if it is asked to (`--create`),
//! answers other voters at IP:PORT, and clients at the socket. With `--etcd IP:PORT,... --socket PATH` it is no voter, but
//! a client of etcd. It ends when its standard input is closed.
//!
//! A client sends a line and gets a line:
//!
//! | request | answer |
//! |---|---|
//! | `identity` | `identity ID` |
//! | `form ID,NODE,IP:PORT ...` | `ok`, `failed WHY` |
//! | `replace ID\|- ID,NODE,IP:PORT\|-` | `ok`, `failed WHY` |
//! | `standing` | `standing LEADER\|- TERM APPLIED VOTER,...` |
//! | `read POOL` | `register REGISTER`, `none`, `failed WHY` |
//! | `newer POOL VERSION\|-` | `register REGISTER`, `none` if nothing newer came for a second |
//! | `change VERSION\|- REGISTER` | `done VERSION`, `other REGISTER`, `none`, `doubt`, `refused WHY` |
//!
//! Identities and pools are hexadecimal, registers are the digits of their own format.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use weir_cluster::registers::etcd::Etcd;
use weir_cluster::registers::raft::tcp::{Secret, Tcp, serve};
use weir_cluster::registers::raft::{File, Identity, Member, Times, Voter};
use weir_cluster::registers::{Changed, Register, Registers, Version, text};

/// How long a client waits for something newer.
const TOLD: Duration = Duration::from_secs(1);

type Failure = Box<dyn Error + Send + Sync>;

/// How the program is called.
struct Arguments {
    socket: PathBuf,
    engine: Chosen,
}

enum Chosen {
    Voter { file: PathBuf, create: bool, listen: String, secret: PathBuf },
    Etcd(Vec<SocketAddr>),
}

/// What keeps the registers.
#[derive(Clone)]
enum Engine {
    Voter(Voter<Tcp>),
    Etcd(Etcd),
}

impl Arguments {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Arguments, Failure> {
        let (mut file, mut listen, mut socket, mut secret) = (None, None, None, None);
        let mut etcd = None;
        let mut create = false;
        while let Some(word) = words.next() {
            let place = match word.as_str() {
                "--create" => {
                    create = true;
                    continue;
                }
                "--file" => &mut file,
                "--listen" => &mut listen,
                "--socket" => &mut socket,
                "--secret" => &mut secret,
                "--etcd" => &mut etcd,
                other => return Err(format!("unknown argument `{other}`").into()),
            };
            *place = Some(words.next().ok_or_else(|| format!("{word} needs a value"))?);
        }
        let given = |value: Option<String>, name| value.ok_or(format!("{name} is missing"));
        let socket = given(socket, "--socket")?.into();
        let engine = match etcd {
            Some(list) => Chosen::Etcd(list.split(',').map(str::parse).collect::<Result<_, _>>()?),
            None => Chosen::Voter {
                file: given(file, "--file")?.into(),
                create,
                listen: given(listen, "--listen")?,
                secret: given(secret, "--secret")?.into(),
            },
        };
        Ok(Arguments { socket, engine })
    }
}

fn main() -> ExitCode {
    let run = || -> Result<(), Failure> {
        let arguments = Arguments::read(std::env::args().skip(1))?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build()?;
        let ended = runtime.block_on(run(arguments));
        // A thread that reads the input cannot be waited for.
        runtime.shutdown_background();
        ended
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("weir-registers: {e}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    // One that was killed has left its socket behind.
    match std::fs::remove_file(&arguments.socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
        _ => {}
    }
    let (file, create, listen, secret) = match arguments.engine {
        Chosen::Voter { file, create, listen, secret } => (file, create, listen, secret),
        Chosen::Etcd(endpoints) => {
            let etcd = Etcd::new(endpoints, "/weir/proof", Times::default().limit);
            let clients = UnixListener::bind(&arguments.socket)?;
            tokio::select! {
                ended = attend(clients, Engine::Etcd(etcd)) => ended?,
                () = input_closed() => {}
            }
            return Ok(());
        }
    };
    let secret = Secret::new(&std::fs::read(secret)?)?;
    let file = if create { File::create(&file)? } else { File::open(&file)? };
    let peers = Arc::new(Tcp::new(secret.clone()));
    let voters = TcpListener::bind(&listen).await?;
    let voter = Voter::start(file, peers, Times::default()).await?;
    let clients = UnixListener::bind(&arguments.socket)?;
    tokio::select! {
        ended = serve(voters, secret, voter.clone()) => ended?,
        ended = attend(clients, Engine::Voter(voter.clone())) => ended?,
        () = input_closed() => {}
    }
    voter.stop().await;
    Ok(())
}

async fn input_closed() {
    let mut byte = [0];
    while tokio::io::stdin().read(&mut byte).await.is_ok_and(|n| n > 0) {}
}

async fn attend(clients: UnixListener, engine: Engine) -> Result<(), Failure> {
    loop {
        let (client, _) = clients.accept().await?;
        let engine = engine.clone();
        tokio::spawn(async move {
            // A client that is gone wants no answer.
            let _ = one(client, &engine).await;
        });
    }
}

async fn one(client: UnixStream, engine: &Engine) -> Result<(), Failure> {
    let (from, mut to) = client.into_split();
    let mut lines = BufReader::new(from).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = answer(&line, engine).await.unwrap_or_else(|why| format!("failed {why}"));
        to.write_all(format!("{}\n", answer.replace('\n', " ")).as_bytes()).await?;
    }
    Ok(())
}

async fn answer(line: &str, engine: &Engine) -> Result<String, Failure> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match engine {
        Engine::Etcd(_) if words == ["identity"] => Ok("identity 0".into()),
        Engine::Etcd(_) if words == ["standing"] => Ok("standing - 0 0".into()),
        Engine::Etcd(etcd) => of_registers(&words, etcd).await,
        Engine::Voter(voter) => of_voter(&words, voter).await,
    }
}

async fn of_voter(words: &[&str], voter: &Voter<Tcp>) -> Result<String, Failure> {
    match *words {
        ["identity"] => Ok(format!("identity {:x}", voter.identity())),
        ["form", ref members @ ..] => {
            let members = members.iter().map(|m| member(m)).collect::<Result<_, _>>()?;
            voter.form(members).await?;
            Ok("ok".into())
        }
        ["replace", gone, new] => {
            let gone = given(gone).map(identity).transpose()?;
            let new = given(new).map(member).transpose()?;
            voter.replace(gone, new).await?;
            Ok("ok".into())
        }
        ["standing"] => {
            let s = voter.known();
            let leader = s.leader.map_or("-".into(), |l| format!("{l:x}"));
            let voters: Vec<String> = s.voters.iter().map(|v| format!("{v:x}")).collect();
            Ok(format!("standing {leader} {} {} {}", s.term, s.applied, voters.join(",")))
        }
        _ => of_registers(words, voter).await,
    }
}

async fn of_registers<R: Registers>(words: &[&str], registers: &R) -> Result<String, Failure> {
    match *words {
        ["read", pool] => {
            let standing = registers.read(u128::from_str_radix(pool, 16)?).await?;
            Ok(standing.map_or("none".into(), |(_, r)| format!("register {}", text::of(&r))))
        }
        ["newer", pool, than] => {
            let pool = u128::from_str_radix(pool, 16)?;
            let than = given(than).map(str::parse).transpose()?.map(Version);
            let newer = tokio::time::timeout(TOLD, registers.newer(pool, than)).await;
            Ok(newer
                .ok()
                .flatten()
                .map_or("none".into(), |(_, r)| format!("register {}", text::of(&r))))
        }
        ["change", expected, register] => {
            let expected = given(expected).map(str::parse).transpose()?.map(Version);
            let register: Register = text::read(register)?;
            Ok(match registers.change(register.pool, expected, register).await {
                Changed::Done(version) => format!("done {}", version.0),
                Changed::Other(Some((_, other))) => format!("other {}", text::of(&other)),
                Changed::Other(None) => "none".into(),
                Changed::InDoubt => "doubt".into(),
                Changed::Refused(why) => format!("refused {why}"),
            })
        }
        _ => Err("no request".into()),
    }
}

fn given(word: &str) -> Option<&str> {
    Some(word).filter(|w| *w != "-")
}

fn identity(word: &str) -> Result<Identity, Failure> {
    Ok(Identity::from_str_radix(word, 16)?)
}

/// `ID,NODE,IP:PORT`.
fn member(word: &str) -> Result<(Identity, Member), Failure> {
    let mut parts = word.splitn(3, ',');
    let (Some(id), Some(node), Some(address)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(format!("`{word}` is no member").into());
    };
    Ok((identity(id)?, Member { node: node.parse()?, address: address.into() }))
}
