//! Who may use the interface on TCP: a token for each role, and no web page by way of a browser.

use super::extract;
use crate::config::Tokens;
use crate::error::{Code, Error, Result};
use crate::events::on_behalf_of;
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method, header};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// What a token lets its bearer do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Everything.
    Admin,
    /// GET, which changes nothing and shows no secrets.
    Read,
}

impl Role {
    /// As events name it.
    fn by(self) -> &'static str {
        match self {
            Role::Admin => "token:admin",
            Role::Read => "token:read",
        }
    }
}

/// Has a router ask for a token of `tokens`, as the listener at `address` must.
pub(super) fn guarded(app: Router, tokens: Tokens, address: SocketAddr) -> Router {
    let tokens = Arc::new(tokens);
    app.layer(middleware::from_fn(move |request: Request, next: Next| {
        let tokens = tokens.clone();
        async move {
            match allowed(request.method(), request.headers(), &tokens, address) {
                Ok(role) => on_behalf_of(role.by().into(), next.run(request)).await,
                Err(e) => extract::Failure(e).into_response(),
            }
        }
    }))
}

fn refuse(message: impl Into<String>) -> Error {
    Error::new(Code::Unauthorized, message)
}

fn allowed(
    method: &Method,
    headers: &HeaderMap,
    tokens: &Tokens,
    address: SocketAddr,
) -> Result<Role> {
    from_here(headers, address)?;
    match role(one(headers, header::AUTHORIZATION)?, tokens) {
        Some(Role::Admin) => Ok(Role::Admin),
        Some(Role::Read) if matches!(*method, Method::GET | Method::HEAD) => Ok(Role::Read),
        Some(Role::Read) => Err(refuse("the token is for reading only")
            .hint("changes need the token of role admin (`api.token_file`)")),
        None => Err(refuse("the request has not the right token").hint(
            "send `Authorization: Bearer TOKEN`; the command line takes --token-file FILE or WEIR_TOKEN",
        )),
    }
}

/// The one value of a header; an empty one if it is missing. Two are refused: others might look at the other one.
fn one(headers: &HeaderMap, name: HeaderName) -> Result<&str> {
    let mut all = headers.get_all(&name).iter();
    let first = all.next().map(|v| v.to_str());
    match (first, all.next()) {
        (None, _) => Ok(""),
        (Some(Ok(v)), None) => Ok(v),
        _ => Err(refuse(format!("the request's header `{name}` cannot be used"))),
    }
}

/// The role that the header's token has.
fn role(authorization: &str, tokens: &Tokens) -> Option<Role> {
    let sent = authorization.strip_prefix("Bearer ").unwrap_or("");
    // Both are looked at, whichever it is.
    let (admin, read) = (same(sent, &tokens.admin), same(sent, &tokens.read));
    admin.then_some(Role::Admin).or(read.then_some(Role::Read))
}

/// Compares with a secret in a time that depends on what was sent only.
fn same(sent: &str, secret: &str) -> bool {
    let (sent, secret) = (sent.as_bytes(), secret.as_bytes());
    if secret.is_empty() {
        return false;
    }
    let differs = sent.iter().zip(secret.iter().cycle()).fold(0, |d, (a, b)| d | (a ^ b));
    std::hint::black_box(differs) == 0 && sent.len() == secret.len()
}

/// The host of an authority.
#[derive(Debug, PartialEq, Eq)]
enum Host<'a> {
    Address(IpAddr),
    Name(&'a str),
}

impl Host<'_> {
    fn is_loopback(&self) -> bool {
        match self {
            Host::Address(ip) => ip.is_loopback(),
            Host::Name(n) => n.eq_ignore_ascii_case("localhost"),
        }
    }
}

/// `HOST[:PORT]`, as a URI has it.
fn authority(text: &str) -> Option<(Host<'_>, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (ip, port) = rest.split_once(']')?;
            (Host::Address(ip.parse::<Ipv6Addr>().ok()?.into()), port)
        }
        None => {
            let at = text.find(':').unwrap_or(text.len());
            let (name, port) = text.split_at(at);
            let host = match name.parse::<Ipv4Addr>() {
                Ok(ip) => Host::Address(ip.into()),
                Err(_) => Host::Name(name),
            };
            (host, port)
        }
    };
    let port = match port.strip_prefix(':') {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => Some(digits.parse().ok()?),
        None if port.is_empty() => None,
        _ => return None,
    };
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let named = match host {
        Host::Name(n) => !n.is_empty() && n.bytes().all(good),
        Host::Address(_) => true,
    };
    named.then_some((host, port))
}

