//! Answers requests in any dialect. They are translated to chat, and the answers rendered from it, as in the proxy.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use futures::StreamExt;
use serde_json::{Value, json};

use rollcage_dialect::chat::{deltas, is_done, read_reply};
use rollcage_dialect::{Dialect, Render, Route, TranslatedRequest};

use super::answer::{self, AnswerMetadata};
use super::completion::{self, Completion};
use super::drill::{Delivery, PlayedPart};
use super::log::ServedAnswer;
use super::request::{self, ChatRequest, OutputOptions};
use super::scripts::Scripts;
use super::{Script, player, template};
use rollcage_dialect::inbound;

const BODY_BYTES_MAX: usize = 64 << 20;
const JSON: &str = "application/json";

/// An error response.
struct Refusal {
    status: StatusCode,
    message: String,
}

pub(super) async fn answer(State(scripts): State<Arc<Scripts>>, request: Request) -> Response {
    let is_health_check = matches!(*request.method(), Method::GET | Method::HEAD);
    if is_health_check && matches!(request.uri().path(), "/" | "/health" | "/api/hello") {
        return respond(StatusCode::OK, JSON, r#"{"status":"ok"}"#);
    }
    let Some(route) = inbound::route(&request) else {
        let message = format!("there is no {} {}", request.method(), request.uri().path());
        return refuse(Dialect::Chat, StatusCode::NOT_FOUND, &message);
    };
    let answered = answer_route(&scripts, &route, request).await;
    answered.unwrap_or_else(|refusal| refuse(route.dialect(), refusal.status, &refusal.message))
}

async fn answer_route(
    scripts: &Scripts,
    route: &Route,
    request: Request,
) -> Result<Response, Refusal> {
    let arrived = Instant::now();
    let key = inbound::key(&request, Some(route))
        .unwrap_or_default()
        .to_owned();
    let script = scripts.script(&key).ok_or_else(|| Refusal {
        status: StatusCode::UNAUTHORIZED,
        message: "unknown API key: this endpoint has no script for it".to_owned(),
    })?;
    let body = to_bytes(request.into_body(), BODY_BYTES_MAX).await;
    let body = body.map_err(|error| Refusal {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        message: format!("the body cannot be read or is over 64 MiB: {error}"),
    })?;
    match route {
        Route::Models(dialect) => Ok(respond(StatusCode::OK, JSON, models(*dialect, &script))),
        Route::CountTokens(dialect) => {
            let translated = route.to_chat(&body).map_err(wrong)?;
            let chat = translated.map_or_else(|| body.to_vec(), |translated| translated.chat);
            let request = request::parse(&chat).map_err(wrong)?;
            let tokens = template::prompt(&request).len() as u64;
            let count = dialect.count_tokens_answer(tokens);
            Ok(respond(StatusCode::OK, JSON, count))
        }
        Route::ModelCall(_) | Route::Gemini { .. } => {
            let translated = route.to_chat(&body).map_err(wrong)?;
            let chat = translated
                .as_ref()
                .map_or(&body[..], |translated| &translated.chat);
            let request = request::parse(chat).map_err(wrong)?;
            let (completion, played) = play(scripts, &key, &request, &script)?;
            if let Some(log) = &scripts.log {
                log.push(ServedAnswer {
                    arrived,
                    key,
                    request: String::from_utf8_lossy(&body).into_owned(),
                    prompt_ids: completion.prompt_ids.clone(),
                    sampled_ids: completion.tokens.iter().map(|token| token.id).collect(),
                    logprobs: completion.logprobs.clone(),
                    finish_reason: completion.finish.name(),
                    is_stream: request.output_options().stream,
                    played,
                });
            }
            let extent = match played {
                Some(PlayedPart {
                    delivery: Delivery::BrokenOff,
                    ..
                }) => SentExtent::Half,
                _ => SentExtent::Whole,
            };
            let output_options = request.output_options().at_most(script.level);
            Ok(send(
                output_options,
                completion,
                &script,
                (translated, extent),
            ))
        }
    }
}

/// How much of an answer is sent; half means that the connection then breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentExtent {
    Whole,
    Half,
}

fn play(
    scripts: &Scripts,
    key: &str,
    request: &ChatRequest,
    script: &Script,
) -> Result<(Completion, Option<PlayedPart>), Refusal> {
    let prompt_ids = template::prompt(request);
    let Some(drill) = &script.drill else {
        let reply = player::next(request, script).map_err(wrong)?;
        let completion = completion::complete(prompt_ids, reply, request.tokens_max());
        return Ok((completion, None));
    };
    let next = scripts.next_of_drill(key, request, (drill, &script.workdir));
    let (reply, played) = next.map_err(wrong)?;
    let completion = match played.delivery {
        Delivery::Refused => {
            return Err(Refusal {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                message: "the engine is not well; ask again".to_owned(),
            });
        }
        Delivery::Cut => completion::complete_to_half_a_call(prompt_ids, reply),
        Delivery::Whole | Delivery::BrokenOff => {
            completion::complete(prompt_ids, reply, request.tokens_max())
        }
    };
    Ok((completion, Some(played)))
}

