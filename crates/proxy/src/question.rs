//! An agent's request in any dialect, translated for the endpoint where needed, and the format of the agent's answer.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::{Response, StatusCode};

use rollcage_dialect::chat::Reply;
use rollcage_dialect::chat::render::ChatRenderer;
use rollcage_dialect::{Dialect, EndpointDialect, Render, Route, anthropic};

use crate::answer::{self, Body};

/// An error response in the agent's dialect.
pub(crate) fn refuse(route: &Route, status: StatusCode, message: &str) -> Response<Body> {
    let body = route.dialect().error_body(status.as_u16(), message);
    answer::whole(status, answer::JSON, body)
}

/// Answers requests that need no model, such as lists of models; these are never recorded. `None` for a model call.
pub(crate) fn answer_without_model(
    route: &Route,
    model: &str,
    body_bytes: usize,
) -> Option<Response<Body>> {
    let body = match route {
        Route::ModelCall(_) | Route::Gemini { .. } => return None,
        // We have no tokeniser. Clients use the count to decide when to compact, so an estimate is enough.
        Route::CountTokens(dialect) => dialect.count_tokens_answer(body_bytes as u64 / 4),
        Route::Models(dialect) => dialect.models_answer(model),
    };
    Some(answer::whole(StatusCode::OK, answer::JSON, body))
}

/// One model call as it is made to the endpoint.
pub(crate) struct Question {
    pub(crate) dialect: Dialect,
    /// The agent's own bytes when it speaks the endpoint's dialect, else the request in chat.
    pub(crate) body: Bytes,
    /// The agent does not speak the endpoint's dialect.
    pub(crate) is_translated: bool,
    /// Whether the agent wants a stream; `None` until the body is parsed, for requests that are not translated.
    is_stream: Option<bool>,
    /// Parts of the agent's request that have no equivalent in chat.
    pub(crate) dropped: Vec<String>,
    /// The agent disabled thinking in a way that its translation to chat cannot express as a member.
    pub(crate) is_thinking_disabled: bool,
}

/// The format of an agent's answer.
pub(crate) struct AnswerForm {
    dialect: Dialect,
    /// The agent's own request, whose options may affect the format.
    body: Bytes,
    /// The content type of a streamed answer.
    pub(crate) stream_type: &'static str,
    /// Renders answers for an agent that does not speak the endpoint's dialect.
    pub(crate) render: Option<Box<dyn Render>>,
}

impl Question {
    /// Parses a request. The error is returned to the agent with status 400.
    pub(crate) fn read(
        route: &Route,
        body: &Bytes,
        endpoint: EndpointDialect,
    ) -> Result<(Self, AnswerForm), String> {
        let dialect = route.dialect();
        let mut question = Question {
            dialect,
            body: body.clone(),
            is_translated: !endpoint.speaks(dialect),
            is_stream: None,
            dropped: Vec::new(),
            is_thinking_disabled: false,
        };
        let mut form = AnswerForm {
            dialect,
            body: body.clone(),
            stream_type: answer::EVENTS,
            render: None,
        };
        if !question.is_translated {
            return Ok((question, form));
        }
        let translated = route.to_chat(body).map_err(|error| error.to_string())?;
        match translated {
            Some(translated) => {
                question.body = translated.chat.into();
                question.is_stream = Some(translated.is_stream);
                question.dropped = translated.dropped;
                question.is_thinking_disabled = translated.is_thinking_disabled;
                form.stream_type = translated.stream_type;
                form.render = Some(translated.render);
            }
            // The request is chat already, only the endpoint is not.
            None => form.render = Some(form.own_render(&model_of(body))),
        }
        Ok((question, form))
    }

    /// Whether the agent wants a stream. Parses the body if that is not known yet.
    pub(crate) fn is_stream(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct Flags {
            stream: Option<bool>,
        }
        self.is_stream.unwrap_or_else(|| {
            serde_json::from_slice::<Flags>(&self.body)
                .is_ok_and(|flags| flags.stream == Some(true))
        })
    }
}

impl AnswerForm {
    /// A renderer for answers that are not passed on unchanged.
    pub(crate) fn into_render(mut self, model: &str) -> Box<dyn Render> {
        let render = self.render.take();
        render.unwrap_or_else(|| self.own_render(model))
    }

    /// A renderer for an agent whose request was not translated to chat.
    fn own_render(&self, model: &str) -> Box<dyn Render> {
        if self.dialect == Dialect::Anthropic {
            return Box::new(anthropic::MessagesRenderer::new(model));
        }
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let id = format!("chatcmpl-{}", uuid::Uuid::now_v7().simple());
        Box::new(ChatRenderer::new(
            id,
            model.to_owned(),
            created,
            wants_usage(&self.body),
        ))
    }

    /// A whole answer as JSON.
    pub(crate) fn whole(self, model: &str, reply: &Reply) -> Response<Body> {
        let render = self.into_render(model);
        answer::whole(StatusCode::OK, answer::JSON, render.whole(reply))
    }

    /// A whole answer as the events of a stream.
    pub(crate) fn stream(self, model: &str, reply: &Reply) -> Response<Body> {
        let stream_type = self.stream_type;
        let mut render = self.into_render(model);
        let mut out = render.start();
        out.extend(rest_of_stream(&mut *render, reply));
        answer::whole(StatusCode::OK, stream_type, out)
    }
}

/// The events of an answer after the opening events of its stream.
pub(crate) fn rest_of_stream(render: &mut dyn Render, reply: &Reply) -> Vec<u8> {
    let mut out = Vec::new();
    for delta in reply.deltas() {
        out.extend(render.push(&delta));
    }
    out.extend(render.finish());
    out
}

fn model_of(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct ChatRequest {
        model: Option<String>,
    }
    let request: Option<ChatRequest> = serde_json::from_slice(body).ok();
    request
        .and_then(|request| request.model)
        .unwrap_or_default()
}

/// Whether a chat request asks for a final chunk with the usage.
fn wants_usage(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct ChatRequest {
        stream_options: Option<StreamOptions>,
    }
    #[derive(serde::Deserialize)]
    struct StreamOptions {
        include_usage: Option<bool>,
    }
    let request: Option<ChatRequest> = serde_json::from_slice(body).ok();
    let options = request.and_then(|request| request.stream_options);
    options.is_some_and(|options| options.include_usage == Some(true))
}
