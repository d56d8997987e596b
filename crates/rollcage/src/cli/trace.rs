//! `--trace`: how much of the tokens goes with a result.

use rollcage_model::view::TraceDetail;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TraceName {
    /// No tokens
    None,
    /// Rows for training: stitched ids, masks and logprobs, each sampled token once
    Sequences,
    /// Every model call, with what is new in it
    Turns,
}

impl From<TraceName> for TraceDetail {
    fn from(name: TraceName) -> Self {
        match name {
            TraceName::None => TraceDetail::None,
            TraceName::Sequences => TraceDetail::Sequences,
            TraceName::Turns => TraceDetail::Turns,
        }
    }
}
