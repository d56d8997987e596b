use super::*;

/// `+` before a path is a package, `?` one if its index names it, `-` neither.
#[track_caller]
fn check(reads: &Reads, lines: &[&str]) {
    for line in lines {
        let (mark, path) = line.split_at(1);
        let got = match reads.reading(path) {
            Reading::Yes => "+",
            Reading::No => "-",
            Reading::IfNamed { .. } => "?",
        };
        assert_eq!(got, mark, "{path}");
    }
}

/// What no kind of mirror has among its packages, below a folder.
#[track_caller]
fn check_attacks(reads: &Reads, base: &str) {
    for attack in [
        "../admin",
        "./../admin",
        "%2e%2e/admin",
        ".%2E/admin",
        "%252e%252e/admin",
        "..;/admin",
        "x;/../admin",
        "six;a=b/",
        "six/..%2fadmin",
        "six%2f..%2fadmin",
        "..%5cadmin",
        "..\\admin",
        "six\\admin",
        "/admin",
        "six//",
        "six/%00",
        "six/...",
        "six/%ff",
        "six/%",
        "six%3fx",
        "six%23x",
    ] {
        let path = format!("{base}{attack}");
        assert_eq!(reads.reading(&path), Reading::No, "{path}");
    }
    for path in [
        "/admin",
        "/",
        "",
        "//",
        "*",
        "/api/v1/users",
        &base.replace('/', "//"),
        &base[..base.len() - 1],
    ] {
        assert!(!matches!(reads.reading(path), Reading::Yes), "{path}");
    }
}

#[test]
fn an_index_of_python_has_pages_and_the_files_they_name() {
    let reads = Reads::Simple("/pypi/simple/".to_owned());
    check(
        &reads,
        &[
            "+/pypi/simple/",
            "+/pypi/simple/six/",
            "+/pypi/simple/zope.interface",
            "+/pypi/simple/Typing_Extensions/",
            "?/pypi/simple/six/six-1.16.0-py2.py3-none-any.whl",
            "?/pypi/packages/ab/cd/six-1.16.0.tar.gz",
            "?/pypi/+f/0a1/torch-2.0%2Bcu118-cp311-cp311-linux_x86_64.whl.metadata",
            "-/pypi/simple/_admin/",
            "-/pypi/simple/.git/config",
            "-/pypi/backup/all.tar.gz",
        ],
    );
    check_attacks(&reads, "/pypi/simple/");
    let page = |path: &str| match reads.reading(path) {
        Reading::IfNamed { page } => page,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        page("/f/Zope.Interface-5.0-cp311-x-y.whl"),
        "/pypi/simple/zope-interface/"
    );
    assert_eq!(
        page("/f/python-dateutil-2.8.2.tar.gz"),
        "/pypi/simple/python-dateutil/"
    );
    // At the root of a host there may be anything.
    let reads = Reads::Simple("/".to_owned());
    check(&reads, &["+/", "?/six/", "?/admin", "?/six/six-1.0.tar.gz"]);
}

#[test]
fn a_registry_of_npm_has_documents_and_archives() {
    let reads = Reads::Npm("/npm/".to_owned());
    check(
        &reads,
        &[
            "+/npm/left-pad",
            "+/npm/@scope/name",
            "+/npm/@scope%2fname",
            "+/npm/@scope%2Fname/1.0.0",
            "+/npm/yarn/latest",
            "+/npm/left-pad/-/left-pad-1.3.0.tgz",
            "+/npm/@scope/name/-/name-1.0.0.tgz",
            "+/npm/@scope/name/-/@scope/name-1.0.0.tgz",
            "-/npm/-/whoami",
            "-/npm/-/npm/v1/tokens",
            "-/npm/-/all",
            "-/npm/_users",
            "-/npm/left-pad/-rev/1",
            "-/npm/left-pad/-/other-1.3.0.tgz",
            "-/npm/left-pad/admin",
            "-/npm/@scope%2fname%2fmore",
            "-/npm/left%2fpad",
            "-/npm/@scope",
            "-/npm/@scope/@other",
            "-/npm",
        ],
    );
    check_attacks(&reads, "/npm/");
}

