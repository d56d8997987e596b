//! What an agent asks, in whichever dialect: the route it takes, the chat request it means, and how it is answered.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::{Method, Response, StatusCode};

use rollcage_model::chat::Reply;
use rollcage_model::dialect::chat::Answer as ChatAnswer;
use rollcage_model::dialect::{Dialect, Render, TranslateError, anthropic, gemini, responses};

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
        let is_gemini = path.starts_with("/v1beta/");
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
    /// The chat request; the agent's own bytes when it speaks chat.
    pub(super) chat: Bytes,
    /// Known at once in dialects that are translated.
    is_stream: Option<bool>,
    /// The content type of a streamed answer.
    pub(super) stream_type: &'static str,
    /// How the agent is answered when it does not speak chat.
    pub(super) render: Option<Box<dyn Render>>,
}

impl Question {
    /// Reads a request. The error is told to the agent with status 400.
    pub(super) fn read(route: &Route, body: &Bytes) -> Result<Self, String> {
        let dialect = route.dialect();
        let mut stream_type = answer::EVENTS;
        let told = |error: TranslateError| error.to_string();
        let (chat, is_stream, render): (_, _, Box<dyn Render>) = match route {
            Route::Ask(Dialect::Responses) => {
                let translation = responses::to_chat(body).map_err(told)?;
                (
                    translation.chat,
                    translation.is_stream,
                    Box::new(translation.answer),
                )
            }
            Route::Ask(Dialect::Anthropic) => {
                let translation = anthropic::to_chat(body).map_err(told)?;
                (
                    translation.chat,
                    translation.is_stream,
                    Box::new(translation.answer),
                )
            }
            Route::Gemini { path, query } => {
                let Some(gemini::Route::Generate { model, form }) =
                    gemini::Route::read(path, query)
                else {
                    return Err(format!("{path} is not served here"));
                };
                stream_type = form.content_type();
                let translation = gemini::to_chat(body, &model, form).map_err(told)?;
                (
                    translation.chat,
                    translation.is_stream,
                    Box::new(translation.answer),
                )
            }
            _ => {
                return Ok(Question {
                    dialect,
                    chat: body.clone(),
                    is_stream: None,
                    stream_type,
                    render: None,
                });
            }
        };
        Ok(Question {
            dialect,
            chat: chat.into(),
            is_stream: Some(is_stream),
            stream_type,
            render: Some(render),
        })
    }

    /// Whether the agent wants a stream. Reads the body, so it is asked only where the answer is our own.
    pub(super) fn is_stream(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct Wish {
            stream: Option<bool>,
        }
        self.is_stream.unwrap_or_else(|| {
            serde_json::from_slice::<Wish>(&self.chat).is_ok_and(|wish| wish.stream == Some(true))
        })
    }

    /// Renders answers that are not passed on as they come.
    pub(super) fn into_render(self, model: &str) -> Box<dyn Render> {
        self.render.unwrap_or_else(|| {
            let created = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs());
            let id = format!("chatcmpl-{}", uuid::Uuid::now_v7().simple());
            let has_usage = String::from_utf8_lossy(&self.chat).contains("\"include_usage\":true");
            Box::new(ChatAnswer::new(id, model.to_owned(), created, has_usage))
        })
    }
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
