//! The schemas of the OpenAPI document, generated from the types.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use rollcage_engine::live::{LiveView, TurnInput, TurnSummary};
use rollcage_model::browse::{figures, graph, rollout, tokens, transcript, turn};
use rollcage_model::event::Event;
use rollcage_model::live::{Answer, Reply};
use rollcage_model::task::Task;
use rollcage_model::view::View;

use super::types;

const PLACE: &str = "/components/schemas";

/// A reference to a type's schema. The type must be one of those in [`components`].
pub(super) fn schema_of<T: JsonSchema>() -> Value {
    json!({"$ref": format!("#{PLACE}/{}", T::schema_name())})
}

/// All schemas by name.
pub(crate) fn components() -> Map<String, Value> {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    PLACE.clone_into(&mut settings.definitions_path.to_mut());
    let mut generator = settings.into_generator();
    add_lists(&mut generator);
    add_rollout(&mut generator);
    add_server(&mut generator);
    generator.take_definitions(true)
}

fn add<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

fn add_lists(generator: &mut SchemaGenerator) {
    add::<rollout::RolloutPage>(generator);
    add::<rollout::Facets>(generator);
    add::<figures::FiguresPage>(generator);
    add::<figures::Dimension>(generator);
    add::<types::StreamMessage>(generator);
    add::<types::ErrorAnswer>(generator);
}

fn add_rollout(generator: &mut SchemaGenerator) {
    add::<View<'static>>(generator);
    add::<types::RolloutProgress>(generator);
    add::<Event>(generator);
    add::<turn::TurnPage>(generator);
    add::<turn::TurnDetail>(generator);
    add::<tokens::TokenPage>(generator);
    add::<graph::GraphPage>(generator);
    add::<figures::RolloutFigures>(generator);
    add::<transcript::TranscriptPage>(generator);
    add::<types::ChangesPage>(generator);
    add::<types::NetworkPage>(generator);
}

fn add_server(generator: &mut SchemaGenerator) {
    add::<types::SessionInfo>(generator);
    add::<types::ServerInfo>(generator);
    add::<types::Presets>(generator);
    add::<types::Agents>(generator);
    add::<types::Endpoints>(generator);
    add::<types::EndpointCheck>(generator);
    add::<types::CommandLine>(generator);
    add::<Task>(generator);
    add::<LiveView>(generator);
    add::<TurnInput>(generator);
    add::<TurnSummary>(generator);
    add::<Reply>(generator);
    add::<Answer>(generator);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written with ROLLCAGE_UPDATE_DOCS=1.
    #[test]
    fn dump() {
        if std::env::var_os("ROLLCAGE_UPDATE_DOCS").is_some() {
            let all = json!({"openapi": "3.1.0", "info": {"title": "Rollcage", "version": "1"}, "paths": {}, "components": {"schemas": components()}});
            let text = serde_json::to_string_pretty(&all).unwrap();
            std::fs::write("../../docs/openapi.json", text).unwrap();
        }
    }
}
