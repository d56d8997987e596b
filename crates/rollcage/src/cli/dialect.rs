//! What an endpoint speaks, as a flag.

use rollcage_dialect::EndpointDialect;

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum DialectName {
    /// OpenAI's chat completions
    Chat,
    /// Anthropic's messages: no token ids, so for evaluation only
    Anthropic,
}

impl From<DialectName> for EndpointDialect {
    fn from(name: DialectName) -> Self {
        match name {
            DialectName::Chat => EndpointDialect::Chat,
            DialectName::Anthropic => EndpointDialect::Anthropic,
        }
    }
}
