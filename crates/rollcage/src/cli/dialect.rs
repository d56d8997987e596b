//! The flag that names an endpoint's API.

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
