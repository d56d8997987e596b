//! One turn, as a sequence of replies.
//!
//! The blocking call that sends the message tells when the turn is over, which is right also where the agent takes several
//! steps, tries a model call again or shortens the conversation. The event stream brings what happens meanwhile; what it does
//! not bring is read from the transcript in the end. Reading order: this file has the control flow, `state` (with `text`,
//! `tool` and `held`) tells what is new, `feed` is the event stream, `asked` the requests for permission, `ending` the last reply.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use rollcage_model::live::{Answer, PermissionPolicy, Reply, ReplyKind};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::client::{Client, ClientError, Events, Health, NewSession, Prompt, SessionInfo, is_id};
use asked::{Desk, Rules};
use ending::Stop;
use feed::{Feed, FeedItem};
use state::{News, TurnState};

mod asked;
mod ending;
mod feed;
mod held;
mod state;
#[cfg(test)]
mod tests;
mod text;
mod tool;

/// How long a stopped turn may take to end.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// An abort that comes before the agent has begun stops nothing, so it is repeated.
const ABORT_AGAIN: Duration = Duration::from_millis(500);
/// For the transcript after the turn, which also the answer itself could replace.
const TRANSCRIPT_LIMIT: Duration = Duration::from_secs(10);
/// The server reports a failure in events shortly after it answers.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);
const POLL_PAUSE: Duration = Duration::from_millis(250);
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// So many unanswered probes in a row mean that the server is gone.
const PROBES_MAX: u32 = 3;
/// Longer limits are as good as this one.
const LIMIT_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// What to say, and how to go about it.
#[derive(Clone, Debug)]
pub struct TurnRequest {
    pub prompt: Prompt,
    /// The server's own work directory when not given.
    pub directory: Option<String>,
    /// Goes on with this session; a new one when not given.
    pub session: Option<String>,
    /// The title of a new session.
    pub title: String,
    pub trace_id: String,
    pub turn_id: String,
    /// The turn is aborted after it.
    pub limit: Duration,
    pub permissions: PermissionPolicy,
    /// How long a caller may take to answer a permission request or a question.
    pub answer_limit: Duration,
}

/// What a caller can do while a turn is in progress.
#[derive(Debug)]
pub struct TurnControls {
    pub abort: CancellationToken,
    /// Answers to permission requests and questions, by id.
    pub answers: mpsc::Receiver<(String, Answer)>,
}

/// Drives one turn to its end. Never fails otherwise than by its last reply, which is the only terminal one and is returned
/// too. The session that was used stands in it. Dropped, it closes its connections, and the agent goes on by itself.
pub async fn drive_turn(
    client: &Client,
    request: TurnRequest,
    controls: TurnControls,
    sink: &mut (dyn FnMut(Reply) + Send),
) -> Reply {
    let mut replies = Replies {
        trace_id: request.trace_id.clone(),
        turn_id: request.turn_id.clone(),
        session_id: request.session.clone().filter(|id| is_id(id)),
        seq: 0,
        sink,
    };
    let deadline = Instant::now() + request.limit.min(LIMIT_MAX);
    let full = CancellationToken::new();
    let stop = async {
        tokio::select! {
            biased;
            () = controls.abort.cancelled() => Stop::Aborted,
            () = full.cancelled() => Stop::TooMuch,
            () = sleep_until(deadline) => Stop::TimedOut(request.limit),
        }
    };
    let mut stop = pin!(stop);
    let end = match either(stop.as_mut(), prepare(client, &request)).await {
        Either::Left(stop) => ending::stopped(stop, None),
        Either::Right(Err(error)) => ending::refused(&error, None),
        Either::Right(Ok(prepared)) => {
            replies.session_id = Some(prepared.session.id.clone());
            let session = &prepared.session;
            let directory = session.directory.as_deref();
            let rules = Rules {
                policy: request.permissions,
                limit: request.answer_limit.min(LIMIT_MAX),
            };
            let mut turn = Turn {
                client,
                session,
                state: TurnState::new(&session.id, &request.prompt.text, prepared.before),
                feed: Feed::new(client, &session.id, directory, prepared.events),
                desk: Desk::new(client, directory, rules),
                answers: controls.answers,
                full: &full,
                replies: &mut replies,
            };
            turn.run(&request.prompt, stop).await
        }
    };
    replies.send(end)
}

