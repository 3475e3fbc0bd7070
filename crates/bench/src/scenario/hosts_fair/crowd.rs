//! Peers from one address that connect without end, and the logins of somebody else meanwhile.

use super::{LOGIN, Runner, Target};
use crate::bare::Clock;
use crate::srp::scan;
use std::io::{self, IoSliceMut};
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use weir_proto_iwarp::mpa;
use weir_proto_srp::login::{BufferFormats, LoginRequest, MultiChannelAction};
use weir_proto_srp::{Form, PortId, Tag};
use weir_uring::{SocketOptions, TcpStream};

/// Connections that stand open at once.
const SILENT: usize = 2000;
/// Logins from one address.
const LOGINS: u64 = 50_000;
const THREADS: usize = 2;
/// Between looks at a socket.
const STEP: Duration = Duration::from_micros(20);
/// Somebody else's logins beside connections that say nothing.
const OTHERS: u64 = 50;

/// What the crowd does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Connects and says nothing; whoever is sent away comes again.
    Silent,
    /// Logs in and goes.
    Logins,
}

impl Kind {
    pub(super) fn text(self) -> &'static str {
        match self {
            Kind::Silent => "connections that say nothing",
            Kind::Logins => "logins from one address",
        }
    }
}

/// What was seen beside the crowd.
pub(super) struct Seen {
    pub(super) kind: Kind,
    /// Connections of the crowd.
    pub(super) came: u64,
    /// Logins of somebody else, and the longest of them.
    pub(super) logins: u64,
    pub(super) worst: Duration,
}

impl Seen {
    pub(super) fn text(&self) -> String {
        format!("{} {}", self.came, self.kind.text())
    }
}

/// A login as bytes: MPA's request with SRP_LOGIN_REQ in it.
fn login() -> io::Result<Vec<u8>> {
    let other = |e: String| io::Error::other(e);
    let request = LoginRequest {
        tag: Tag(0),
        request_iu_len: 276,
        formats: BufferFormats::BOTH,
        action: MultiChannelAction::Terminate,
        logout_solicited: false,
        credit_solicited: false,
        event_solicited: false,
        immediate: false,
        immediate_offset: 0,
        initiator: PortId::new(0x0c0d, 9),
        target: PortId::default(),
    };
    let mut private_data = vec![0; 64];
    let n = request.encode(Form::RdmaCm, &mut private_data).map_err(|e| other(e.to_string()))?;
    private_data.truncate(n);
    let frame =
        mpa::Request { revision: 1, markers: false, crc: false, enhanced: None, private_data };
    frame.encode().map_err(|e| other(e.to_string()))
}

/// One part of the crowd, until `over`.
fn part(kind: Kind, port: u16, came: &AtomicU64, over: &AtomicBool) -> io::Result<()> {
    let connect = || -> io::Result<TcpStream> {
        came.fetch_add(1, Relaxed);
        let to = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        let s = TcpStream::connect(to, SocketOptions::default())?;
        loop {
            match s.connected() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(STEP),
                done => return done.map(|()| s),
            }
        }
    };
    match kind {
        Kind::Silent => {
            let mut all: Vec<TcpStream> = Vec::new();
            while !over.load(Relaxed) {
                match all.len() < SILENT / THREADS {
                    true => all.push(connect()?),
                    false => {
                        for s in &mut all {
                            let gone =
                                !matches!(s.try_recv(&mut [IoSliceMut::new(&mut [0])]), Ok(Err(_)));
                            if gone && !over.load(Relaxed) {
                                *s = connect()?;
                            }
                        }
                    }
                }
            }
        }
        Kind::Logins => {
            let hello = login()?;
            while came.load(Relaxed) < LOGINS {
                let s = connect()?;
                // Whatever it answers, and whether it does: it goes.
                if s.try_send(&hello).is_ok() {
                    while let Ok(Err(_)) = s.try_recv(&mut [IoSliceMut::new(&mut [0; 64])]) {
                        std::thread::sleep(STEP);
                    }
                }
            }
            over.store(true, Relaxed);
        }
    }
    Ok(())
}

/// Lets a crowd come, and logs in from another address all the while.
pub(super) fn watch(r: &Runner<'_>, t: &Target, kind: Kind) -> io::Result<Seen> {
    let (came, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (port, clock) = (t.port(), Clock::new()?);
    let (mut logins, mut worst) = (0, Duration::ZERO);
    let done = std::thread::scope(|s| {
        let parts: Vec<_> =
            (0..THREADS).map(|_| s.spawn(|| part(kind, port, &came, &over))).collect();
        if kind == Kind::Silent {
            while came.load(Relaxed) < SILENT as u64 && !parts.iter().any(|p| p.is_finished()) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        while !over.load(Relaxed) && !parts.iter().any(|p| p.is_finished()) {
            let begun = clock.now();
            let found = scan(&t.login);
            let took = Duration::from_nanos(clock.now() - begun);
            if let Err(e) = found {
                r.say(&format!("  a login from another address failed: {e}"));
                worst = Duration::MAX;
                break;
            }
            logins += 1;
            if took > LOGIN {
                r.say(&format!("  a login from another address took {took:?}"));
            }
            worst = worst.max(took);
            if kind == Kind::Silent && logins == OTHERS {
                break;
            }
        }
        if kind == Kind::Silent {
            over.store(true, Relaxed);
        }
        parts.into_iter().try_for_each(|p| match p.join() {
            Ok(done) => done,
            Err(_) => Err(io::Error::other("a thread of the crowd ended")),
        })
    });
    done?;
    Ok(Seen { kind, came: came.into_inner(), logins, worst })
}