/// The answer in the request's dialect and mode; `translated` is `None` for chat.
fn send(
    output_options: OutputOptions,
    completion: Completion,
    script: &Script,
    (translated, extent): (Option<TranslatedRequest>, SentExtent),
) -> Response {
    let metadata = AnswerMetadata {
        id: format!("chatcmpl-{}", uuid::Uuid::now_v7().simple()),
        created: now_s(),
        model: script.model.clone(),
    };
    if !output_options.stream {
        let whole = answer::whole(&completion, &metadata, output_options).to_string();
        let body = match translated {
            Some(translated) => translated.render.whole(&read_reply(&whole, false)),
            None => whole.into_bytes(),
        };
        let body = match extent {
            SentExtent::Whole => Body::from(body),
            SentExtent::Half => stream(std::iter::once(body), extent, Duration::ZERO),
        };
        return respond(StatusCode::OK, JSON, body);
    }
    let events = answer::events(completion, metadata, output_options);
    match translated {
        Some(translated) => {
            let stream_type = translated.stream_type;
            respond(
                StatusCode::OK,
                stream_type,
                stream(
                    rendered(events, translated.render),
                    extent,
                    script.event_pause,
                ),
            )
        }
        None => {
            let events = events.map(|data| format!("data: {data}\n\n").into_bytes());
            respond(
                StatusCode::OK,
                "text/event-stream; charset=utf-8",
                stream(events, extent, script.event_pause),
            )
        }
    }
}

/// Renders the events of a chat stream in another dialect, lazily.
fn rendered(
    events: impl Iterator<Item = String>,
    mut render: Box<dyn Render>,
) -> impl Iterator<Item = Vec<u8>> {
    let start = render.start();
    let rest = events.map(move |data| {
        if is_done(&data) {
            return render.finish();
        }
        let deltas = deltas(&data);
        deltas.iter().flat_map(|delta| render.push(delta)).collect()
    });
    let sent = std::iter::once(start).chain(rest);
    sent.filter(|bytes| !bytes.is_empty())
}

fn stream(
    parts: impl Iterator<Item = Vec<u8>> + Send + 'static,
    extent: SentExtent,
    pause: Duration,
) -> Body {
    match extent {
        SentExtent::Whole if pause.is_zero() => {
            Body::from_stream(futures::stream::iter(parts.map(Ok::<_, Infallible>)))
        }
        SentExtent::Whole => {
            Body::from_stream(futures::stream::iter(parts).then(move |part| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, Infallible>(part)
            }))
        }
        SentExtent::Half => {
            let mut parts: Vec<_> = parts.collect();
            parts.truncate(parts.len() / 2);
            let sent = futures::stream::iter(parts.into_iter().map(Ok));
            let broken = futures::stream::once(async {
                // Makes the sender wait, and therefore flush what it has.
                tokio::task::yield_now().await;
                Err(io::Error::from(io::ErrorKind::ConnectionReset))
            });
            Body::from_stream(sent.chain(broken))
        }
    }
}

fn models(dialect: Dialect, script: &Script) -> Vec<u8> {
    if dialect != Dialect::Chat {
        return dialect.models_answer(&script.model);
    }
    let model = json!({
        "id": script.model,
        "object": "model",
        "created": now_s(),
        "owned_by": "rollcage",
        "root": script.model,
        "parent": null,
        "max_model_len": null,
    });
    let list = json!({"object": "list", "data": [model]});
    list.to_string().into_bytes()
}

fn wrong(error: impl std::error::Error) -> Refusal {
    Refusal {
        status: StatusCode::BAD_REQUEST,
        message: error.to_string(),
    }
}

fn refuse(dialect: Dialect, status: StatusCode, message: &str) -> Response {
    let body = match dialect {
        Dialect::Chat => vllm_error(status, message).to_string().into_bytes(),
        Dialect::Responses | Dialect::Anthropic | Dialect::Gemini => {
            dialect.error_body(status.as_u16(), message)
        }
    };
    respond(status, JSON, body)
}

fn vllm_error(status: StatusCode, message: &str) -> Value {
    let kind = match status {
        StatusCode::UNAUTHORIZED => "AuthenticationError",
        StatusCode::NOT_FOUND => "NotFoundError",
        StatusCode::INTERNAL_SERVER_ERROR => "InternalServerError",
        _ => "BadRequestError",
    };
    let error = json!({"message": message, "type": kind, "param": null, "code": status.as_u16()});
    json!({ "error": error })
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let content_type = header::HeaderValue::from_static(content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
