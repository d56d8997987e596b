//! What we request of the endpoint in addition to the agent's own request, in order to capture tokens.

/// Response fields that we requested and the agent did not; they are stripped from the agent's view of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddedFields {
    pub logprobs: bool,
    /// Alternatives per token; relevant only if the agent requested logprobs itself.
    pub top_logprobs: bool,
    pub token_ids: bool,
    /// The usage chunk at the end of a stream.
    pub usage: bool,
    /// The model's reasoning: vLLM returns no token ids at all if it is turned off.
    pub reasoning: bool,
}
