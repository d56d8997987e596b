//! What an agent asks, in whichever dialect: the route it takes, the chat request it means, and how it is answered.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::{Method, Response, StatusCode};

use rollcage_model::chat::Reply;
use rollcage_model::dialect::chat::Answer as ChatAnswer;
use rollcage_model::dialect::{
    Dialect, EndpointDialect, Render, TranslateError, anthropic, gemini, responses,
};

use super::answer::{self, Body};

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Ask(Dialect),
    /// Gemini names the model, and what is wanted of it, in the path.
    Gemini {
        path: String,
        query: String,
    },
    CountTokens(Dialect),
    Models(Dialect),
}

impl Route {
    pub(super) fn of(method: &Method, path: &str, query: &str) -> Option<Self> {
        // Base URLs are given with and without the version.
        let plain = path.strip_prefix("/v1").unwrap_or(path);
        // Google's clients have moved between versions; only theirs name a method behind a colon.
        let is_method = plain.starts_with("/models/") && plain.contains(':');
        let is_gemini = is_method
            || ["/v1beta/", "/v1alpha/"]
                .iter()
                .any(|it| path.starts_with(it));
        match (method, plain) {
            (&Method::POST, _) if is_gemini && path.ends_with(":countTokens") => {
                Some(Route::CountTokens(Dialect::Gemini))
            }
            (&Method::POST, _) if is_gemini => Some(Route::Gemini {
                path: path.to_owned(),
                query: query.to_owned(),
            }),
            (&Method::GET, _) if is_gemini => Some(Route::Models(Dialect::Gemini)),
            (&Method::POST, "/chat/completions") => Some(Route::Ask(Dialect::Chat)),
            (&Method::POST, "/responses") => Some(Route::Ask(Dialect::Responses)),
            (&Method::POST, "/messages") => Some(Route::Ask(Dialect::Anthropic)),
            (&Method::POST, "/messages/count_tokens") => {
                Some(Route::CountTokens(Dialect::Anthropic))
            }
            (&Method::GET, "/models") => Some(Route::Models(Dialect::Chat)),
            _ => None,
        }
    }

    fn dialect(&self) -> Dialect {
        match self {
            Route::Ask(dialect) | Route::Models(dialect) | Route::CountTokens(dialect) => *dialect,
            Route::Gemini { .. } => Dialect::Gemini,
        }
    }

    /// An error in the shape of the agent's dialect.
    pub(super) fn refuse(&self, status: StatusCode, message: &str) -> Response<Body> {
        let code = status.as_u16();
        let body = match self.dialect() {
            Dialect::Chat => {
                let kind = match code {
                    401 | 403 => "authentication_error",
                    424 => "upstream_error",
                    400..500 => "invalid_request_error",
                    _ => "upstream_error",
                };
                answer::error_body(status, kind, message)
            }
            Dialect::Responses => responses::error_body(code, message),
            Dialect::Anthropic => anthropic::error_body(code, message),
            Dialect::Gemini => gemini::error_body(code, message),
        };
        answer::whole(status, answer::JSON, body)
    }

    /// Answers what is no model call; such requests are never recorded. `None` for one that is.
    pub(super) fn answer_aside(&self, model: &str, body_bytes: usize) -> Option<Response<Body>> {
        // Nobody here tokenises, so the count is the rough one that clients use to decide when to compact.
        let tokens = body_bytes as u64 / 4;
        let body = match self {
            Route::Ask(_) | Route::Gemini { .. } => return None,
            Route::CountTokens(Dialect::Gemini) => gemini::count_tokens_answer(tokens),
            Route::CountTokens(_) => anthropic::count_tokens_answer(tokens),
            Route::Models(Dialect::Gemini) => gemini::models_answer(model),
            Route::Models(Dialect::Anthropic) => anthropic::models_answer(model),
            Route::Models(Dialect::Chat | Dialect::Responses) => answer::models_body(model),
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
        let told = |error: TranslateError| error.to_string();
        match (route, endpoint) {
            (Route::Ask(Dialect::Responses), _) => {
                let translation = responses::to_chat(body).map_err(told)?;
                question.take(translation.chat, translation.is_stream, translation.answer);
                question.dropped = translation.dropped;
            }
            (Route::Ask(Dialect::Anthropic), EndpointDialect::Chat) => {
                let translation = anthropic::to_chat(body).map_err(told)?;
                question.take(translation.chat, translation.is_stream, translation.answer);
                question.dropped = translation.dropped;
                question.is_thinking_disabled = translation.is_thinking_disabled;
            }
            (Route::Gemini { path, query }, _) => {
                let Some(gemini::Route::Generate { model, form }) =
                    gemini::Route::read(path, query)
                else {
                    return Err(format!("{path} is not served here"));
                };
                question.stream_type = form.content_type();
                let translation = gemini::to_chat(body, &model, form).map_err(told)?;
                question.take(translation.chat, translation.is_stream, translation.answer);
                question.dropped = translation.dropped;
            }
            (Route::Ask(Dialect::Chat), EndpointDialect::Anthropic) => {
                question.render = Some(question.own_render(&model_of(body)));
            }
            _ => {}
        }
        Ok(question)
    }

    fn take(&mut self, chat: Vec<u8>, is_stream: bool, render: impl Render + 'static) {
        self.body = chat.into();
        self.is_stream = Some(is_stream);
        self.render = Some(Box::new(render));
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
