//! Determines the dialect of a request by its path and translates it to chat, for servers that accept all four
//! dialects.

use serde_json::Value;

use super::{Dialect, Render, TranslateError, anthropic, gemini, responses};

/// What kind of request a path denotes, and in which dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    ModelCall(Dialect),
    /// Gemini puts the model and the method in the path.
    Gemini {
        path: String,
        query: String,
    },
    CountTokens(Dialect),
    Models(Dialect),
}

/// A request in another dialect, translated to chat.
pub struct TranslatedRequest {
    /// The chat completions body.
    pub chat: Vec<u8>,
    pub is_stream: bool,
    /// The content type of a streamed answer.
    pub stream_type: &'static str,
    pub render: Box<dyn Render>,
    /// What chat cannot express.
    pub dropped: Vec<String>,
    /// The agent disabled thinking. A flag, because chat has no standard member for it.
    pub is_thinking_disabled: bool,
}

const EVENTS: &str = "text/event-stream";

impl Route {
    /// `method` in upper case, `query` without its question mark.
    pub fn of(method: &str, path: &str, query: &str) -> Option<Self> {
        // Users give base URLs with and without the version.
        let plain = path.strip_prefix("/v1").unwrap_or(path);
        // Google's clients use several versions; only theirs name a method after a colon.
        let is_method = plain.starts_with("/models/") && plain.contains(':');
        let is_gemini = is_method
            || ["/v1beta/", "/v1alpha/"]
                .iter()
                .any(|it| path.starts_with(it));
        match (method, plain) {
            ("POST", _) if is_gemini && path.ends_with(":countTokens") => {
                Some(Route::CountTokens(Dialect::Gemini))
            }
            ("POST", _) if is_gemini => Some(Route::Gemini {
                path: path.to_owned(),
                query: query.to_owned(),
            }),
            ("GET", _) if is_gemini => Some(Route::Models(Dialect::Gemini)),
            ("POST", "/chat/completions") => Some(Route::ModelCall(Dialect::Chat)),
            ("POST", "/responses") => Some(Route::ModelCall(Dialect::Responses)),
            ("POST", "/messages") => Some(Route::ModelCall(Dialect::Anthropic)),
            ("POST", "/messages/count_tokens") => Some(Route::CountTokens(Dialect::Anthropic)),
            ("GET", "/models") => Some(Route::Models(Dialect::Chat)),
            _ => None,
        }
    }

    pub fn dialect(&self) -> Dialect {
        match self {
            Route::ModelCall(dialect) | Route::Models(dialect) | Route::CountTokens(dialect) => {
                *dialect
            }
            Route::Gemini { .. } => Dialect::Gemini,
        }
    }

    /// Translates a completion or token-count request to chat; `None` for chat itself and for other kinds of request.
    pub fn to_chat(&self, body: &[u8]) -> Result<Option<TranslatedRequest>, TranslateError> {
        let translated = match self {
            Route::ModelCall(Dialect::Responses) => {
                let translation = responses::to_chat(body)?;
                TranslatedRequest {
                    chat: translation.chat,
                    is_stream: translation.is_stream,
                    stream_type: EVENTS,
                    render: Box::new(translation.answer),
                    dropped: translation.dropped,
                    is_thinking_disabled: false,
                }
            }
            Route::ModelCall(Dialect::Anthropic) | Route::CountTokens(Dialect::Anthropic) => {
                let translation = anthropic::to_chat(body)?;
                TranslatedRequest {
                    chat: translation.chat,
                    is_stream: translation.is_stream,
                    stream_type: EVENTS,
                    render: Box::new(translation.answer),
                    dropped: translation.dropped,
                    is_thinking_disabled: translation.is_thinking_disabled,
                }
            }
            Route::Gemini { path, query } => match gemini::ModelMethod::parse(path, query) {
                Some(gemini::ModelMethod::Generate { model, encoding }) => {
                    from_gemini(body, &model, encoding)?
                }
                _ => return Err(TranslateError::Unsupported { what: path.clone() }),
            },
            Route::CountTokens(Dialect::Gemini) => {
                from_gemini(&counted(body), "", gemini::ResponseEncoding::Whole)?
            }
            Route::ModelCall(Dialect::Chat | Dialect::Gemini)
            | Route::CountTokens(Dialect::Chat | Dialect::Responses)
            | Route::Models(_) => return Ok(None),
        };
        Ok(Some(translated))
    }
}