/// Numbers the replies.
struct Replies<'a> {
    trace_id: String,
    turn_id: String,
    session_id: Option<String>,
    seq: u64,
    sink: &'a mut (dyn FnMut(Reply) + Send),
}

impl Replies<'_> {
    fn send(&mut self, kind: ReplyKind) -> Reply {
        self.seq += 1;
        let reply = Reply {
            trace_id: self.trace_id.clone(),
            seq: self.seq,
            turn_id: self.turn_id.clone(),
            session_id: self.session_id.clone(),
            kind,
        };
        (self.sink)(reply.clone());
        reply
    }
}

/// What must be there before the message is sent.
struct Prepared {
    session: SessionInfo,
    /// The session's newest message.
    before: Option<String>,
    events: Events,
}

async fn prepare(client: &Client, request: &TurnRequest) -> Result<Prepared, ClientError> {
    if request.session.as_deref().is_some_and(|id| !is_id(id)) {
        return Err(ClientError::Status {
            status: 404,
            message: Some("the session's id is none of this server's".to_owned()),
        });
    }
    let Some(id) = &request.session else {
        let new = NewSession {
            title: request.title.clone(),
            directory: request.directory.clone(),
        };
        let (session, events) = tokio::try_join!(
            client.open_session(&new),
            feed::open(client, request.directory.as_deref()),
        )?;
        return Ok(Prepared {
            session,
            before: None,
            events,
        });
    };
    // Its own directory counts, whatever the caller believes.
    let session = client.session(id).await?;
    let (newest, events) = tokio::try_join!(
        client.latest_messages(id, 1),
        feed::open(client, session.directory.as_deref()),
    )?;
    let newest = newest
        .last()
        .and_then(|newest| newest["info"]["id"].as_str());
    Ok(Prepared {
        session,
        before: newest.map(str::to_owned),
        events,
    })
}

/// A turn whose message is sent.
struct Turn<'a, 'b> {
    client: &'a Client,
    session: &'a SessionInfo,
    state: TurnState,
    feed: Feed<'a>,
    desk: Desk<'a>,
    answers: mpsc::Receiver<(String, Answer)>,
    /// Ends the turn when the agent says more than is kept of one.
    full: &'a CancellationToken,
    replies: &'a mut Replies<'b>,
}

impl Turn<'_, '_> {
    async fn run(
        &mut self,
        prompt: &Prompt,
        mut stop: Pin<&mut (impl Future<Output = Stop> + Send)>,
    ) -> ReplyKind {
        let (client, session) = (self.client, self.session);
        let mut call = pin!(client.message(&session.id, prompt));
        let ended = self.during(either(stop.as_mut(), call.as_mut())).await;
        match ended {
            Either::Left(stop) => self.stop(stop, call).await,
            Either::Right(Ok(answer)) => {
                self.conclude(&answer).await;
                ending::answered(&self.state)
            }
            Either::Right(Err(ClientError::Closed | ClientError::Unreachable(_))) => {
                let idle = until_idle(client, session);
                match self.during(either(stop, idle)).await {
                    Either::Left(stop) => self.stop(stop, std::future::pending()).await,
                    Either::Right(Server::Gone) => ending::crashed(),
                    Either::Right(Server::Idle) => self.recover().await,
                }
            }
            Either::Right(Err(error)) => {
                let _ = timeout(SETTLE_LIMIT, self.settle()).await;
                ending::refused(&error, Some(&self.state))
            }
        }
    }

    /// Has the agent stop, and waits for a while until it did.
    async fn stop(
        &mut self,
        stop: Stop,
        call: impl Future<Output = Result<Value, ClientError>>,
    ) -> ReplyKind {
        let (client, session) = (self.client, self.session);
        let aborting = async {
            loop {
                if let Err(error) = client.abort(&session.id).await {
                    tracing::debug!(%error, "the abort of a turn was not taken");
                }
                sleep(ABORT_AGAIN).await;
            }
        };
        let ended = timeout(STOP_GRACE, either::<(), _>(aborting, call));
        if let Ok(Either::Right(Ok(answer))) = self.during(ended).await {
            self.conclude(&answer).await;
        }
        ending::stopped(stop, Some(&self.state))
    }

