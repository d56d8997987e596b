use proptest::prelude::*;

use super::address::closed_kind;
use super::*;

fn presets() -> Presets {
    let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    Presets::from([
        ("pip".to_owned(), rules(&["pypi.org", "*.pythonhosted.org"])),
        ("git".to_owned(), rules(&["github.com", "git.example:8022"])),
    ])
}

fn network(toml: &str) -> Network {
    toml::from_str(toml).unwrap()
}

fn rules(agent: &str) -> Rules {
    let network = network(&format!("agent = {agent}"));
    let rules = network.rules(Phase::Agent, Origin::Operator, &[], &presets());
    rules.unwrap()
}

fn target(text: &str) -> Target {
    let (host, port) = text.rsplit_once(':').unwrap();
    Target {
        host: Host::parse(host).unwrap(),
        port: port.parse().unwrap(),
    }
}

/// `P` public, `L` listed, or why not.
#[track_caller]
fn check(rules: &Rules, expect: &[(&str, &str)]) {
    for (text, expect) in expect {
        let got = match rules.verdict(&target(text)) {
            Verdict::Allowed { addresses } => match addresses {
                Addresses::Public => "P".to_owned(),
                Addresses::Listed => "L".to_owned(),
            },
            Verdict::Refused(reason) => reason.to_string(),
        };
        assert!(got.contains(expect), "{text}: {got}, not {expect}");
    }
}

#[test]
fn a_network_is_written_as_it_was_read() {
    for text in [
        "",
        "setup = \"open\"\n",
        "agent = \"none\"\nverify = \"allowlist\"\n",
        "verify = [\"pypi.org\", \"*.example.org:8443\", \"10.1.0.0/16\", \"@pip\"]\n",
        "allow_hosts = [\"[fd00::1]:443\"]\n",
    ] {
        assert_eq!(toml::to_string(&network(text)).unwrap(), text);
        let json = serde_json::to_string(&network(text)).unwrap();
        assert_eq!(
            serde_json::from_str::<Network>(&json).unwrap(),
            network(text)
        );
    }
    assert!(network("").is_default());
    assert_eq!(network("agent = []").agent, Some(Policy::Allowlist(vec![])));
}

#[test]
fn phases_have_their_defaults() {
    let network = Network::default();
    let policies = Phase::ALL.map(|phase| network.policy(phase).clone());
    assert_eq!(policies, [Policy::Open, Policy::None, Policy::None]);
    assert_eq!("verify".parse(), Ok(Phase::Verify));
    assert!("verifier".parse::<Phase>().is_err());
}

#[test]
fn wrong_policies_are_named() {
    let error = |text: &str| toml::from_str::<Network>(text).unwrap_err().to_string();
    assert!(
        error("agent = \"opne\"").contains("expected \"none\", \"open\", \"allowlist\" or a list")
    );
    assert!(error("agent = true").contains("\"allowlist\" or a list of hosts"));
    assert!(error("agnet = \"none\"").contains("unknown field `agnet`"));
    assert!(error("agent = [\"https://a.example\"]").contains("is a URL"));
    let unknown = network("agent = [\"@maven\"]");
    let unknown = unknown.rules(Phase::Agent, Origin::Operator, &[], &presets());
    assert_eq!(
        unknown.unwrap_err().to_string(),
        "there is no preset `@maven`: known are @git, @pip"
    );
}

#[test]
fn a_policy_is_read_from_a_command_line() {
    assert_eq!("none".parse(), Ok(Policy::None));
    assert_eq!("allowlist".parse(), Ok(Policy::Allowlist(vec![])));
    let hosts = vec!["pypi.org".parse().unwrap(), "@git".parse().unwrap()];
    assert_eq!("pypi.org, @git,".parse(), Ok(Policy::Allowlist(hosts)));
    assert!("https://pypi.org".parse::<Policy>().is_err());
}

