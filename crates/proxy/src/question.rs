//! What an agent asks, in whichever dialect: the request as the endpoint gets it, and how it is answered.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::{Response, StatusCode};

use rollcage_dialect::chat::Reply;
use rollcage_dialect::chat::render::Answer as ChatAnswer;
use rollcage_dialect::{Asked, Dialect, EndpointDialect, Render, Route, anthropic};

use super::answer::{self, Body};

/// Answers that need no endpoint.
pub(super) trait AnswerItself {
    /// An error in the shape of the agent's dialect.
    fn refuse(&self, status: StatusCode, message: &str) -> Response<Body>;
    /// Answers what is no model call; such requests are never recorded. `None` for one that is.
    fn answer_aside(&self, model: &str, body_bytes: usize) -> Option<Response<Body>>;
}

impl AnswerItself for Route {
    fn refuse(&self, status: StatusCode, message: &str) -> Response<Body> {
        let body = self.dialect().error_body(status.as_u16(), message);
        answer::whole(status, answer::JSON, body)
    }

    fn answer_aside(&self, model: &str, body_bytes: usize) -> Option<Response<Body>> {
        let body = match self {
            Route::Ask(_) | Route::Gemini { .. } => return None,
            // Nobody here tokenises, so the count is the rough one that clients use to decide when to compact.
            Route::CountTokens(dialect) => dialect.count_tokens_answer(body_bytes as u64 / 4),
            Route::Models(dialect) => dialect.models_answer(model),
        };
        Some(answer::whole(StatusCode::OK, answer::JSON, body))
    }
}

/// One request as it is asked of the endpoint.
pub(super) struct Question {
    pub(super) dialect: Dialect,
    /// The agent's own bytes when it speaks the endpoint's dialect, else the request in chat.
    pub(super) body: Bytes,
    /// Known at once in dialects that are translated to chat.
    is_stream: Option<bool>,
    /// The content type of a streamed answer.
    pub(super) stream_type: &'static str,
    /// How the agent is answered when it does not speak the endpoint's dialect.
    pub(super) render: Option<Box<dyn Render>>,
    /// What has no word in chat.
    pub(super) dropped: Vec<String>,
    /// The agent asked for no thoughts, in a dialect where that is no member of the request in chat.
    pub(super) is_thinking_disabled: bool,
}

impl Question {
    /// Reads a request. The error is told to the agent with status 400.
    pub(super) fn read(
        route: &Route,
        body: &Bytes,
        endpoint: EndpointDialect,
    ) -> Result<Self, String> {
        let dialect = route.dialect();
        let mut question = Question {
            dialect,
            body: body.clone(),
            is_stream: None,
            stream_type: answer::EVENTS,
            render: None,
            dropped: Vec::new(),
            is_thinking_disabled: false,
        };
        match (dialect, endpoint) {
            (Dialect::Chat, EndpointDialect::Chat)
            | (Dialect::Anthropic, EndpointDialect::Anthropic) => {}
            (Dialect::Chat, EndpointDialect::Anthropic) => {
                question.render = Some(question.own_render(&model_of(body)));
            }
            _ => {
                let asked = route.to_chat(body).map_err(|error| error.to_string())?;
                if let Some(asked) = asked {
                    question.take(asked);
                }
            }
        }
        Ok(question)
    }

    fn take(&mut self, asked: Asked) {
        self.body = asked.chat.into();
        self.is_stream = Some(asked.is_stream);
        self.stream_type = asked.stream_type;
        self.render = Some(asked.render);
        self.dropped = asked.dropped;
        self.is_thinking_disabled = asked.is_thinking_disabled;
    }

    /// Whether the agent wants a stream. Reads the body, so it is asked only where the answer is our own.
    pub(super) fn is_stream(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct Wish {
            stream: Option<bool>,
        }
        self.is_stream.unwrap_or_else(|| {
            serde_json::from_slice::<Wish>(&self.body).is_ok_and(|wish| wish.stream == Some(true))
        })
    }

    /// Renders answers that are not passed on as they come.
    pub(super) fn into_render(mut self, model: &str) -> Box<dyn Render> {
        let render = self.render.take();
        render.unwrap_or_else(|| self.own_render(model))
    }

    /// For an agent whose body is in its own dialect.
    fn own_render(&self, model: &str) -> Box<dyn Render> {
        if self.dialect == Dialect::Anthropic {
            return Box::new(anthropic::Answer::new(model));
        }
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let id = format!("chatcmpl-{}", uuid::Uuid::now_v7().simple());
        Box::new(ChatAnswer::new(
            id,
            model.to_owned(),
            created,
            wants_usage(&self.body),
        ))
    }
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
    struct Asked {
        stream_options: Option<Options>,
    }
    #[derive(serde::Deserialize)]
    struct Options {
        include_usage: Option<bool>,
    }
    let asked: Option<Asked> = serde_json::from_slice(body).ok();
    let options = asked.and_then(|asked| asked.stream_options);
    options.is_some_and(|options| options.include_usage == Some(true))
}

/// A whole answer of our own, as the agent asked for it.
pub(super) fn say(question: Question, model: &str, reply: &Reply) -> Response<Body> {
    let (is_stream, stream_type) = (question.is_stream(), question.stream_type);
    let mut render = question.into_render(model);
    if is_stream {
        answer::whole(StatusCode::OK, stream_type, stream_of(&mut *render, reply))
    } else {
        answer::whole(StatusCode::OK, answer::JSON, render.whole(reply))
    }
}

/// A whole answer as the events of a stream.
pub(super) fn stream_of(render: &mut dyn Render, reply: &Reply) -> Vec<u8> {
    let mut out = render.start();
    for delta in reply.deltas() {
        out.extend(render.push(&delta));
    }
    out.extend(render.finish());
    out
}