/// Browsers tell the name by which they found the interface, and the page that asks. A listener on a loopback address is
/// called by a loopback name, so that no page reaches it by a name of its own; and no other page is let in anywhere.
fn from_here(headers: &HeaderMap, address: SocketAddr) -> Result<()> {
    let text = one(headers, header::HOST)?;
    let Some(host) = authority(text) else {
        return Err(refuse("the request does not say for which host it is"));
    };
    if address.ip().is_loopback() && !host.0.is_loopback() {
        return Err(refuse(format!("`{text}` is not a loopback name"))
            .hint(format!("connect to {address}, on which the interface is")));
    }
    let origin = one(headers, header::ORIGIN)?;
    if !origin.is_empty() && origin.strip_prefix("http://").and_then(authority) != Some(host) {
        return Err(refuse(format!("the page of `{origin}` may not use this interface"))
            .hint("the interface is for programs, not for web pages"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Tokens {
        Tokens { admin: "correct-horse-battery".into(), read: "only-to-look-at-it".into() }
    }

    fn ask(method: Method, at: &str, headers: &[(HeaderName, &str)]) -> bool {
        let mut h = HeaderMap::new();
        for (name, value) in headers {
            h.append(name, value.parse().expect("a value"));
        }
        allowed(&method, &h, &tokens(), at.parse().expect("an address")).is_ok()
    }

    /// A request of an admin with this host.
    fn host(at: &str, host: &str) -> bool {
        let token = "Bearer correct-horse-battery";
        ask(Method::GET, at, &[(header::HOST, host), (header::AUTHORIZATION, token)])
    }

    #[test]
    fn a_name_that_looks_like_a_loopback_address_is_none() {
        let at = "127.0.0.1:7400";
        for good in ["127.0.0.1:7400", "127.1.2.3", "localhost:7400", "LOCALHOST", "[::1]:7400"] {
            assert!(host(at, good), "{good}");
        }
        for bad in [
            "127.evil.example:7400",
            "127.0.0.1.evil.example",
            "127.0.0.1:7400:80",
            "127.0.0.1@evil.example",
            "localhost.evil.example:7400",
            "evil.example",
            "[::1]evil.example",
            "[::1",
            "10.0.0.1:7400",
            "127.0.0.1:99999",
            "127.0.0.1:",
            "127.1:7400",
            "",
            "a/b",
        ] {
            assert!(!host(at, bad), "{bad}");
        }
        // An address of the network is called by whatever name it has there.
        assert!(host("0.0.0.0:7400", "node-1.example:7400") && !host("0.0.0.0:7400", "a/b"));
    }

    #[test]
    fn a_foreign_page_is_refused_and_headers_come_once() {
        let token = (header::AUTHORIZATION, "Bearer correct-horse-battery");
        let host = (header::HOST, "127.0.0.1:7400");
        let from = |origin| {
            let origin = (header::ORIGIN, origin);
            ask(Method::GET, "127.0.0.1:7400", &[host.clone(), token.clone(), origin])
        };
        assert!(from("http://127.0.0.1:7400"));
        for bad in [
            "http://127.0.0.1:7401",
            "https://127.0.0.1:7400",
            "http://localhost:7400",
            "http://evil.example",
            "http://127.0.0.1:7400.evil.example",
            "null",
        ] {
            assert!(!from(bad), "{bad}");
        }
        let twice = [host.clone(), (header::HOST, "evil.example"), token.clone()];
        assert!(!ask(Method::GET, "127.0.0.1:7400", &twice));
        assert!(!ask(Method::GET, "127.0.0.1:7400", &[host, token.clone(), token]));
    }

    #[test]
    fn the_role_read_may_only_look() {
        let with = |method, token: &str| {
            let token = format!("Bearer {token}");
            let headers = [(header::HOST, "localhost"), (header::AUTHORIZATION, token.as_str())];
            ask(method, "127.0.0.1:7400", &headers)
        };
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS] {
            assert!(with(method.clone(), "correct-horse-battery"), "{method}");
            assert!(!with(method.clone(), "only-to-look-at-it"), "{method}");
        }
        assert!(
            with(Method::GET, "only-to-look-at-it") && with(Method::HEAD, "only-to-look-at-it")
        );
        for bad in ["", "correct", "correct-horse-batterx", "correct-horse-batterycorrect"] {
            assert!(!with(Method::GET, bad), "{bad}");
        }
    }

    #[test]
    fn no_token_is_no_secret() {
        assert!(!same("", "") && !same("a", "") && !same("", "a"));
        assert!(same("ab", "ab") && !same("abab", "ab") && !same("ab", "abab"));
    }
}