    /// The end of a turn whose call broke, from the transcript of an idle server.
    async fn recover(&mut self) -> ReplyKind {
        match self.read_transcript().await {
            Ok(()) => ending::lost(&self.state),
            Err(_) => ending::crashed(),
        }
    }

    /// Passes on what the events did not bring.
    async fn conclude(&mut self, answer: &Value) {
        self.state.answered_by(answer);
        if let Err(error) = self.read_transcript().await {
            tracing::debug!(%error, "the transcript could not be read after the turn");
            let replies = self.state.transcript(std::slice::from_ref(answer));
            self.send_all(replies);
        }
    }

    async fn read_transcript(&mut self) -> Result<(), ClientError> {
        let (client, session) = (self.client, &self.session.id);
        let mut count = self.state.message_count() + 4;
        let read = async {
            loop {
                let messages = client.latest_messages(session, count).await?;
                if messages.len() < count || self.state.reaches_back(&messages) {
                    return Ok(messages);
                }
                count *= 4;
            }
        };
        let messages = match timeout(TRANSCRIPT_LIMIT, read).await {
            Ok(messages) => messages?,
            Err(_) => return Err(ClientError::Deadline(TRANSCRIPT_LIMIT)),
        };
        let replies = self.state.transcript(&messages);
        self.send_all(replies);
        Ok(())
    }

    async fn settle(&mut self) {
        while !(self.state.is_idle() && self.state.session_error().is_some()) {
            self.step().await;
        }
    }

    /// Passes on what happens until `work` is done.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.step() => {}
            }
        }
    }

    async fn step(&mut self) {
        tokio::select! {
            item = self.feed.next() => self.take(item),
            Some((id, answer)) = self.answers.recv() => self.desk.answer(id, answer),
            () = self.desk.work() => {}
        }
    }

    fn take(&mut self, item: FeedItem) {
        if self.state.is_full() {
            self.full.cancel();
        }
        match item {
            FeedItem::Event(event) => {
                if let Some(news) = self.state.event(&event) {
                    self.tell(news);
                }
            }
            FeedItem::Gap => self.state.gap(),
            FeedItem::Reopened(snapshot) => {
                let replies = self.state.transcript(&snapshot.messages);
                self.send_all(replies);
                let (permissions, questions) = (&snapshot.permissions, &snapshot.questions);
                let news = self
                    .state
                    .missed(snapshot.subagents, permissions, questions);
                news.into_iter().for_each(|news| self.tell(news));
            }
        }
    }

    fn tell(&mut self, news: News) {
        match news {
            News::Reply(reply) => self.send_all(vec![reply]),
            News::Asked(asked) => {
                let reply = self.desk.ask(asked);
                self.send_all(reply.into_iter().collect());
            }
            News::Settled(id) => self.desk.settle(&id),
        }
    }

    fn send_all(&mut self, replies: Vec<ReplyKind>) {
        for reply in replies {
            self.replies.send(reply);
        }
    }
}

/// What became of a server whose connection broke.
enum Server {
    Gone,
    /// It works on the session no more.
    Idle,
}

async fn until_idle(client: &Client, session: &SessionInfo) -> Server {
    let directory = session.directory.as_deref();
    let (mut failures, mut idle) = (0, 0);
    loop {
        match client.is_busy(&session.id, directory).await {
            Ok(true) => (failures, idle) = (0, 0),
            // Once may be before the server has taken the message up.
            Ok(false) if idle == 0 => idle += 1,
            Ok(false) => return Server::Idle,
            Err(_) => match client.health(PROBE_LIMIT).await {
                Health::Healthy { .. } => {}
                Health::Foreign | Health::Refused => return Server::Gone,
                Health::Silent => failures += 1,
            },
        }
        if failures >= PROBES_MAX {
            return Server::Gone;
        }
        sleep(POLL_PAUSE).await;
    }
}

enum Either<L, R> {
    Left(L),
    Right(R),
}

/// The first of two to be done; the left one if both are.
async fn either<L, R>(
    left: impl Future<Output = L>,
    right: impl Future<Output = R>,
) -> Either<L, R> {
    tokio::select! {
        biased;
        left = left => Either::Left(left),
        right = right => Either::Right(right),
    }
}
