//! The synthetic addresses of names. They are from 198.18.0.0/15, which is reserved and not routed on the Internet.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;

const FIRST: u32 = Ipv4Addr::new(198, 18, 0, 0).to_bits();
const ADDRESSES: u32 = 1 << 17;
/// Half of the addresses, so that the address of an evicted name is not soon reused for another one.
pub(crate) const NAMES_MAX: usize = 1 << 16;

/// The names of one sandbox with their addresses. A mapping is stable until the name is evicted.
#[derive(Debug, Default)]
pub(crate) struct Names {
    addresses: HashMap<Arc<str>, u32>,
    names: HashMap<u32, Arc<str>>,
    /// The oldest first.
    order: VecDeque<u32>,
    given: u32,
}

impl Names {
    pub(crate) fn address(&mut self, name: &str) -> Ipv4Addr {
        if let Some(index) = self.addresses.get(name) {
            return Ipv4Addr::from_bits(FIRST + index);
        }
        if self.order.len() >= NAMES_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(name) = self.names.remove(&oldest)
        {
            self.addresses.remove(&name);
        }
        // Starts at 1: 198.18.0.0 itself looks like a network's number.
        self.given = (self.given + 1) % ADDRESSES;
        let name: Arc<str> = name.into();
        self.addresses.insert(Arc::clone(&name), self.given);
        self.names.insert(self.given, name);
        self.order.push_back(self.given);
        Ipv4Addr::from_bits(FIRST + self.given)
    }

    /// `None` for an address without a name.
    pub(crate) fn name(&self, address: Ipv4Addr) -> Option<Arc<str>> {
        let index = address.to_bits().checked_sub(FIRST)?;
        self.names.get(&index).cloned()
    }
}

/// Whether an address is in the synthetic range.
pub(crate) fn is_synthetic(address: Ipv4Addr) -> bool {
    (FIRST..FIRST + ADDRESSES).contains(&address.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_address() {
        let mut names = Names::default();
        let first = names.address("a.example");
        assert_eq!(first, Ipv4Addr::new(198, 18, 0, 1));
        assert_ne!(names.address("b.example"), first);
        assert_eq!(names.address("a.example"), first);
        assert_eq!(names.name(first).as_deref(), Some("a.example"));
        assert_eq!(names.name(Ipv4Addr::new(198, 18, 9, 9)), None);
        assert_eq!(names.name(Ipv4Addr::new(8, 8, 8, 8)), None);
        assert!(is_synthetic(Ipv4Addr::new(198, 19, 255, 255)));
        assert!(!is_synthetic(Ipv4Addr::new(198, 20, 0, 0)));
    }

    #[test]
    fn the_oldest_name_goes_and_its_address_is_nobodys_for_a_while() {
        let mut names = Names::default();
        let first = names.address("n0");
        for number in 1..3 * NAMES_MAX {
            let address = names.address(&format!("n{number}"));
            assert!(is_synthetic(address));
            if number == NAMES_MAX {
                assert_eq!(names.name(first), None);
            }
        }
        assert_eq!(names.names.len(), NAMES_MAX);
        assert_eq!(names.addresses.len(), NAMES_MAX);
        assert_eq!(names.order.len(), NAMES_MAX);
    }
}
