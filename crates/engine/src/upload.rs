//! What a request puts into a sandbox beside the texts of its task: files of any bytes, and trees of them.

use serde::{Deserialize, Serialize};

/// One path of an upload. A directory is uploaded as its content, path by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Upload {
    File {
        #[serde(rename = "base64", with = "base64_content")]
        content: Vec<u8>,
        #[serde(rename = "executable", default)]
        is_executable: bool,
    },
    /// A symbolic link.
    Link { target: String },
    /// A directory with nothing in it; others are made for what they hold.
    Directory,
}

impl Upload {
    /// A file that nobody executes.
    pub fn file(content: impl Into<Vec<u8>>) -> Upload {
        Upload::File {
            content: content.into(),
            is_executable: false,
        }
    }
}

mod base64_content {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        content: &[u8],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        BASE64_STANDARD.encode(content).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD.decode(text).map_err(D::Error::custom)
    }
}
