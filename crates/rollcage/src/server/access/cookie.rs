//! The cookie that keeps a browser signed in. It holds the token, so the server has nothing to remember and a token
//! that is withdrawn ends its sign-ins.

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::forwarded::{is_https, own_authority};

const NAME: &str = "rollcage_token";
const MAX_AGE_S: u32 = 30 * 24 * 3600;

/// Where the page is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a tab of its own.
    Tab,
    /// In a frame of another site. The browser then has a cookie for each such site, and needs TLS.
    Frame,
}

/// The `Set-Cookie` that signs in.
pub(crate) fn signed_in(headers: &HeaderMap, token: &str, place: Place) -> Option<HeaderValue> {
    let value = BASE64_URL_SAFE_NO_PAD.encode(token);
    set(headers, &value, MAX_AGE_S, place)
}

/// The `Set-Cookie`s that sign out, wherever the page is shown.
pub(crate) fn signed_out(headers: &HeaderMap) -> Vec<HeaderValue> {
    let places = [Place::Tab, Place::Frame].into_iter();
    let cleared = places.map(|place| set(headers, "", 0, place));
    cleared.flatten().collect()
}

/// The tokens in a request's cookies.
pub(super) fn tokens(headers: &HeaderMap) -> Vec<String> {
    let name = name(headers);
    let values = headers.get_all(header::COOKIE).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(found, _)| *found == name)
        .filter_map(|(_, value)| BASE64_URL_SAFE_NO_PAD.decode(value).ok())
        .filter_map(|bytes| String::from_utf8(bytes).ok())
        .collect()
}

fn set(headers: &HeaderMap, value: &str, max_age_s: u32, place: Place) -> Option<HeaderValue> {
    let rest = match place {
        Place::Tab if is_https(headers) => "SameSite=Strict; Secure",
        Place::Tab => "SameSite=Strict",
        Place::Frame => "SameSite=None; Secure; Partitioned",
    };
    let name = name(headers);
    let text = format!("{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; {rest}");
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Cookies are the same for all ports of a host. With the port in its name, two servers on one machine do not overwrite
/// each other's.
fn name(headers: &HeaderMap) -> String {
    let authority = own_authority(headers).unwrap_or_default();
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    match port.and_then(|port| port.parse::<u16>().ok()) {
        Some(port) => format!("{NAME}_{port}"),
        None => NAME.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair =
            |(name, value): &(&'static str, &str)| (name.parse().unwrap(), value.parse().unwrap());
        pairs.iter().map(pair).collect()
    }

    fn text(value: Option<HeaderValue>) -> String {
        value.unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn scripts_and_other_sites_do_not_get_it() {
        let local = headers(&[("host", "localhost:8000")]);
        assert_eq!(
            text(signed_in(&local, "t0ken", Place::Tab)),
            "rollcage_token_8000=dDBrZW4; Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict"
        );
        let proxied = headers(&[
            ("host", "10.0.0.1:8000"),
            ("x-forwarded-host", "a.example"),
            ("x-forwarded-proto", "https"),
        ]);
        assert_eq!(
            text(signed_in(&proxied, "t0ken", Place::Tab)),
            "rollcage_token=dDBrZW4; Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict; Secure"
        );
        assert_eq!(
            text(signed_in(&proxied, "t0ken", Place::Frame)),
            "rollcage_token=dDBrZW4; Path=/; Max-Age=2592000; HttpOnly; SameSite=None; Secure; Partitioned"
        );
        let cleared = signed_out(&local);
        assert_eq!(
            text(cleared.first().cloned()),
            "rollcage_token_8000=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
        );
        assert!(text(cleared.last().cloned()).ends_with("Secure; Partitioned"));
    }

    #[test]
    fn each_port_has_its_own() {
        let sent =
            "other=1; rollcage_token_8000=dDBrZW4; rollcage_token_8001=eA; rollcage_token_8000=%";
        let of = |host: &str| tokens(&headers(&[("host", host), ("cookie", sent)]));
        assert_eq!(of("localhost:8000"), ["t0ken"]);
        assert_eq!(of("[::1]:8001"), ["x"]);
        assert_eq!(of("localhost"), [""; 0]);
    }
}
