//! Permission requests and questions of a turn, until each has its answer.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use rollcage_model::live::{Answer, PermissionPolicy, ReplyKind};
use serde_json::Value;
use tokio::time::Instant;

use super::held::weight;
use crate::client::{Client, ClientError, is_id};

/// An answer that does not reach the server leaves the agent waiting, so it is sent again.
const ATTEMPTS_MAX: u32 = 3;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(200);

/// Each answer that is on its way has a connection of its own.
const SENDING_MAX: usize = 8;
/// An agent asks one thing after the other, and each of its subagents too. What is asked beyond this gets no answer.
const OPEN_MAX: usize = 256;
const PATTERNS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 4096;
const QUESTIONS_BYTES_MAX: usize = 256 << 10;

/// A permission request or a question.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) id: String,
    pub(super) what: AskedKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum AskedKind {
    Permission {
        permission: String,
        patterns: Vec<String>,
    },
    Question {
        questions: Value,
    },
}

impl Asked {
    pub(super) fn permission(request: &Value) -> Option<Self> {
        let patterns = request["patterns"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let patterns = patterns.iter().filter_map(Value::as_str);
        Some(Asked {
            id: id_of(request)?,
            what: AskedKind::Permission {
                permission: shortened(request["permission"].as_str()?),
                patterns: patterns.take(PATTERNS_MAX).map(shortened).collect(),
            },
        })
    }

    pub(super) fn question(request: &Value) -> Option<Self> {
        let questions = &request["questions"];
        Some(Asked {
            id: id_of(request)?,
            what: AskedKind::Question {
                questions: match weight(questions) > QUESTIONS_BYTES_MAX {
                    true => Value::Null,
                    false => questions.clone(),
                },
            },
        })
    }

    /// About as many bytes as it takes.
    pub(super) fn weight(&self) -> usize {
        let what = match &self.what {
            AskedKind::Permission { patterns, .. } => patterns.iter().map(String::len).sum(),
            AskedKind::Question { questions } => weight(questions),
        };
        self.id.len() + what
    }
}

fn id_of(request: &Value) -> Option<String> {
    let id = request["id"].as_str().filter(|id| is_id(id));
    id.map(str::to_owned)
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

/// Who answers, and how long that may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) policy: PermissionPolicy,
    pub(super) limit: Duration,
}

#[derive(Debug)]
struct Waiting {
    is_question: bool,
    deadline: Instant,
}

/// The open requests of a turn, and the answers that are on their way to the server.
pub(super) struct Desk<'a> {
    client: &'a Client,
    directory: Option<&'a str>,
    rules: Rules,
    waiting: HashMap<String, Waiting>,
    sending: FuturesUnordered<BoxFuture<'a, ()>>,
    /// Answers that are sent once others have arrived.
    unsent: VecDeque<BoxFuture<'a, ()>>,
}

impl<'a> Desk<'a> {
    pub(super) fn new(client: &'a Client, directory: Option<&'a str>, rules: Rules) -> Self {
        Desk {
            client,
            directory,
            rules,
            waiting: HashMap::new(),
            sending: FuturesUnordered::new(),
            unsent: VecDeque::new(),
        }
    }

    /// Answers by policy, or returns what the caller is asked.
    pub(super) fn ask(&mut self, asked: Asked) -> Option<ReplyKind> {
        if self.waiting.len() + self.unsent.len() >= OPEN_MAX {
            tracing::debug!("an agent asks for too much at once");
            return None;
        }
        let is_question = matches!(asked.what, AskedKind::Question { .. });
        let refusal = || Answer::Reject {
            // With a reason the agent goes on and finds another way; without one it stops.
            message: Some("Nobody is there to allow this.".to_owned()),
        };
        match self.rules.policy {
            PermissionPolicy::Allow if !is_question => self.send(asked.id, Answer::Once, false),
            PermissionPolicy::Allow | PermissionPolicy::Reject => {
                self.send(asked.id, refusal(), is_question);
            }
            PermissionPolicy::Ask => return Some(self.wait(asked, is_question)),
        }
        None
    }

    /// The caller's answer. One to a request that is not open, or not any more, is no answer.
    pub(super) fn answer(&mut self, id: String, answer: Answer) {
        match self.waiting.remove(&id) {
            Some(waiting) => self.send(id, answer, waiting.is_question),
            None => tracing::debug!("an answer to something that nobody asks"),
        }
    }

    /// Somebody else answered.
    pub(super) fn settle(&mut self, id: &str) {
        self.waiting.remove(id);
    }

    /// Sends answers, and refuses what nobody answered in time. Never returns. Cancel-safe.
    pub(super) async fn work(&mut self) {
        loop {
            let next = self
                .waiting
                .iter()
                .min_by_key(|(_, waiting)| waiting.deadline);
            let next = next.map(|(id, waiting)| (id.clone(), waiting.deadline));
            let due = async {
                match next {
                    Some((id, deadline)) => {
                        tokio::time::sleep_until(deadline).await;
                        id
                    }
                    None => pending().await,
                }
            };
            let sent = async {
                if self.sending.next().await.is_none() {
                    pending::<()>().await;
                }
                self.sending.extend(self.unsent.pop_front());
            };
            let due = tokio::select! {
                id = due => id,
                () = sent => continue,
            };
            let message = Some("Nobody answered in time.".to_owned());
            self.answer(due, Answer::Reject { message });
        }
    }

    fn wait(&mut self, asked: Asked, is_question: bool) -> ReplyKind {
        let waiting = Waiting {
            is_question,
            deadline: Instant::now() + self.rules.limit,
        };
        self.waiting.insert(asked.id.clone(), waiting);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let deadline = (now.unwrap_or_default() + self.rules.limit).as_secs_f64();
        let id = asked.id;
        match asked.what {
            AskedKind::Permission {
                permission,
                patterns,
            } => ReplyKind::Permission {
                id,
                permission,
                patterns,
                deadline,
            },
            AskedKind::Question { questions } => ReplyKind::Question {
                id,
                questions,
                deadline,
            },
        }
    }

    fn send(&mut self, id: String, answer: Answer, is_question: bool) {
        let (client, directory) = (self.client, self.directory);
        let sending = Box::pin(async move {
            for attempt in 1..=ATTEMPTS_MAX {
                let sent = match is_question {
                    true => client.answer_question(&id, directory, &answer).await,
                    false => client.answer_permission(&id, directory, &answer).await,
                };
                match sent {
                    Ok(()) => return,
                    // Answered by somebody else, or its tool call is over.
                    Err(ClientError::Status { status: 404, .. }) => return,
                    Err(error) => tracing::debug!(attempt, %error, "an answer was not taken"),
                }
                tokio::time::sleep(ATTEMPT_PAUSE).await;
            }
        });
        match self.sending.len() < SENDING_MAX {
            true => self.sending.push(sending),
            false => self.unsent.push_back(sending),
        }
    }
}
