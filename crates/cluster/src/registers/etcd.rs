//! Registers in an etcd cluster that the site has already, by the JSON gateway of its v3 interface.
//!
//! A register is a key below a prefix of ours. Etcd counts the changes of a key from 1, as registers do, so a change is a
//! transaction that compares that count. It puts the value in, or tells what stands. Reads are etcd's linearizable ones.
//! No lease of etcd decides anything.
//!
//! Nobody else may write below the prefix. A key that was deleted begins again at 1, which no register may.
//!
//! There is neither TLS nor a login here yet: it is for etcd on this node, or on a network of its own.

use super::{Changed, Pool, ReadError, Registers, Standing, follows};
use crate::planted::{Bug, has};
use core::time::Duration;
use serde_json::{Value, json};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};
use weir_proto_cluster::{Register, Version};

/// Most bytes of an answer.
const MAX_ANSWER: u64 = 64 << 10;
/// How long nobody is asked after an answer that said nothing.
const PAUSE: Duration = Duration::from_millis(50);

/// A client of an etcd cluster.
#[derive(Debug, Clone)]
pub struct Etcd {
    endpoints: Vec<SocketAddr>,
    /// Where in `endpoints` a request begins: at the last that answered, or after one that did not.
    at: Arc<AtomicUsize>,
    prefix: String,
    limit: Duration,
}

/// What the members of the cluster said.
enum Said {
    /// This, and nothing went wrong.
    Answer(Value),
    /// Nothing was sent to any, or nobody answered what may be asked again.
    Nothing,
    /// One was asked, and may have done it.
    Lost,
}

impl Etcd {
    /// A client of these members. Keys begin with `prefix`. A read or change is tried for `limit`.
    pub fn new(endpoints: Vec<SocketAddr>, prefix: &str, limit: Duration) -> Etcd {
        Etcd { endpoints, at: Arc::default(), prefix: prefix.into(), limit }
    }

    fn key(&self, pool: Pool) -> String {
        base64(format!("{}/pool/{pool:032x}", self.prefix).as_bytes())
    }

    /// Asks the members in turn. What does no harm `again` goes on to the next when one does not answer.
    async fn ask(&self, path: &str, body: &Value, until: Instant, again: bool) -> Said {
        let n = self.endpoints.len();
        let first = self.at.load(Relaxed);
        // A silent one leaves time for the others, and for an election.
        let shares = u32::try_from(n).unwrap_or(u32::MAX).saturating_add(1);
        for i in (0..n).map(|i| first.wrapping_add(i) % n) {
            let to = self.endpoints[i];
            let share = until.min(Instant::now() + self.limit / shares);
            let share = if has(Bug::FirstIsAll) { until } else { share };
            let Ok(Ok(stream)) = timeout_at(share, TcpStream::connect(to)).await else { continue };
            let last = if again { share } else { until };
            let answer = timeout_at(last, exchange(stream, to, path, &body.to_string())).await;
            if let Ok(Ok(value)) = answer {
                self.at.store(i, Relaxed);
                return Said::Answer(value);
            }
            self.at.store(i + 1, Relaxed);
            if !again {
                return Said::Lost;
            }
        }
        Said::Nothing
    }
}