#[test]
fn an_index_of_cargo_has_its_files_and_crates_where_it_says() {
    let reads = Reads::Cargo("/index/".to_owned());
    check(
        &reads,
        &[
            "+/index/config.json",
            "+/index/1/a",
            "+/index/2/ab",
            "+/index/3/a/abc",
            "+/index/se/rd/serde",
            "-/index/se/rd/serde/",
            "?/index/se/xx/serde",
            "?/api/v1/crates/serde/1.0.0/download",
            "?/admin",
        ],
    );
    check_attacks(&reads, "/index/");
    let finds = |config: &str, path: &str| {
        let page = "http://corp.example:81/index/config.json";
        reads
            .search(page, path)
            .is_some_and(|mut it| it.push(config.as_bytes()))
    };
    let plain =
        r#"{"dl": "http://corp.example:81/api/v1/crates", "api": "http://corp.example:81"}"#;
    assert!(finds(plain, "/api/v1/crates/serde/1.0.0/download"));
    for path in [
        "/admin",
        "/api/v1/crates/serde/owners",
        "/api/v1/crates",
        "/api/v1/crates/a/b/c/download",
    ] {
        assert!(!finds(plain, path), "{path}");
    }
    assert!(!finds(
        &plain.replace("dl\": \"http", "dl\": \"https"),
        "/api/v1/crates/serde/1.0.0/download"
    ));
    assert!(!finds(
        &plain.replace(":81", ":82"),
        "/api/v1/crates/serde/1.0.0/download"
    ));
    let marked = r#"{"dl": "http://corp.example:81/c/{prefix}/{crate}/{crate}-{version}.crate"}"#;
    assert!(finds(marked, "/c/se/rd/serde/serde-1.0.0+x.crate"));
    assert!(finds(marked, "/c/1/a/a-1.crate"));
    assert!(!finds(marked, "/c/se/rd/serde/serde-.crate"));
    assert!(!finds(marked, "/c/se/rd/serde/serde-1.0.0.crate/x"));
    assert!(!finds(marked, "/d/se/rd/serde/serde-1.0.0.crate"));
}

#[test]
fn a_repository_of_apt_has_dists_and_pool() {
    let reads = Reads::Apt {
        base: "/debian/".to_owned(),
        flat: vec![String::new(), "extra/".to_owned()],
    };
    check(
        &reads,
        &[
            "+/debian/dists/stable/InRelease",
            "+/debian/dists/stable/main/binary-amd64/by-hash/SHA256/ab12",
            "+/debian/pool/main/g/g++/g++_1%2b2~rc1-1_amd64.deb",
            "+/debian/Packages.gz",
            "+/debian/extra/Release.gpg",
            "+/debian/extra/x_1_all.deb",
            "-/debian/admin",
            "-/debian/other/Packages",
            "-/debian/dists",
            "-/debian/pool/../admin",
            "-/debian/dists//x",
        ],
    );
    check_attacks(&reads, "/debian/");
    let without = Reads::Apt {
        base: "/debian/".to_owned(),
        flat: Vec::new(),
    };
    check(&without, &["-/debian/Packages.gz", "+/debian/dists/x"]);
    check(
        &Reads::File("/list".to_owned()),
        &["+/list", "-/list/x", "-/lists"],
    );
}

#[test]
fn pythons_are_at_the_paths_of_their_releases() {
    let reads = Reads::Pythons("/py/".to_owned());
    check(
        &reads,
        &[
            "+/py/20250101/cpython-3.13.1%2B20250101-x86_64-unknown-linux-gnu-install_only.tar.gz",
            "+/py/pypy3.10-v7.3.17-linux64.tar.bz2",
            "-/py/20250101/admin",
            "-/py/admin",
        ],
    );
    check_attacks(&reads, "/py/");
}

#[test]
fn a_page_names_files_however_it_writes_them_and_however_it_arrives() {
    let reads = Reads::Simple("/pypi/simple/".to_owned());
    let page = r#"<!DOCTYPE html><html><a data-requires-python=">=3" href='../../packages/six-1.0.tar.gz#sha256=00'>x</a>
        <a href="http://corp.example:81/abs/six-2.0%2Bx.whl">x</a> <a href="/signed/six-3.0.whl?token=1">x</a>
        <a href="https://corp.example:81/tls/six-4.0.whl">x</a> <a href="http://other.example/six-5.0.whl">x</a>
        <a href="../../../six-6.0.whl"></a>"#;
    for size in [1, 7, 64, 4096] {
        let finds = |path: &str| {
            let url = "http://corp.example:81/pypi/simple/six/";
            let mut search = reads.search(url, path).unwrap();
            page.as_bytes().chunks(size).any(|piece| search.push(piece))
        };
        assert!(finds("/pypi/packages/six-1.0.tar.gz"), "{size}");
        assert!(finds("/abs/six-2.0+x.whl"));
        assert!(finds("/abs/six-2.0%2bx.whl.metadata"));
        assert!(finds("/six-6.0.whl"));
        for path in [
            "/packages/six-1.0.tar.gz",
            "/signed/six-3.0.whl",
            "/tls/six-4.0.whl",
            "/six-5.0.whl",
            "/pypi/packages",
            "/pypi/packages/six-1.0.tar.gz/x",
        ] {
            assert!(!finds(path), "{path}");
        }
    }
    let page = Reads::Page("/links".to_owned());
    check(
        &page,
        &["+/links", "?/files/x.whl", "-/files//x.whl", "-/links/../x"],
    );
}
