//! Limits how often an address may try to sign in with a wrong token.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;

const WRONG_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Bounds the memory; addresses whose window is over are dropped then, and if that does not help, all are.
const ADDRESSES_MAX: usize = 10_000;

/// Wrong tries by address.
#[derive(Default)]
pub(super) struct Tries {
    wrong: Mutex<HashMap<IpAddr, (Instant, u32)>>,
}

impl Tries {
    /// How long the address has to wait before its next try, if it has to.
    pub(super) fn wait(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, count) = wrong.get(&address)?;
        let left = WINDOW.saturating_sub(now.saturating_duration_since(*since));
        (*count >= WRONG_MAX && !left.is_zero()).then_some(left)
    }

    pub(super) fn add(&self, address: IpAddr, now: Instant) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |since: Instant| now.saturating_duration_since(since) >= WINDOW;
        if wrong.len() >= ADDRESSES_MAX {
            wrong.retain(|_, (since, _)| !is_over(*since));
        }
        if wrong.len() >= ADDRESSES_MAX {
            wrong.clear();
        }
        let entry = wrong.entry(address).or_insert((now, 0));
        if is_over(entry.0) {
            *entry = (now, 0);
        }
        entry.1 += 1;
    }
}

/// Who is counted. Behind a proxy of ours, which is on a private address, that is the client that the proxy names last;
/// the names before it are the client's own words. Of an IPv6 address the network counts, since one client has all of it.
pub(super) fn client(peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let is_near = match peer.to_canonical() {
        IpAddr::V4(peer) => peer.is_loopback() || peer.is_private(),
        IpAddr::V6(peer) => peer.is_loopback() || peer.is_unique_local(),
    };
    let forwarded = headers.get_all("x-forwarded-for").into_iter().next_back();
    let forwarded = forwarded.and_then(|value| value.to_str().ok());
    let last = forwarded.and_then(|value| value.rsplit(',').next());
    let named = last.and_then(|last| last.trim().parse().ok());
    match named.filter(|_| is_near).unwrap_or(peer).to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            Ipv6Addr::from(network).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_ten_wrong_tries_one_waits_for_the_minute_to_end() {
        let tries = Tries::default();
        let start = Instant::now();
        let (a, b) = ([1, 2, 3, 4].into(), [1, 2, 3, 5].into());
        for _ in 0..WRONG_MAX {
            assert_eq!(tries.wait(a, start), None);
            tries.add(a, start);
        }
        let later = start + Duration::from_secs(20);
        assert_eq!(tries.wait(a, later), Some(Duration::from_secs(40)));
        assert_eq!(tries.wait(b, later), None);
        assert_eq!(tries.wait(a, start + WINDOW), None);
        tries.add(a, start + WINDOW);
        assert_eq!(tries.wait(a, start + WINDOW), None);
    }

    #[test]
    fn very_many_addresses_cost_no_more_memory() {
        let tries = Tries::default();
        for number in 0..2 * u32::try_from(ADDRESSES_MAX).unwrap() {
            tries.add(std::net::Ipv4Addr::from(number).into(), Instant::now());
        }
        assert!(tries.wrong.lock().unwrap().len() <= ADDRESSES_MAX);
    }

    #[test]
    fn behind_a_proxy_the_clients_are_counted() {
        let of = |peer: &str, forwarded: &str| {
            let pair = ("x-forwarded-for".parse().unwrap(), forwarded.parse());
            let headers = HeaderMap::from_iter([(pair.0, pair.1.unwrap())]);
            client(peer.parse().unwrap(), &headers).to_string()
        };
        assert_eq!(of("127.0.0.1", "9.9.9.9, 5.6.7.8"), "5.6.7.8");
        assert_eq!(of("::ffff:10.0.0.1", "5.6.7.8"), "5.6.7.8");
        assert_eq!(of("8.8.8.8", "5.6.7.8"), "8.8.8.8");
        assert_eq!(of("127.0.0.1", "nonsense"), "127.0.0.1");
        assert_eq!(of("2001:db8:1:2:3::4", ""), "2001:db8:1:2::");
    }
}
