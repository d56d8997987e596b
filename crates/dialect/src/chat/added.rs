//! What is asked for on top of an agent's own request, to capture the answer.

/// What we asked for and the agent did not, so what must not be in its view of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    pub logprobs: bool,
    /// The agent asked for logprobs, but for no alternatives.
    pub top_logprobs: bool,
    pub token_ids: bool,
    /// The usage chunk at the end of a stream.
    pub usage: bool,
    /// The model's thoughts: vLLM gives no ids at all where they are not wanted.
    pub reasoning: bool,
}