#[test]
fn without_network_nothing_is_reached() {
    let rules = rules("'none'");
    assert!(rules.is_none() && rules.ports().is_empty());
    check(
        &rules,
        &[("pypi.org:443", "no network"), ("8.8.8.8:53", "no network")],
    );
    assert_eq!(rules.check_name("pypi.org"), Err(Refusal::NoNetwork));
    let listed = network("allow_hosts = ['pypi.org']");
    let agent = listed.rules(Phase::Agent, Origin::Operator, &[], &presets());
    assert!(agent.unwrap().is_none());
}

#[test]
fn open_is_four_ports_of_public_addresses_and_what_is_listed() {
    check(
        &rules("'open'"),
        &[
            ("pypi.org:443", "P"),
            ("pypi.org:22", "P"),
            ("8.8.8.8:9418", "P"),
            ("8.8.8.8:53", "this port"),
            ("pypi.org:25", "this port"),
            ("10.1.2.3:443", "a private address"),
            ("127.0.0.1:443", "a loopback address"),
            ("[::1]:443", "a loopback address"),
            ("[::ffff:127.0.0.1]:80", "a loopback address"),
            ("169.254.169.254:80", "a metadata address"),
            ("[2606:4700::1]:443", "P"),
        ],
    );
    let network = network("allow_hosts = ['mirror.corp', 'db.corp:5432', '10.1.0.0/16:8080']");
    let rules = network.rules(Phase::Setup, Origin::Operator, &[], &presets());
    let rules = rules.unwrap();
    check(
        &rules,
        &[
            ("mirror.corp:443", "L"),
            ("db.corp:5432", "L"),
            ("db.corp:443", "P"),
            ("other.corp:5432", "this port"),
            ("10.1.2.3:8080", "L"),
            ("10.1.2.3:80", "a private address"),
        ],
    );
    assert_eq!(
        Vec::from_iter(rules.ports()),
        [22, 80, 443, 5432, 8080, 9418]
    );
}

#[test]
fn an_allow_list_is_what_it_says() {
    let rules = rules(
        "['pypi.org', '*.example.org', 'a.example.org:8443', '10.1.0.0/16', '127.0.0.0/8', '0.0.0.0']",
    );
    check(
        &rules,
        &[
            ("pypi.org:443", "L"),
            ("PyPI.org.:80", "L"),
            ("pypi.org:22", "this port"),
            ("pypi.org:8443", "this port"),
            ("files.pypi.org:443", "not listed"),
            ("x.pypi.org.evil:443", "not listed"),
            ("example.org:443", "not listed"),
            ("b.example.org:443", "P"),
            ("a.example.org:8443", "L"),
            ("b.example.org:8443", "this port"),
            ("10.1.255.1:80", "L"),
            ("[::ffff:10.1.2.3]:80", "L"),
            ("10.2.0.1:80", "not listed"),
            ("8.8.8.8:443", "not listed"),
            ("[fd00::1]:443", "not listed"),
            ("127.0.0.1:80", "a loopback address"),
            ("0.0.0.0:80", "an unspecified address"),
        ],
    );
    assert_eq!(rules.check_name("b.example.org"), Ok(()));
    assert_eq!(rules.check_name("example.org"), Err(Refusal::NotListed));
    assert!(rules.is_allowlist());
}

#[test]
fn presets_bring_their_hosts_and_git_its_ports() {
    check(
        &rules("['@pip', '@git']"),
        &[
            ("pypi.org:443", "L"),
            ("files.pythonhosted.org:443", "P"),
            ("pypi.org:22", "this port"),
            ("github.com:22", "L"),
            ("github.com:9418", "L"),
            ("git.example:8022", "L"),
            ("git.example:22", "this port"),
            ("gitlab.com:22", "not listed"),
        ],
    );
}

