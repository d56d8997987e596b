//! Prints what sandboxes would get of this machine's mirrors. Secrets print as `***`.

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::collections::BTreeMap;

use rollcage_mirrors::{Host, machine};

fn main() {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        Some((name, value.into_string().ok()?))
    });
    let host = Host {
        env: &variables.collect::<BTreeMap<_, _>>(),
        read: &machine::read,
        list: &machine::list,
    };
    println!("{:#?}", rollcage_mirrors::of(&host));
}