impl Dialect {
    /// The body of an error response.
    pub fn error_body(self, status: u16, message: &str) -> Vec<u8> {
        match self {
            Dialect::Chat => crate::chat::render::error_body(status, message),
            Dialect::Responses => responses::error_body(status, message),
            Dialect::Anthropic => anthropic::error_body(status, message),
            Dialect::Gemini => gemini::error_body(status, message),
        }
    }

    /// The response body of a model listing with one model.
    pub fn models_answer(self, model: &str) -> Vec<u8> {
        match self {
            Dialect::Chat | Dialect::Responses => responses::models_answer(model),
            Dialect::Anthropic => anthropic::models_answer(model),
            Dialect::Gemini => gemini::models_answer(model),
        }
    }

    /// The response body of a token count.
    pub fn count_tokens_answer(self, tokens: u64) -> Vec<u8> {
        match self {
            Dialect::Gemini => gemini::count_tokens_answer(tokens),
            Dialect::Chat | Dialect::Responses | Dialect::Anthropic => {
                anthropic::count_tokens_answer(tokens)
            }
        }
    }
}

fn from_gemini(
    body: &[u8],
    model: &str,
    encoding: gemini::ResponseEncoding,
) -> Result<TranslatedRequest, TranslateError> {
    let translation = gemini::to_chat(body, model, encoding)?;
    Ok(TranslatedRequest {
        chat: translation.chat,
        is_stream: translation.is_stream,
        stream_type: encoding.content_type(),
        render: Box::new(translation.answer),
        dropped: translation.dropped,
        is_thinking_disabled: false,
    })
}

/// The request whose tokens to count: Gemini's clients send it bare or, with tools, wrapped in another object.
fn counted(body: &[u8]) -> Vec<u8> {
    let mut request: Value = serde_json::from_slice(body).unwrap_or_default();
    match request.get_mut("generateContentRequest") {
        Some(inner) => inner.take().to_string().into_bytes(),
        None => body.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_and_without_a_version_are_known() {
        let of = |line: &str| {
            let (method, rest) = line.split_once(' ').unwrap();
            let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
            Route::of(method, path, query)
        };
        assert_eq!(
            of("POST /v1/messages?beta=true"),
            Some(Route::ModelCall(Dialect::Anthropic))
        );
        assert_eq!(
            of("POST /responses"),
            Some(Route::ModelCall(Dialect::Responses))
        );
        assert_eq!(
            of("POST /v1beta/models/m:countTokens"),
            Some(Route::CountTokens(Dialect::Gemini))
        );
        assert_eq!(of("GET /v1/models"), Some(Route::Models(Dialect::Chat)));
        assert_eq!(of("GET /v1/chat/completions"), None);
        let path = "/v1beta/models/a/b:streamGenerateContent".to_owned();
        let query = "alt=sse".to_owned();
        assert_eq!(
            of(&format!("POST {path}?{query}")),
            Some(Route::Gemini { path, query })
        );
    }

    #[test]
    fn a_count_request_is_translated_like_a_model_call() {
        let plain = r#"{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}"#;
        let inside = format!(r#"{{"generateContentRequest":{plain}}}"#);
        let route = Route::CountTokens(Dialect::Gemini);
        let chat = |body: &str| route.to_chat(body.as_bytes()).unwrap().unwrap().chat;
        assert_eq!(chat(plain), chat(&inside));
        assert!(String::from_utf8(chat(plain)).unwrap().contains("hi"));
    }
}
