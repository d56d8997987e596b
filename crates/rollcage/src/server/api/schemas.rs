//! The schemas of the OpenAPI document, generated from the types.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use rollcage_engine::live::{LiveView, TurnInput};
use rollcage_model::browse::{figures, graph, rollout, tokens, transcript, turn};
use rollcage_model::event::Event;
use rollcage_model::live::{Answer, Reply};
use rollcage_model::task::Task;
use rollcage_model::view::View;

use super::types::{self, live};
use crate::server::live::{LiveAgentView, start_schema};
use crate::server::ready::ReadyAnswer;
use crate::server::rollouts::catalogue::TaskList;
use crate::server::rollouts::messages::RolloutMessages;
use crate::server::rollouts::request_schema::rollout_schema;

const PLACE: &str = "/components/schemas";

/// The body of `POST /v1/rollouts`.
pub(super) const ROLLOUT_REQUEST: &str = "RolloutRequest";
/// The body of `POST /v1/live`.
pub(super) const LIVE_REQUEST: &str = "LiveRequest";

/// A reference to a type's schema. The type must be one of those in [`components`].
pub(super) fn schema_of<T: JsonSchema>() -> Value {
    named(&T::schema_name())
}

/// A reference to a schema of [`components`] that no type has.
pub(super) fn named(name: &str) -> Value {
    json!({"$ref": format!("#{PLACE}/{name}")})
}

/// All schemas by name.
pub(super) fn components() -> Map<String, Value> {
    let mut schemas = Map::new();
    // What is read may leave out what has a default; what is written has it.
    let mut requests = generator(SchemaSettings::draft2020_12().for_deserialize());
    add_requests(&mut requests);
    schemas.extend(requests.take_definitions(true));
    let mut answers = generator(SchemaSettings::draft2020_12().for_serialize());
    add_lists(&mut answers);
    add_rollout(&mut answers);
    add_server(&mut answers);
    add_live(&mut answers);
    schemas.extend(answers.take_definitions(true));
    // These are read member by member, so that each error says what is wrong.
    schemas.insert(ROLLOUT_REQUEST.to_owned(), rollout_schema());
    schemas.insert(LIVE_REQUEST.to_owned(), start_schema());
    schemas
}

fn generator(mut settings: SchemaSettings) -> SchemaGenerator {
    PLACE.clone_into(settings.definitions_path.to_mut());
    settings.into_generator()
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
    add::<types::EndedRollout>(generator);
    add::<types::RolloutProgress>(generator);
    add::<types::Created>(generator);
    add::<types::Cancelled>(generator);
    add::<types::Finalized>(generator);
    add::<types::MessageQueued>(generator);
    add::<RolloutMessages>(generator);
    add::<types::Files>(generator);
    add::<types::Artifacts>(generator);
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
    add::<TaskList>(generator);
    add::<ReadyAnswer>(generator);
}

fn add_live(generator: &mut SchemaGenerator) {
    add::<LiveView>(generator);
    add::<LiveAgentView>(generator);
    add::<live::LiveAgents>(generator);
    add::<live::LiveHealth>(generator);
    add::<live::LiveMessages>(generator);
    add::<live::LiveFiles>(generator);
    add::<live::TurnQueued>(generator);
    add::<live::TurnReplies>(generator);
    add::<live::LiveTurnPage>(generator);
    add::<live::TurnAborted>(generator);
    add::<Reply>(generator);
}

fn add_requests(generator: &mut SchemaGenerator) {
    add::<types::NewMessage>(generator);
    add::<types::SignIn>(generator);
    add::<types::EndpointQuestion>(generator);
    add::<TurnInput>(generator);
    add::<live::TurnAnswer>(generator);
    add::<Answer>(generator);
}
