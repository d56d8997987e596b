//! What an agent asks, in whichever dialect: the request as it is asked of the endpoint, and how the agent is answered.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::{Response, StatusCode};

use rollcage_dialect::chat::Reply;
use rollcage_dialect::chat::render::ChatRenderer;
use rollcage_dialect::{Dialect, EndpointDialect, Render, Route, anthropic};

use crate::answer::{self, Body};

/// An error in the shape of the agent's dialect.
pub(crate) fn refuse(route: &Route, status: StatusCode, message: &str) -> Response<Body> {
    let body = route.dialect().error_body(status.as_u16(), message);
    answer::whole(status, answer::JSON, body)
}

/// Answers what is no model call; such requests are never recorded. `None` for one that is.
pub(crate) fn answer_aside(
    route: &Route,
    model: &str,
    body_bytes: usize,
) -> Option<Response<Body>> {
    let body = match route {
        Route::ModelCall(_) | Route::Gemini { .. } => return None,
        // Nobody here tokenises, so the count is the rough one that clients use to decide when to compact.
        Route::CountTokens(dialect) => dialect.count_tokens_answer(body_bytes as u64 / 4),
        Route::Models(dialect) => dialect.models_answer(model),
    };
    Some(answer::whole(StatusCode::OK, answer::JSON, body))
}

/// One request as it is asked of the endpoint.
pub(crate) struct Question {
    pub(crate) dialect: Dialect,
    /// The agent's own bytes when it speaks the endpoint's dialect, else the request in chat.
    pub(crate) body: Bytes,
    /// The agent does not speak the endpoint's dialect.
    pub(crate) is_translated: bool,
    /// Known at once in dialects that are translated to chat.
    is_stream: Option<bool>,
    /// What has no word in chat.
    pub(crate) dropped: Vec<String>,
    /// The agent asked for no thoughts, in a dialect where that is no member of the request in chat.
    pub(crate) is_thinking_disabled: bool,
}

/// How an agent is answered.
pub(crate) struct AnswerForm {
    dialect: Dialect,
    /// The agent's own request, which may say more about it.
    body: Bytes,
    /// The content type of a streamed answer.
    pub(crate) stream_type: &'static str,
    /// For an agent that does not speak the endpoint's dialect.
    pub(crate) render: Option<Box<dyn Render>>,
}

impl Question {
    /// Reads a request. The error is told to the agent with status 400.
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
            Some(asked) => {
                question.body = asked.chat.into();
                question.is_stream = Some(asked.is_stream);
                question.dropped = asked.dropped;
                question.is_thinking_disabled = asked.is_thinking_disabled;
                form.stream_type = asked.stream_type;
                form.render = Some(asked.render);
            }
            // It is chat already.
            None => form.render = Some(form.own_render(&model_of(body))),
        }
        Ok((question, form))
    }

    /// Whether the agent wants a stream. Reads the body, so it is asked only where nothing else did.
    pub(crate) fn is_stream(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct Wish {
            stream: Option<bool>,
        }
        self.is_stream.unwrap_or_else(|| {
            serde_json::from_slice::<Wish>(&self.body).is_ok_and(|wish| wish.stream == Some(true))
        })
    }
}

impl AnswerForm {
    /// Renders answers that are not passed on as they come.
    pub(crate) fn into_render(mut self, model: &str) -> Box<dyn Render> {
        let render = self.render.take();
        render.unwrap_or_else(|| self.own_render(model))
    }

    /// For an agent whose request is in its own dialect.
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

/// The events of an answer behind those that begin its stream.
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
    struct Named {
        model: Option<String>,
    }
    let named: Option<Named> = serde_json::from_slice(body).ok();
    named.and_then(|named| named.model).unwrap_or_default()
}

/// Whether a chat request asks for a last chunk with the usage.
fn wants_usage(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Wish {
        stream_options: Option<Options>,
    }
    #[derive(serde::Deserialize)]
    struct Options {
        include_usage: Option<bool>,
    }
    let wish: Option<Wish> = serde_json::from_slice(body).ok();
    let options = wish.and_then(|wish| wish.stream_options);
    options.is_some_and(|options| options.include_usage == Some(true))
}
