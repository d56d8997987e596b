//! Verifies a stream of bytes against the hash from the registry (subresource integrity: `sha512-BASE64 …`, or the old
//! hexadecimal SHA-1).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

/// The expected digests of one file, for the strongest algorithm that the registry gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Integrity {
    algorithm: Algorithm,
    /// Any of these digests is accepted: the standard allows several.
    digests: Vec<Vec<u8>>,
}

/// From weak to strong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Algorithm {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    fn text(self, digest: &[u8]) -> String {
        format!("{}-{}", self.name(), STANDARD.encode(digest))
    }

    fn of(name: &str) -> Option<Self> {
        let all = [Self::Sha1, Self::Sha256, Self::Sha384, Self::Sha512];
        all.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

impl Integrity {
    /// Parses `dist.integrity`; `dist.shasum` is used only if that holds nothing usable.
    pub(super) fn read(integrity: Option<&str>, shasum: Option<&str>) -> Option<Self> {
        let mut best: Option<Self> = None;
        for word in integrity.unwrap_or_default().split_whitespace() {
            let Some((algorithm, digest)) = parse(word) else {
                continue;
            };
            match &mut best {
                Some(held) if held.algorithm > algorithm => {}
                Some(held) if held.algorithm == algorithm => held.digests.push(digest),
                Some(_) | None => {
                    let digests = vec![digest];
                    best = Some(Self { algorithm, digests });
                }
            }
        }
        best.or_else(|| {
            Some(Self {
                algorithm: Algorithm::Sha1,
                digests: vec![sha1_digest(shasum?)?],
            })
        })
    }

    pub(super) fn is_weak(&self) -> bool {
        self.algorithm == Algorithm::Sha1
    }

    pub(super) fn hasher(&self) -> Hasher {
        match self.algorithm {
            Algorithm::Sha1 => Hasher::Sha1(Sha1::new()),
            Algorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            Algorithm::Sha384 => Hasher::Sha384(Sha384::new()),
            Algorithm::Sha512 => Hasher::strong(),
        }
    }

    /// Returns the digest as text if it is an expected one, otherwise both.
    pub(super) fn check(&self, hasher: Hasher) -> Result<String, Mismatch> {
        let digest = hasher.finish();
        let text = |digest: &[u8]| self.algorithm.text(digest);
        if self.digests.contains(&digest) {
            return Ok(text(&digest));
        }
        let expected: Vec<String> = self.digests.iter().map(|digest| text(digest)).collect();
        Err(Mismatch {
            expected: expected.join(" or "),
            got: text(&digest),
        })
    }
}

/// The expected and the actual digest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) expected: String,
    pub(super) got: String,
}

/// A running digest of one of the algorithms.
pub(super) enum Hasher {
    Sha1(Sha1),
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Box<Sha512>),
}

impl Hasher {
    /// For files that have no digest yet.
    pub(super) fn strong() -> Self {
        Self::Sha512(Box::new(Sha512::new()))
    }

    /// The digest in the notation of registries.
    pub(super) fn text(self) -> String {
        let algorithm = match self {
            Self::Sha1(_) => Algorithm::Sha1,
            Self::Sha256(_) => Algorithm::Sha256,
            Self::Sha384(_) => Algorithm::Sha384,
            Self::Sha512(_) => Algorithm::Sha512,
        };
        algorithm.text(&self.finish())
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(state) => state.update(bytes),
            Self::Sha256(state) => state.update(bytes),
            Self::Sha384(state) => state.update(bytes),
            Self::Sha512(state) => state.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Sha1(state) => state.finalize().to_vec(),
            Self::Sha256(state) => state.finalize().to_vec(),
            Self::Sha384(state) => state.finalize().to_vec(),
            Self::Sha512(state) => state.finalize().to_vec(),
        }
    }
}

fn parse(word: &str) -> Option<(Algorithm, Vec<u8>)> {
    let (name, rest) = word.split_once('-')?;
    let digest = rest.split('?').next().unwrap_or(rest);
    Some((Algorithm::of(name)?, STANDARD.decode(digest).ok()?))
}

fn sha1_digest(text: &str) -> Option<Vec<u8>> {
    let digest = base16ct::mixed::decode_vec(text.trim()).ok()?;
    (digest.len() == 20).then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::Integrity;

    const ABC_SHA1: &str = "a9993e364706816aba3e25717850c26c9cd0d89d";
    const ABC_SHA256: &str = "sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=";

    #[track_caller]
    fn check(integrity: Option<&str>, shasum: Option<&str>, expect: Option<&str>) {
        let got = Integrity::read(integrity, shasum).map(|integrity| {
            let mut hasher = integrity.hasher();
            hasher.update(b"a");
            hasher.update(b"bc");
            integrity.check(hasher)
        });
        let got = got.map(|checked| checked.unwrap_or_else(|_| "mismatch".to_owned()));
        assert_eq!(got.as_deref(), expect);
    }

    #[test]
    fn the_strongest_algorithm_decides_and_any_of_its_digests_will_do() {
        check(None, None, None);
        check(Some("md5-AAAA"), None, None);
        check(Some(ABC_SHA256), None, Some(ABC_SHA256));
        check(Some(&format!("{ABC_SHA256}?opt")), None, Some(ABC_SHA256));
        let two = format!("sha256-AAAA {ABC_SHA256}");
        check(Some(&two), None, Some(ABC_SHA256));
        let stronger_is_wrong = format!("{ABC_SHA256} sha512-AAAA");
        check(Some(&stronger_is_wrong), None, Some("mismatch"));
    }

    #[test]
    fn the_old_sum_counts_only_where_nothing_better_is_given() {
        let sha1 = Some("sha1-qZk+NkcGgWq6PiVxeFDCbJzQ2J0=");
        check(None, Some(ABC_SHA1), sha1);
        check(Some(ABC_SHA256), Some("00"), Some(ABC_SHA256));
        check(None, Some("00"), None);
        check(None, Some(&ABC_SHA1.replace('a', "b")), Some("mismatch"));
    }
}
