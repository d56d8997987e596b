//! Limits how often an address may try a wrong token, in a header or to sign in.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use rollcage_model::network::address::Block;

const WRONG_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Bounds the memory; addresses whose window is over are dropped then, and if that does not help, all are.
const ADDRESSES_MAX: usize = 10_000;

/// Wrong tries by address.
#[derive(Default)]
pub(crate) struct Tries {
    /// Proxies of the operator's, whose word about their clients counts.
    proxies: Vec<Block>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    wrong: HashMap<IpAddr, (Instant, u32)>,
    /// Whose right tokens came from where. They go on to count there when somebody else tries wrong ones: programs behind
    /// one address do not lock each other out.
    right: HashMap<IpAddr, BTreeSet<String>>,
}

impl Tries {
    /// Of a server behind these proxies.
    pub(crate) fn behind(proxies: Vec<Block>) -> Self {
        Tries {
            proxies,
            ..Tries::default()
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the address has to wait before its next try, if it has to.
    pub(crate) fn wait(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let seen = self.seen();
        let (since, count) = seen.wrong.get(&address)?;
        let left = WINDOW.saturating_sub(now.saturating_duration_since(*since));
        (*count >= WRONG_MAX && !left.is_zero()).then_some(left)
    }

    pub(crate) fn add(&self, address: IpAddr, now: Instant) {
        let wrong = &mut self.seen().wrong;
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

    /// What becomes of a token that a program sends with each request: `owner` is whose it is, if it is a right one. Of an
    /// address with too many wrong ones no other counts than those that were right from there before; the error is how long
    /// it has to wait.
    pub(crate) fn judge(
        &self,
        address: IpAddr,
        owner: Option<&str>,
        now: Instant,
    ) -> Result<(), Duration> {
        let is_known = |owner| {
            let known = self.seen().right.get(&address).cloned();
            known.is_some_and(|known| known.contains(owner))
        };
        if owner.is_some_and(is_known) {
            return Ok(());
        }
        if let Some(left) = self.wait(address, now) {
            return Err(left);
        }
        let Some(owner) = owner else {
            self.add(address, now);
            return Ok(());
        };
        let right = &mut self.seen().right;
        if right.len() >= ADDRESSES_MAX {
            right.clear();
        }
        right.entry(address).or_default().insert(owner.to_owned());
        Ok(())
    }

    /// Who is counted. Behind proxies of the operator's that is the client that they name last; the names before it are the
    /// client's own words. Of an IPv6 address the network counts, since one client has all of it.
    pub(crate) fn client(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> IpAddr {
        let is_proxy = |address: IpAddr| self.proxies.iter().any(|block| block.contains(address));
        let values = headers.get_all("x-forwarded-for").into_iter();
        let values = values.filter_map(|value| value.to_str().ok());
        let mut named: Vec<&str> = values.flat_map(|value| value.split(',')).collect();
        let mut client = peer.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        while is_proxy(client)
            && let Some(Ok(address)) = named.pop().map(|name| name.trim().parse())
        {
            client = address;
        }
        match client.to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                Ipv6Addr::from(network).into()
            }
            address @ IpAddr::V4(_) => address,
        }
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
        assert!(tries.seen().wrong.len() <= ADDRESSES_MAX);
    }

    #[test]
    fn a_wrong_token_in_a_header_counts_and_right_ones_of_before_go_on_to() {
        let tries = Tries::default();
        let now = Instant::now();
        let (a, b) = ([1, 2, 3, 4].into(), [1, 2, 3, 5].into());
        assert_eq!(tries.judge(a, Some("TEAM"), now), Ok(()));
        for _ in 0..WRONG_MAX {
            assert_eq!(tries.judge(a, None, now), Ok(()));
        }
        for owner in [None, Some("OTHER")] {
            assert_eq!(tries.judge(a, owner, now), Err(WINDOW), "{owner:?}");
        }
        assert_eq!(tries.judge(a, Some("TEAM"), now), Ok(()));
        assert_eq!(tries.judge(b, Some("OTHER"), now), Ok(()));
        assert_eq!(tries.judge(a, Some("OTHER"), now + WINDOW), Ok(()));
    }

    #[test]
    fn only_a_proxy_of_the_operators_says_who_its_clients_are() {
        let proxies = ["10.0.0.0/8", "127.0.0.1/32", "2001:db8::1/128"];
        let tries = Tries::behind(proxies.map(|block| block.parse().unwrap()).into());
        let of = |peer: &str, forwarded: &str| {
            let pair = ("x-forwarded-for".parse().unwrap(), forwarded.parse());
            let headers = HeaderMap::from_iter([(pair.0, pair.1.unwrap())]);
            let peer = Some(peer.parse().unwrap());
            let unnamed = Tries::default().client(peer, &headers);
            assert_eq!(unnamed, Tries::default().client(peer, &HeaderMap::new()));
            tries.client(peer, &headers).to_string()
        };
        assert_eq!(of("127.0.0.1", "9.9.9.9, 5.6.7.8"), "5.6.7.8");
        assert_eq!(of("::ffff:10.0.0.1", "5.6.7.8"), "5.6.7.8");
        assert_eq!(of("2001:db8::1", "9.9.9.9, 5.6.7.8, 10.1.1.1"), "5.6.7.8");
        assert_eq!(of("192.168.0.1", "5.6.7.8"), "192.168.0.1");
        assert_eq!(of("8.8.8.8", "5.6.7.8"), "8.8.8.8");
        assert_eq!(of("127.0.0.1", "nonsense"), "127.0.0.1");
        assert_eq!(of("127.0.0.1", ""), "127.0.0.1");
        assert_eq!(of("2001:db8:1:2:3::4", ""), "2001:db8:1:2::");
    }
}