#[test]
fn what_the_operator_lists_counts_in_every_phase_with_a_network() {
    let network = network("agent = 'allowlist'");
    let listed = [HostEntry::Preset("pip".to_owned())];
    let rules = |phase| network.rules(phase, Origin::Client, &listed, &presets());
    check(&rules(Phase::Agent).unwrap(), &[("pypi.org:443", "L")]);
    check(&rules(Phase::Setup).unwrap(), &[("pypi.org:443", "L")]);
    assert!(rules(Phase::Verify).unwrap().is_none());
}

#[test]
fn what_a_client_lists_leads_to_public_addresses_only() {
    let network = network("agent = ['gpu.corp', '@pip', '8.8.8.0/24', '8.0.0.0/5']");
    let rules = network.rules(Phase::Agent, Origin::Client, &[], &presets());
    check(
        &rules.unwrap(),
        &[
            ("gpu.corp:443", "P"),
            ("pypi.org:443", "P"),
            ("8.8.8.8:443", "P"),
            ("10.1.1.1:443", "a private address"),
        ],
    );
}

#[test]
fn clients_may_ask_for_what_their_server_allows() {
    let free = ClientRights {
        may_open: true,
        may_drive: false,
    };
    let tight = ClientRights {
        may_open: false,
        may_drive: false,
    };
    let open = network("agent = 'open'");
    assert_eq!(restrict(&open, &free), Ok(open.clone()));
    let error = restrict(&open, &tight).unwrap_err().to_string();
    assert!(
        error.contains("`network.agent`: this server does not allow \"open\""),
        "{error}"
    );
    let default = restrict(&Network::default(), &tight).unwrap();
    assert_eq!(default.setup, Some(Policy::Allowlist(vec![])));
    for text in [
        "10.0.0.1",
        "10.0.0.0/8",
        "0.0.0.0/0",
        "8.0.0.0/5",
        "fd00::1",
        "169.254.169.254:80",
    ] {
        let named = network(&format!("verify = ['{text}']"));
        let error = restrict(&named, &free).unwrap_err().to_string();
        assert!(error.contains("may not list"), "{text}: {error}");
        let all = network(&format!("allow_hosts = ['{text}']"));
        assert!(restrict(&all, &free).is_err(), "{text}");
    }
    let public = network("verify = ['8.8.8.0/24', 'gpu.corp', '@pip', '[2606:4700::1]:443']");
    assert!(restrict(&public, &free).is_ok());
}

#[test]
fn a_host_is_read_in_every_spelling() {
    let printed = |text: &str| Host::parse(text).map(|host| host.to_string());
    assert_eq!(printed("A.Example."), Some("a.example".to_owned()));
    assert_eq!(printed("[::FFFF:10.0.0.1]"), Some("10.0.0.1".to_owned()));
    for text in [
        "",
        ".",
        "a..b",
        "127.1",
        "2130706433",
        "0x7f.1",
        "a b",
        "a\0",
        "a:80",
        "ä.example",
    ] {
        assert_eq!(printed(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn no_rule_leads_to_this_machine(bits in any::<u32>(), port in any::<u16>(), listed in 0u8..=32) {
        let address = core::net::Ipv4Addr::from_bits(bits);
        let list = format!("['{address}/{listed}:{}', '0.0.0.0/0', '::/0']", port.max(1));
        let verdict = rules(&list).verdict(&Target { host: Host::Ip(address.into()), port });
        let is_never = closed_kind(address.into()).is_some_and(|kind| kind.is_never_listed());
        let is_allowed = matches!(verdict, Verdict::Allowed { .. });
        prop_assert_eq!(is_allowed, !is_never && port != 0);
    }

    #[test]
    fn open_leads_to_public_addresses_only(bits in any::<u128>()) {
        let address = core::net::Ipv6Addr::from_bits(bits);
        let verdict = rules("'open'").verdict(&Target { host: Host::Ip(address.into()), port: 443 });
        let is_allowed = matches!(verdict, Verdict::Allowed { .. });
        prop_assert_eq!(is_allowed, closed_kind(address.into()).is_none());
    }
}
