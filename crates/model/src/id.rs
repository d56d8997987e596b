//! Ids that sort by time.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Names one rollout; also its sandbox, its record's directory and its session.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct RolloutId(Uuid);

impl RolloutId {
    /// A new id, later than every id this process made before.
    pub fn generate() -> Self {
        RolloutId(Uuid::now_v7())
    }

    /// When it was made; 0 for an id that holds no time.
    pub fn unix_seconds(self) -> f64 {
        let (seconds, nanoseconds) = self.0.get_timestamp().map_or((0, 0), |time| time.to_unix());
        seconds as f64 + f64::from(nanoseconds) / 1e9
    }
}

impl std::fmt::Display for RolloutId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

impl std::str::FromStr for RolloutId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(RolloutId)
    }
}
