//! What a reader must know of a reward.

use rollcage_model::finding::Code;

/// Something to say about a reward.
#[derive(Debug, PartialEq)]
pub(super) struct Remark {
    pub(super) code: Code,
    pub(super) text: String,
}

impl Remark {
    /// Whether there is no reward for this reason, so that it is 0.
    pub(super) fn is_spoiled(&self) -> bool {
        matches!(
            self.code,
            Code::RewardUnreadable | Code::RewardTampered | Code::VerifierStarved
        )
    }
}