/// One request of HTTP 1.0: its answer comes in one piece, and ends with the connection.
async fn exchange(
    mut stream: TcpStream,
    host: SocketAddr,
    path: &str,
    body: &str,
) -> io::Result<Value> {
    let head = format!(
        "POST {path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let text = core::str::from_utf8(&answer).map_err(|_| wrong("no text"))?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| wrong("no HTTP"))?;
    // Any other status may mean that it happened all the same.
    if head.split(' ').nth(1) != Some("200") {
        return Err(wrong("a status that is none of success"));
    }
    serde_json::from_str(body).map_err(io::Error::other)
}

/// The register in an answer to a range of one key.
fn found(range: &Value) -> Result<Option<Standing>, ReadError> {
    let Some(kv) = range["kvs"].get(0) else { return Ok(None) };
    let value = kv["value"].as_str().and_then(unbase64).ok_or(ReadError::Garbled)?;
    let register = Register::decode(&value).map_err(|_| ReadError::Garbled)?;
    let count = kv["version"].as_str().and_then(|v| v.parse().ok());
    if count == Some(register.version.0) {
        Ok(Some((register.version, register)))
    } else {
        Err(ReadError::Garbled)
    }
}

impl Registers for Etcd {
    async fn read(&self, pool: Pool) -> Result<Option<Standing>, ReadError> {
        let until = Instant::now() + self.limit;
        let mut body = json!({"key": self.key(pool)});
        if has(Bug::StaleReadBelieved) {
            body["serializable"] = true.into();
        }
        loop {
            if let Said::Answer(range) = self.ask("/v3/kv/range", &body, until, true).await {
                return found(&range);
            }
            if Instant::now() + PAUSE >= until {
                return Err(ReadError::NoMajority);
            }
            sleep(PAUSE).await;
        }
    }

    async fn change(&self, pool: Pool, expected: Option<Version>, value: Register) -> Changed {
        if let Err(why) = follows(pool, expected, &value) {
            return Changed::Refused(why);
        }
        let until = Instant::now() + self.limit;
        let key = self.key(pool);
        let stands = expected.map_or(0, |v| v.0).to_string();
        let compare =
            json!({"key": key, "target": "VERSION", "result": "EQUAL", "version": stands});
        let compare = if has(Bug::ChangeWithoutVersion) { json!([]) } else { json!([compare]) };
        let body = json!({
            "compare": compare,
            "success": [{"requestPut": {"key": key, "value": base64(&value.encode())}}],
            "failure": [{"requestRange": {"key": key}}],
        });
        let doubt = || {
            if has(Bug::DoubtTakenForFailure) { Changed::Other(None) } else { Changed::InDoubt }
        };
        loop {
            match self.ask("/v3/kv/txn", &body, until, false).await {
                Said::Nothing => {}
                Said::Lost => return doubt(),
                Said::Answer(answer) if answer["succeeded"] == true => {
                    return Changed::Done(value.version);
                }
                Said::Answer(answer) => {
                    let responses = &answer["responses"][0];
                    let range = responses.get("response_range").or(responses.get("responseRange"));
                    return match range.map(found) {
                        // The same change, asked for before.
                        Some(Ok(Some((v, other)))) if other == value => Changed::Done(v),
                        Some(Ok(standing)) => Changed::Other(standing),
                        // An answer that nobody understands.
                        _ => doubt(),
                    };
                }
            }
            if Instant::now() + PAUSE >= until {
                return doubt();
            }
            sleep(PAUSE).await;
        }
    }

    /// Reads again and again: etcd's own watch is not used.
    async fn newer(&self, pool: Pool, than: Option<Version>) -> Option<Standing> {
        loop {
            if let Ok(Some((version, register))) = self.read(pool).await
                && than.is_none_or(|t| version > t)
            {
                return Some((version, register));
            }
            sleep(2 * PAUSE).await;
        }
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |n: usize| u32::from(chunk.get(n).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * n) & 63) as usize];
            text.push(if n <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// The same back; `None` if it is none.
fn unbase64(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut word, mut bits) = (0u32, 0);
    for digit in digits.bytes() {
        let value = DIGITS.iter().position(|d| *d == digit)?;
        word = word << 6 | u32::try_from(value).ok()?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
            word &= (1 << bits) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto_cluster::{Life, Node, Writer};

    #[test]
    fn vectors_of_rfc_4648() {
        let all = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (plain, text) in all {
            assert_eq!(base64(plain.as_bytes()), text);
            assert_eq!(unbase64(text).as_deref(), Some(plain.as_bytes()));
        }
        for wrong in ["Z", "Zg=", "Z===", "Zm9*"] {
            assert_eq!(unbase64(wrong), None, "{wrong}");
        }
    }

    /// Whether a key is read, and then changed, with two silent members before the one that answers.
    fn past_the_silent() -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut members = Vec::new();
            for _ in 0..3 {
                members.push(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
            }
            let endpoints = members.iter().map(|m| m.local_addr().unwrap()).collect();
            let answering = members.pop().unwrap();
            tokio::spawn(async move {
                loop {
                    let (mut stream, _) = answering.accept().await.unwrap();
                    let mut request = [0; 4096];
                    let n = stream.read(&mut request).await.unwrap();
                    let txn = request[..n].starts_with(b"POST /v3/kv/txn ");
                    let body = if txn { r#"{"succeeded":true}"# } else { "{}" };
                    let answer = format!("HTTP/1.0 200 OK\r\n\r\n{body}");
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
            let etcd = Etcd::new(endpoints, "/t", Duration::from_secs(2));
            let [a, b] = [1, 2].map(|n| Node::new(n).unwrap());
            let value = Register::made(7, [a, b], Writer { node: a, life: Life(1), n: 1 });
            etcd.read(7).await == Ok(None)
                && etcd.change(7, None, value).await == Changed::Done(Version(1))
        })
    }

    #[test]
    fn silent_members_leave_time_for_the_others() {
        assert!(past_the_silent());
        #[cfg(feature = "planted")]
        {
            crate::planted::plant(Some(Bug::FirstIsAll));
            let passed = past_the_silent();
            crate::planted::plant(None);
            assert!(!passed);
        }
    }

    #[test]
    fn a_key_that_is_no_register_is_none() {
        assert_eq!(found(&json!({"header": {}})), Ok(None));
        for kv in [json!({}), json!({"value": "Zg==", "version": "1"}), json!({"value": 3})] {
            assert_eq!(found(&json!({"kvs": [kv]})), Err(ReadError::Garbled));
        }
    }
}
